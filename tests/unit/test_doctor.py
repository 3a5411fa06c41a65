"""`handoff doctor` with probes of ours: every state of every item, and what a probe that crashes or hangs becomes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import _run
from harness.doctor import cache, child, command, examine, machine, software
from harness.doctor.finding import Finding, can_stress, size
from harness.releases import engines, hosted, overlay

GIB = 1 << 30
DOCKER = {"client": "28.2", "server": "28.2", "compose": "2.40", "complaint": ""}
CACHE = {"folder": "/c", "free_bytes": GIB, "writable": True, "directory": True, "size_bytes": 5, "left": []}


def _python(*version: int) -> dict[str, Any]:
    return {"version": list(version), "implementation": "cpython", "path": "/p"}


@pytest.mark.parametrize(
    ("judge", "seen", "state", "says"),
    [
        (machine.judge_python, _python(3, 11, 0), "ok", "cpython 3.11.0"),
        (machine.judge_python, _python(3, 10, 9), "missing", "3.11 or newer"),
        (software.judge_torch, {"version": "2.13.0+cpu", "cuda": "", "hip": ""}, "ok", "built for CPU"),
        (software.judge_torch, {"version": "2.13.0", "cuda": "13.0", "hip": ""}, "limited", "built for CUDA 13.0"),
        (software.judge_torch, {"version": "2.13.0", "cuda": "", "hip": "7"}, "limited", "built for ROCm 7"),
        (software.judge_torch, {"version": "2.3.1", "cuda": "", "hip": ""}, "missing", "2.4 or newer"),
        (software.judge_torch, {"error": "ModuleNotFoundError: torch"}, "missing", "ModuleNotFoundError"),
        (software.judge_pyzmq, {"version": "27.3.0", "libzmq": "4.3.5"}, "ok", "libzmq 4.3.5"),
        (software.judge_pyzmq, {"version": "25.1.2", "libzmq": "4.3.5"}, "missing", "26.0 or newer"),
        (software.judge_pyzmq, {"error": "it crashed: SIGSEGV"}, "missing", "SIGSEGV"),
        (machine.judge_loopback, {}, "ok", "127.0.0.1"),
        (machine.judge_loopback, {"error": "Network is unreachable"}, "missing", "ip link set lo up"),
        (machine.judge_cores, {"cores": 2, "quota": 0.0}, "ok", "2"),
        (machine.judge_cores, {"cores": 1, "quota": 0.0}, "limited", "take turns"),
        (machine.judge_cores, {"cores": 8, "quota": 1.5}, "limited", "a quota gives 1.5"),
        (machine.judge_memory, {"available_bytes": 4 * GIB, "limit_bytes": 0}, "ok", "4.0 GiB"),
        (machine.judge_memory, {"available_bytes": 4 * GIB, "limit_bytes": 3 * GIB // 2}, "limited", "1.5 GiB"),
        (machine.judge_memory, {"available_bytes": GIB // 2, "limit_bytes": 0}, "missing", "512 MiB"),
        (machine.judge_files, {"soft": 1024, "hard": 4096}, "ok", "1024"),
        (machine.judge_files, {"soft": -1, "hard": -1}, "ok", "unlimited"),
        (machine.judge_files, {"soft": 256, "hard": -1}, "limited", "ulimit -n 1024"),
        (machine.judge_files, {"soft": 64, "hard": 512}, "missing", "ulimit -n 512"),
        (machine.judge_shm, {"size_bytes": GIB, "free_bytes": GIB, "writable": True}, "ok", "1.0 GiB free of 1.0 GiB"),
        (machine.judge_shm, {"size_bytes": GIB, "free_bytes": 1 << 20, "writable": True}, "limited", "--shm-size"),
        (machine.judge_shm, {"size_bytes": GIB, "free_bytes": GIB, "writable": False}, "missing", "not writable"),
        (machine.judge_shm, {"error": "/dev/shm is not there"}, "missing", "mount -t tmpfs"),
        (machine.judge_real_time, {"permitted": True}, "ok", "permitted"),
        (machine.judge_real_time, {"permitted": False}, "limited", "--cap-add SYS_NICE"),
        (machine.judge_real_time, {"error": "no answer within 60 s"}, "limited", "no answer"),
        (software.judge_gloo, {}, "ok", "group of one rank"),
        (software.judge_gloo, {"error": "no gloo"}, "missing", "no --transport gloo"),
        (software.judge_docker, DOCKER, "ok", "daemon 28.2"),
        (software.judge_docker, {**DOCKER, "compose": ""}, "limited", "docker-compose-plugin"),
        (software.judge_docker, {**DOCKER, "server": "", "complaint": "refused"}, "limited", "daemon: refused"),
        (software.judge_docker, {"error": "no program docker"}, "missing", "no docker compose up"),
        (software.judge_ibverbs, {"source": "system"}, "ok", "of the system"),
        (software.judge_ibverbs, {"source": "cache"}, "ok", "in the cache"),
        (software.judge_ibverbs, {"error": "no"}, "missing", "libibverbs1"),
        (software.judge_index, {"newest": "sglang (0.5.23)"}, "ok", "0.5.23"),
        (software.judge_index, {"error": "refused"}, "missing", "refused"),
        (cache.judge_cache, CACHE, "ok", "/c: 0 MiB, 1.0 GiB free"),
        (cache.judge_cache, {**CACHE, "free_bytes": 1 << 20}, "limited", "HANDOFF_CACHE"),
        (cache.judge_cache, {**CACHE, "left": ["/c/.x"]}, "limited", "rm -r /c/.x"),
        (cache.judge_cache, {**CACHE, "writable": False}, "missing", "cannot be written"),
        (cache.judge_cache, {**CACHE, "directory": False}, "missing", "cannot be written"),
    ],
)
def test_each_state_of_each_item(judge: Any, seen: dict[str, Any], state: str, says: str) -> None:
    found = judge(seen)
    line = command._line(found)
    assert found.state == state
    assert says in line
    assert "\n" not in line
    assert (found.state == "ok") == (not found.help)


@pytest.mark.parametrize("name", list(engines.ENGINES))
def test_each_state_of_a_transfer_engine(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path))
    default = engines.ENGINES[name].default
    assert examine._engine(name) == {"version": ""}
    missing = software.judge_engine({"version": ""}, name)
    assert (missing.state, missing.help.split(" (")[0]) == ("missing", f"handoff probe {name}=={default}")
    for version in ("0.0.1", "99.0"):
        (overlay.cache_folder() / "overlays" / engines.ENGINES[name].distribution / version).mkdir(parents=True)
    monkeypatch.setattr(child, "ask", lambda *asked: {"asked": asked})
    assert examine._engine(name) == {"version": "99.0", "asked": (name, "99.0")}
    broken = software.judge_engine({"version": "99.0", "error": "it crashed: SIGSEGV"}, name)
    assert (broken.state, "SIGSEGV" in broken.seen) == ("missing", True)
    assert broken.help.startswith("rm -r ")
    assert software.judge_engine({"version": "99.0"}, name).state == "ok"


def _overlay(name: str, version: str) -> Path:
    folder = overlay.cache_folder() / "overlays" / name / version
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (folder / "module.py").write_text("X = 1")
    (info / "RECORD").write_text(f'module.py,sha256=x,5\n../../bin/tool,sha256=x,9\n"{info.name}/RECORD",,\n')
    return folder


def test_an_overlay_is_whole_or_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path))

    def line() -> Finding:
        return cache.judge_overlays(cache.look("sglang"), "releases", "get it", "nothing")

    assert (line().state, line().help) == ("missing", "get it")
    first, second = _overlay("sglang", "1.0"), _overlay("sglang", "2.0")
    assert (line().state, line().seen) == ("ok", "1.0 (0 MiB), 2.0 (0 MiB)")
    (second / "module.py").write_text("X = 12")
    assert line().state == "limited"
    assert "damaged: 2.0: module.py has 6 bytes instead of 5" in line().seen
    assert line().help == f"rm -r {second}; it is fetched again at its next use"
    (second / "module.py").unlink()
    assert "2.0: module.py is missing" in line().seen
    (first / "sglang-1.0.dist-info" / "RECORD").unlink()
    assert "1.0: it has no RECORD" in line().seen


def test_what_a_release_needs_of_others_is_whole_or_not(tmp_path: Path) -> None:
    one = cache.Overlay("1", tmp_path, 0)
    assert cache.judge_base([], []).state == "missing"
    assert cache.judge_base([one], []).state == "ok"
    assert "it has not x==1" in cache.judge_base([one], ["x==1"]).seen
    assert "gone" in cache.judge_base([cache.Overlay("1", tmp_path, 0, "gone")], []).seen


def test_the_cache_is_seen_with_what_dead_installers_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path / "not" / "made"))
    assert (cache.see_cache()["size_bytes"], cache.see_cache()["directory"]) == (0, True)
    assert not (tmp_path / "not").exists()
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path))
    left = tmp_path / "overlays" / "sglang" / ".1.0.part-x"
    left.mkdir(parents=True)
    assert cache.see_cache()["left"] == [str(left)]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HANDOFF_CACHE", str(tmp_path / "file"))
    assert cache.judge_cache(cache.see_cache()).state == "missing"


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("return {'version': '1'}", {"version": "1"}),
        ("raise OSError('no such library\\nmore')", {"error": "OSError: no such library"}),
        ("os.kill(os.getpid(), signal.SIGSEGV)", {"error": "it crashed: SIGSEGV"}),
        ("os.kill(os.getpid(), 40)", {"error": "it crashed: signal 40"}),
        ("print('noise', flush=True); return {}", {}),
        ("sys.stderr.write('first\\nlast words\\n'); sys.stderr.flush(); os._exit(3)", {"error": "last words"}),
        ("os._exit(3)", {"error": "exit 3"}),
    ],
)
def test_whatever_a_probe_does_is_one_answer(
    body: str, answer: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _child_does(body, monkeypatch)
    assert child.ask("probe") == answer


def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    _child_does(f"open({str(pid)!r}, 'w').write(str(os.getpid())); import time; time.sleep(600)", monkeypatch)
    assert child.ask("probe", limit_s=5.0) == {"error": "no answer within 5 s"}
    assert not Path(f"/proc/{pid.read_text()}").exists()


def _child_does(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the child run `body` as its only probe."""
    program = (
        f"import os, signal, sys\nfrom harness.doctor import child\ndef probe():\n    {body}\n"
        "child.PROBES = {'probe': probe}\nchild.main(['probe'])"
    )
    started = subprocess.Popen

    def start(line: list[str], **options: Any) -> Any:
        return started([line[0], "-c", program], **options)

    monkeypatch.setattr(child.subprocess, "Popen", start)


def test_docker_is_asked_for_client_daemon_and_plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "docker"
    program.write_text(
        '#!/bin/sh\n[ "$1" = compose ] && { echo 2.40; exit 0; }\n'
        """echo '{"Client":{"Version":"28"},"Server":null}'; echo 'is it running?' >&2; exit 1\n"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert software.see_docker() == {"client": "28", "server": "", "compose": "2.40", "complaint": "is it running?"}
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert "error" in software.see_docker()


def test_a_program_that_does_not_answer_is_ended() -> None:
    assert software._said(["sleep", "60"], limit_s=0.2)["complaint"] == "no answer within 0.2 s"
    assert software._said(["/no/such/program"])["code"] == 1


def test_quota_and_limit_of_a_control_group(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert (machine._quota(file), machine._limit(file)) == (0.0, 0)
    file.write_text("150000 100000\n")
    assert machine._quota(file) == 1.5
    file.write_text("max 100000\n")
    assert (machine._quota(file), machine._limit(file)) == (0.0, 0)
    file.write_text("1024\n")
    assert machine._limit(file) == 1024


def test_a_missing_loopback_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("Cannot assign requested address")

    assert machine.see_loopback() == {}
    monkeypatch.setattr(machine.socket, "create_server", refuse)
    assert machine.see_loopback() == {"error": "Cannot assign requested address"}


NEEDED = Finding("loopback", "missing", "gone", "no talk", "ip link set lo up", needed=True)


@pytest.mark.parametrize(
    ("found", "code", "last"),
    [
        ([Finding("docker", "missing", "none")], 0, "handoff stress can run"),
        ([Finding("memory", "limited", "1 GiB", needed=True)], 0, "handoff stress can run"),
        ([NEEDED, Finding("docker", "ok", "1")], 1, "handoff stress cannot run without: loopback"),
    ],
)
def test_the_exit_code_is_that_of_the_main_job(
    found: list[Finding], code: int, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examine, "checks", lambda **_: [(lambda: found, lambda seen: seen)])
    assert _run(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found) + 1
    assert lines[-1] == last
    assert lines[0].split()[0] == found[0].state
    assert _run(["doctor", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["can_stress"] == (code == 0) == can_stress(found)
    assert told["items"] == [one.to_dict() for one in found]


def test_only_with_online_is_an_index_asked() -> None:
    probes = [probe for probe, _ in examine.checks(online=False)]
    assert software.see_index not in probes
    assert software.see_index in [probe for probe, _ in examine.checks(online=True)]


def test_pip_is_asked_once_for_one_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def run(line: list[str], **_: Any) -> Any:
        calls.append(line)
        return SimpleNamespace(returncode=0, stdout="sglang (0.5.23)\nAvailable versions: 0.5.23\n", stderr="")

    monkeypatch.setattr(software.subprocess, "run", run)
    assert software.see_index() == {"newest": "sglang (0.5.23)"}
    assert len(calls) == 1
    assert calls[0][-1] == hosted.SGLANG


def test_sizes() -> None:
    assert [size(number << 20) for number in (0, 223, 1536)] == ["0 MiB", "223 MiB", "1.5 GiB"]
