"""Foreign HTTP/2 clients: h2load, nghttp, and h2spec's suite of odd ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.wire.connection import Limits
from gateway.wire.grpc import frame_message
from tests.etcd import ROOT
from tests.wire.echo import EchoSite, serving

H2SPEC = os.environ.get("SHARDGATE_H2SPEC") or shutil.which("h2spec") or str(ROOT / ".cache/bin/h2spec")

needs_nghttp2 = pytest.mark.skipif(
    not (shutil.which("h2load") and shutil.which("nghttp")), reason="NO h2load and nghttp here: `make setup` installs nghttp2-client"
)
needs_h2spec = pytest.mark.skipif(not os.access(H2SPEC, os.X_OK), reason="NO h2spec here: `make setup` builds it where Go is")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


@needs_nghttp2
@pytest.mark.parametrize("window", ["16", "30"])
def test_h2load(tmp_path: Path, window: str) -> None:
    request = tmp_path / "request"
    request.write_bytes(frame_message(b"x" * 500))
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    with serving(EchoSite()) as site:
        out = run("h2load", "-n5000", "-c4", "-m16", "-w", window, "-W", window, "-d", str(request), *headers,
                  f"http://127.0.0.1:{site.port}/echo/Unary")  # fmt: skip
        assert "5000 succeeded, 0 failed, 0 errored, 0 timeout" in out, out
        assert "5000 2xx" in out
        assert site.verdicts == []


@needs_nghttp2
@pytest.mark.parametrize(
    "options",
    [(), ("--padding=200",), ("-w4", "-W4"), ("--no-dep",), ("--header-table-size=0",), ("--continuation",), ("--trailer=x: y",)],
)
def test_nghttp(tmp_path: Path, options: tuple[str, ...]) -> None:
    message = frame_message(os.urandom(100_000))
    assert nghttp(tmp_path, message, *options) == message
    assert len(nghttp(tmp_path, message, "-m5", *options)) == 5 * len(message)


def nghttp(directory: Path, request: bytes, *options: str) -> bytes:
    """What nghttp gets for the request."""
    (directory / "request").write_bytes(request)
    fixed = ["-d", str(directory / "request"), "-H", "content-type: application/grpc", "-H", "te: trailers"]
    with serving(EchoSite()) as site:
        done = subprocess.run(["nghttp", *options, *fixed, f"http://127.0.0.1:{site.port}/echo/Unary"], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert site.verdicts == []
    return done.stdout


@needs_h2spec
def test_h2spec() -> None:
    """Its server answers with pages, as h2spec expects, and takes few streams, so that the limit is reached."""
    with serving(EchoSite(Limits(max_streams=50), strict=False)) as site:
        out = run(H2SPEC, "-h", "127.0.0.1", "-p", str(site.port), "-o", "3")
    assert re.search(r"\b0 skipped, 0 failed", out), out[-6000:]
