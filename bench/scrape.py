"""What etcd's own metrics say."""

from __future__ import annotations

import urllib.request


def reading(port: int, name: str, *labels: str) -> float:
    """The sum of a metric's samples that have all of these labels, as they are written; 0 where etcd has none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith((name + "{", name + " ")) and all(label in line for label in labels)
    )
