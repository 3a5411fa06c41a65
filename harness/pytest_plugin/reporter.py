"""The end of a session: nodes are closed, what they left behind fails it, and the summary adds up what all workers drove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.pytest_plugin.summary import Tally

_OUTPUT = "handoff"
"""Key in what a worker of pytest-xdist hands to its controller."""


class Reporter:
    """One for each pytest process. `close` ends the nodes of this process and names what they left behind."""

    def __init__(self, config: pytest.Config, close: Callable[[], list[str]]) -> None:
        """Nothing has run yet."""
        self.tally = Tally()
        self._config, self._close = config, close

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in a test's runs, once; reports of workers come here too."""
        if report.when == "teardown":
            self.tally.take(report.user_properties)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the nodes. Something left behind fails the session; a worker leaves that to its controller."""
        self.tally.left += self._close()
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = {"left": self.tally.left, "deselected": self.tally.deselected}
        elif self.tally.left and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended: take over what only it knows. Every worker collects everything."""
        output = getattr(node, "workeroutput", {}).get(_OUTPUT, {})
        self.tally.left += output.get("left", [])
        self.tally.deselected = max(self.tally.deselected, output.get("deselected", 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was driven and found."""
        lines = self.tally.lines()
        if lines:
            terminalreporter.section("handoff", sep="-")
        for line in lines:
            terminalreporter.write_line(line, red=line.startswith("LEFT BEHIND"))

    def pytest_unconfigure(self) -> None:
        """The session may have ended before it began to finish."""
        self._close()
