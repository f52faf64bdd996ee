"""What aiohttp logs by itself."""

import logging

from aiohttp.http import HttpProcessingError


def logger() -> logging.Logger:
    """aiohttp's, but without a traceback for each client that speaks no HTTP."""
    found = logging.getLogger("shardgate.http")
    if not found.filters:
        found.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
    return found
