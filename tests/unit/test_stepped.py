"""What holds a thread up where a check wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import zmq

from harness.hosting import stepped

DEADLINE_S = 20.0


@contextmanager
def beside(target: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    yield
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_look_up_is_answered_late_with_what_was_true_when_it_was_asked() -> None:
    held = stepped.HeldDict({1: "a", 2: "b"}, lambda key, value: (key, value) == (1, "a"))
    answers: list[bool] = []

    def look() -> None:
        answers.extend(key in held for key in (3, 2, 1, 1))

    assert 1 in held  # its maker is never held up
    assert not held.reached.is_set()
    with beside(look):
        assert held.reached.wait(DEADLINE_S)
        assert answers == [False, True]
        del held[1]
        held.go_on.set()
    assert answers == [False, True, True, False]


@pytest.mark.parametrize("locked", [False, True])
def test_a_message_waits_for_another_one_in_its_middle_unless_a_lock_keeps_it_out(
    locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepped.EAR, "gate", gate := stepped.Gate(b"1"))
    monkeypatch.setattr(stepped.EAR, "heard", heard := set[bytes]())
    lock = threading.Lock()

    def send(*frames: bytes) -> None:
        if locked:
            with lock:
                push.send_multipart(frames)
        else:
            push.send_multipart(frames)

    with zmq.Context() as context, context.socket(zmq.PULL) as pull, stepped.SteppedSocket(context, zmq.PUSH) as push:
        pull.bind("inproc://here")
        push.connect("inproc://here")
        with beside(lambda: send(b"1", b"2")):
            assert gate.reached.wait(DEADLINE_S)
            with beside(lambda: send(b"3", b"4")):
                assert gate.overtaken.wait(0.5 if locked else DEADLINE_S) is not locked
                gate.open()
        got = []
        while pull.poll(200):
            got.append(pull.recv_multipart())
    assert got == ([[b"1", b"2"], [b"3", b"4"]] if locked else [[b"1", b"3", b"4"], [b"2"]])
    assert heard == {b"1", b"2", b"3", b"4"}


def test_something_is_done_just_before_a_chosen_look_at_a_row_and_once() -> None:
    class Buffers:
        def __init__(self) -> None:
            self.rooms, self.size = torch.zeros(2), 2

    looks = stepped.Looks()
    buffers = stepped.stepped_buffers(Buffers, looks)()
    looks.before(1, lambda: buffers.rooms.fill_(7))
    seen = [(buffers.size, buffers.rooms[0].item(), looks.over) for _ in range(3)]
    assert seen == [(2, 0, False), (2, 7, True), (2, 7, True)]
    looks.before(0, lambda: buffers.rooms.fill_(8))
    looks.forget()
    assert (buffers.rooms[0].item(), looks.over) == (7, True)
