"""What both reference nodes share that speak SGLang's protocol: a line to the other side's engine, heard at every step until the run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import zmq

from harness.hosting.sglang.line import Line

if TYPE_CHECKING:
    from harness.node.shell import Shell

    class Base(Shell):
        """A node of either side."""

        def _plain(self) -> bool:
            raise NotImplementedError

else:
    Base = object


class Speaking(Base):
    """Goes before a node's own class among the bases. Without a line it changes nothing."""

    _line: Line[Any] | None = None

    def _speak(self, line: Line[Any]) -> None:
        """Listen there from now on."""
        self._line = line
        self._poller.register(line.socket, zmq.POLLIN)

    def _heard(self, message: Any) -> None:
        """The other side's engine said this."""
        raise NotImplementedError

    def _plain(self) -> bool:
        """Not where a message has to be put into other words."""
        return self._line is None and super()._plain()

    def step(self, now: float) -> int:
        """Hear what the other side's engine says, then as the reference."""
        line = self._line
        if line is not None:
            for message in line.take():
                self._heard(message)
            self.inbox.bad, line.bad = self.inbox.bad + line.bad, 0
        return super().step(now)

    def finish(self) -> None:
        """Close the engine's sockets, then as the reference."""
        if self._line is not None:
            self._poller.unregister(self._line.socket)
            self._line.close()
            self._line = None
        super().finish()
