"""Commands and recipes in the documents: each command parses, each workflow is a workflow."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from harness import scenario as scenarios
from harness.cli import app
from harness.errors import UsageError
from harness.options import OPTION_FIELDS

ROOT = Path(__file__).parents[2]
TEXTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
_COMMAND = re.compile(r"(?:^|[;|&\s`])(?:\.venv/bin/)?(handoff [a-z][^`\n]*)")


def _commands(text: str) -> list[str]:
    """Every `handoff ...` in a code block or a workflow, without what the shell makes of the rest of the line."""
    found = []
    for line in text.splitlines():
        code = line.startswith(("    ", "\t")) or "run:" in line or line.lstrip().startswith("- handoff")
        match = _COMMAND.search(line) if code else None
        if match:
            found.append(re.split(r"\s(?:#|\|\||&&|>>?|;|\|)(?:\s|$)", match[1] + " ")[0].rstrip("; \\"))
    return found


ALL = [(path.name, command) for path in [*TEXTS, *WORKFLOWS] for command in _commands(path.read_text())]


def test_there_are_commands_to_check() -> None:
    assert len(ALL) > 10
    assert {"README.md", "ci.md", "ci.yml"} <= {name for name, _ in ALL}


@pytest.mark.parametrize(("name", "command"), ALL)
def test_every_documented_command_parses(name: str, command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if word != "..."]
    found: click.Command | None = app
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        word = words.pop(0)
        found = found.get_command(click.Context(found), word)
        assert found is not None, f"{name}: {command}: no command {word}"
    assert found is not None
    try:
        with found.make_context("handoff", words) as context:
            if found.name == "stress":
                _load(context.params)
    except click.exceptions.Exit:
        pass  # --help and --version
    except (click.ClickException, UsageError) as error:
        pytest.fail(f"{name}: {command}: {error}")


def _load(params: dict[str, Any]) -> None:
    """Its scenario is one that would be run."""
    wanted = dict(map(scenarios.parse_set, params["changes"]))
    for option, field in OPTION_FIELDS.items():
        if params[option] is not None:
            wanted |= [scenarios.parse_set(f"{field}={params[option]}")]
    scenarios.load(None, wanted)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_bounds_and_pinned_actions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert "@" in step.get("uses", "@")


def test_recipes_in_the_documents_are_yaml() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    github, gitlab = map(yaml.safe_load, blocks)
    assert github["jobs"]["handoff"]["steps"]
    assert gitlab["handoff"]["script"]
