"""Gives freed memory back to the system: glibc keeps free pages that lie between used ones until it is asked."""

from __future__ import annotations

import asyncio
import ctypes

EVERY = 20.0
"""Seconds between two times."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


async def trim() -> None:
    """Now and then, for ever. In a thread, without the interpreter's lock: walking the heap takes milliseconds."""
    loop = asyncio.get_running_loop()
    while _trim is not None:
        await loop.run_in_executor(None, _trim, 0)
        await asyncio.sleep(EVERY)
