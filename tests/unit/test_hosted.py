"""Names of engines, and what a scenario may ask of one that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import scenario as scenarios
from harness.errors import FieldError, HarnessError
from harness.protocol.settings import EngineSettings
from harness.releases import hosted, overlay


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "sglang" / "srt" / "disaggregation").mkdir(parents=True)
    return tmp_path


def test_names() -> None:
    assert not hosted.parse("reference").hosted
    engine = hosted.parse("sglang==0.5.12.post1")
    assert (engine.package, engine.version, engine.hosted) == ("sglang", "0.5.12.post1", True)


def test_a_working_tree(tree: Path) -> None:
    engine = hosted.parse(f"path:{tree}")
    assert engine.hosted
    assert hosted.first_folders(engine) == [str(tree)]


@pytest.mark.parametrize("name", ["sglang", "vllm==1.0", "sglang==latest", "", "Reference"])
def test_other_names_are_answered_with_what_is_allowed(name: str) -> None:
    with pytest.raises(FieldError, match=r"engine\.name"):
        hosted.parse(name)


def test_a_working_tree_that_is_gone_is_missed_when_it_is_to_be_run() -> None:
    engine = hosted.parse("path:/nowhere")
    with pytest.raises(FieldError, match="a folder that holds sglang/srt/disaggregation"):
        hosted.first_folders(engine)


def test_the_reference_needs_no_folder() -> None:
    assert hosted.settings("reference", "shm") == EngineSettings()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transport.name", "tcp"),
        ("planes", "shared"),
        ("engine.slot_policy", "lifo"),
        ("topology.prefill_tp", 2),
        ("topology.prefill_pp", 2),
        ("topology.decode_tp", 2),
        ("topology.prefill_dp", 2),
        ("topology.decode_dp", 2),
        ("engine.page_bytes", 24),
        ("transport.late_fraction", 0.5),
        ("transport.reorder", "random"),
    ],
)
def test_what_a_hosted_engine_decides_itself_cannot_be_set(tree: Path, field: str, value: object) -> None:
    wanted = {"engine.name": f"path:{tree}", "transport.name": "mooncake", field: value}
    with pytest.raises(FieldError) as raised:
        scenarios.load(None, wanted)
    assert raised.value.field == field


def test_what_is_left_to_set(tree: Path) -> None:
    wanted = {"engine.name": f"path:{tree}", "transport.name": "mooncake", "engine.slots": 8, "engine.hidden": 64}
    assert scenarios.load(None, wanted).engine.slots == 8


def test_an_overlay_of_other_versions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    monkeypatch.setattr(overlay, "install", lambda *_, **__: tmp_path)
    with pytest.raises(HarnessError, match=r"has not aiohttp==.*remove that folder"):
        hosted.base_folders(hosted.parse(f"path:{tree}"))
    for pin in hosted.BASE:
        (tmp_path / (pin.replace("-", "_").replace("==", "-") + ".dist-info")).mkdir()
    assert hosted.base_folders(hosted.parse(f"path:{tree}")) == [str(tmp_path)]


def test_what_cannot_be_seen_is_said_by_name() -> None:
    told = hosted.not_checked(["foreign-write and late-write: no LANDED was recorded", "leak: no census at rest"])
    assert told[0].startswith("leak")
    assert sum("late-write" in line for line in told) == 1
    assert any(line.startswith("dirty-slot") for line in told)


@pytest.mark.parametrize(("field", "beyond"), [("workload.abort_fraction", 1.1), ("workload.hold_ms", 60_001)])
def test_clients_give_up_only_where_an_engine_is_hosted(tree: Path, field: str, beyond: float) -> None:
    hosting = {"engine.name": f"path:{tree}", "transport.name": "mooncake"}
    assert scenarios.get(scenarios.load(None, {**hosting, field: 0.5}), field) == 0.5
    for wanted in ({field: 0.5}, {**hosting, field: beyond}):
        with pytest.raises(FieldError) as raised:
            scenarios.load(None, wanted)
        assert raised.value.field == field
