"""kube-apiserver's --etcd-servers-overrides."""

import pytest

from gateway.core.overrides import Override, parse


def test_the_whole_string() -> None:
    text = "/events#https://e0:2379;https://e1:2379,coordination.k8s.io/leases#http://l:2379 , apps/*#http://a:2379;"
    assert parse(text) == (
        [
            Override("/events", ("https://e0:2379", "https://e1:2379")),
            Override("coordination.k8s.io/leases", ("http://l:2379",)),
            Override("apps/*", ("http://a:2379",)),
        ],
        [],
    )


@pytest.mark.parametrize("entry", ["", "/events", "/events/http://e", "events#http://e", "a/b/c#http://e", "/events#", "/events#a#b"])
def test_an_entry_that_is_none_is_told_and_the_others_are_kept(entry: str) -> None:
    found, problems = parse(f"/events#http://e:2379,{entry}")
    assert found == [Override("/events", ("http://e:2379",))]
    assert problems == [f"{entry!r} is not of the form group/resource#url;url (core group: /resource#url)"]
