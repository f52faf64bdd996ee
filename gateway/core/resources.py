"""From Kubernetes' group/resource to the key prefixes under which kube-apiserver stores it.

Sources, all in kubernetes/kubernetes: pkg/kubeapiserver/default_storage_factory_builder.go (special prefixes, cohabitating
resources), test/integration/etcd/data.go (the key of every stored resource, custom ones too), pkg/registry/core/rest and
pkg/controlplane (what is stored beside resources).
"""

import re
from difflib import get_close_matches

_BUILT_IN = {
    "": "configmaps endpoints events limitranges namespaces nodes persistentvolumeclaims persistentvolumes pods podtemplates "
    "replicationcontrollers resourcequotas secrets serviceaccounts services",
    "admissionregistration.k8s.io": "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations "
    "validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations",
    "apps": "controllerrevisions daemonsets deployments replicasets statefulsets",
    "auditregistration.k8s.io": "auditsinks",
    "authentication.k8s.io": "",
    "authorization.k8s.io": "",
    "autoscaling": "horizontalpodautoscalers",
    "batch": "cronjobs jobs",
    "certificates.k8s.io": "certificatesigningrequests clustertrustbundles podcertificaterequests",
    "coordination.k8s.io": "leases leasecandidates",
    "discovery.k8s.io": "endpointslices",
    "events.k8s.io": "events",
    "extensions": "daemonsets deployments ingresses networkpolicies podsecuritypolicies replicasets replicationcontrollers",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
    "internal.apiserver.k8s.io": "storageversions",
    "networking.k8s.io": "ingressclasses ingresses ipaddresses networkpolicies servicecidrs",
    "node.k8s.io": "runtimeclasses",
    "policy": "poddisruptionbudgets podsecuritypolicies",
    "rbac.authorization.k8s.io": "clusterrolebindings clusterroles rolebindings roles",
    "resource.k8s.io": "deviceclasses devicetaintrules podschedulingcontexts resourceclaimparameters resourceclaims resourceclaimtemplates "
    "resourceclasses resourceclassparameters resourcepoolstatusrequests resourceslices",
    "scheduling.k8s.io": "podgroups priorityclasses workloads",
    "settings.k8s.io": "podpresets",
    "storage.k8s.io": "csidrivers csinodes csistoragecapacities storageclasses volumeattachments volumeattributesclasses",
    "storagemigration.k8s.io": "storageversionmigrations",
}

_WITH_GROUP = {"apiextensions.k8s.io": "customresourcedefinitions", "apiregistration.k8s.io": "apiservices"}
"""Built in, but stored as custom resources are: under their group."""

STORED = {group: frozenset(names.split()) for group, names in (_BUILT_IN | _WITH_GROUP).items()}
"""Stored resources by built-in API group, from Kubernetes 1.14 to 1.36."""

_FOLDERS = {
    "nodes": ("minions",),
    "services": ("services/specs", "ranges"),  # the allocated addresses and ports are stored by the settings of services
    "endpoints": ("services/endpoints",),
    "replicationcontrollers": ("controllers",),
    "ingresses": ("ingress",),
    "podsecuritypolicies": ("podsecuritypolicy",),
}
"""Where built-in resources are stored that are not stored under their name."""

_BESIDE = {"": ("masterleases", "peerserverleases")}
"""What a group has beside its resources: only `group/*` means it."""

_GROUP = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_PLURAL = re.compile(r"\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class UnknownResource(ValueError):
    """The text says what is unknown and what may have been meant."""


def prefixes(name: str, registry: str = "/registry") -> tuple[str, ...]:
    """The prefixes of `group/resource`, `/resource` or `resource` (core group), `group/*`. Raises UnknownResource."""
    group, _, resource = name.lower().rpartition("/")
    if not resource or "/" in group:
        raise UnknownResource(f"{name!r} is not of the form group/resource (core group: /resource)")
    if group not in STORED:
        return (_custom(name, group, resource, registry),)
    known = STORED[group]
    if not known or (resource != "*" and resource not in known):
        where = f"API group {group}" if group else "the core API group"
        raise UnknownResource(f"{where} has no stored resource {resource!r}{_meant(resource, group)}")
    names = (resource,) if resource != "*" else (*sorted(known), *_BESIDE.get(group, ()))
    return tuple(f"{registry}/{folder}/" for each in names for folder in _folders(group, each))


def _folders(group: str, resource: str) -> tuple[str, ...]:
    return (f"{group}/{resource}",) if group in _WITH_GROUP else _FOLDERS.get(resource, (resource,))


def _custom(name: str, group: str, resource: str, registry: str) -> str:
    """A custom resource's group is a domain name. All of its group lies under one prefix."""
    close = get_close_matches(group, STORED, 1, 0.9 if group.endswith(".k8s.io") else 0.6)
    if "." not in group or (group.endswith(".k8s.io") and close):
        raise UnknownResource(f"unknown API group {group!r} in {name!r}{_hint(close)}")
    if not _GROUP.fullmatch(group) or not _PLURAL.fullmatch(resource):
        raise UnknownResource(f"{name!r} is no custom resource: its group is a domain name, the rest its lower-case plural")
    return f"{registry}/{group}/" if resource == "*" else f"{registry}/{group}/{resource}/"


def _meant(resource: str, group: str) -> str:
    """The same name in another group, else a similar one in this group."""
    elsewhere = [f"{other}/{resource}" for other, known in STORED.items() if resource in known]
    return _hint(elsewhere or get_close_matches(resource, STORED[group], 3))


def _hint(names: list[str]) -> str:
    return f"; did you mean {' or '.join(repr(each) for each in names)}?" if names else ""
