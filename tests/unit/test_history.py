"""Streams: what was recorded is read back, however the writer ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EXIT_HARNESS, HistoryError
from harness.history import event as events
from harness.history import recorder as recorders
from harness.history.reader import Stream, open_streams
from harness.history.recorder import RECORDS_PER_WINDOW, NullRecorder, Recorder

NAME = "decode-0.1.main.hist"
FIELDS = ("room", "slot", "tenure", "verb", "kind", "code", "flags", "value", "a", "b", "c", "d", "e")
U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
EVENTS = st.fixed_dictionaries({
    "verb": st.integers(0, 255), "room": U64, "slot": st.integers(-(2**31), 2**31 - 1), "tenure": U32,
    "kind": st.integers(0, 255), "code": st.integers(0, 65535), "flags": U32, "value": U64,
    "a": U64, "b": U64, "c": U64, "d": U64, "e": U32,
})  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a stream that is not there yet."""
    return tmp_path / NAME


def _write(path: Path, count: int, *, close: bool = True) -> Recorder:
    recorder = Recorder(path, "decode-0", "main", incarnation=3)
    for number in range(1, count + 1):
        recorder.event(events.Verb.STATUS, number, a=number * 7)
    if close:
        recorder.close()
    return recorder


def _rooms(path: Path) -> list[int]:
    stream = Stream(path)
    return stream.read(0, stream.count)["room"].tolist()


@given(st.lists(EVENTS, max_size=5))
def test_every_field_is_read_back(tmp_path_factory: pytest.TempPathFactory, recorded: list[dict[str, int]]) -> None:
    path = tmp_path_factory.mktemp("history") / NAME
    before = time.monotonic_ns()
    with Recorder(path, "prefill-2", "mover", incarnation=4) as recorder:
        for record in recorded:
            recorder.event(**record)
    stream = Stream(path)
    assert (stream.process, stream.thread, stream.incarnation, stream.pid) == (
        "prefill-2",
        "mover",
        4,
        os.getpid(),
    )
    assert stream.name == "prefill-2.4.mover"
    found = stream.read(0, 100)
    assert [{field: int(row[field]) for field in FIELDS} for row in found] == recorded
    assert found["seq"].tolist() == list(range(1, len(recorded) + 1))
    assert all(before <= stamp <= time.monotonic_ns() for stamp in found["t_ns"].tolist())
    assert found["t_ns"].tolist() == sorted(found["t_ns"].tolist())


@given(st.lists(U32, min_size=9, max_size=9), U64, U32)
def test_row_events_carry_nine_tags(
    tmp_path_factory: pytest.TempPathFactory, tags: list[int], value: int, flags: int
) -> None:
    path = tmp_path_factory.mktemp("history") / NAME
    with Recorder(path, "decode-0", "main") as recorder:
        recorder.row(events.Verb.COMMIT, 5, 6, 7, 8, flags, value, tags)
    row = Stream(path).read(0, 1)[0]
    assert row["tags"].tolist() == tags
    assert [int(row[name]) for name in ("room", "slot", "tenure", "code", "flags", "value", "seq")] == [
        5,
        6,
        7,
        8,
        flags,
        value,
        1,
    ]


def test_a_record_is_80_bytes_in_both_shapes() -> None:
    assert events.EVENT_STRUCT.size == events.ROW_STRUCT.size == events.DTYPE.itemsize == events.RECORD_BYTES == 80


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("windows", [1, 2])
def test_records_on_both_sides_of_a_windows_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, windows: int, extra: int
) -> None:
    monkeypatch.setattr(recorders, "RECORDS_PER_WINDOW", 1000)
    count = windows * 1000 + extra
    recorder = _write(path, count, close=False)
    assert _rooms(path) == list(range(1, count + 1))
    recorder.close()
    assert path.stat().st_size == events.HEADER_BYTES + count * 80
    assert _rooms(path) == list(range(1, count + 1))


def test_the_real_window_holds_as_many_as_it_says(path: Path) -> None:
    recorder = _write(path, RECORDS_PER_WINDOW, close=False)
    size = path.stat().st_size
    recorder.event(events.Verb.STATUS, RECORDS_PER_WINDOW + 1)
    assert path.stat().st_size > size
    recorder.close()
    assert _rooms(path) == list(range(1, RECORDS_PER_WINDOW + 2))


def test_memory_is_bounded_by_one_window(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "RECORDS_PER_WINDOW", 1000)
    recorder = _write(path, 5500, close=False)
    maps = Path("/proc/self/maps").read_text()
    assert sum(str(path) in line for line in maps.splitlines()) == 1
    recorder.close()
    assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 700])
def test_a_stream_that_was_never_closed_is_read_to_its_last_record(path: Path, count: int) -> None:
    recorder = _write(path, count, close=False)
    assert path.stat().st_size > events.HEADER_BYTES + count * 80
    assert _rooms(path) == list(range(1, count + 1))
    assert len(Stream(path).read(0, count + 5)) == count, "read past the last record"
    recorder.close()


def test_sigkill_loses_nothing_that_was_recorded(path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys\n"
        "from harness.history.recorder import Recorder\n"
        "r = Recorder(pathlib.Path(sys.argv[1]), 'decode-0', 'main')\n"
        "for n in range(1, 60001): r.event(11, n)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        check=False,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert ended.returncode == -signal.SIGKILL
    assert _rooms(path) == list(range(1, 60_001))


@pytest.mark.parametrize("kept", [0, 1, 40, 76, 79])
def test_a_record_cut_short_by_the_end_of_the_file_is_absent(path: Path, kept: int) -> None:
    _write(path, 10)
    os.truncate(path, events.HEADER_BYTES + 9 * 80 + kept)
    assert _rooms(path) == list(range(1, 10))


def test_a_record_without_its_last_word_is_absent(path: Path) -> None:
    """Seq is stored last: what was being written at the SIGKILL has none."""
    _write(path, 10, close=False)
    raw = bytearray(path.read_bytes())
    at = events.HEADER_BYTES + 10 * 80
    assert raw[at : at + 80] == bytes(80)
    raw[at : at + 76] = b"\x55" * 76
    path.write_bytes(raw)
    assert _rooms(path) == list(range(1, 11))


def test_reads_are_clipped_and_chunks_cover_everything(path: Path) -> None:
    _write(path, 25)
    stream = Stream(path)
    assert stream.count == 25
    assert [len(chunk) for chunk in stream.chunks(10)] == [10, 10, 5]
    assert np.concatenate(list(stream.chunks(7)))["room"].tolist() == list(range(1, 26))
    assert stream.read(20, 100)["room"].tolist() == list(range(21, 26))
    assert len(stream.read(25, 30)) == len(stream.read(5, 5)) == len(stream.read(9, 3)) == 0


def test_a_stream_is_created_once(path: Path) -> None:
    _write(path, 1)
    with pytest.raises(FileExistsError):
        _write(path, 1)
    assert _rooms(path) == [1]


def test_close_twice_is_close_once(path: Path) -> None:
    recorder = _write(path, 1)
    recorder.close()
    assert _rooms(path) == [1]


def test_another_schema_is_refused(path: Path) -> None:
    _write(path, 1)
    raw = path.read_bytes()
    head = json.loads(raw[len(events.MAGIC) : events.HEADER_BYTES].rstrip(b"\0"))
    assert head["schema"] == events.SCHEMA
    for schema in (events.SCHEMA + 1, 0, "1"):
        changed = events.MAGIC + json.dumps({**head, "schema": schema}).encode()
        path.write_bytes(changed.ljust(events.HEADER_BYTES, b"\0") + raw[events.HEADER_BYTES :])
        with pytest.raises(HistoryError, match=f"schema {schema}, this version reads {events.SCHEMA}") as caught:
            Stream(path)
        assert caught.value.exit_code == EXIT_HARNESS


@pytest.mark.parametrize("content", [b"", b"PDHIST0", b"something else", b"\0" * 5000])
def test_what_is_no_stream_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(HistoryError, match="not a recorded stream"):
        Stream(path)


@pytest.mark.parametrize("head", [b"", b"{", b"[]", b"{}", b'{"schema": 1}', b"\xff"])
def test_a_damaged_header_is_a_history_error(path: Path, head: bytes) -> None:
    path.write_bytes((events.MAGIC + head).ljust(events.HEADER_BYTES, b"\0"))
    with pytest.raises(HistoryError):
        Stream(path)


def test_a_folder_of_streams_in_order_or_none(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no recorded history here"):
        open_streams(tmp_path)
    with pytest.raises(HistoryError, match="No such file"):
        Stream(tmp_path / "none.hist")
    for process in ("prefill-0", "decode-0", "driver-0"):
        Recorder(tmp_path / f"{process}.1.main.hist", process, "main").close()
    (tmp_path / "notes.txt").write_text("no stream")
    assert [stream.process for stream in open_streams(tmp_path)] == ["decode-0", "driver-0", "prefill-0"]


def test_the_null_recorder_takes_everything_and_keeps_nothing() -> None:
    recorder = NullRecorder()
    recorder.event(1, 2, flags=3)
    recorder.row(1, 2, 3, 4, 5, 6, 7, [0] * 9)
    recorder.close()
