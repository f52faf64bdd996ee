"""docs/dependencies.md gives a reason for every dependency, with the range that pyproject.toml has."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]


def declared() -> dict[str, str]:
    """Range by package, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    each = chain(project["dependencies"], *project["optional-dependencies"].values())
    return dict(re.fullmatch(r"([\w-]+)(.*)", requirement).groups() for requirement in each)  # type: ignore[union-attr]


def documented() -> dict[str, str]:
    """The same from the tables: packages and ranges of a row belong together in order; one range is all packages'."""
    found: dict[str, str] = {}
    for row in re.findall(r"^\| ([a-z].*?) \| (.*?) \| .+\|$", (ROOT / "docs" / "dependencies.md").read_text(), re.M | re.I):
        names, ranges = row[0].split(", "), row[1].split("; ")
        found |= dict(zip(names, ranges if len(ranges) > 1 else ranges * len(names), strict=True))
    found.pop("package")
    return found


def test_every_dependency_has_its_reason() -> None:
    assert documented() == declared()
