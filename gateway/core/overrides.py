"""kube-apiserver's --etcd-servers-overrides: `group/resource#url;url,group/resource#url …`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Override:
    """One entry: the resource as written (`group/resource`, core group `/resource`), and its servers."""

    resource: str
    servers: tuple[str, ...]


def parse(text: str) -> tuple[list[Override], list[str]]:
    """The entries, and what is wrong with those that are none."""
    found: list[Override] = []
    problems: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        resource, hash_sign, servers = entry.partition("#")
        urls = tuple(url.strip() for url in servers.split(";") if url.strip())
        if not hash_sign or servers.count("#") or resource.count("/") != 1 or not urls:
            problems.append(f"{entry!r} is not of the form group/resource#url;url (core group: /resource#url)")
        else:
            found.append(Override(resource, urls))
    return found, problems
