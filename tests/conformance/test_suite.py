"""The conformance suite on every registered transport, on a toy, and on broken toys, each of which it must reject."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.transport import conformance, registry

from . import broken, toys


def _cases() -> list[tuple[str, str]]:
    names = [name for name in registry.names() if registry.engine_of(name) is None]
    return [(name, prop) for name in names for prop in conformance.PROPERTIES]


@pytest.mark.parametrize(("name", "prop"), _cases())
def test_every_registered_transport(name: str, prop: str) -> None:
    conformance.check(registry.get(name), prop)


@pytest.mark.parametrize("prop", conformance.PROPERTIES)
def test_a_transport_passed_in(prop: str) -> None:
    conformance.check(toys.Toy(), prop)


@pytest.mark.parametrize(("made", "prop", "said"), broken.BROKEN)
def test_rejects_a_broken_transport(made: type[toys.Toy], prop: str, said: str) -> None:
    toy = made()
    try:
        with pytest.raises(conformance.Violation, match=f"^toy: {prop}: .*{said}"):
            conformance.check(toy, prop, deadline_s=1.0)
    finally:
        if isinstance(toy, broken.LeaksDescriptors):
            for descriptor in toy.kept:
                os.close(descriptor)
        if isinstance(toy, broken.LeaksThreads):
            toy.end.set()
            for thread in toy.threads:
                thread.join()


def test_an_exception_of_a_transport_is_not_swallowed() -> None:
    with pytest.raises(ConnectionResetError, match="the peer is gone"):
        conformance.check(broken.Raises(), "peer_gone", deadline_s=1.0)


def test_every_property_has_a_broken_toy() -> None:
    assert {prop for _, prop, _ in broken.BROKEN} == set(conformance.PROPERTIES)
    assert all(function.__doc__ for function in conformance.PROPERTIES.values())


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution that registers a transport."""
    info = tmp_path / "acme_transport-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-transport\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nacme = acme_transport:TRANSPORT\n")
    (tmp_path / "acme_transport.py").write_text(
        f"from {toys.__name__} import Toy\nTRANSPORT = Toy()\nTRANSPORT.name = 'acme'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("acme_transport", None)


@pytest.mark.usefixtures("third_party")
def test_a_third_partys_entry_point_is_found_and_runs() -> None:
    assert registry.names() == ["acme", "gloo", "mooncake", "nixl", "nixl-shm", "nixl-tcp", "shm", "tcp"]
    transport = registry.get("acme")
    assert transport.name == "acme"
    conformance.check(transport, "lands", "records")


def test_unknown_transport_names_those_there_are() -> None:
    with pytest.raises(
        Exception, match=r"^transport.name: 'smoke' is not allowed; use one of gloo, mooncake, .*, shm, tcp$"
    ):
        registry.get("smoke")
