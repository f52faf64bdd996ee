"""Generates gateway/etcdpb's Python modules from its .proto files (`make proto`)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPILER = "grpcio-tools==1.71.*"  # its output runs with every protobuf from 5.29 on


def main() -> None:
    """The compiler goes into an environment of its own: its version is older than the tests' own."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = f"{folder}/bin/python"
        subprocess.run([python, "-m", "pip", "install", "-q", COMPILER, "setuptools<81"], check=True)
        files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("gateway/etcdpb/*.proto"))
        options = ["-I.", "--python_out=.", "--pyi_out=."]
        subprocess.run([python, "-m", "grpc_tools.protoc", *options, *files], cwd=ROOT, check=True)
    for path in ROOT.glob("gateway/etcdpb/*_pb2.py"):  # see gateway/etcdpb/pool.py
        path.write_text(path.read_text().replace("from google.protobuf import descriptor_pool ", "from gateway.etcdpb import pool "))
    for path in ROOT.glob("gateway/etcdpb/*_pb2.pyi"):
        path.write_text("# mypy: ignore-errors\n" + path.read_text())
    print(f"generated from {', '.join(files)}")


main()
