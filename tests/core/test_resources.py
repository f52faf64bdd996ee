"""Kubernetes' resources and the prefixes under which kube-apiserver stores them."""

import pytest

from gateway.core.overrides import Override, parse
from gateway.core.resources import STORED, UnknownResource, prefixes


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("/pods", "/registry/pods/"),
        ("pods", "/registry/pods/"),
        ("/nodes", "/registry/minions/"),
        ("/services", "/registry/services/specs/"),
        ("/endpoints", "/registry/services/endpoints/"),
        ("/replicationcontrollers", "/registry/controllers/"),
        ("networking.k8s.io/ingresses", "/registry/ingress/"),
        ("extensions/ingresses", "/registry/ingress/"),
        ("coordination.k8s.io/leases", "/registry/leases/"),
        ("Apps/Deployments", "/registry/deployments/"),
        ("events.k8s.io/events", "/registry/events/"),
        ("apiextensions.k8s.io/customresourcedefinitions", "/registry/apiextensions.k8s.io/customresourcedefinitions/"),
        ("apiregistration.k8s.io/apiservices", "/registry/apiregistration.k8s.io/apiservices/"),
        ("cilium.io/ciliumendpoints", "/registry/cilium.io/ciliumendpoints/"),
        ("crd.projectcalico.org/*", "/registry/crd.projectcalico.org/"),
        ("snapshot.storage.k8s.io/volumesnapshots", "/registry/snapshot.storage.k8s.io/volumesnapshots/"),
    ],
)
def test_prefix(name: str, prefix: str) -> None:
    assert prefixes(name) == (prefix,)


def test_a_whole_group() -> None:
    assert len(prefixes("apps/*")) == len(STORED["apps"]) == 5
    assert prefixes("/secrets", "/k8s") == ("/k8s/secrets/",)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("/pod", "pods"), ("apps/deployment", "deployments"), ("app/deployments", "apps"), ("a/b/c", "form"), ("", "form"),
        ("foo/bar", "unknown API group"), ("coordination.k8.io/leases", None), ("cordination.k8s.io/leases", "coordination.k8s.io"),
    ],
)  # fmt: skip
def test_unknown(name: str, hint: str | None) -> None:
    if hint is None:  # a domain of its own: some custom resource
        assert prefixes(name)
        return
    with pytest.raises(UnknownResource, match=hint):
        prefixes(name)


def test_overrides() -> None:
    found, wrong = parse("/events#http://a:1;http://b:1, apps/deployments#http://c:1")
    assert found == [Override("/events", ("http://a:1", "http://b:1")), Override("apps/deployments", ("http://c:1",))]
    assert not wrong


@pytest.mark.parametrize("text", ["", "events#http://a:1", "/events", "/events#", "/a/b#http://a:1", "/events#http://a:1#x", "/events#;"])
def test_bad_overrides(text: str) -> None:
    found, wrong = parse(text)
    assert not found
    assert len(wrong) == 1
