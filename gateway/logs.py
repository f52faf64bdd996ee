"""Structured logs: one line per event, logfmt or JSON, on standard error.

Keys that clients chose are quoted, so that they can't forge a line; values never appear. What happens again and again is told a few
times only.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

BURST = 20
PERIOD = 10.0
"""Of one event BURST lines are written in PERIOD seconds."""

MAX_EVENTS = 1_000
"""Events that are told apart for that."""

MAX_TEXT = 1_000
"""Characters of one field."""


class Log:
    """Events of one part of the gateway: `log.info("listening", address=…)`."""

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"shardgate.{part}")

    def debug(self, event: str, **fields: Any) -> None:
        """For developers."""
        self._logger.debug(event, extra={"fields": fields})

    def info(self, event: str, **fields: Any) -> None:
        """What an operator may want to know later."""
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: Any) -> None:
        """What an operator should look at."""
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, error: BaseException | None = None, **fields: Any) -> None:
        """What an operator has to mend; with a traceback where there is an exception."""
        self._logger.error(event, extra={"fields": fields}, exc_info=error)


def logger(part: str) -> Log:
    """The log of one part."""
    return Log(part)


def setup(level: str, form: str) -> None:
    """Send everything to standard error: `form` is "logfmt" or "json"; `level` is for the gateway, of others only warnings show."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Logfmt())
    handler.addFilter(_Repeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("shardgate").setLevel(level.upper())
    logging.captureWarnings(True)


class _Repeats(logging.Filter):
    """At most BURST lines in PERIOD seconds that tell the same event of the same cluster and endpoint, debugging apart. The first one after
    that says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[Any, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        fields = getattr(record, "fields", {})
        key = record.name, record.msg, fields.get("cluster"), fields.get("endpoint")
        since, count = self._seen.get(key, (0.0, 0))
        if 0 <= record.created - since < PERIOD:
            self._seen[key] = since, count + 1
            return count < BURST
        if len(self._seen) >= MAX_EVENTS:
            self._seen.clear()
        self._seen[key] = record.created, 1
        if count > BURST:
            record.left_out = count - BURST
        return True


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
    part = record.name.removeprefix("shardgate.")
    fields = {"time": stamp, "level": record.levelname.lower(), "part": part, "event": _bounded(record.getMessage())}
    fields |= {key: _bounded(value) for key, value in getattr(record, "fields", {}).items() if value is not None}
    if hasattr(record, "left_out"):
        fields["left_out"] = record.left_out
    if record.exc_info and record.exc_info[1] is not None:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _bounded(value: Any) -> Any:
    """Numbers as they are, all else as a text that is not too long."""
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}")
    text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


class _Json(logging.Formatter):
    """An object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record))


class _Logfmt(logging.Formatter):
    """key=value per field."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record).items())


def _quoted(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    plain = text and text.isprintable() and not any(char in text for char in ' "=')
    return text if plain else json.dumps(text)
