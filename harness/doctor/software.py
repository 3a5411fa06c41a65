"""What is installed beside the harness: libraries that it needs, Docker, transfer engines. Probes look, judges are functions of what was seen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

from packaging.version import Version

from harness.doctor.finding import Finding, Seen
from harness.releases import engines, hosted, ibverbs, overlay

TORCH_MIN, PYZMQ_MIN = Version("2.4"), Version("26.0")
INSTALL = "make stress, or: pip install -e ."
COMMAND_LIMIT_S = 20.0
INDEX_LIMIT_S = 60.0


def judge_torch(seen: Seen) -> Finding:
    """Any build will do; one for a GPU is only large."""
    if "error" in seen:
        return Finding(
            "torch", "missing", seen["error"], "nodes keep their memory in torch tensors", INSTALL, needed=True
        )
    built = f"CUDA {seen['cuda']}" if seen["cuda"] else f"ROCm {seen['hip']}" if seen["hip"] else "CPU"
    text = f"{seen['version']}, built for {built}"
    if Version(seen["version"]) < TORCH_MIN:
        return Finding("torch", "missing", text, f"{TORCH_MIN} or newer is needed", INSTALL, needed=True)
    if built != "CPU":
        return Finding(
            "torch",
            "limited",
            text,
            "works; a build for CPU is several GB smaller and starts sooner",
            "make clean, then: make stress TORCH_INDEX=<an index with CPU wheels>",
            needed=True,
        )
    return Finding("torch", "ok", text, needed=True)


def judge_pyzmq(seen: Seen) -> Finding:
    """Every node talks through it."""
    if "error" in seen:
        return Finding("pyzmq", "missing", seen["error"], "nodes talk over ZMQ", INSTALL, needed=True)
    text = f"{seen['version']}, libzmq {seen['libzmq']}"
    if Version(seen["version"]) < PYZMQ_MIN:
        return Finding("pyzmq", "missing", text, f"{PYZMQ_MIN} or newer is needed", INSTALL, needed=True)
    return Finding("pyzmq", "ok", text, needed=True)


def judge_gloo(seen: Seen) -> Finding:
    """A transport, the agreement of decode ranks, and every hosted release use it."""
    if "error" in seen:
        means = "no --transport gloo, no decode ranks that agree (--decode-tp 2 and more), no hosted releases"
        return Finding(
            "gloo",
            "missing",
            seen["error"],
            means,
            "install a build of torch with gloo: every one for Linux from its project has it",
        )
    return Finding("gloo", "ok", "a group of one rank was made")


def see_docker() -> Seen:
    """Client, daemon and compose plugin."""
    program = shutil.which("docker")
    if program is None:
        return {"error": "no program docker"}
    said = _said([program, "version", "--format", "{{json .}}"])
    compose = _said([program, "compose", "version", "--short"])
    try:
        versions = json.loads(said["out"].splitlines()[0])
    except (ValueError, IndexError):
        versions = {}
    return {
        "client": (versions.get("Client") or {}).get("Version", ""),
        "server": (versions.get("Server") or {}).get("Version", ""),
        "compose": compose["out"] if compose["code"] == 0 else "",
        "complaint": said["complaint"],
    }


def _said(command: list[str], limit_s: float = COMMAND_LIMIT_S) -> dict[str, Any]:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"code": 1, "out": "", "complaint": f"no answer within {limit_s:g} s"}
    except OSError as error:
        return {"code": 1, "out": "", "complaint": str(error)}
    lines = ended.stderr.strip().splitlines() or ended.stdout.strip().splitlines() or [""]
    return {"code": ended.returncode, "out": ended.stdout.strip(), "complaint": lines[-1][:300]}


def judge_docker(seen: Seen) -> Finding:
    """Only `docker compose up` needs it."""
    means = "no docker compose up (docs/compose.md); nothing else needs it"
    if "error" in seen:
        return Finding("docker", "missing", seen["error"], means, "install Docker Engine with its compose plugin")
    text = f"client {seen['client'] or 'unknown'}, compose {seen['compose'] or 'missing'}"
    if not seen["server"]:
        return Finding(
            "docker",
            "limited",
            f"{text}; daemon: {seen['complaint']}",
            means,
            "systemctl start docker, or have this user in the group docker",
        )
    if not seen["compose"]:
        return Finding(
            "docker", "limited", f"{text}, daemon {seen['server']}", means, "install the package docker-compose-plugin"
        )
    return Finding("docker", "ok", f"{text}, daemon {seen['server']}")


def judge_ibverbs(seen: Seen) -> Finding:
    """Mooncake is linked against it."""
    if "error" in seen:
        return Finding(
            "libibverbs", "missing", ibverbs.LIBRARIES[-1] + " cannot be loaded", "no Mooncake", _get_ibverbs()
        )
    return Finding(
        "libibverbs",
        "ok",
        "of the system" if seen["source"] == "system" else f"in the cache: {overlay.cache_folder() / 'system'}",
    )


def _get_ibverbs() -> str:
    package = "apt-get install libibverbs1 (Debian, Ubuntu) or dnf install libibverbs (Fedora)"
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        return f"handoff probe mooncake (no root: it unpacks Debian's packages into the cache), or {package}"
    return package


def judge_engine(seen: Seen, name: str) -> Finding:
    """`seen` has the newest release in the cache as `version`, empty where there is none."""
    version = seen["version"]
    title = {"mooncake": "Mooncake", "nixl": "NIXL and its UCX"}[name]
    if not version:
        means = f"no --transport {name}" + (", no hosted releases over it" if name in hosted.BACKENDS else "")
        return Finding(
            title,
            "missing",
            "none in the cache",
            means,
            f"handoff probe {name}=={engines.ENGINES[name].default} (fetched at first use, too)",
        )
    if "error" in seen:
        folder = overlay.path(engines.ENGINES[name].distribution, version)
        return Finding(
            title,
            "missing",
            f"{version} cannot be loaded: {seen['error']}",
            f"no --transport {name}",
            f"rm -r {folder}, then: handoff probe {name}=={version}",
        )
    return Finding(title, "ok", f"{version} can be loaded")


def see_index() -> Seen:
    """Ask pip's index for one distribution: only on demand, since it uses the network."""
    said = _said([sys.executable, *overlay.PIP, "index", "versions", "--retries", "0", hosted.SGLANG], INDEX_LIMIT_S)
    if said["code"]:
        return {"error": said["complaint"]}
    return {"newest": said["out"].splitlines()[0]}


def judge_index(seen: Seen) -> Finding:
    """Releases come from there."""
    if "error" in seen:
        means = "releases that are not in the cache cannot be fetched"
        return Finding(
            "package index", "missing", seen["error"], means, "see pip config list, HTTPS_PROXY and PIP_INDEX_URL"
        )
    return Finding("package index", "ok", f"has {seen['newest']}")
