"""From Kubernetes' group/resource to the key prefix under which kube-apiserver stores it.

Sources: kubernetes pkg/kubeapiserver/default_storage_factory_builder.go (special prefixes, cohabitating resources),
staging/src/k8s.io/apiserver/pkg/server/storage/storage_factory.go (everything else is the lower-case plural),
apiextensions-apiserver's customresource_handler.go (custom resources: group/plural).
"""

from difflib import get_close_matches

_BUILT_IN = {
    "": "configmaps endpoints events limitranges namespaces nodes persistentvolumeclaims persistentvolumes pods podtemplates "
    "replicationcontrollers resourcequotas secrets serviceaccounts services",
    "admissionregistration.k8s.io": "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations "
    "validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations",
    "apps": "controllerrevisions daemonsets deployments replicasets statefulsets",
    "autoscaling": "horizontalpodautoscalers",
    "batch": "cronjobs jobs",
    "certificates.k8s.io": "certificatesigningrequests clustertrustbundles podcertificaterequests",
    "coordination.k8s.io": "leases leasecandidates",
    "discovery.k8s.io": "endpointslices",
    "events.k8s.io": "events",
    "extensions": "daemonsets deployments ingresses networkpolicies podsecuritypolicies replicasets",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
    "internal.apiserver.k8s.io": "storageversions",
    "networking.k8s.io": "ingressclasses ingresses ipaddresses networkpolicies servicecidrs",
    "node.k8s.io": "runtimeclasses",
    "policy": "poddisruptionbudgets podsecuritypolicies",
    "rbac.authorization.k8s.io": "clusterrolebindings clusterroles rolebindings roles",
    "resource.k8s.io": "deviceclasses devicetaintrules podschedulingcontexts resourceclaims resourceclaimtemplates resourceclasses "
    "resourceslices",
    "scheduling.k8s.io": "priorityclasses workloads",
    "storage.k8s.io": "csidrivers csinodes csistoragecapacities storageclasses volumeattachments volumeattributesclasses",
    "storagemigration.k8s.io": "storageversionmigrations",
}
BUILT_IN = {group: frozenset(names.split()) for group, names in _BUILT_IN.items()}
"""Stored resources by API group, of current and recent releases."""

_WITH_GROUP = {
    "apiextensions.k8s.io": frozenset(("customresourcedefinitions",)),
    "apiregistration.k8s.io": frozenset(("apiservices",)),
}
"""Built in, but stored like custom resources: under their group."""

_SPECIAL = {
    "nodes": "minions",
    "services": "services/specs",
    "endpoints": "services/endpoints",
    "replicationcontrollers": "controllers",
    "ingresses": "ingress",
    "podsecuritypolicies": "podsecuritypolicy",
}


class UnknownResource(ValueError):
    """The text says what is unknown and what may have been meant."""


def prefixes(name: str, registry: str = "/registry") -> tuple[str, ...]:
    """The prefixes of `group/resource`, `/resource` or `resource` (core group), `group/*`. Raises UnknownResource."""
    group, slash, resource = name.rpartition("/")
    group, resource = (group.lower(), resource.lower()) if slash else ("", name.lower())
    if not resource or "/" in group:
        raise UnknownResource(f"{name!r} is not of the form group/resource (core group: /resource)")
    if group not in BUILT_IN and group not in _WITH_GROUP:
        return (_custom(name, group, resource, registry),)
    known = BUILT_IN.get(group) or _WITH_GROUP[group]
    if resource == "*":
        return tuple(_built_in(group, each, registry) for each in sorted(known))
    if resource not in known:
        raise UnknownResource(f"API group {group or 'core'!r} has no stored resource {resource!r}{_hint(resource, known)}")
    return (_built_in(group, resource, registry),)


def _built_in(group: str, resource: str, registry: str) -> str:
    if group in _WITH_GROUP:
        return f"{registry}/{group}/{resource}/"
    return f"{registry}/{_SPECIAL.get(resource, resource)}/"


def _custom(name: str, group: str, resource: str, registry: str) -> str:
    """A custom resource's group is a domain name."""
    if "." not in group:
        raise UnknownResource(f"unknown API group {group!r} in {name!r}{_hint(group, BUILT_IN)}")
    if group.endswith(".k8s.io") and (close := get_close_matches(group, BUILT_IN, 1, 0.9)):
        raise UnknownResource(f"unknown API group {group!r} in {name!r}; did you mean {close[0]!r}?")
    return f"{registry}/{group}/" if resource == "*" else f"{registry}/{group}/{resource}/"


def _hint(word: str, known: "frozenset[str] | dict[str, frozenset[str]]") -> str:
    close = get_close_matches(word, known, 3)
    return f"; did you mean {' or '.join(repr(each) for each in close)}?" if close else ""
