"""Child processes of the driver: new interpreters, by `multiprocess` (spawn), that end when it does, however it ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from multiprocess import get_context

from harness.errors import HarnessError


def spawn(name: str, target: Callable[..., None], *arguments: object) -> Any:
    """Start `target(*arguments, die_with_thread=...)`; returns the `multiprocess` process. Raises HarnessError when it cannot be started.

    `die_with_thread`: the kernel shall kill it when the calling thread ends, which is what a main thread does with its process.
    """
    process = get_context("spawn").Process(
        target=target,
        args=arguments,
        kwargs={"die_with_thread": threading.current_thread() is threading.main_thread()},
        name=name,
    )
    with without_main_module():
        try:
            process.start()
        except OSError as error:
            raise HarnessError(f"{name}: cannot be started: {error}") from error
    return process


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Keep spawn from importing the caller's main module in the child: a node needs nothing of it."""
    import __main__ as main  # noqa: PLC0415

    saved = {key: main.__dict__.get(key) for key in ("__file__", "__spec__")}
    try:
        main.__dict__.pop("__file__", None)
        main.__dict__["__spec__"] = None
        yield
    finally:
        for key, value in saved.items():
            if value is not None or key == "__spec__":
                main.__dict__[key] = value
