"""Structured logs: one line per event, logfmt or JSON, on standard error.

Keys that clients chose are quoted, so that they can't forge a line; values never appear.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any


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
    """Send everything to standard error: `form` is "logfmt" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Logfmt())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("shardgate").setLevel(level.upper())


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
    part = record.name.removeprefix("shardgate.")
    fields = {"time": stamp, "level": record.levelname.lower(), "part": part, "event": record.getMessage()}
    fields |= getattr(record, "fields", {})
    if record.exc_info and record.exc_info[1] is not None:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return fields


class _Json(logging.Formatter):
    """An object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record), default=str)


class _Logfmt(logging.Formatter):
    """key=value per field."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(record).items())


def _quoted(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    plain = text and text.isprintable() and not any(char in text for char in ' "=')
    return text if plain else json.dumps(text)
