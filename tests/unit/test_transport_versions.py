"""Names and releases of transports in scenarios, and what is refused before anything starts."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from harness import probe, scenario, stress
from harness.errors import FieldError, HarnessError
from harness.live import Quiet
from harness.releases import engines, ibverbs, overlay
from harness.transport import registry
from harness.transport.base import Done, Lack
from harness.transport.mooncake import MooncakeTransport, acknowledges

LEFT = ["0.3.7.post2", "0.3.8.post1", "0.3.10.post2", "0.3.11.post1"]
WAITS = ["0.3.12", "0.3.12.post1", "0.3.13", "0.3.13.post1", "0.4.0"]


def _transport(name: str, **fields: Any) -> scenario.Transport:
    changes = {f"transport.{field}": value for field, value in fields.items()}
    return scenario.load(None, {"transport.name": name, **changes}).transport


def test_name_and_version_in_one_word_are_both(tmp_path: Path) -> None:
    assert _transport("mooncake==0.3.13-post1").version == "0.3.13.post1"
    assert _transport("mooncake", version="0.3.13").version == "0.3.13"
    assert _transport("mooncake == v0.3.9 ").name == "mooncake"
    file = tmp_path / "s.toml"
    file.write_text('[transport]\nname = "mooncake==0.3.9"\nack = false\n')
    loaded = scenario.load(file, {})
    assert (loaded.transport.name, loaded.transport.version) == ("mooncake", "0.3.9")
    file.write_text(scenario.to_toml(loaded))
    assert scenario.load(file, {}) == loaded


def test_a_release_that_is_not_named_is_the_default_one_by_its_number() -> None:
    assert _transport("mooncake").version == engines.ENGINES["mooncake"].default
    assert _transport("nixl-shm").version == engines.ENGINES["nixl"].default
    assert [_transport(name).version for name in ("shm", "tcp", "gloo")] == ["", "", ""]


def test_a_word_with_a_version_wins_over_the_files_version(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('[transport]\nname = "mooncake"\nversion = "0.3.9"\n')
    assert scenario.load(file, {"transport.name": "mooncake==0.3.13"}).transport.version == "0.3.13"
    assert scenario.load(file, {"transport.name": "mooncake"}).transport.version == "0.3.9"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "shm==1.0"}, "transport.version: '1.0' is not allowed; use nothing: transport shm has no releases"),
        ({"name": "mooncake==latest"}, "transport.version: 'latest' is not allowed; use a version such as 1.2.3"),
        ({"name": "moon==1"}, "transport.version: '1' is not allowed|transport.name: 'moon' is not allowed"),
        ({"name": "mooncake", "version": 3}, "transport.version: 3 is not allowed; use text"),
        (
            {"name": "mooncake==0.3.10.post2", "ack": True},
            "transport.ack: .* use false: mooncake==0.3.10.post2 does not know",
        ),
        (
            {"name": "nixl-tcp", "reorder": "room_first"},
            "transport.reorder: 'room_first' is not allowed; use none or random",
        ),
    ],
)
def test_what_a_transport_has_not_is_one_line(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match=says) as caught:
        _transport(**fields)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]


def test_which_releases_of_mooncake_acknowledge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MC_TCP_PROTO", raising=False)
    assert [acknowledges(version) for version in LEFT + WAITS] == [False] * len(LEFT) + [True] * len(WAITS)
    monkeypatch.setenv("MC_TCP_PROTO", "1")
    assert not any(map(acknowledges, WAITS))
    assert Lack.RECORDS in MooncakeTransport("0.3.13").lacks


def test_engines_are_not_made_late_unless_asked() -> None:
    for name in registry.ONE_SIDED:
        assert scenario.transport_settings(_transport(name)).late_fraction == 0
    assert scenario.transport_settings(_transport("nixl", late_fraction=0.5)).late_fraction == 0.5
    assert scenario.transport_settings(_transport("gloo")).late_fraction > 0


@pytest.mark.parametrize(
    ("fields", "means", "window"),
    [
        ({"name": "nixl-tcp"}, Done.VISIBLE, 0),
        ({"name": "nixl-tcp"}, Done.LEFT, 10),
        ({"name": "nixl-tcp", "late_fraction": 0.1}, Done.VISIBLE, 10),
        ({"name": "mooncake"}, Done.LEFT, 10),
        ({"name": "tcp", "ack": True}, Done.VISIBLE, 10),
        ({"name": "shm"}, Done.VISIBLE, 10),
    ],
)
def test_a_window_is_asked_for_unless_the_engine_was_seen_to_shut_it(
    fields: dict[str, Any], means: Done, window: int
) -> None:
    changes = {f"transport.{field}": value for field, value in fields.items()}
    chosen = scenario.load(None, changes)
    assert stress.expectations(chosen, {"means": means.value}).min_window == window
    asked = scenario.load(None, {**changes, "limits.min_window": 7})
    assert stress.expectations(asked, {"means": means.value}).min_window == 7


def test_what_is_ours_is_declared_and_what_is_not_is_fetched_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []
    monkeypatch.setattr(engines, "there", lambda *_: False)
    monkeypatch.setattr(engines, "ensure", lambda *release: steps.append(release))
    monkeypatch.setattr(probe, "known", lambda *release, **_: steps.append(release) or {"means": "left"})

    class Shown(Quiet):
        def say(self, text: str) -> None:
            steps.append(text)

    chosen = scenario.load(None, {"transport.name": "mooncake==0.3.9"})
    assert stress.done_of(chosen, Shown(), local=True) == {"means": "left"}
    assert steps == ["fetching mooncake==0.3.9", ("mooncake", "0.3.9"), ("mooncake", "0.3.9")]
    assert stress.done_of(chosen, Shown(), local=False) == {"means": "left", "how": "declared"}
    assert stress.done_of(scenario.load(None, {}), Shown(), local=True)["how"] == "declared"
    assert len(steps) == 3


def test_a_release_that_is_not_there_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path))
    monkeypatch.setattr(engines, "_loaded", {})
    with pytest.raises(
        HarnessError, match=r"^mooncake==0\.3\.9: not installed; fetch it with: handoff probe mooncake==0\.3\.9$"
    ):
        engines.load("mooncake", "0.3.9")
    with pytest.raises(HarnessError, match=r"this process has 0\.3\.9 loaded"):
        engines.load("mooncake", "0.3.10")


def test_a_release_that_cannot_be_imported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path))
    monkeypatch.setattr(engines, "_loaded", {})
    monkeypatch.setattr(engines.sys, "path", list(engines.sys.path))
    folder = overlay.cache_folder() / "overlays" / "nixl-cu12" / "0.0.1" / "nixl_cu12"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import _no_such_library_of_nixl")
    with pytest.raises(HarnessError, match=r"^nixl==0\.0\.1: cannot be imported: No module named"):
        engines.load("nixl", "0.0.1")


@pytest.mark.parametrize("broken", ["apt-get", "dpkg-deb", "download", "content"])
def test_without_libibverbs_one_line_names_the_package(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(*_: object, **__: object) -> None:
        raise OSError("libibverbs.so.1: cannot open shared object file")

    programs = tmp_path / "bin"
    programs.mkdir()
    scripts = {
        "apt-get": "echo 'E: Unable to locate package' >&2; exit 100" if broken == "download" else "echo > a.deb",
        "dpkg-deb": "mkdir root",
    }
    for name, text in scripts.items():
        if name != broken:
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{programs}:/bin" if broken in {"download", "content"} else str(programs))
    if broken == "dpkg-deb":
        (programs / "apt-get").write_text("#!/bin/sh\n: > a.deb\n")
    monkeypatch.setattr(ibverbs.ctypes, "CDLL", no)
    with pytest.raises(HarnessError, match=r"^libibverbs.so.1 is missing.*libibverbs1 .*fetched") as caught:
        ibverbs.ensure()
    assert "\n" not in str(caught.value)
    left = [entry.name for entry in (tmp_path / "cache" / "system").iterdir()]
    assert left == [".libibverbs.lock"]


def test_a_measurement_is_made_once_for_a_release_and_what_steers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path))
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(probe, "measure", lambda *release, ack: calls.append((*release, ack)) or {"means": "left"})
    for _ in range(2):
        assert probe.known("mooncake", "0.3.13", ack=False) == {"means": "left"}
    assert calls == [("mooncake", "0.3.13", False)]
    monkeypatch.setenv("MC_TCP_PROTO", "1")
    probe.known("mooncake", "0.3.13", ack=False)
    probe.known("mooncake", "0.3.12", ack=False)
    probe.known("mooncake", "0.3.12", ack=True)
    assert len(calls) == 4
    for file in (tmp_path / "done").iterdir():
        assert json.loads(file.read_text()) == {"means": "left"}
        file.write_text("{")
    probe.known("mooncake", "0.3.12", ack=True)
    assert len(calls) == 5


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "ack", "means", "stopped"),
    [("shm", False, "visible", "visible"), ("tcp", False, "left", "reported"), ("tcp", True, "visible", "waits")],
)
def test_the_probe_tells_bytes_that_left_from_bytes_that_are_there(
    name: str, ack: bool, means: str, stopped: str
) -> None:
    before = threading.active_count()
    found = probe.measure(name, "", ack=ack, writes=20)
    assert (found["means"], found["stopped"], found["writes"], found["how"]) == (means, stopped, 20, "measured")
    assert threading.active_count() == before


@pytest.mark.integration
def test_the_probe_says_in_one_line_what_did_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path))
    with pytest.raises(HarnessError, match=r"^probe: target: mooncake==0\.3\.9: not installed; fetch it with"):
        probe.measure("mooncake", "0.3.9")
    with pytest.raises(FieldError):
        probe.measure("smoke", "")
