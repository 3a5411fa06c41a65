"""The plugin in somebody else's suite, where no node is started: marks, options, precedence, errors, and what it costs who does not use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import harness.pytest_plugin.nodes  # noqa: F401  once for all inner sessions, which forget what they import

STRICT = ("-W", "error", "--strict-markers", "--strict-config", "-p", "no:hypothesispytest")


def _run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*STRICT, *arguments)


def test_a_suite_that_does_not_use_it_imports_next_to_nothing() -> None:
    heavy = "numpy torch zmq msgspec click rich psutil multiprocess harness.scenario"
    code = f"import pytest, sys; import harness.pytest_plugin, harness.pytest_plugin.reporter; print([m for m in {heavy.split()} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


SUITE = """
    import pytest

    @pytest.mark.integration
    @pytest.mark.handoff(slots=4)
    def test_ours(handoff_scenario):
        assert handoff_scenario.engine.slots == 4

    @pytest.mark.integration
    @pytest.mark.handoff
    def test_ours_by_the_mark():
        pass

    @pytest.mark.integration
    def test_theirs():
        pass

    @pytest.mark.stress
    @pytest.mark.faults
    @pytest.mark.release
    def test_other_marks(handoff_scenario):
        pass
"""


@pytest.mark.parametrize(
    ("arguments", "passed", "deselected"),
    [((), 2, 2), (("--integration",), 4, 0), (("-m", "integration"), 3, 1), (("-m", "not integration"), 1, 3), (("-m", "stress"), 1, 3)],
)  # fmt: skip
def test_integration_tests_of_ours_run_only_when_asked_for(
    pytester: pytest.Pytester, arguments: tuple[str, ...], passed: int, deselected: int
) -> None:
    pytester.makepyfile(SUITE)
    result = _run(pytester, *arguments)
    result.assert_outcomes(passed=passed, deselected=deselected)
    hint = "2 integration tests that drive hand-offs were deselected; run them with --integration"
    assert (hint in result.outlines) is (not arguments)
    assert result.stderr.str() == ""


def test_a_projects_own_integration_option_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_addoption(parser): parser.addoption('--integration', action='store_true')")
    pytester.makepyfile(SUITE)
    _run(pytester).assert_outcomes(passed=2, deselected=2)
    _run(pytester, "--integration").assert_outcomes(passed=4)


def test_later_and_nearer_settings_win(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nhandoff_set =\n  seed=1\n  slots=1\n  concurrency=1\n  workload.warmup=1\n  limits.min_reuse=1\n"
    )
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.handoff(seed=2, slots=2, concurrency=2, workload__warmup=2)

        @pytest.mark.handoff(seed=3, slots=3, concurrency=3)
        class TestIt:
            @pytest.mark.handoff(seed=4, slots=4, requests=100)
            def test_it(self, handoff_scenario, handoff_cluster, request):
                cluster = handoff_cluster(seed=5)
                given = request.config.getoption("handoff_seed")
                assert cluster.scenario.seed == (6 if given else 5)
                assert cluster.load({"seed": 7, "planes": "shared"}).planes == "shared"
                assert cluster.load({"seed": 7}).seed == (6 if given else 7)
                assert handoff_scenario.seed == (6 if given else 4)
                assert handoff_scenario.engine.slots == 4
                assert handoff_scenario.workload.concurrency == 3
                assert handoff_scenario.workload.warmup == 2
                assert handoff_scenario.limits.min_reuse == 1
                assert handoff_scenario.name == "test_it"
                load = handoff_scenario.workload
                assert (load.requests, load.duration_s) == ((0, 2.5) if given else (100, 0))
        """
    )
    _run(pytester).assert_outcomes(passed=1)
    _run(pytester, "--handoff-seed", "6", "--handoff-duration", "2.5").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("concurrency=0", "workload.concurrency: 0 is not allowed; use 1 to 65536"),
        ("slot=4", "slot: no such field (did you mean"),
        ("workload__rate=4", "workload.rate: no such field (did you mean workload.rate_per_s?)"),
        ("set=4", "set: 4 is not allowed; use a mapping"),
        ("guards='nope'", "guards: 'nope' is not allowed; use one of"),
        ("requests='many'", "workload.requests: 'many' is not allowed; use a whole number"),
        ("scenario='nowhere.toml'", "nowhere.toml: No such file or directory"),
        ("4", "handoff mark: 4 is not allowed; use keywords, for example slots=4"),
    ],
)
def test_a_bad_mark_is_one_line_before_the_test_begins(pytester: pytest.Pytester, mark: str, said: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.handoff({mark})\ndef test_it(handoff_run): handoff_run()")
    result = _run(pytester)
    result.assert_outcomes(errors=1)
    lines = [line for line in result.outlines if said in line]
    assert lines, result.outlines
    assert not any("Traceback" in line or "harness/" in line for line in result.outlines)
    assert not (pytester.path / "runs").exists()


def test_a_bad_argument_shows_the_tests_line_and_one_more(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(handoff_cluster):\n    handoff_cluster(slots=0)")
    result = _run(pytester)
    result.stdout.fnmatch_lines(
        [">   *handoff_cluster(slots=0)", "E   *FieldError: engine.slots: 0 is not allowed; use 1 to 65536"]
    )
    result.stdout.no_fnmatch_line("*harness/pytest_plugin*")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--handoff-guards", "nope"), "ERROR: handoff: guards: 'nope' is not allowed; use one of*"),
        (("--handoff-seed", "x"), "ERROR: handoff: seed: 'x' is not allowed; use a whole number"),
        (("-o", "handoff_set=slots"), "ERROR: handoff: --set: 'slots' is not allowed; use FIELD=VALUE*"),
    ],
)
def test_a_bad_option_ends_the_session_with_a_usage_error(
    pytester: pytest.Pytester, arguments: tuple[str, ...], said: str
) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = _run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_the_header_says_where_settings_come_from(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    _run(pytester).stdout.fnmatch_lines(
        ["handoff: seed of each test, transport of each test, guards of each test; run folders in runs"]
    )
    result = _run(pytester, "--handoff-seed", "3", "--handoff-transport", "tcp", "--handoff-runs", "elsewhere")
    result.stdout.fnmatch_lines(["handoff: seed 3, transport tcp, guards of each test; run folders in elsewhere"])


def test_it_can_be_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_a="def test_it(handoff_run): pass", test_b="def test_it(): pass")
    result = _run(pytester, "-p", "no:handoff")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'handoff_run' not found"])
    result.stdout.no_fnmatch_line("handoff: *")
