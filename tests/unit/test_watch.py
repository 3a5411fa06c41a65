"""Threads that die are noticed, whichever way they die."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import msgspec
import pytest

from harness.errors import HarnessError
from harness.hosting import guest
from harness.hosting.watch import Watch
from harness.protocol.guards import PRESETS
from harness.protocol.layout import LayoutSpec
from harness.protocol.settings import NodeSettings, TransportSettings


@pytest.fixture
def watch():
    quiet = threading.excepthook
    threading.excepthook = lambda _: None
    watching = Watch()
    yield watching
    watching.close()
    threading.excepthook = quiet


def started(target, name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def test_an_exception_that_leaves_a_thread_is_a_death(watch: Watch) -> None:
    def run() -> None:
        raise KeyError("room")

    started(run, "decode_thread").join()
    (death,) = watch.look()
    assert (death.thread, death.error) == ("decode_thread", "KeyError: 'room'")
    assert "raise KeyError" in death.trace
    assert str(death) == "thread 'decode_thread' died: KeyError: 'room'"


def test_an_expected_thread_that_returns_is_a_death(watch: Watch) -> None:
    go = threading.Event()
    thread = started(go.wait, "heartbeat")
    watch.expect([thread, threading.main_thread()])
    assert watch.look() == []
    go.set()
    thread.join()
    (death,) = watch.look()
    assert (death.thread, death.error) == ("heartbeat", "")


def test_a_thread_with_an_exception_is_told_once(watch: Watch) -> None:
    def run() -> None:
        raise ValueError

    thread = started(run, "worker")
    watch.expect([thread])
    thread.join()
    assert len(watch.look()) == len(watch.look()) == 1


def test_other_threads_may_end(watch: Watch) -> None:
    started(lambda: None, "short").join()
    assert watch.look() == []


def until_built(hosting: guest.Guest):
    deadline = time.monotonic() + 30
    while (built := hosting.built()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return built


class Ended(BaseException):
    pass


@pytest.fixture
def hosting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def leave(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(guest.os, "_exit", leave)
    monkeypatch.setattr(guest.sys, "setswitchinterval", lambda _: None)
    monkeypatch.setattr(guest.faulthandler, "enable", lambda: None)
    spec = LayoutSpec(slots=1, pages=4)
    settings = NodeSettings(
        history_dir=str(tmp_path), seed=1, guards=PRESETS["hardened"], decode_layout=spec, prefill_layout=spec,
        transport=TransportSettings(),
    )  # fmt: skip
    made = guest.Guest("decode-0", settings)
    yield made
    made.watch.close()


def test_a_dead_thread_ends_the_node_and_leaves_word(hosting: guest.Guest, tmp_path: Path) -> None:
    go = threading.Event()
    hosting.build(lambda: started(go.wait, "bootstrap_thread"))
    thread = until_built(hosting)
    hosting.look(time.monotonic())
    go.set()
    thread.join()
    with pytest.raises(Ended):
        hosting.look(time.monotonic() + 1)
    (crash,) = guest.crashes(tmp_path)
    assert crash["node"] == "decode-0"
    assert crash["thread"] == "bootstrap_thread"
    assert crash["error"]


def test_what_the_engine_raises_in_our_loop_ends_the_node(hosting: guest.Guest, tmp_path: Path) -> None:
    with pytest.raises(Ended), hosting.calling():
        raise AssertionError("queue diverged")
    assert guest.crashes(tmp_path)[0]["error"] == "AssertionError: queue diverged"
    assert guest.crashes(tmp_path)[0]["thread"] == "MainThread"


def test_an_engine_that_cannot_be_built_is_one_line(hosting: guest.Guest) -> None:
    def make() -> None:
        raise AttributeError("no such thing")

    hosting.build(make)
    with pytest.raises(HarnessError, match="the engine cannot be hosted: AttributeError: no such thing"):
        until_built(hosting)
    assert hosting.built() is None


def test_what_was_loaded_is_on_record(hosting: guest.Guest, tmp_path: Path) -> None:
    hosting.describe({"engine": "sglang==1"})
    assert guest.descriptions(tmp_path) == {"decode-0": {"engine": "sglang==1"}}
    assert json.loads((tmp_path / "decode-0.engine.json").read_text())


def test_keys_and_values_share_a_page() -> None:
    spec = LayoutSpec(slots=2, pages=8, layers=3, page_bytes=1024)
    layout = guest.split_layout(spec)
    assert layout.spec == msgspec.structs.replace(spec, layers=6, page_bytes=512)
    assert layout.kv_bytes == 3 * 8 * 1024


def test_a_death_that_was_brought_about_is_told_once(watch: Watch) -> None:
    def run() -> None:
        raise KeyError("room")

    started(run, "worker").join()
    assert [death.thread for death in watch.forget()] == ["worker"]
    assert watch.look() == watch.forget() == []
