"""A YAML text: its values, and the line of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml


class NotADocument(Exception):
    """The text is no YAML mapping; the message says where and why."""


@dataclass(frozen=True)
class Document:
    """`lines` has the line number of each YAML path (`listeners[0].address`), `twice` the paths of keys that stand there twice."""

    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Document:
        """Raises NotADocument."""
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
            values = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
            raise NotADocument(f"not YAML: {' '.join(str(error).split())}") from None
        except RecursionError:
            raise NotADocument("nested too deeply") from None
        if not isinstance(values, dict) or not isinstance(root, yaml.MappingNode):
            raise NotADocument("the file is no mapping; it needs `listeners`, `clusters` and `routes`")
        found = cls(values)
        for path, line in _places(root, "", set()):
            if path in found.lines:
                found.twice.append(path)
            found.lines[path] = line
        return found

    def line(self, path: str) -> int | None:
        """The line of the nearest thing that has one."""
        while path and path not in self.lines:
            path = re.sub(r"(^|\.)[^.\[\]]*$|\[\d+\]$", "", path)
        return self.lines.get(path)


def _places(node: yaml.Node, path: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Paths and line numbers. What an alias repeats is walked over once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = f"{path}.{key.value}" if path else str(key.value)
            yield inner, key.start_mark.line + 1
            yield from _places(value, inner, seen)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield f"{path}[{number}]", value.start_mark.line + 1
            yield from _places(value, f"{path}[{number}]", seen)
