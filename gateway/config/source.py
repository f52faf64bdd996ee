"""Where a configuration comes from: a YAML file, or the flags of a kube-apiserver. All that is wrong is told at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.config.document import Document, NotADocument
from gateway.config.models import Config
from gateway.config.parts import M, Parts, Problem
from gateway.config.problems import of_default, of_sense, of_shape

_FLAGS = {
    "clusters[0].endpoints": "--etcd-servers",
    "clusters[0]": "--etcd-servers",
    "overrides": "--etcd-servers-overrides",
    "registry_prefix": "--etcd-prefix",
    "listeners[0].address": "--listen",
    "admin.address": "--admin",
}


class ConfigError(Exception):
    """`problems`: one line each, with the YAML path or the flag."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(source, problems)
        self.source = source
        self.problems = problems

    def __str__(self) -> str:
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        return "\n".join((f"{self.source}: {count}", *(f"  {problem}" for problem in self.problems)))


def load(path: str | Path) -> Config:
    """The configuration in a file. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(str(path), [f"can't read the file: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [f"can't read the file: byte {error.start} is no UTF-8"]) from None
    return parse(text, str(path))


def parse(text: str, source: str = "config") -> Config:
    """The configuration in a YAML text. Raises ConfigError."""
    try:
        document = Document.parse(text)
    except NotADocument as error:
        raise ConfigError(source, [str(error)]) from None
    config, problems = _checked(document.values)
    problems += [(path, "the key stands here twice; remove one") for path in document.twice]
    if config is None or problems:
        ordered = sorted((document.line(path) or 0, path, text) for path, text in problems)
        raise ConfigError(source, [f"{path}: {text}" + (f" (line {line})" if line else "") for line, path, text in ordered])
    return config


def from_flags(servers: str, overrides: str, listen: str, admin: str | None = None, prefix: str = "/registry") -> Config:
    """What kube-apiserver's own --etcd-servers, --etcd-servers-overrides and --etcd-prefix mean. Raises ConfigError."""
    values: dict[str, Any] = {
        "listeners": [{"name": "clients", "address": listen}],
        "clusters": [{"name": "main", "endpoints": [each.strip() for each in servers.split(",") if each.strip()]}],
        "routes": [{"prefix": "", "cluster": "main"}],
        "overrides": overrides,
        "registry_prefix": prefix,
    }
    if admin:
        values["admin"] = {"address": admin}
    config, problems = _checked(values)
    if config is None or problems:
        raise ConfigError("flags", [_in_flags(f"{path}: {text}") for path, text in problems])
    return config


def _in_flags(problem: str) -> str:
    """With flags in place of YAML paths."""
    for place, flag in _FLAGS.items():
        problem = re.sub(rf"(?<![\w.-]){re.escape(place)}(\[\d+\])?", flag, problem)
    return problem


def _checked(values: dict[str, Any]) -> tuple[Config | None, list[Problem]]:
    """The configuration, None if it has not even the shape of one, and what is wrong with it."""
    parts = Parts.of(values)
    text = values.get("overrides")
    problems = [*parts.override(text if isinstance(text, str) else ""), *of_sense(parts)]
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        return None, [of_shape(each) for each in error.errors()] + problems
    whole = config.model_copy(update={"clusters": _models(parts.clusters), "routes": _models(parts.routes)})
    return whole, [*problems, *of_default(whole)]


def _models(placed: Iterable[tuple[str, M]]) -> tuple[M, ...]:
    return tuple(model for _, model in placed)
