"""pytest plugin `handoff`: hand-off stress runs as tests. See docs/pytest.md.

Every suite of an environment loads this module, also one that drives no hand-off: nothing but pytest and the standard library is
imported here, the rest when a test needs it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HandoffError, UsageError

if TYPE_CHECKING:
    from harness.pytest_plugin.nodes import HandoffCluster, Pool, TestOfRun
    from harness.pytest_plugin.reporter import Reporter
    from harness.pytest_plugin.result import NotValid, Result
    from harness.scenario import Scenario

__all__ = ["HandoffCluster", "NotValid", "Result"]

FIXTURES = frozenset({"handoff_run", "handoff_cluster", "handoff_scenario"})
_OPTIONS = {
    "seed": ("N", "seed of every run: fixes workload and delays, not the interleaving"),
    "transport": ("NAME", "transport of every run"),
    "guards": ("PRESET[,+G,-G]", "guards of every run; see `handoff guards`"),
    "duration": ("SECONDS", "how long every run drives, instead of its number of requests"),
}
_MARKS = (
    "handoff(**settings): scenario of a test that drives hand-offs, see docs/pytest.md of pd-handoff; --handoff-* options beat it",
    "integration: starts real processes; a test that drives hand-offs is deselected unless --integration or -m integration",
    "stress: long runs",
    "faults: injects faults",
    "release: runs against a released engine",
)
_POOL: pytest.StashKey[Pool] = pytest.StashKey()
_REPORTER: pytest.StashKey[Reporter] = pytest.StashKey()
_TEST: pytest.StashKey[TestOfRun] = pytest.StashKey()
_STACKS: pytest.StashKey[str] = pytest.StashKey()


def __getattr__(name: str) -> Any:
    """The public classes, imported when somebody asks for one."""
    if name == "HandoffCluster":
        from harness.pytest_plugin.nodes import HandoffCluster as found  # noqa: N813, PLC0415

        return found
    if name in {"NotValid", "Result"}:
        from harness.pytest_plugin import result  # noqa: PLC0415

        return getattr(result, name)
    raise AttributeError(name)


# Options and marks -------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and ini settings."""
    group = parser.getgroup("handoff", "hand-off stress runs (pd-handoff)")
    for name, (metavar, text) in _OPTIONS.items():
        group.addoption(f"--handoff-{name}", metavar=metavar, help=f"{text}; beats what tests say")
    group.addoption("--handoff-runs", metavar="DIR", help="where run folders go (default: runs, in the root directory)")
    parser.addini(
        "handoff_set", "fields of every scenario, one FIELD=VALUE a line; beaten by marks and options", "linelist", []
    )
    parser.addini("handoff_runs", "where run folders go, relative to the root directory", default="")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Add --integration unless a conftest.py has it already, as many do: then theirs counts."""
    result = yield
    groups = [getattr(parser, "_anonymous", None), *getattr(parser, "_groups", [])]
    taken = any("--integration" in option.names() for group in groups if group for option in group.options)
    if not taken:
        with contextlib.suppress(ValueError, argparse.ArgumentError):
            parser.getgroup("handoff").addoption(
                "--integration", action="store_true", help="also run integration tests that drive hand-offs"
            )
    return result


def pytest_configure(config: pytest.Config) -> None:
    """Register marks; raises pytest.UsageError for an option or ini setting that is not allowed."""
    from harness.pytest_plugin.reporter import Reporter  # noqa: PLC0415  not of use without pytest_configure

    for mark in _MARKS:
        config.addinivalue_line("markers", mark)
    reporter = config.stash[_REPORTER] = Reporter(
        config, lambda: config.stash[_POOL].close() if _POOL in config.stash else []
    )
    config.pluginmanager.register(reporter, "handoff-reporter")
    if any(text is not None for text in _given(config).values()) or config.getini("handoff_set"):
        from harness.scenario import load  # noqa: PLC0415

        try:
            load(None, _merged(config, [], []))
        except UsageError as error:
            raise pytest.UsageError(f"handoff: {error}") from error


def _given(config: pytest.Config) -> dict[str, str | None]:
    return {name: config.getoption(f"handoff_{name}") for name in _OPTIONS}


def _merged(config: pytest.Config, marks: list[pytest.Mark], keywords: list[Any]) -> dict[str, Any]:
    """Everything that is said of a scenario, see `harness.pytest_plugin.names`. Raises UsageError."""
    from harness.pytest_plugin import names  # noqa: PLC0415

    for mark in marks:
        if mark.args:
            raise UsageError(f"handoff mark: {mark.args[0]!r} is not allowed; use keywords, for example slots=4")
    layers = [names.layer(mark.kwargs) for mark in marks] + [names.layer(each) for each in keywords]
    return names.merge([names.of_lines(config.getini("handoff_set")), *layers, names.of_options(_given(config))])


def _drives(item: pytest.Item) -> bool:
    return item.get_closest_marker("handoff") is not None or bool(FIXTURES & set(getattr(item, "fixturenames", ())))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect integration tests that drive hand-offs, unless they are asked for; nobody else's."""
    asked = config.getoption("integration", default=False) or "integration" in re.findall(
        r"\w+", config.getoption("markexpr") or ""
    )
    if asked:
        return
    out = [item for item in items if item.get_closest_marker("integration") is not None and _drives(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in set(out)]
        config.stash[_REPORTER].tally.deselected += len(out)


# Fixtures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def handoff_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., HandoffCluster]:
    """Clusters for this test.

        with handoff_cluster(slots=4) as cluster:
            result = cluster.stress(requests=5_000)

    Keywords are those of the mark, whose settings they change. Nodes are shared with every test whose topology is the same;
    `fresh=True` gives nodes of its own.
    """
    from harness.pytest_plugin.nodes import HandoffCluster  # noqa: PLC0415

    config, marks, test = request.config, _marks(request.node), _test_of(request)
    pool = _pool_of(config, tmp_path_factory)

    def make(*, fresh: bool = False, **settings: Any) -> HandoffCluster:
        __tracebackhide__ = True
        return HandoffCluster(pool, test, lambda keywords: _merged(config, marks, [settings, keywords]), fresh=fresh)

    return make


@pytest.fixture
def handoff_scenario(request: pytest.FixtureRequest, handoff_cluster: Callable[..., HandoffCluster]) -> Scenario:
    """The scenario that `handoff_run()` runs: that of the mark, with ini settings and options. Frozen."""
    try:
        return handoff_cluster().scenario
    except HandoffError as error:
        return pytest.fail(f"{request.node.name}: {error}", pytrace=False)


@pytest.fixture
def handoff_run(
    handoff_scenario: Scenario,  # noqa: ARG001  what is wrong with the mark shows before the test begins
    handoff_cluster: Callable[..., HandoffCluster],
) -> Callable[..., Result]:
    """What drives the scenario of the mark and gives its result: `handoff_run().assert_valid()`. Keywords change it."""

    def run(**settings: Any) -> Result:
        __tracebackhide__ = True
        with handoff_cluster(**settings) as cluster:
            return cluster.stress()

    return run


def _marks(item: pytest.Item) -> list[pytest.Mark]:
    """The outermost first."""
    return [*item.iter_markers("handoff")][::-1]


def _test_of(request: pytest.FixtureRequest) -> TestOfRun:
    """What runs know of this test; the same for all fixtures of the test."""
    from harness.pytest_plugin.names import folder_name  # noqa: PLC0415
    from harness.pytest_plugin.nodes import TestOfRun  # noqa: PLC0415

    item, config = request.node, request.config
    if _TEST not in item.stash:
        hidden = (HandoffError, pytest.fail.Exception)
        item.stash[_TEST] = TestOfRun(
            _command(item), folder_name(item.name), config.rootpath, _runs(config), hidden, item.user_properties
        )
    test: TestOfRun = item.stash[_TEST]
    return test


def _command(item: pytest.Item) -> str:
    """What runs `item` again, with the options that decide what it does."""
    given = [
        word for name, text in _given(item.config).items() if text is not None for word in (f"--handoff-{name}", text)
    ]
    asked = ["--integration"] if item.get_closest_marker("integration") else []
    return shlex.join(["pytest", item.nodeid, *asked, *given])


def _runs(config: pytest.Config) -> Path:
    """Option (relative to where pytest was called), environment as for `handoff`, ini setting, default."""
    given = config.getoption("handoff_runs") or os.environ.get("HANDOFF_RUNS")
    if given:
        return config.invocation_params.dir / given
    return config.rootpath / (config.getini("handoff_runs") or "runs")


def _pool_of(config: pytest.Config, folders: pytest.TempPathFactory) -> Pool:
    from harness.pytest_plugin.nodes import Pool  # noqa: PLC0415

    if _POOL not in config.stash:
        config.stash[_POOL] = Pool(lambda: folders.mktemp("handoff-nodes"))
    return config.stash[_POOL]


# Reports -----------------------------------------------------------------------------------------------------------


def pytest_report_header(config: pytest.Config) -> str:
    """Where seed, transport and guards come from, and where runs go."""
    given = {name: text for name, text in _given(config).items() if text is not None}
    said = [
        f"{name} {given[name]}" if name in given else f"{name} of each test" for name in ("seed", "transport", "guards")
    ]
    said += [f"{given['duration']} s a run"] if "duration" in given else []
    return f"handoff: {', '.join(said)}; run folders in {os.path.relpath(_runs(config), config.invocation_params.dir)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what its runs found, unless its message says so already, and the stacks of nodes that hung."""
    report = yield
    test = item.stash.get(_TEST, None)
    if report.failed and test is not None:
        from harness.pytest_plugin.result import describe  # noqa: PLC0415

        said = getattr(call.excinfo.value, "result", None) if call.excinfo else None
        shown = [(number, result) for number, result in enumerate(test.results, 1) if result is not said]
        report.sections += [(f"handoff run {number}", describe(result)) for number, result in shown]
    if report.failed and _STACKS in item.stash:
        report.sections.append(("handoff: who was doing what at the timeout", item.stash[_STACKS]))
        del item.stash[_STACKS]
    return report


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Generator[None, Any, Any]:
    """Have the nodes asked for their stacks before pytest-timeout ends the test."""
    result = yield
    if _drives(item):
        from harness.pytest_plugin import stacks  # noqa: PLC0415

        stacks.before_timeout(item.nodeid, lambda frame: _tell_stacks(item, frame))
    return result


def _tell_stacks(item: pytest.Item, frame: FrameType | None) -> None:
    """Keep the stacks for the report. Without a `frame` (the main thread's) there will be none, the process is about to end: print them."""
    from harness.pytest_plugin import stacks  # noqa: PLC0415

    pool = item.config.stash.get(_POOL, None)
    text = stacks.of_nodes(pool.members) if pool is not None and pool.members else ""
    if frame is not None:
        item.stash[_STACKS] = f"this process:\n{stacks.of_frame(frame, item.path)}\n{text}"
        return
    capture = item.config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)
    print(f"\nhandoff: who was doing what at the timeout of {item.nodeid}\n{text}", file=sys.stderr, flush=True)
