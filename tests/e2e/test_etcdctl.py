"""etcdctl prints the same through the gateway as from etcd itself; over several clusters it says what can't be done."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.etcd import BINARIES, EtcdCluster, cluster, etcdctl, minor
from tests.gateway_process import GatewayProcess, gateway

SECONDS = 30.0
WITH_CTL = [version for version in BINARIES if etcdctl(version) is not None]
if not WITH_CTL:
    pytest.skip("no etcdctl on this machine", allow_module_level=True)

DIFFERS = (
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\"?(cluster_id|member_id|raft_term|leader|raftIndex|raftTerm|raftAppliedIndex|dbSize\w*|ID|id|hash|lease|ttl)\"?: ?\d+", r"\1: N"),
    (r"(ClusterID|MemberID|Raft\w+|ID|Leader|DBSize\w*|Hash|Lease)\" : \d+", r"\1: N"),
    (r"\b[0-9a-f]{12,16}\b", "HEX"),
    (r"(took|in)( = | )[0-9.]+\w+", "TIME"),
    (r"\d+(\.\d+)? [kM]B", "SIZE"),
    (r"remaining\(\d+s\)", "REMAINING"),
    (r"\"(ts|caller|target|took)\":(\"[^\"]*\"|[0-9.]+)", r"\1"),
    (r"(ADDRESS, )\d{5,}", r"\1HASH"),
    (r", \d+%", ", PERCENT"),
    (r"(, \d+){3}, ", ", RAFT, "),
    (r"[ ─-]{2,}", " "),
)
"""Ids, addresses, sizes and times; revisions must be equal."""


def comparable(text: str) -> str:
    """Without what must differ between two etcds."""
    for pattern, name in DIFFERS:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


@dataclass
class Printed:
    """How a command ended."""

    code: int
    out: str
    err: str

    def comparable(self) -> tuple[int, str, str]:
        """Errors as well: messages start alike, log lines have their own times."""
        return self.code, comparable(self.out), comparable(self.err)


@dataclass
class Ctl:
    """An etcdctl that talks to one server. `last` is the lease that it was granted."""

    version: str
    address: str
    last: str = ""
    files: Path = field(default_factory=Path)

    def start(self, *args: str) -> subprocess.Popen[str]:
        program = etcdctl(self.version)
        assert program is not None
        command = [str(program), "--endpoints", self.address, *(each.replace("LEASE", self.last) for each in args)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=self.files)

    def run(self, *args: str, given: str = "") -> Printed:
        process = self.start(*args)
        try:
            out, err = process.communicate(given, timeout=SECONDS)
        finally:
            process.kill()
            process.wait()
        granted = re.match(r"lease ([0-9a-f]+) granted", out)
        if granted:
            self.last = granted[1]
        return Printed(process.returncode, out, err)

    def lines(self, last: str, *args: str, given: str = "", times: int = 1) -> list[str]:
        """What a command that goes on prints until a line has `last` in it, so many times; then SIGINT."""
        process = self.start(*args)
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(SECONDS, process.kill)
        late.start()
        found: list[str] = []
        try:
            process.stdin.write(given)
            process.stdin.flush()
            for line in process.stdout:
                found.append(line)
                times -= last in line
                if not times:
                    break
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)
        finally:
            late.cancel()
            process.kill()
            process.wait()
        assert not times, f"{args}: no {last} in {found}"
        return found


@pytest.fixture(scope="module", params=WITH_CTL)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ctl, Ctl]]:
    """etcdctl at an etcd, and at the gateway in front of another one that has seen the same."""
    version = request.param
    with cluster(version) as one, cluster(version) as two, gateway({"main": two.urls}) as process:
        yield tuple(Ctl(version, address, files=tmp_path_factory.mktemp("ctl")) for address in (one.address, process.address))


KV = """
put a 1
put b 2 --prev-kv
put a 3 --prev-kv
put a 3 --prev-kv -w json
put c
put dir/x 1
put dir/y 2
put dir/z 3
put a --ignore-value
put nothing --ignore-value
put a 1 --lease=123
get a
get nothing
get a -w json
get a -w fields
get a -w table
get a --hex
get a z
get a z --limit=2
get dir/ --prefix
get dir/ --prefix --keys-only
get dir/ --prefix --print-value-only
get dir/ --prefix --order=DESCEND
get dir/ --prefix --order=ASCEND --sort-by=MODIFY
get dir/ --prefix --order=DESCEND --sort-by=VALUE
get dir/ --prefix --sort-by=VERSION --limit=1
get b --from-key
get "" --prefix -w json
get "" --from-key
get dir/ --prefix --consistency=s
get a --rev=2
get a --rev=1000
get a --rev=-1
get z a
get dir/ --prefix --limit=-1
get
del a --prev-kv
del dir/ --prefix --prev-kv -w json
del nothing
del a b
del z --from-key
compaction 5
compaction 5
compaction 1000
get a --rev=2
compact 6 --physical
"""

OTHERS = """
lease grant 100
put leased 1 --lease=LEASE
get leased -w json
lease timetolive LEASE
lease timetolive LEASE --keys
lease timetolive LEASE --keys -w json
lease list
lease keep-alive LEASE --once
lease revoke LEASE
lease revoke LEASE
lease timetolive LEASE
lease keep-alive LEASE --once
lease grant 0
lease grant 99999999999
get leased
lock mine echo held
lock mine sh -c "exit 3"
endpoint status
endpoint status -w json
endpoint health
endpoint status --cluster
endpoint hashkv
member list
member list -w json
member list -w table
member update 1234 --peer-urls=http://127.0.0.1:1
member remove 1234
move-leader 1234
alarm list
alarm disarm
defrag
role list
role add r
role grant-permission r readwrite a z
role get r
role get none
user list
user add root:secret
user add root:secret
user grant-role root root
user get root
user get none
auth enable
get a
put a 1 --user=root:secret
get a --user=root:wrong
get a --user=root:secret
user list --user=root:secret
auth disable --user=root:secret
user delete root
role revoke-permission r a z
role delete r
auth disable
nonsense
"""


def words(line: str) -> list[str]:
    """A command line's arguments."""
    return [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', line)] if '""' not in line else _empty(line)


def _empty(line: str) -> list[str]:
    return ["" if word == '""' else word for word in line.split()]


def both(pair: tuple[Ctl, Ctl], args: Sequence[str], given: str = "") -> Printed:
    """Run it at both; the direct one's output."""
    want, got = (ctl.run(*args, given=given) for ctl in pair)
    assert got.comparable() == want.comparable(), " ".join(args)
    return want


def run_all(pair: tuple[Ctl, Ctl], text: str) -> list[int]:
    """Run each line at both; the codes they end with."""
    codes, wrong = [], []
    for line in text.strip().splitlines():
        want, got = (ctl.run(*words(line)) for ctl in pair)
        codes.append(want.code)
        if got.comparable() != want.comparable():
            wrong.append(f"{line}: {got}, but etcd's is {want}")
    assert not wrong, "\n".join(wrong)
    return codes


def test_keys(pair: tuple[Ctl, Ctl]) -> None:
    assert 0 < sum(code != 0 for code in run_all(pair, KV)) < 15


def test_leases_locks_members_and_users(pair: tuple[Ctl, Ctl]) -> None:
    assert 0 < sum(code != 0 for code in run_all(pair, OTHERS)) < 25
    if minor(pair[0].version) != "3.4":
        both(pair, ["auth", "status"])
        both(pair, ["get", "a", "--prefix", "--count-only", "-w", "fields"])


def test_txn(pair: tuple[Ctl, Ctl]) -> None:
    both(pair, ["put", "t", "1"])
    compares = ('value("t") = "1"', 'mod("t") > "0"', 'create("none") = "0"', 'version("t") < "9"')
    good = "\n".join(compares) + "\n\nput t 2\nget t\ndel none\n\nget none\n\n"
    assert "SUCCESS" in both(pair, ["txn"], good).out
    assert "FAILURE" in both(pair, ["txn"], good).out
    assert json.loads(both(pair, ["txn", "-w", "json"], 'value("t") = "2"\n\nput t 3\n\n\n').out)["succeeded"]
    assert "duplicate key" in both(pair, ["txn"], "\nput t 1\nput t 2\n\n\n").err


def test_watch(pair: tuple[Ctl, Ctl]) -> None:
    """From the past, so that nothing depends on when it starts."""
    revision = json.loads(both(pair, ["put", "w/1", "a", "-w", "json"]).out)["header"]["revision"]
    both(pair, ["put", "w/2", "b"])
    both(pair, ["put", "w/1", "c"])
    both(pair, ["del", "w/", "--prefix"])
    both(pair, ["put", "w/1", "end"])
    both(pair, ["put", "w/2", "end"])
    watch = ["watch", "w/", "--prefix", f"--rev={revision}"]
    for options, last in (([], "end"), (["--prev-kv"], "end"), (["-w", "json"], "ZW5k")):
        want, got = (ctl.lines(last, *watch, *options, times=2 - (options == ["-w", "json"])) for ctl in pair)
        assert [comparable(line) for line in got] == [comparable(line) for line in want]
    interactive = f"watch w/1 --rev={revision}\nwatch w/2 --rev={revision}\n"
    want, got = (sorted(ctl.lines("end", "watch", "-i", given=interactive, times=2)) for ctl in pair)
    assert got == want


def test_elect(pair: tuple[Ctl, Ctl]) -> None:
    want, got = (ctl.lines("me", "elect", "e", "me") for ctl in pair)
    assert [comparable(line) for line in got] == [comparable(line) for line in want]


def test_snapshot(pair: tuple[Ctl, Ctl]) -> None:
    both(pair, ["snapshot", "save", "s.db"])
    if minor(pair[0].version) not in ("3.4", "3.5"):
        return  # a later etcdctl does not look into files
    want, got = (json.loads(ctl.run("snapshot", "status", "s.db", "-w", "json").out) for ctl in pair)
    assert got["revision"] == want["revision"] > 0
    assert got["totalKey"] == want["totalKey"] > 0


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[GatewayProcess, dict[str, EtcdCluster]]]:
    with cluster() as main, cluster() as one, cluster() as two:
        clusters = {"main": main, "one": one, "two": two}
        with gateway({name: each.urls for name, each in clusters.items()}, {"/a/": "one", "/b/": "two"}) as process:
            yield process, clusters


@pytest.fixture
def ctl(three: tuple[GatewayProcess, dict[str, EtcdCluster]], tmp_path: Path) -> Ctl:
    return Ctl(WITH_CTL[-1], three[0].address, files=tmp_path)


def test_three_clusters(ctl: Ctl, three: tuple[GatewayProcess, dict[str, EtcdCluster]]) -> None:
    """Each key is in its cluster, and all are seen through one address."""
    assert ctl.run("lease", "grant", "100").code == 0
    for key in ("/a/1", "/b/1", "m"):
        assert ctl.run("put", key, f"of {key}", "--lease=LEASE").out == "OK\n"
    homes = {name: Ctl(ctl.version, each.address).run("get", "", "--prefix", "--keys-only").out.split() for name, each in three[1].items()}
    assert homes == {"main": ["m"], "one": ["/a/1"], "two": ["/b/1"]}
    assert ctl.run("get", "", "--prefix", "--keys-only").out.split() == ["/a/1", "/b/1", "m"]
    assert ctl.run("get", "/", "--prefix", "--limit=1", "--order=DESCEND", "--print-value-only").out == "of /b/1\n"
    assert "attached keys([m /a/1 /b/1])" in ctl.run("lease", "timetolive", "LEASE", "--keys").out
    assert ctl.run("lease", "keep-alive", "LEASE", "--once").code == 0
    assert ctl.run("lease", "revoke", "LEASE").code == 0
    assert ctl.run("get", "", "--prefix").out == ""
    for name in ("/a/lock", "/b/lock", "lock"):
        assert ctl.run("lock", name, "echo", "held").out == "held\n"
        assert ctl.lines("me", "elect", name, "me")[0].startswith(name + "/")


def test_three_clusters_at_once(ctl: Ctl) -> None:
    """What concerns all of them is joined."""
    endpoint = ("endpoint health", "endpoint status", "endpoint status --cluster")
    for command in (*endpoint, "member list", "alarm list", "alarm disarm", "user list", "role list"):
        assert ctl.run(*command.split()).code == 0, command
    assert ctl.address in ctl.run("member", "list").out
    process = ctl.start("watch", "", "--prefix")
    assert process.stdout is not None
    try:
        lines: list[str] = []
        for key in ("/a/w", "/b/w", "w"):
            until = time.monotonic() + SECONDS
            while not lines:  # until the watch is there
                assert time.monotonic() < until
                ctl.run("put", f"{key}0", "x")
                os.set_blocking(process.stdout.fileno(), False)
                lines = process.stdout.readlines()
            os.set_blocking(process.stdout.fileno(), True)
            ctl.run("put", key, key)
            while key + "\n" not in lines:
                lines.append(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


REFUSED = {
    "defrag": "defragment concerns one cluster, and this listener has main, one, two",
    "snapshot save s.db": "snapshot concerns one cluster",
    "endpoint hashkv": "hash_kv concerns one cluster",
    "member add x --peer-urls=http://127.0.0.1:1": "member_add concerns one cluster",
    "member remove 1234": "member_remove concerns one cluster",
    "user add u:p": "user_add concerns one cluster",
    "role add r": "role_add concerns one cluster",
    "auth enable": "auth_enable concerns one cluster",
    "del / --prefix": "delete_range over several clusters: '/' to '/a' is in main",
    "get / --prefix --rev=2": "range at a revision over several clusters",
}


@pytest.mark.parametrize("command", REFUSED)
def test_refused(ctl: Ctl, command: str) -> None:
    printed = ctl.run(*command.split())
    assert printed.code != 0
    assert f"shardgate: {REFUSED[command]}" in printed.err


def test_refused_transaction(ctl: Ctl) -> None:
    printed = ctl.run("txn", given="\nput /a/1 x\nput /b/1 y\n\n\n")
    assert printed.code != 0
    assert "shardgate: txn over several clusters: '/a/1' is in one, '/b/1' is in two; keep a" in printed.err


@pytest.mark.soak
def test_check_perf(ctl: Ctl) -> None:
    """It takes a minute, whatever its load."""
    process = ctl.start("check", "perf", "--load=s", "--prefix=/a/perf")
    out, err = process.communicate(timeout=120)
    assert "PASS: Throughput is" in out, out + err
