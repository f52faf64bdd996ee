"""The house rules that a program can check: which way imports point, what the sans-IO rooms may not have, and how long things get."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "gateway").rglob("*.py")) if not path.stem.endswith("_pb2")}

MAY_IMPORT = {
    "etcdpb": set(),
    "core": {"etcdpb"},
    "wire": {"core", "etcdpb"},
    "upstream": {"core", "wire", "etcdpb"},
    "discovery": {"core", "wire", "etcdpb"},
    "services": {"upstream", "core", "wire", "etcdpb"},
    "listeners": {"services", "upstream", "core", "wire", "etcdpb", "metrics", "logs"},
    "metrics": {"core", "etcdpb"},
    "logs": set(),
    "memory": set(),
    "config": {"core"},
    "observe": {"listeners", "services", "upstream", "core", "etcdpb", "metrics", "logs"},
    "observe_cache": {"upstream", "metrics"},
    "server": {
        "config", "memory", "observe", "observe_cache", "metrics", "logs", "discovery", "listeners", "services", "upstream", "core", "wire",
        "etcdpb",
    },
    "tour": {"config", "core"},
    "demo": {"config", "tour"},
    "cli": {"config", "core", "demo", "server"},
    "__main__": {"cli"},
    "__init__": set(),
}
"""Of each room (a folder, or a module beside the folders) those that it may know; its own always."""

SANS_IO = ("core", "wire")
IO = {
    "asyncio", "socket", "ssl", "select", "selectors", "threading", "subprocess", "time", "datetime", "logging", "random", "secrets", "os",
    "io", "uvloop", "aiohttp", "prometheus_client", "http", "requests",
}  # fmt: skip

LONGEST_FILE = 400
LONGEST_FUNCTION = 60


def room(path: Path) -> str:
    """The folder below gateway/, or the module's own name."""
    return path.relative_to(ROOT / "gateway").parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Full names of all imported modules, those for type checking included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of code: the docstring does not count."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or node.lineno) - (body[0].lineno if body else node.lineno) + 1


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


@each_file
def test_imports_point_one_way(path: Path) -> None:
    own = room(path)
    rooms = {parts[1] for name in imports(FILES[path]) if (parts := name.split("."))[0] == "gateway" and len(parts) > 1}
    assert rooms - {own} <= MAY_IMPORT[own]


@pytest.mark.parametrize("path", [path for path in FILES if room(path) in SANS_IO], ids=lambda path: str(path.relative_to(ROOT)))
def test_sans_io(path: Path) -> None:
    tree = FILES[path]
    assert {name.split(".")[0] for name in imports(tree)} & IO == set()
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)] == []
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in ("print", "open", "input")] == []


@each_file
def test_everything_is_named_by_a_docstring(path: Path) -> None:
    tree = FILES[path]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [getattr(node, "name", "the module") for node in (tree, *classes) if not ast.get_docstring(node)] == []


@each_file
def test_measures(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
    assert {node.name: lines(node) for node in functions(FILES[path]) if lines(node) > LONGEST_FUNCTION} == {}


def test_most_functions_are_short() -> None:
    lengths = sorted(lines(node) for tree in FILES.values() for node in functions(tree))
    assert lengths[len(lengths) // 2] <= 10
    assert sum(length <= 40 for length in lengths) / len(lengths) > 0.97


def test_every_room_has_a_rule() -> None:
    assert {room(path) for path in FILES} == set(MAY_IMPORT)
