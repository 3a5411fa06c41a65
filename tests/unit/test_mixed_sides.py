"""What a reference prefill needs beside a hosted decode: addresses, a bootstrap server, memory of somebody else; and which faults reach it."""

from __future__ import annotations

import ctypes
import http.client
import json
import sys
import types

import pytest

from decode_node.mixed import PlacedRecorder, Places
from harness import scenario as scenarios
from harness.errors import FieldError, HarnessError
from harness.faults.catalogue import parse_all
from harness.faults.reach import out_of_reach
from harness.hosting import nixl
from harness.hosting.regions import Regions, RegionsMemory
from harness.hosting.sglang.bootstrap import Bootstrap, answer
from harness.hosting.sglang.frames import Registration
from harness.hosting.sglang.meeting import Meeting, RowField
from harness.protocol.layout import Layout, LayoutSpec
from harness.releases import engines, hosted
from prefill_stub.foreign import NOWHERE, RemoteLayout
from prefill_stub.outgoing import _Way

LAYOUT = Layout(LayoutSpec(slots=4, pages=4, layers=2, page_bytes=64, pages_per_request=1))


def meeting(*, without: str = "", wider: str = "") -> Meeting:
    named = [field for field in LAYOUT.fields if field.name != without]
    fields = [RowField(field.name, field.row_bytes * (2 if field.name == wider else 1)) for field in named]
    return Meeting("{}", "127.0.0.1:9", [RowField("output_sampling_mask", 64), *fields], 1)


def registered(count: int, layers: int = 2) -> Registration:
    aux = [1000 * (at + 1) for at in range(count)]
    return Registration("127.0.0.1", 9, "s", [10**6 * (at + 1) for at in range(layers)], aux, 64)


def test_rows_lie_where_the_release_has_them_by_name() -> None:
    layout = RemoteLayout(LAYOUT, meeting(), registered(11))
    assert layout.row_offsets(0) == [1000 * (at + 2) for at in range(10)]
    assert layout.row_offsets(3)[0] == 2000 + 3 * LAYOUT.fields[0].row_bytes
    assert layout.layer_offsets == [10**6, 2 * 10**6]


def test_a_release_whose_rows_have_no_room_gets_none() -> None:
    assert RemoteLayout(LAYOUT, meeting(without="bootstrap_room"), registered(10)).row_offsets(2)[-1] == NOWHERE


def test_other_sizes_are_refused() -> None:
    with pytest.raises(HarnessError, match="output_ids: a row has 128 bytes in this release, 64 here"):
        RemoteLayout(LAYOUT, meeting(wider="output_ids"), registered(11))
    with pytest.raises(HarnessError, match="registered 3 KV tensors, not 2"):
        RemoteLayout(LAYOUT, meeting(), registered(11, layers=3))


def test_a_meeting_travels_and_anything_else_is_refused() -> None:
    assert Meeting.decode(meeting().encode()) == meeting()
    with pytest.raises(HarnessError, match="not what a hosted node says"):
        Meeting.decode(b"{}")


# The bootstrap server


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("engine_rank=-1&target_dp_group=-1&target_pp_rank=-1", "prefill_page_size"),
        ("prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1", "page_size"),
    ],
)
def test_each_generation_is_answered_in_its_own_words(query: str, key: str) -> None:
    status, body = answer(f"/route?{query}", 77)
    assert (status, isinstance(body, dict) and body[key]) == (200, 1)
    assert answer(f"/route?{query.replace('-1', '0')}", 77) == (200, {"rank_ip": "127.0.0.1", "rank_port": 77})


@pytest.mark.parametrize("target", ["/", "/route", "/route?x=1", "/other?engine_rank=0"])
def test_anything_else_is_not_there(target: str) -> None:
    assert answer(target, 77)[0] == 404


def test_a_connection_is_kept_alive_and_ends_with_the_server() -> None:
    bootstrap = Bootstrap(77)
    connection = http.client.HTTPConnection(bootstrap.address, timeout=10)
    for _ in range(2):
        connection.request("GET", "/health", headers={"Connection": "keep-alive"})
        assert connection.getresponse().read() == b"OK"
    connection.request("GET", "/route?engine_rank=0")
    assert json.load(connection.getresponse())["rank_port"] == 77
    bootstrap.close()
    connection.close()
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection(bootstrap.address, timeout=10).request("GET", "/health")


# Memory that an engine registered


def test_bytes_go_where_the_engine_registered_memory_and_nowhere_else() -> None:
    memory = (ctypes.c_char * 64)()
    address = ctypes.addressof(memory)
    regions = Regions()
    regions.register(address + 32, 16)
    regions.register(address, 16)
    view = RegionsMemory(regions).view
    view[address + 40 : address + 44] = b"abcd"
    view[address + 12 : address + 16] = b"efgh"
    assert memory.raw == bytes(12) + b"efgh" + bytes(24) + b"abcd" + bytes(20)
    for start in (address - 1, address + 14, address + 16, address + 45, address + 48):
        with pytest.raises(IndexError, match="not memory that the engine registered"):
            view[start : start + 4] = b"ijkl"
    with pytest.raises(HarnessError):
        regions.move("peer", [(address, address, 1)])


def test_a_write_is_recorded_under_the_tenure_of_its_room() -> None:
    seen: list[tuple[object, ...]] = []
    inner = types.SimpleNamespace(event=lambda *fields, **named: seen.append((*fields, named)), row=seen.append)
    places = Places()
    places.put(5, 2, 9)
    PlacedRecorder(inner, places).event(1, 5, 0, 1, code=3)  # type: ignore[arg-type]
    PlacedRecorder(inner, places).event(1, 6, 4, 1)  # type: ignore[arg-type]
    assert seen == [(1, 5, 2, 9, {"code": 3}), (1, 6, 4, 0, {})]


def test_places_of_long_ago_are_forgotten() -> None:
    places = Places(most=2)
    for room in (1, 2, 3):
        places.put(room, 0, room)
    assert [places.tenure(room) for room in (1, 2, 3)] == [0, 2, 3]


# What can be asked for


def test_a_side_is_part_of_the_name() -> None:
    engine = hosted.parse("decode=sglang==0.5.13")
    assert (engine.name, engine.version, engine.side) == ("decode=sglang==0.5.13", "0.5.13", "decode")
    assert hosted.parse("sglang==0.5.13").side == "both"
    assert hosted.parse("decode=path:/nowhere").name == "decode=path:/nowhere"


@pytest.mark.parametrize(
    "name", ["decode=reference", "decode=", "decode=decode=sglang==0.5.13", "router=sglang==0.5.13"]
)
def test_other_sides_are_answered_with_what_is_allowed(name: str) -> None:
    with pytest.raises(FieldError, match=r"engine\.name"):
        hosted.parse(name)


@pytest.mark.parametrize(
    ("field", "value"),
    [("transport.name", "mooncake"), ("planes", "shared"), ("topology.prefill_tp", 2), ("engine.slot_policy", "lifo")],
)
def test_what_one_side_alone_cannot_have(field: str, value: object) -> None:
    with pytest.raises(FieldError) as raised:
        scenarios.load(None, {"engine.name": "decode=sglang==0.5.13", "transport.name": "tcp", field: value})
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("guards", "refused"),
    [
        ("sglang-0.5.12", ""), ("sglang-0.5.20", ""), ("hardened", "row_digest"),
        ("sglang-0.5.20,+drain_on_commit", "drain_on_commit"),
    ],
)  # fmt: skip
def test_guards_that_need_more_than_a_release_sends(guards: str, refused: str) -> None:
    wanted = {"engine.name": "prefill=sglang==0.5.13", "transport.name": "tcp", "guards": guards}
    if not refused:
        assert scenarios.load(None, wanted).guards == guards
        return
    with pytest.raises(FieldError, match=refused) as raised:
        scenarios.load(None, wanted)
    assert raised.value.field == "guards"


def test_only_our_own_memory_can_be_written_one_sided() -> None:
    wanted = {"transport.name": "shm", "guards": "sglang-0.5.13"}
    assert scenarios.load(None, {"engine.name": "prefill=sglang==0.5.13", **wanted}).transport.name == "shm"
    with pytest.raises(FieldError, match=r"'shm' is not allowed; use tcp: decode=sglang==0\.5\.13 is one side alone"):
        scenarios.load(None, {"engine.name": "decode=sglang==0.5.13", **wanted})


@pytest.mark.parametrize(
    ("address", "size", "offset"), [(1000, 64, 0), (1036, 64, 36), (1037, 64, None), (999, 64, None), (5, 8, None)]
)
def test_a_one_sided_plane_reaches_decodes_region_and_nothing_else(address: int, size: int, offset: int | None) -> None:
    way = _Way(0, None, 1000, 100)  # type: ignore[arg-type]
    assert way.offset(address, size) == offset


def test_our_own_transport_can_be_set_as_ever() -> None:
    wanted = {
        "engine.name": "decode=sglang==0.5.13", "transport.name": "tcp", "transport.reorder": "room_first",
        "transport.late_fraction": 0.5, "transport.connections": 2, "transport.ack": True,
    }  # fmt: skip
    assert scenarios.load(None, wanted).transport.late_fraction == 0.5


@pytest.mark.parametrize(
    ("fault", "sides"),
    [
        ("hold-write", {"decode"}),
        ("delay:message=status", {"decode"}),
        ("delay:message=exchange", {"prefill"}),
        ("delay:message=request", {"both", "prefill", "decode"}),
        ("starve", {"prefill"}),
        ("abort", {"both", "prefill", "decode"}),
        ("abort:state=writing", {"decode"}),
        ("abort:state=exchange", {"prefill"}),
        ("partition", set()),
        ("partition:direction=to-decode", {"decode"}),
        ("kill:node=prefill", {"decode"}),
        ("kill:node=any", set()),
        ("slow:node=any", {"both", "prefill", "decode"}),
        ("fill-queue:node=prefill", {"prefill"}),
        ("fill-queue:node=decode", {"decode"}),
    ],
)
def test_only_our_own_side_can_be_made_to_fail(fault: str, sides: set[str]) -> None:
    (parsed,) = parse_all([fault])
    assert {side for side in ("both", "prefill", "decode") if not out_of_reach(parsed, side)} == sides


def test_a_fault_out_of_reach_is_one_line() -> None:
    with pytest.raises(
        FieldError, match=r"starve is done inside decode, and that is decode=sglang==0\.5\.13's own code"
    ):
        scenarios.load(None, {"engine.name": "decode=sglang==0.5.13", "transport.name": "tcp", "faults": ["starve"]})


# NIXL's name


def test_nixl_is_there_by_the_name_that_sglang_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agent:
        def __init__(self, name: str) -> None:
            self.name, self.nixl_mems = name, {"DRAM": 1, "VRAM": 2}

    real = types.ModuleType("nixl_fake._api")
    real.nixl_agent = Agent  # type: ignore[attr-defined]
    bindings = types.ModuleType("nixl_fake._bindings")
    monkeypatch.setitem(sys.modules, "nixl_fake", types.ModuleType("nixl_fake"))
    monkeypatch.setitem(sys.modules, "nixl_fake._bindings", bindings)
    monkeypatch.setattr(engines, "load", lambda *_: real)
    monkeypatch.setenv("UCX_TLS", "")
    for name in ("nixl", "nixl._api", "nixl._bindings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType("nobody"))
    nixl.install("nixl-shm", "1")
    from nixl._api import nixl_agent  # type: ignore[import-not-found]  # noqa: PLC0415

    assert nixl_agent("a").nixl_mems == {"DRAM": 1, "VRAM": 1}
    assert sys.modules["nixl._bindings"] is bindings
    assert nixl.os.environ["UCX_TLS"].startswith("shm")  # type: ignore[attr-defined]
