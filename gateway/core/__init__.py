"""Decisions without I/O: routing, planning, the cache's data structures."""
