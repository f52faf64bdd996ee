"""Reads that are all the same, by nghttp2's h2load: a program in C, and not ours."""

from __future__ import annotations

import re
import resource
import subprocess
from pathlib import Path

from bench.percentiles import percentiles
from bench.requests import READS, message


class LoadFailed(Exception):
    """The load program did not run; the text is what it said."""


def h2load(
    binary: str, port: int, work: str, connections: int, lanes: int, seconds: float, reply_bytes: int, folder: Path
) -> dict[str, object]:
    """One run, with the result that bench.load gives. h2load doesn't see gRPC's status, which is in the trailers: all replies are good when
    their number times `reply_bytes` (of one reply's message) is what was received, give or take the unfinished ones."""
    body, log = folder / "request", folder / "latencies"
    body.write_bytes(message(READS[work]))
    log.unlink(missing_ok=True)
    command = [
        binary, f"-c{connections}", f"-m{lanes}", f"-D{round(seconds * 1000)}ms", f"--log-file={log}", f"-d{body}",
        "-Hcontent-type: application/grpc", "-Hte: trailers", f"http://127.0.0.1:{port}/etcdserverpb.KV/Range",
    ]  # fmt: skip
    cpu = _children_cpu()
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    if done.returncode != 0:
        raise LoadFailed(done.stderr or done.stdout)
    figures = result(done.stdout, log.read_text(), connections * lanes, seconds, reply_bytes)
    return figures | {"load_cpu": round(_children_cpu() - cpu, 3)}


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def result(output: str, log: str, in_flight: int, seconds: float, reply_bytes: int) -> dict[str, object]:
    """The figures out of h2load's text and its log of latencies (in microseconds, third column)."""
    calls, failed, errored = (_number(rf"(\d+) {word}", output) for word in ("succeeded", "failed", "errored"))
    data = _number(r"\((\d+)\) data", output)
    errors, error = failed + errored, f"h2load: {failed} failed, {errored} errored"
    if not calls * reply_bytes <= data <= (calls + in_flight) * reply_bytes:
        errors, error = max(1, calls - data // reply_bytes), f"{calls} replies have {data} bytes, {reply_bytes} each are due"
    p50, p99 = percentiles([int(line.split("\t")[2]) for line in log.splitlines()], 0.50, 0.99)
    return {
        "calls": calls,
        "seconds": seconds,
        "errors": errors,
        "error": error if errors else "",
        "p50_ms": p50 / 1000,
        "p99_ms": p99 / 1000,
    }


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    if match is None:
        raise LoadFailed(f"h2load's output has no {pattern}:\n{text}")
    return int(match[1])
