"""A line is one event, whatever is in it."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import logs

Lines = Callable[[], list[str]]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Lines]:
    """Tells the lines on standard error since the last time; the logging of pytest is back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def lines() -> list[str]:
        text = capsys.readouterr().err
        assert text == "" or text.endswith("\n")
        return text.split("\n")[:-1]  # str.splitlines knows more ends of lines than tools do

    yield lines
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def logfmt(line: str) -> dict[str, str]:
    """Read a line strictly: nothing may be left over."""
    found: dict[str, str] = {}
    at = 0
    while at < len(line):
        part = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^" =]+)(?: |$)').match(line, at)
        assert part is not None, line[at:]
        found[part[1]] = json.loads(part[2]) if part[2].startswith('"') else part[2]
        at = part.end()
    return found


def test_logfmt(written: Lines) -> None:
    logs.setup("info", "logfmt")
    logs.logger("server").info("listening", address="127.0.0.1:2379", count=3, seconds=1.23456789, tls=False, nothing=None, empty="")
    (line,) = written()
    assert re.fullmatch(
        r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info part=server event=listening address=127\.0\.0\.1:2379 count=3 "
        r'seconds=1\.23457 tls=false empty=""',
        line,
    )


def test_json(written: Lines) -> None:
    logs.setup("info", "json")
    logs.logger("server").warning("endpoint_down", cluster="events", count=3, up=True, error=OSError("gone"))
    (line,) = written()
    found = json.loads(line)
    assert found.pop("time")
    assert found == {
        "level": "warning", "part": "server", "event": "endpoint_down", "cluster": "events", "count": 3, "up": True, "error": "gone",
    }  # fmt: skip


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_no_text_makes_a_second_line_or_field(written: Lines, form: str) -> None:
    logs.setup("info", form)

    @given(st.one_of(st.text(), st.sampled_from(["a\nlevel=error", "x y=1", '"', "\\", "\x1b[2J", "\u2028", "\u202e", "\x85", "\r"])))
    def check(text: str) -> None:
        logs.logger("calls").error("slow", key=text, after="x", cluster=text)  # a cluster of its own, else repeats are left out
        (line,) = written()
        assert line.isprintable()
        found = logfmt(line) if form == "logfmt" else json.loads(line)
        assert found["key"] == text and found["after"] == "x"
        assert list(found)[:6] == ["time", "level", "part", "event", "key", "after"]

    check()


def test_long_texts_are_cut(written: Lines) -> None:
    logs.setup("info", "json")
    logs.logger("calls").info("x", key="k" * 1_000_000)
    (line,) = written()
    assert len(line) < 2 * logs.MAX_TEXT and json.loads(line)["key"].startswith("kkk")


def test_levels(written: Lines) -> None:
    log = logs.logger("server")
    for level, count in (("debug", 4), ("info", 3), ("warning", 2), ("error", 1)):
        logs.setup(level, "logfmt")
        for tell in (log.debug, log.info, log.warning, log.error):
            tell("x")
        assert len(written()) == count
        logging.getLogger("aiohttp.server").info("not the gateway's")
        assert not written()


def test_traceback_in_one_line(written: Lines) -> None:
    logs.setup("info", "logfmt")
    try:
        raise ValueError("bad\nthing")
    except ValueError as error:
        logs.logger("calls").error("call_crashed", error, method="KV/Range")
    (line,) = written()
    assert "ValueError: bad\nthing" in logfmt(line)["traceback"]


def test_warnings_are_lines_too(written: Lines) -> None:
    logs.setup("info", "logfmt")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("coroutine was never awaited", RuntimeWarning, stacklevel=1)
    (line,) = written()
    assert "never awaited" in logfmt(line)["event"] and logfmt(line)["part"] == "py.warnings"


def test_what_happens_again_and_again(written: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.setup("info", "logfmt")
    log = logs.logger("server")
    for number in range(logs.BURST + 5):
        log.warning("endpoint_down", cluster="a", endpoint="1", number=number)
    assert len(written()) == logs.BURST
    log.warning("endpoint_down", cluster="a", endpoint="2")
    log.warning("endpoint_down", cluster="b", endpoint="1")
    log.warning("other", cluster="a", endpoint="1")
    assert len(written()) == 3
    monkeypatch.setattr(logs, "PERIOD", 0.0)
    log.warning("endpoint_down", cluster="a", endpoint="1")
    (line,) = written()
    assert logfmt(line)["left_out"] == "5"
    log.warning("endpoint_down", cluster="a", endpoint="1")
    (line,) = written()
    assert "left_out" not in logfmt(line)


def test_debugging_is_complete(written: Lines) -> None:
    logs.setup("debug", "logfmt")
    for _ in range(3 * logs.BURST):
        logs.logger("server").debug("x")
    assert len(written()) == 3 * logs.BURST


def test_memory_of_repeats_is_bounded(written: Lines) -> None:
    logs.setup("info", "logfmt")
    (repeats,) = logging.getLogger().handlers[0].filters
    for number in range(3 * logs.MAX_EVENTS):
        logs.logger("server").info("x", cluster=str(number))
    assert len(vars(repeats)["_seen"]) <= logs.MAX_EVENTS
