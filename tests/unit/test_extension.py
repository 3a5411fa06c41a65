"""Plugins: what they add can be named, what is wrong in one is a line that says where, and a run keeps what it used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness import extension, scenario, swarm
from harness.bugs import catalogue
from harness.errors import FieldError, UsageError
from harness.faults.catalogue import kinds, parse_all
from harness.faults.messages import Messages
from harness.faults.writes import Writes
from harness.history.event import KV_BIT
from harness.history.recorder import NullRecorder
from harness.plugin import mutant
from harness.protocol import guards, wire
from harness.runfolder import RunFolder
from harness.stress import expectations
from harness.transport.base import Outcome, Write

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LATE = """
from harness.plugin import message_fault, Param

@message_fault("late", "a status leaves late", s=Param(1, "by so many seconds", 0, 9))
def late(rule, message):
    return None if message.room == 8 else rule.fault.f("s")
"""


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    extension.use(())


def _file(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def _load(*plugins: Path, **changes: object) -> scenario.Scenario:
    return scenario.load(None, {"plugins": [str(path) for path in plugins], **changes})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_each_example_is_short_and_loads(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 40
    _load(path)
    found = extension.active()
    assert any(getattr(found, name) for name in ("faults", "guards", "invariants", "engines"))


def test_what_a_plugin_adds_can_be_named_and_no_longer_without_it() -> None:
    chosen = {
        "guards": "hardened,+clear_on_take",
        "engine.name": "second-look",
        "faults": ["pause-write:ms=3"],
    }
    plugins = [EXAMPLES / name for name in ("fault.py", "guard.py", "engine.py")]
    run = _load(*plugins, **chosen)
    assert guards.parse(run.guards).own == ("clear_on_take",)
    assert scenario.node_settings(run, Path("unused/history")).engine.own == "second-look"
    assert [bug.id for bug in catalogue.choose(["stale-room"], [])] == ["stale-room"]
    for field, value in chosen.items():
        with pytest.raises(FieldError):
            _load(**{field: value})
    assert "pause-write" not in kinds()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = 1 / 0\n", "mine.py:2: ZeroDivisionError: division by zero"),
        ("x = 1\n\ndef f(:\n", "mine.py:3: SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)\n", "mine.py:2: SystemExit: 3"),
        ("from harness.plugin import nothing\n", "mine.py:1: ImportError: cannot import name 'nothing'"),
        (
            "from harness.plugin import invariant\n\n@invariant('torn', 'x')\ndef f(history):\n    return ()\n",
            "mine.py:3: invariant: 'torn' is not allowed",
        ),
        (
            "from harness.plugin import mutant\n\n@mutant('m', 'x', side='both')\ndef f(engine): ...\n",
            "mine.py:3: mutant m: side: 'both' is not allowed; use prefill or decode",
        ),
        (
            "from harness.plugin import bug\nbug('b', kind='K13', anomaly='leak', mechanism='x')\n",
            "mine.py:2: bug b: kind: 'K13' is not allowed",
        ),
    ],
)
def test_an_error_in_a_plugin_says_where(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        _load(_file(tmp_path, text))
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_error_in_an_invariant_says_where(tmp_path: Path) -> None:
    _load(_file(tmp_path, "from harness.plugin import invariant\n@invariant('i', 'x')\ndef f(h):\n    yield h.no\n"))
    with pytest.raises(UsageError, match=r"mine\.py:4: AttributeError"):
        extension.active().invariants["i"].find(object())


def test_a_swarm_draws_a_plugins_faults_with_their_defaults() -> None:
    base = {"plugins": [str(EXAMPLES / "fault.py")]}
    drawn = [swarm.scenario(base, 1, number, kill=False) for number in range(60)]
    assert any("pause-write" in run.faults for run in drawn)
    assert all(run.plugins == drawn[0].plugins != () for run in drawn)
    assert not any("pause-write" in swarm.scenario({}, 1, number, kill=False).faults for number in range(60))


def test_a_package_adds_by_entry_point_and_what_is_wrong_in_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint("mine", "json", extension.GROUP)]
    monkeypatch.setattr(extension, "entry_points", lambda group: entries if group == extension.GROUP else [])
    monkeypatch.setattr(EntryPoint, "load", lambda _: mutant("mine", "x")(lambda engine: engine.append(1)))
    extension.installed.cache_clear()
    run = scenario.load(None, {"mutants": ["mine"]})
    changed: list[int] = []
    extension.apply(run.mutants, "prefill", changed)
    extension.apply(run.mutants, "decode", changed)
    assert changed == [1]
    entries[:] = [EntryPoint("mine", "no_such_module", extension.GROUP)]
    monkeypatch.undo()
    monkeypatch.setattr(extension, "entry_points", lambda group: entries)
    extension.installed.cache_clear()
    with pytest.raises(UsageError, match="plugin no_such_module: ModuleNotFoundError"):
        scenario.load(None, {})
    monkeypatch.undo()
    extension.installed.cache_clear()


def test_two_plugins_with_one_name_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="two plugins"):
        _load(_file(tmp_path, LATE), _file(tmp_path, LATE, "other.py"))
    with pytest.raises(UsageError, match=r"none\.py: No such file"):
        _load(tmp_path / "none.py")


def test_a_run_keeps_a_copy_and_takes_no_other_content(tmp_path: Path) -> None:
    run = _load(_file(tmp_path, LATE), faults=["late"])
    folder = RunFolder.create(tmp_path / "runs", run, expectations(run), ["handoff"])
    (tmp_path / "mine.py").unlink()
    again = folder.scenario
    assert again.faults == ("late",)
    (copy,) = again.plugins
    assert extension.path_of(copy) == folder.path / "plugins" / "0-mine.py"
    assert scenario.node_settings(run, folder.history).plugins == (copy,)
    extension.path_of(copy).write_text(LATE + "\n")
    with pytest.raises(FieldError, match="the content that the run had"):
        _ = folder.scenario


def test_a_fault_of_messages_holds_back_or_loses(tmp_path: Path) -> None:
    run = _load(_file(tmp_path, LATE), faults=["late:fraction=1,s=2"])
    sent: list[int] = []
    messages = Messages(parse_all(run.faults), 1, NullRecorder(), lambda _, message, __: sent.append(message.room))
    messages.arm(0.0, armed=True)
    for room in (7, 8):
        messages.send((2, 0), wire.Status(room, 4, 0, drained=True), None, 0.0)
    messages.flush(1.9)
    assert sent == []
    messages.flush(2.0)
    assert sent == [7]


def test_a_fault_of_writes_says_when_which_blocks_move() -> None:
    run = _load(EXAMPLES / "fault.py", faults=["pause-write:fraction=1,ms=1000"])
    moved: list[int] = []

    def issue(write: Write) -> Outcome:
        moved.extend(offset for offset, _, _ in write.blocks)
        return Outcome.DONE

    writes = Writes(parse_all(run.faults), 1, NullRecorder(), issue)
    writes.arm(0.0, armed=True)
    blocks = [(offset, memoryview(b"x"), KV_BIT) for offset in range(4)]
    assert writes.begin(Write(7, 0, 1, 0, blocks, "key"), 0.0) is Outcome.PENDING
    over, at = [], 0.0
    writes.flush(at)
    assert moved == [0, 1]
    while not over and at < 2.0:
        at += 0.1
        over, _ = writes.flush(at)
    assert moved == [0, 1, 2, 3]
    assert over == [("key", Outcome.DONE, False)]
