"""What both hosting nodes share: an engine is built on a thread of its own, watched, polled, and ends with its process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.errors import HandoffError, HarnessError
from harness.hosting.guest import Guest
from harness.protocol.settings import NodeSettings

if TYPE_CHECKING:
    from harness.node.shell import Address, Shell

    Base = Shell
else:
    Base = object
WAIT_MS = 10
ERROR_CHARS_MAX = 2000


class Hosting(Base):
    """Goes before a node's own class among the bases. While it hosts nothing, it changes nothing."""

    _guest: Guest | None = None
    _hosted: Any = None

    def alone(self) -> None:
        """Raise HarnessError in a process that has hosted an engine: that is for one run."""
        if self._guest is not None:
            raise HarnessError("this process has hosted an engine, and that is for one run: start a new one")

    def host(self, settings: NodeSettings, make: Callable[[], Any]) -> None:
        """Have `make` build the engine; the node serves once it is there."""
        self.abrupt = True
        self._hosted = None
        self._guest = Guest(self.name, settings)
        self._guest.build(make)

    def took(self, hosted: Any) -> None:
        """The engine is there: what the node does then."""

    def step_hosted(self, now: float) -> int:
        """A step of the node with its engine: `step` of the node's own class, unless it is another; the same in and out."""
        return super().step(now)

    def _take_built(self, guest: Guest) -> int:
        try:
            self._hosted = guest.built()
        except HandoffError as error:
            self.answer(str(error)[:ERROR_CHARS_MAX])
            return WAIT_MS
        if self._hosted is not None:
            self.took(self._hosted)
        return WAIT_MS

    def step(self, now: float) -> int:
        """As the node's own class; an exception in the engine's own code is the engine's death, not ours."""
        if self._guest is None:
            return super().step(now)
        self._guest.look(now)
        if self._hosted is None:
            return self._take_built(self._guest)
        with self._guest.calling():
            return self.step_hosted(now)

    def peer_changed(self, peer: Address, *, alive: bool, dead: bool = False) -> None:
        """The engine has its own ways to find out."""
        if self._guest is None:
            super().peer_changed(peer, alive=alive, dead=dead)

    def held(self) -> dict[int, tuple[int, int, int]]:
        """The engine's census."""
        if self._guest is None:
            return super().held()
        return self._hosted.held() if self._hosted is not None else {}

    def finish(self) -> None:
        """A hosted engine cannot be stopped: it ends with the process."""
        if self._guest is None:
            super().finish()
