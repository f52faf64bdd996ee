"""Where kube-apiserver stores what: the folders below /registry that Kubernetes' own storage test expects."""

import re

import pytest

from gateway.core.resources import STORED, UnknownResource, prefixes

SAME = {
    "": "configmaps events limitranges namespaces persistentvolumeclaims persistentvolumes pods podtemplates resourcequotas secrets "
    "serviceaccounts",
    "admissionregistration.k8s.io": "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations "
    "validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations",
    "apps": "controllerrevisions daemonsets deployments replicasets statefulsets",
    "autoscaling": "horizontalpodautoscalers",
    "batch": "cronjobs jobs",
    "certificates.k8s.io": "certificatesigningrequests clustertrustbundles podcertificaterequests",
    "coordination.k8s.io": "leasecandidates leases",
    "discovery.k8s.io": "endpointslices",
    "events.k8s.io": "events",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
    "internal.apiserver.k8s.io": "storageversions",
    "networking.k8s.io": "ingressclasses ipaddresses networkpolicies servicecidrs",
    "node.k8s.io": "runtimeclasses",
    "policy": "poddisruptionbudgets",
    "rbac.authorization.k8s.io": "clusterrolebindings clusterroles rolebindings roles",
    "resource.k8s.io": "deviceclasses devicetaintrules resourceclaims resourceclaimtemplates resourcepoolstatusrequests resourceslices",
    "scheduling.k8s.io": "podgroups priorityclasses workloads",
    "storage.k8s.io": "csidrivers csinodes csistoragecapacities storageclasses volumeattachments volumeattributesclasses",
    "storagemigration.k8s.io": "storageversionmigrations",
}
"""Resources of Kubernetes 1.36 that are stored under their own name."""

OTHER = {
    "/nodes": "minions",
    "/services": "services/specs",
    "/endpoints": "services/endpoints",
    "/replicationcontrollers": "controllers",
    "networking.k8s.io/ingresses": "ingress",
    "apiregistration.k8s.io/apiservices": "apiregistration.k8s.io/apiservices",
    "apiextensions.k8s.io/customresourcedefinitions": "apiextensions.k8s.io/customresourcedefinitions",
}
"""Those that are not."""

REMOVED = {
    "auditregistration.k8s.io/auditsinks": "auditsinks",
    "policy/podsecuritypolicies": "podsecuritypolicy",
    "settings.k8s.io/podpresets": "podpresets",
    "resource.k8s.io/podschedulingcontexts": "podschedulingcontexts",
    "resource.k8s.io/resourceclasses": "resourceclasses",
    "resource.k8s.io/resourceclassparameters": "resourceclassparameters",
    "resource.k8s.io/resourceclaimparameters": "resourceclaimparameters",
}
"""Those of older releases."""

ALIASES = {
    "extensions/networkpolicies": "networking.k8s.io/networkpolicies",
    "extensions/deployments": "apps/deployments",
    "extensions/daemonsets": "apps/daemonsets",
    "extensions/replicasets": "apps/replicasets",
    "extensions/ingresses": "networking.k8s.io/ingresses",
    "extensions/replicationcontrollers": "/replicationcontrollers",
    "extensions/podsecuritypolicies": "policy/podsecuritypolicies",
    "events.k8s.io/events": "/events",
}

FOLDERS = {f"{group}/{name}": name for group, names in SAME.items() for name in names.split()} | OTHER | REMOVED


@pytest.mark.parametrize("name", FOLDERS)
def test_where_kube_apiserver_stores_it(name: str) -> None:
    assert prefixes(name)[0] == f"/registry/{FOLDERS[name]}/"


def test_nothing_is_known_that_was_not_looked_up() -> None:
    assert {f"{group}/{resource}" for group, resources in STORED.items() for resource in resources} == {*FOLDERS, *ALIASES}


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_is_its_storage_resource(alias: str) -> None:
    assert prefixes(alias) == prefixes(ALIASES[alias])


def test_services_bring_the_allocated_addresses_and_ports() -> None:
    assert prefixes("/services") == ("/registry/services/specs/", "/registry/ranges/")


def test_a_whole_built_in_group() -> None:
    assert prefixes("batch/*") == ("/registry/cronjobs/", "/registry/jobs/")
    assert prefixes("apiextensions.k8s.io/*") == ("/registry/apiextensions.k8s.io/customresourcedefinitions/",)
    core = prefixes("/*")
    assert {f"/registry/{name}/" for name in ("pods", "minions", "ranges", "masterleases", "peerserverleases")} < set(core)
    assert "/registry/leases/" not in core


def test_custom_resources() -> None:
    assert prefixes("cilium.io/ciliumendpoints") == ("/registry/cilium.io/ciliumendpoints/",)
    assert prefixes("crd.projectcalico.org/*") == ("/registry/crd.projectcalico.org/",)
    assert prefixes("snapshot.storage.k8s.io/volumesnapshots") == ("/registry/snapshot.storage.k8s.io/volumesnapshots/",)
    assert prefixes("gateway.networking.k8s.io/gateways") == ("/registry/gateway.networking.k8s.io/gateways/",)


def test_other_forms() -> None:
    assert prefixes("pods") == prefixes("/pods") == prefixes("/Pods")
    assert prefixes("/pods", "/other/place") == ("/other/place/pods/",)
    assert prefixes("/pods", "") == ("/pods/",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "not of the form group/resource"),
        ("/", "not of the form group/resource"),
        ("apps/", "not of the form group/resource"),
        ("a/b/c", "not of the form group/resource"),
        ("/eventz", "did you mean 'events'?"),
        ("/bindings", "the core API group has no stored resource 'bindings'"),
        ("leases", "did you mean 'coordination.k8s.io/leases'?"),
        ("apps/deployment", "API group apps has no stored resource 'deployment'; did you mean 'deployments'?"),
        ("apps/cronjobs", "did you mean 'batch/cronjobs'?"),
        ("networking.k8s.io/ingres", "did you mean 'ingresses'"),
        ("aps/deployments", "unknown API group 'aps' in 'aps/deployments'; did you mean 'apps'?"),
        ("quux/things", "unknown API group 'quux'"),
        ("cordination.k8s.io/leases", "did you mean 'coordination.k8s.io'?"),
        ("authentication.k8s.io/tokenreviews", "no stored resource 'tokenreviews'"),
        ("authorization.k8s.io/*", "no stored resource '*'"),
        ("cilium.io/endpoints#", "is no custom resource: its group is a domain name"),
        ("cilium .io/endpoints", "is no custom resource: its group is a domain name"),
        (".io/endpoints", "is no custom resource: its group is a domain name"),
    ],
)
def test_an_unknown_name_is_an_error_with_a_hint(name: str, text: str) -> None:
    with pytest.raises(UnknownResource, match=re.escape(text)):
        prefixes(name)
