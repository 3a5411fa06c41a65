"""The import hook: whom it answers, and what its stand-ins bear."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import pytest

from harness.hosting import stubs

ENGINE = """
import absent_kernels, absent_kernels.deep.inner as inner
from absent_kernels import jit, Base, Other, CONSTANT
from absent_kernels.typing import Thing

@jit
def kernel(x):
    return x + 1

@jit(fast=True)
class Configured: ...

class Mine(Base, Other):
    def __init__(self, a): self.a = a

class Derived(Mine, metaclass=type): ...

def union(x: Thing | None, y: list[Thing] = []): return x
for nothing in CONSTANT: raise AssertionError
with inner.context(): pass
found = inner.lookup["key"]
modern = absent_kernels.__version__ >= "1"
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package `fake_engine` on the path, and a finder for it; both gone afterwards."""
    (tmp_path / "fake_engine").mkdir()
    (tmp_path / "fake_engine" / "__init__.py").write_text("")
    (tmp_path / "outsider.py").write_text("import absent_kernels\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    finder = stubs.install(("fake_engine",), required=("absent_needed",))
    yield tmp_path / "fake_engine", finder
    sys.meta_path.remove(finder)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def load(folder: Path, source: str):
    (folder / "code.py").write_text(source)
    importlib.invalidate_caches()
    return importlib.import_module("fake_engine.code")


def test_an_engine_gets_through_its_imports_without_its_kernels(engine) -> None:
    folder, finder = engine
    code = load(folder, ENGINE)
    assert code.kernel(1) == 2
    assert code.Derived(3).a == 3
    assert code.modern is False
    assert not code.found
    assert finder.absent == {"absent_kernels": "fake_engine.code"}


def test_nobody_else_is_answered(engine) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("outsider")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_kernels")


def test_what_is_needed_for_real_is_not_answered_for(engine) -> None:
    folder, _ = engine
    with pytest.raises(ModuleNotFoundError, match="absent_needed"):
        load(folder, "import absent_needed")


def test_what_is_installed_wins(engine) -> None:
    folder, finder = engine
    (folder.parent / "there.py").write_text("answer = 42")
    assert load(folder, "import there").there.answer == 42
    assert "there" not in finder.absent


def test_a_missing_module_of_the_engine_itself_is_missing(engine) -> None:
    folder, _ = engine
    with pytest.raises(ModuleNotFoundError):
        load(folder, "import fake_engine.gone")


def test_what_has_no_gpu_to_show_says_so(engine) -> None:
    folder, _ = engine
    code = load(folder, "import triton_absent as triton")
    assert not code.triton.runtime.driver
    with pytest.raises(RuntimeError, match="0 active drivers"):
        _ = stubs.Absent("triton.runtime.driver").active


def test_compiling_is_left_out_in_both_spellings() -> None:
    def function() -> int:
        return 1

    assert stubs.uncompiled(function) is function
    assert stubs.uncompiled(dynamic=True)(function) is function


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("once")
    for _ in range(3):
        stubs.warning_once(logger, "late %s", "again")
    assert [record.getMessage() for record in caplog.records] == ["late again"]
