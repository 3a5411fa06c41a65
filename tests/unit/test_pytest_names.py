"""What tests, ini file and command line say of a scenario, and the command that says the same."""

from __future__ import annotations

import pytest

from harness import cli
from harness.errors import FieldError, UsageError
from harness.pytest_plugin import names
from harness.scenario import check, fields, load


def test_every_short_name_is_an_option_of_the_command() -> None:
    options = {parameter.name for parameter in cli.stress.params}
    assert set(names.SHORT) <= options
    assert set(names.SHORT.values()) <= set(fields())


def test_a_layer_knows_three_ways_to_name_a_field() -> None:
    given = {"slots": 4, "workload__rate_per_s": 5, "set": {"limits.min_window": 0}}
    assert names.layer(given) == {"engine.slots": 4, "workload.rate_per_s": 5, "limits.min_window": 0}
    with pytest.raises(FieldError, match=r"^set: 5 is not allowed; use a mapping"):
        names.layer({"set": 5})


def test_later_layers_win_and_none_is_as_if_not_given() -> None:
    assert names.merge([{"seed": 1, "guards": "a"}, {"seed": 2}, {"guards": None}]) == {"seed": 2}


def test_a_duration_of_the_command_line_lifts_the_bound_on_requests() -> None:
    assert names.of_options({"duration": "2.5", "seed": None}) == {"workload.requests": 0, "workload.duration_s": 2.5}
    assert names.of_options({"seed": "7", "guards": "hardened,-row_digest"}) == {
        "seed": 7,
        "guards": "hardened,-row_digest",
    }


def test_ini_lines() -> None:
    assert names.of_lines(["slots=4", "limits.min_window = 0"]) == {"engine.slots": 4, "limits.min_window": 0}
    with pytest.raises(FieldError, match="FIELD=VALUE"):
        names.of_lines(["slots"])


def test_the_command_gives_the_same_scenario() -> None:
    changes = {
        "guards": "sglang-0.5.12,+clear_on_free", "transport.name": "tcp", "workload.requests": 50, "workload.duration_s": 2.5, "engine.slots": 4,
        "transport.ack": True, "transport.delay_us": 600.0, "workload.arrival": "poisson", "workload.rate_per_s": 5,
    }  # fmt: skip
    words = names.command({**changes, "name": "test_x"})
    assert words[:2] == ["handoff", "stress"]
    assert "name=test_x" not in words
    pairs = list(zip(words[2::2], words[3::2], strict=True))
    options = names.of_options({option[2:]: text for option, text in pairs if option != "--set"})
    again = names.merge(
        [options, {"workload.requests": 50}, names.of_lines([text for option, text in pairs if option == "--set"])]
    )
    assert load(None, again) == load(None, changes)


def test_the_command_begins_with_the_scenario_file() -> None:
    assert names.command({"scenario": "a.toml", "seed": 3}) == ["handoff", "stress", "a.toml", "--seed", "3"]


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("test_small_pools[4]", "test_small_pools-4"),
        ("test_x[a/../b c-é]", "test_x-a-..-b-c"),
        ("latest", "test-latest"),
        ("[]", "test"),
        ("t" * 300, "t" * 80),
    ],
)
def test_a_folder_for_every_test(test: str, name: str) -> None:
    assert names.folder_name(test) == name
    check(load(None, {"name": name}))


def test_a_name_that_no_scenario_has_is_answered_when_it_is_loaded() -> None:
    with pytest.raises(UsageError, match=r"^concurency: no such field \(did you mean workload.concurrency\?\)$"):
        load(None, names.layer({"concurency": 4}))
