"""Where a process is reached: `auto`, names, and what cannot be reached."""

from __future__ import annotations

import socket

import pytest

from harness.errors import HarnessError
from harness.node import address


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("tcp://127.0.0.1:7000", ("tcp", "127.0.0.1", "7000")),
        ("tcp://registry:*", ("tcp", "registry", "*")),
        ("ipc://@handoff-1-driver", ("ipc", "", "")),
        ("tcp://nothing", ("tcp", "", "")),
    ],
)
def test_split(given: str, parts: tuple[str, str, str]) -> None:
    assert address.split(given) == parts


def test_data_connections_go_where_the_inbox_is() -> None:
    assert address.host_of("tcp://127.0.0.9:4") == "127.0.0.9"
    assert address.host_of("ipc://@handoff") == address.LOOPBACK


def test_auto_is_the_address_on_the_way_to_the_registry() -> None:
    assert address.own("tcp://auto:7001", "tcp://127.0.0.3:7000") == "tcp://127.0.0.1:7001"
    assert address.own("tcp://auto:*", "ipc://@handoff-registry") == "tcp://127.0.0.1:*"
    assert address.own("tcp://127.0.0.8:1", "tcp://127.0.0.3:7000") == "tcp://127.0.0.8:1"


def test_a_name_is_asked_for_once_and_again_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [OSError(-3, "Temporary failure"), "127.0.0.7"]

    def resolve(name: str) -> str:
        assert name == "registry"
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    assert address.resolved("tcp://registry:7000", 30) == "tcp://127.0.0.7:7000"
    assert answers == []


def test_a_name_that_means_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str) -> str:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    with pytest.raises(HarnessError, match="tcp://registry:7000: Name or service not known"):
        address.resolved("tcp://registry:7000", 0)


@pytest.mark.parametrize("given", ["ipc://@handoff-registry", "tcp://*:7000", "tcp://auto:1"])
def test_what_is_no_name_is_left_alone(given: str) -> None:
    assert address.resolved(given, 0) == given


def test_a_host_has_the_names_that_resolve_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname_ex", lambda name: (name, [], ["10.0.0.2", "10.0.0.3"]))
    assert address.is_named("10.0.0.3", "driver")
    assert not address.is_named("10.0.0.4", "driver")

    def resolve(name: str) -> tuple[str, list[str], list[str]]:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname_ex", resolve)
    assert not address.is_named("10.0.0.3", "driver")
