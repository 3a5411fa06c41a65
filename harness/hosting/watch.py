"""Notices threads of a hosted engine that die: an engine whose receive thread is gone looks like one that is merely slow."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterable

import msgspec


class Death(msgspec.Struct, frozen=True):
    """A thread that ended and should not have. `error` is empty where it ended without an exception."""

    thread: str
    error: str
    trace: str = ""

    def __str__(self) -> str:
        """One line."""
        return f"thread {self.thread!r} died: {self.error or 'it ended without an exception'}"


class Watch:
    """Collects deaths: exceptions that leave any thread, and the end of threads that were there when `expect` was called."""

    def __init__(self) -> None:
        """Take over `threading.excepthook`; the one before it is called as well."""
        self.deaths: list[Death] = []
        self._expected: list[threading.Thread] = []
        self._next_hook = threading.excepthook
        threading.excepthook = self._on_exception

    def _on_exception(self, arguments: threading.ExceptHookArgs) -> None:
        name = arguments.thread.name if arguments.thread is not None else "unknown"
        error = f"{arguments.exc_type.__name__}: {arguments.exc_value}"
        trace = "".join(traceback.format_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback))
        self.deaths.append(Death(name, error, trace))
        self._next_hook(arguments)

    def expect(self, threads: Iterable[threading.Thread]) -> None:
        """These threads live as long as the engine: their end is a death."""
        self._expected += [thread for thread in threads if thread is not threading.main_thread()]

    def look(self) -> list[Death]:
        """Deaths so far, the first one first."""
        ended = [thread for thread in self._expected if not thread.is_alive()]
        for thread in ended:
            self._expected.remove(thread)
            if not any(death.thread == thread.name for death in self.deaths):
                self.deaths.append(Death(thread.name, ""))
        return self.deaths

    def forget(self) -> list[Death]:
        """Deaths so far, which `look` then no longer tells of: somebody brought them about."""
        found, self.deaths = self.look(), []
        return found

    def close(self) -> None:
        """Put the hook back."""
        threading.excepthook = self._next_hook
