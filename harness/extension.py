"""What plugins have added to this process: faults, guards, mutants, invariants, engines and records of the catalogue.

A plugin is a Python file (`--plugin FILE`, the scenario's field `plugins`) or a module that an installed package names in the entry-point
group `pd_handoff.plugins`. It adds things with the decorators of `harness.plugin`. A scenario names a file as `PATH` or `PATH#sha256=HASH`;
with a hash, only that very content is taken. Node processes load what their settings name.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import FieldError, HandoffError, UsageError

GROUP = "pd_handoff.plugins"
PLUGINS_MAX = 16
_MARK = "#sha256="


class Change(NamedTuple):
    """A guard or mutant: what it is in words, and the function that changes a decode engine or a prefill node before its run."""

    doc: str
    side: str
    apply: Callable[[Any], None]


class Invariant(NamedTuple):
    """A rule of one's own: what it means, and the function that yields the rooms that break it."""

    meaning: str
    find: Callable[[Any], Iterable[int]]


@dataclass
class Extensions:
    """By name. `faults` are of `harness.faults.spec.Kind`, `bugs` of `harness.bugs.record.Bug`, `engines` make a decode engine."""

    faults: dict[str, Any] = field(default_factory=dict)
    guards: dict[str, Change] = field(default_factory=dict)
    mutants: dict[str, Change] = field(default_factory=dict)
    invariants: dict[str, Invariant] = field(default_factory=dict)
    engines: dict[str, Callable[..., Any]] = field(default_factory=dict)
    bugs: dict[str, Any] = field(default_factory=dict)


_active = Extensions()
_loading = Extensions()


def active() -> Extensions:
    """What the scenario at hand may use: of installed packages, and of the plugins that it names."""
    return _active


def loading() -> Extensions:
    """Where the decorators of `harness.plugin` put what the plugin that is being loaded adds."""
    return _loading


def use(plugins: Iterable[str]) -> None:
    """Make `plugins` and what is installed the active ones, those of the scenario before no more; raises UsageError (exit 2) in one line."""
    global _active  # noqa: PLW0603  one scenario at a time, as in a node
    named = list(plugins)
    if len(named) > PLUGINS_MAX:
        raise FieldError("plugins", len(named), f"at most {PLUGINS_MAX}")
    found = Extensions()
    for source in (*installed(), *map(_load, named)):
        _merge(found, source)
    _active = found


def _merge(into: Extensions, source: Extensions) -> None:
    for entry in fields(Extensions):
        mine, more = getattr(into, entry.name), getattr(source, entry.name)
        for name in more.keys() & mine.keys():
            raise FieldError("plugins", name, f"other names: two plugins have {entry.name} of that name")
        mine |= more


def pinned(plugin: str, folder: Path | None = None) -> str:
    """`plugin` with its absolute path and the hash of its content; a relative path is one in `folder` (None: here). Raises UsageError."""
    path, _, digest = _read(plugin, folder)
    return f"{path}{_MARK}{digest}"


def path_of(plugin: str) -> Path:
    """Where a plugin is."""
    return Path(plugin.partition(_MARK)[0])


def at(plugin: str, path: str | Path) -> str:
    """The same plugin in another place."""
    return f"{path}{_MARK}{plugin.partition(_MARK)[2]}"


def copies(plugins: Iterable[str], folder: Path) -> tuple[str, ...]:
    """Where the run in `folder` keeps its copies of `plugins`, with their hashes: the run can be judged and repeated from it."""
    return tuple(
        at(plugin, folder / "plugins" / f"{number}-{path_of(plugin).name}") for number, plugin in enumerate(plugins)
    )


def _read(plugin: str, folder: Path | None = None) -> tuple[Path, bytes, str]:
    """(absolute path, content, its hash) of a plugin that has the hash that it is named with, if it is named with one; see `pinned`."""
    name, _, wanted = plugin.partition(_MARK)
    path = ((folder or Path.cwd()) / Path(name).expanduser()).resolve()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"plugin {path}: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest()
    if wanted and wanted != digest:
        raise FieldError("plugins", str(path), f"the content that the run had, sha256={wanted}")
    return path, content, digest


@functools.lru_cache(maxsize=4 * PLUGINS_MAX)
def _load(plugin: str) -> Extensions:
    """What a file adds; the last ones are kept, by content and place."""
    path, content, digest = _read(plugin)
    module = types.ModuleType(f"handoff_plugin_{digest[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    return _collect(path, lambda: exec(compile(content, str(path), "exec"), module.__dict__))  # noqa: S102


@functools.cache
def installed() -> tuple[Extensions, ...]:
    """What each module of the entry-point group adds; looked up once in a process."""
    return tuple(_collect(Path(entry.value), entry.load) for entry in entry_points(group=GROUP))


def _collect(path: Path, run: Callable[[], object]) -> Extensions:
    global _loading  # noqa: PLW0603  decorators have no other way to know
    before, _loading = _loading, Extensions()
    try:
        run()
    except (Exception, SystemExit) as error:
        raise problem(error, path) from error
    else:
        return _loading
    finally:
        _loading = before


def problem(error: BaseException, path: Path) -> UsageError:
    """One line that names the file and the line of a plugin at which `error` came up."""
    line = 0
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line = error.lineno or line
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(path):
            line = frame.lineno or line
    said = str(error.msg if isinstance(error, SyntaxError) else error).splitlines()
    what = said[0] if said else "no message"
    kind = "" if isinstance(error, HandoffError) else f"{type(error).__name__}: "
    where = f"{path}:{line}" if line else str(path)  # a module that an entry point names may not be there at all
    return UsageError(f"plugin {where}: {kind}{what}")


def guarded(function: Callable[..., Any], module: str = "") -> Callable[..., Any]:
    """`function` of a plugin, or of this process and calling the plugin `module`; what it raises says where in the file."""
    path = Path(sys.modules[module or function.__module__].__file__ or "")

    def inner(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            raise problem(error, path) from error

    return inner


def apply(names: Iterable[str], side: str, target: Any) -> None:
    """Have those of the active guards and mutants called `names` that belong to `side` change `target`."""
    changes = active().guards | active().mutants
    for name in names:
        if name in changes and changes[name].side == side:
            changes[name].apply(target)
