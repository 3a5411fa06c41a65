"""Import hook: stand-ins for packages that a hosted engine imports and that are not installed.

A released engine imports kernels, tokenizers and image codecs long before it reaches the code that is hosted here. The finder is
the last on `sys.meta_path`, so that whatever is installed wins, and it answers only importers that belong to the engine.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

_OWN = ("importlib", "_frozen_importlib", __name__)
_VERSION = "0.0.0"


def _any_schema() -> Any:
    from pydantic_core import core_schema  # noqa: PLC0415  only pydantic asks, so it is there

    return core_schema.any_schema()


class Base:
    """What a class really inherits from that names a stand-in as its base."""

    def __init_subclass__(cls, **_: object) -> None:
        """Take any keyword of the absent base's own hook."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take anything."""

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Any:
        """Be any value where a pydantic model names it."""
        return _any_schema()


class Absent:
    """A name out of an absent package: whatever is done to it at import time works and means nothing.

    It is falsy, empty and zero. Called with one function or class it gives that back, as decorators do.
    """

    def __init__(self, name: str) -> None:
        """`name`: the dotted path, for messages."""
        self.__dict__.update(_name=name, __name__=name.rpartition(".")[2], __qualname__=name, __module__=name)

    def __getattr__(self, name: str) -> Any:
        """Another stand-in; protocols that are looked up by name are not supported."""
        return _member(self._name, name, self.__dict__)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Pass a decorated function or class through, else another stand-in."""
        if len(arguments) == 1 and not options and isinstance(arguments[0], types.FunctionType | type):
            return arguments[0]
        return Absent(f"{self._name}()")

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type, ...]:
        """Serve as a base: each time a class of its own, so that two of them may be bases of one class."""
        return (type(self.__name__.strip("()") or "Base", (Base,), {"__module__": self._name}),)

    def __getitem__(self, _: object) -> Any:
        """Stand for a generic alias of itself."""
        return self

    def __setitem__(self, _: object, __: object) -> None:
        """Forget it."""

    def __iter__(self) -> Iterator[Any]:
        """Nothing."""
        return iter(())

    def __or__(self, _: object) -> Any:
        """Stand for a union."""
        return self

    __ror__ = __or__

    def __instancecheck__(self, _: object) -> bool:
        """Nothing is an instance of what is absent."""
        return False

    __subclasscheck__ = __instancecheck__
    __contains__ = __instancecheck__

    def __len__(self) -> int:
        """Nothing in it, and falsy."""
        return 0

    __int__ = __index__ = __len__

    def __enter__(self) -> Any:
        """Serve as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let exceptions through."""

    def __lt__(self, _: object) -> bool:
        """Not ordered."""
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __get_pydantic_core_schema__(self, *_: object) -> Any:
        """Be any value where a pydantic model names it."""
        return _any_schema()


class AbsentModule(types.ModuleType):
    """A module of an absent package; its names are made when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        """A submodule that was imported, else a stand-in."""
        found = sys.modules.get(f"{self.__name__}.{name}")
        return found if found is not None else _member(self.__name__, name, self.__dict__)


def _member(owner: str, name: str, kept: dict[str, Any]) -> Any:
    """`owner.name`, the same object at each call."""
    if name == "__version__":
        return _VERSION
    full = f"{owner}.{name}"
    if name.startswith("__") and name not in _LOOKED_UP:
        raise AttributeError(f"{full}: {owner.partition('.')[0]} is not installed")
    refusal = _REFUSES.get(full)
    if refusal is not None:
        raise RuntimeError(refusal)
    return kept.setdefault(name, Absent(full))


_LOOKED_UP = frozenset({"__func__", "__class_validators__"})
"""Names with underscores that engines take from a class of an absent package (transformers' and httpx' bases)."""
_REFUSES = {"triton.runtime.driver.active": "0 active drivers"}
"""What the real package refuses on a machine without a GPU: the engine asks, and goes on without."""


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = AbsentModule(spec.name)
        module.__path__ = []
        module.__dict__["__all__"] = ()
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class Finder(importlib.abc.MetaPathFinder):
    """Answers for absent packages that a module of one of the packages `engines` imports, directly or from a stand-in."""

    def __init__(self, engines: Sequence[str], *, required: Sequence[str] = ()) -> None:
        """Packages named in `required` are never answered for: the engine must have the real ones."""
        self._engines = frozenset(engines)
        self._required = frozenset(required) | self._engines
        self.absent: dict[str, str] = {}
        """Each absent package, and the module that imported it first."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A stand-in, or None: not ours to answer."""
        del path, target
        root, dot, _ = name.partition(".")
        if dot:
            parent = sys.modules.get(name.rpartition(".")[0])
            if not isinstance(parent, AbsentModule):
                return None
        elif root in self._required or root in sys.stdlib_module_names:
            return None
        else:
            importer = _importer()
            if importer.partition(".")[0] not in self._engines:
                return None
            self.absent.setdefault(root, importer)
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


def _importer() -> str:
    """Name of the module whose code is importing; empty when there is none."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001  the only way to know who imports
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(_OWN):
            return name
        frame = frame.f_back
    return ""


def install(engines: Sequence[str], *, required: Sequence[str] = ()) -> Finder:
    """Put a finder last on `sys.meta_path`; see `Finder`."""
    finder = Finder(engines, required=required)
    sys.meta_path.append(finder)
    return finder


def uncompiled(function: Any = None, **_: object) -> Any:
    """What `torch.compile` is while an engine is hosted: nothing here is compiled, and inductor would meet the stand-in of triton."""
    return function if function is not None else lambda inner: inner


def warning_once(logger: Any, message: str, *arguments: object, **options: Any) -> None:
    """`Logger.warning_once`, which transformers adds to logging and engines rely on; each message once for each logger."""
    told: set[str] = logger.__dict__.setdefault("_told_once", set())
    if message not in told:
        told.add(message)
        logger.warning(message, *arguments, **options)
