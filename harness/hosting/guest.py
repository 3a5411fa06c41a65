"""What both nodes share when they host an engine: its pace, its deaths, and the record of what was loaded."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import HandoffError, HarnessError
from harness.hosting.watch import Death, Watch
from harness.protocol.layout import Layout, LayoutSpec
from harness.protocol.settings import NodeSettings

LOOK_S = 0.1
EXIT_CRASH = 70
SWITCH_INTERVAL_S = 0.005
CRASH_SUFFIX, ENGINE_SUFFIX = ".crash.json", ".engine.json"


class Crash(msgspec.Struct, frozen=True):
    """What a node leaves in the history's folder when the engine that it hosts dies."""

    node: str
    thread: str
    error: str
    trace: str


class Guest:
    """The engine hosted by node `name`. `build` makes it, `look` is called at every step."""

    def __init__(self, name: str, settings: NodeSettings) -> None:
        """Watch every thread from now on. The engine runs at Python's own switch interval, whatever the reference needs."""
        self.name = name
        self._folder = Path(settings.history_dir)
        self._next_look = 0.0
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        faulthandler.enable()  # an engine's native code may crash: its threads are then in the node's log
        self._before = set(threading.enumerate())
        self._built: Any = None
        self._failure: HandoffError | None = None
        self.watch = Watch()

    def build(self, make: Callable[[], Any]) -> None:
        """Have `make` construct the engine on a thread of its own: importing one takes seconds, and a node must not fall silent."""
        threading.Thread(target=self._build, args=(make,), name="builder", daemon=True).start()

    def _build(self, make: Callable[[], Any]) -> None:
        try:
            built = make()
        except HandoffError as error:
            self._failure = error
        except BaseException as error:  # noqa: BLE001  whatever an engine raises while it is imported
            self._failure = HarnessError(f"the engine cannot be hosted: {type(error).__name__}: {error}")
        else:
            self.watch.expect(set(threading.enumerate()) - self._before - {threading.current_thread()})
            self._built = built

    def built(self) -> Any:
        """What `make` returned, None while it is at it; raises HarnessError, once, for whatever it raised."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return self._built

    def look(self, now: float) -> None:
        """End the process if a thread of the engine died; `now`: monotonic seconds."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        deaths = self.watch.look()
        if deaths:
            self.die(deaths[0])

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """The engine's code runs inside, on this thread: what it raises is its death."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever the engine raises
            trace = "".join(traceback.format_exception(error))
            self.die(Death(threading.current_thread().name, f"{type(error).__name__}: {error}", trace))

    def die(self, death: Death) -> None:
        """Leave word of what died, and end the process: the driver sees it at once."""
        crash = Crash(self.name, death.thread, death.error or "it ended without an exception", death.trace)
        self._write(CRASH_SUFFIX, crash)
        print(f"{self.name}: {death}", file=sys.stderr, flush=True)
        os._exit(EXIT_CRASH)

    def describe(self, facts: dict[str, Any]) -> None:
        """Record what was loaded and replaced."""
        self._write(ENGINE_SUFFIX, facts)

    def _write(self, suffix: str, content: Any) -> None:
        part = self._folder / f".{self.name}{suffix}"
        part.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
        part.rename(self._folder / f"{self.name}{suffix}")


def crashes(folder: Path) -> list[dict[str, str]]:
    """What died in the run whose history is in `folder`."""
    return [msgspec.json.decode(path.read_bytes()) for path in sorted(folder.glob(f"*{CRASH_SUFFIX}"))]


def descriptions(folder: Path) -> dict[str, Any]:
    """What each node of the run hosted, by the node's name."""
    found = {path.name.removesuffix(ENGINE_SUFFIX): path for path in sorted(folder.glob(f"*{ENGINE_SUFFIX}"))}
    return {name: msgspec.json.decode(path.read_bytes()) for name, path in found.items()}


def split_layout(spec: LayoutSpec) -> Layout:
    """The layout of an engine that keeps keys and values apart: two tensors for each layer, each with half of a page's bytes."""
    return Layout(msgspec.structs.replace(spec, layers=2 * spec.layers, page_bytes=spec.page_bytes // 2))
