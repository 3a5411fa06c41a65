"""The compose file, used as its users use it: `python3 tests/compose/run.py`. Needs a Docker engine with compose v2, and nothing else.

Every stage prints what it found and how long it took; the last line counts them. Exit 0: all passed; 1: a stage failed; 77: no engine, which
is a skip and counted as one. Run folders go to a folder of its own, owned by an ordinary user also where root runs this.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 180.0
IMAGE = "pd-handoff:local"
IMAGE_BYTES_MAX = 1_200_000_000
PROJECT = f"handofftest{os.getpid()}"
USER = (os.getuid(), os.getgid()) if os.getuid() else (10001, 10001)
WIDE = "transport.late_fraction=0.05 transport.delay_us=600"
"""A race window that opens hundreds of times in a small run, on any machine."""
ATTACHED = ("up", "--abort-on-container-exit", "--exit-code-from", "driver")


class Failed(Exception):
    """A stage saw something else than it must."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise Failed(what)


class Stack:
    """One compose project with its run folders under `runs`."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.environment = {
            **os.environ, "RUNS": str(runs), "UID": str(USER[0]), "GID": str(USER[1]),
            "COMPOSE_PROJECT_NAME": PROJECT, "COMPOSE_ANSI": "never", "BUILDKIT_PROGRESS": "plain",
        }  # fmt: skip

    def __call__(self, *arguments: str, profile: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
        """`docker compose ARGUMENTS` with `settings` in the environment, to its end, whatever that is."""
        return self.docker("compose", *(("--profile", profile) if profile else ()), *arguments, **settings)

    def docker(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["docker", *arguments], cwd=ROOT, env={**self.environment, **settings}, check=False, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S * 2,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Failed(f"docker {' '.join(arguments)}: still running after {DEADLINE_S * 2:.0f} s") from error

    def must(self, code: int, *arguments: str, profile: str = "", **settings: str) -> str:
        """As a call, but any other exit code fails the stage; returns the output."""
        ended = self(*arguments, profile=profile, **settings)
        tail = "\n".join(ended.stdout.splitlines()[-25:])
        require(ended.returncode == code, f"compose {' '.join(arguments)}: exit {ended.returncode}, not {code}\n{tail}")
        return ended.stdout

    def results(self) -> dict[str, Any]:
        """results.json of the newest run."""
        content: dict[str, Any] = json.loads((self.runs / "latest" / "results.json").read_text())
        return content

    @contextlib.contextmanager
    def loaded(self, **settings: str) -> Iterator[None]:
        """`up -d`, and inside, the driver reports hand-offs."""
        self.must(0, "up", "--detach", **settings)
        self.until(lambda: "load:" in self("logs", "driver").stdout, "the driver reports a load")
        yield

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            require(time.monotonic() < deadline, f"never happened: {what}\n{self('logs', '--tail', '20').stdout}")
            time.sleep(0.1)

    def container(self, service: str) -> str:
        return self.must(0, "ps", "--all", "--quiet", service).split()[0]

    def inspect(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.docker("inspect", self.container(service)).stdout)[0]
        return found

    def down(self) -> None:
        self("down", "--volumes", "--remove-orphans", "--timeout", "1", profile="shm")


Stage = Callable[[Stack], str]


def files(stack: Stack) -> str:
    stack.must(0, "config", "--quiet")
    services = stack.must(0, "config", "--services").split()
    require(sorted(services) == ["decode", "driver", "prefill", "registry"], f"services {services}")
    require("shm" in stack.must(0, "config", "--services", profile="shm").split(), "profile shm has no service")
    return "valid, with and without the profile"


def build(stack: Stack) -> str:
    stack.must(0, "build")
    image = json.loads(stack.docker("image", "inspect", IMAGE).stdout)[0]
    size = int(image["Size"])
    require(size < IMAGE_BYTES_MAX, f"image of {size / 1e6:.0f} MB")
    require(image["Config"]["User"] == "1000:1000", f"image user {image['Config']['User']!r}")
    return f"image {size / 1e6:.0f} MB"


def valid(stack: Stack) -> str:
    stack.must(0, "up", "--abort-on-container-failure", REQUESTS="6000", SET=WIDE)
    results = stack.results()
    require((results["verdict"], results["transport"]) == ("valid", "tcp"), f"results {results['verdict']}")
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in stack.runs.rglob("*")}
    require(owners == {USER}, f"files under runs belong to {owners}, not {USER}")
    for service in ("registry", "prefill", "decode", "driver"):
        confined(stack.inspect(service))
    return f"{results['committed']} hand-offs, {results['rate_per_s']:.0f}/s, files owned by {USER[0]}"


def invalid(stack: Stack) -> str:
    settings = {"GUARDS": "sglang-0.5.12", "TRANSPORT": "tcp", "REQUESTS": "6000", "SET": WIDE}
    stack.must(1, "up", "--abort-on-container-failure", **settings)
    results = stack.results()
    require(results["false_aborts"] > 0, "no false abort")
    return f"exit 1, {results['false_aborts']} false aborts"


def run_twice(stack: Stack) -> str:
    wrong = stack.must(2, "run", "--rm", "driver", GUARDS="nope")
    said = [line for line in wrong.splitlines() if line.startswith("handoff: ")]
    require(len(said) == 1 and "guards: 'nope' is not allowed; use one of sglang-0.5.8" in said[0], f"said {said}")
    stack.must(0, "run", "--rm", "driver", REQUESTS="4000", SET=WIDE)
    stack.must(1, "run", "--rm", "driver", "stress", "--guards", "sglang-0.5.12", REQUESTS="4000", SET=WIDE)
    states = {service: stack.inspect(service)["State"]["Status"] for service in ("registry", "prefill", "decode")}
    require(set(states.values()) == {"running"}, f"nodes after `run`: {states}")
    return "exit 2 for a wrong value, then 0 and 1 on the same nodes"


def shared(stack: Stack) -> str:
    names = []

    def look() -> bool:
        listed = stack("exec", "-T", "decode", "ls", "/dev/shm", profile="shm")
        names.append(listed.stdout.strip())
        return "load:" in stack("logs", "driver", profile="shm").stdout

    scale = ("--scale", "prefill=2", "--scale", "decode=2")
    stack.must(0, "up", "--detach", *scale, profile="shm", DURATION="5")
    stack.until(look, "the driver reports a load")
    require(not names[-1], f"names under load in the shared /dev/shm: {names[-1]}")
    require(stack("wait", "driver", profile="shm").returncode == 0, "exit code of the driver")
    results = stack.results()
    require((results["verdict"], results["transport"]) == ("valid", "shm"), f"results {results['transport']}")
    scenario = (stack.runs / "latest" / "scenario.toml").read_text()
    require("prefill = 2\ndecode = 2\n" in scenario, "topology is not 2 x 2")
    return f"2 x 2 over shm, {results['rate_per_s']:.0f}/s, no name left in /dev/shm"


def kill(stack: Stack) -> str:
    with stack.loaded(DURATION="120"):
        stack.must(0, "kill", "--signal", "KILL", "decode")
        killed = time.monotonic()
        require(stack("wait", "driver").returncode == 1, "exit code of the driver")
        took = time.monotonic() - killed
    return f"{crashed(stack, 'decode-0')}; the driver ended {took:.1f} s after the kill"


def kill_attached(stack: Stack) -> str:
    arguments = ["docker", "compose", *ATTACHED]
    environment = {**stack.environment, "DURATION": "120"}
    with subprocess.Popen(arguments, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:  # fmt: skip
        try:
            stack.until(lambda: "load:" in stack("logs", "driver").stdout, "the driver reports a load")
            stack.must(0, "kill", "--signal", "KILL", "prefill")
            killed = time.monotonic()
            code = up.wait(DEADLINE_S)
        finally:
            up.kill()
    require(code == 1, f"exit {code}")
    return f"{crashed(stack, 'prefill-0')}; up ended {time.monotonic() - killed:.1f} s after the kill"


def cut_briefly(stack: Stack) -> str:
    with stack.loaded(DURATION="10", SET=WIDE):
        container, network = stack.container("decode"), f"{PROJECT}_handoff"
        began = time.monotonic()
        with_network(stack, "disconnect", network, container)
        time.sleep(1.0)  # the length of the cut is what is tried, nobody waits for anything here
        with_network(stack, "connect", "--alias", "decode", network, container)
        cut = time.monotonic() - began
        require(stack("wait", "driver").returncode == 0, "exit code of the driver")
    results = stack.results()
    require(results["latency_ms"]["max"] > 900, "no hand-off was held up: the network was not cut")
    require(results["committed"] == results["requests"], "a hand-off was lost")
    return f"cut for {cut:.1f} s, healed: valid, slowest hand-off {results['latency_ms']['max'] / 1e3:.1f} s"


def cut_for_good(stack: Stack) -> str:
    with stack.loaded(DURATION="120"):
        container, network = stack.container("prefill"), f"{PROJECT}_handoff"
        with_network(stack, "disconnect", network, container)
        began = time.monotonic()
        require(stack("wait", "driver").returncode == 1, "exit code of the driver")
        took = time.monotonic() - began
        with_network(stack, "connect", network, container)
        stack.until(lambda: stack.inspect("prefill")["State"]["Status"] == "exited", "the node leaves by itself")
    return f"{crashed(stack, 'prefill-0')}; the driver ended {took:.1f} s after the cut"


STAGES: tuple[Stage, ...] = (
    files, build, valid, invalid, run_twice, shared, kill, kill_attached, cut_briefly, cut_for_good,
)  # fmt: skip
"""In this order: later ones use the image that an earlier one built."""


def confined(container: dict[str, Any]) -> None:
    """Every limit that the compose file sets has reached the container."""
    host = container["HostConfig"]
    seen = {
        "user": container["Config"]["User"] == f"{USER[0]}:{USER[1]}",
        "read-only root": host["ReadonlyRootfs"],
        "capabilities dropped": host["CapDrop"] == ["ALL"] and not host["CapAdd"],
        "no new privileges": "no-new-privileges:true" in host["SecurityOpt"],
        "init": host["Init"],
        "memory limit": host["Memory"] > 0,
        "pid limit": host["PidsLimit"] > 0,
        "no published port": not host["PortBindings"],
    }
    missing = [name for name, there in seen.items() if not there]
    require(not missing, f"{container['Name']}: {', '.join(missing)}")


def crashed(stack: Stack, node: str) -> str:
    """The newest run's anomaly is the end of `node`, and nothing else but hand-offs that decode gave up when their prefill was silent."""
    anomalies = {anomaly["name"]: anomaly["detail"] for anomaly in stack.results()["anomalies"]}
    silent = set(anomalies.pop("hang", {}))
    require(anomalies == {"crash": {node: 1}} and silent <= {"engine's time-out"}, f"anomalies {anomalies} {silent}")
    return f"crash of {node}"


def with_network(stack: Stack, *arguments: str) -> None:
    ended = stack.docker("network", *arguments)
    require(ended.returncode == 0, f"network {arguments}: {ended.stdout}")


def engine() -> str:
    """What engine there is; empty when there is none."""
    try:
        asked = [["docker", "info", "--format", "{{.ServerVersion}}"], ["docker", "compose", "version", "--short"]]
        found = [subprocess.run(a, capture_output=True, text=True, timeout=60, check=False) for a in asked]
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if any(one.returncode for one in found) else " and compose ".join(one.stdout.strip() for one in found)


def main() -> int:
    found = engine()
    if not found:
        print("SKIPPED: compose: no Docker engine with compose v2 answers\n0 passed, 0 failed, 1 skipped")
        return 77
    print(f"compose: engine {found}", flush=True)
    runs = Path(tempfile.mkdtemp(prefix="handoff-compose-"))
    runs.chmod(0o755)
    if not os.getuid():
        os.chown(runs, *USER)
    stack = Stack(runs)
    passed = failed = 0
    began = time.monotonic()
    try:
        for stage in STAGES:
            start = time.monotonic()
            try:
                said = stage(stack)
                passed += 1
            except (Failed, OSError, KeyError) as problem:
                failed += 1
                said = f"FAILED: {problem!r}" if not isinstance(problem, Failed) else f"FAILED: {problem}"
            print(f"{time.monotonic() - start:6.1f} s  {stage.__name__.replace('_', ' ')}: {said}", flush=True)
            stack.down()
            if failed and stage.__name__ == "build":
                break
    finally:
        stack.down()
        shutil.rmtree(runs, ignore_errors=True)
    listed = stack.docker("ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={PROJECT}")
    left = listed.stdout.split() if listed.returncode == 0 else ["the engine is gone"]
    failed += bool(left)
    print(f"{time.monotonic() - began:6.1f} s  in all; containers left: {left}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
