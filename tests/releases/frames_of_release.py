"""Run in a process of its own: has one release read frames that we wrote, and prints what it understood as JSON.

Arguments: folders first on the search path, `--`, folders last on it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

import numpy as np

from harness.hosting.mover import Mover, install_as_mooncake
from harness.hosting.sglang import frames
from harness.hosting.sglang.load import load

REGISTRATION = frames.Registration("127.0.0.1", 4711, "127.0.0.1:1", [1 << 40, 3 << 40], [5 << 30, 7 << 30], 512)
DESTINATION = frames.Destination((1 << 62) + 5, "127.0.0.1", 4711, "127.0.0.1:1", [3, 1, 2], 9, prefix=0)
ABORT = frames.Abort(77, "127.0.0.1", 4711, 6)
ACK = frames.AbortAck(77, 0, 6)
STATUS = frames.Status((1 << 62) + 5, 4, 0)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _fields(value: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(value)]
    return {name: _plain(getattr(value, name)) for name in names}


def main() -> None:
    """See the module."""
    cut = sys.argv.index("--")
    out = os.dup(1)
    os.dup2(2, 1)
    install_as_mooncake(Mover())
    loaded = load(sys.argv[1:cut], sys.argv[cut + 1 :])
    backend, common = loaded.backend, sys.modules["sglang.srt.disaggregation.common.conn"]
    found = {
        "registration": _fields(backend.KVArgsRegisterInfo.from_zmq(REGISTRATION.frames())),
        "destination": _fields(backend.TransferInfo.from_zmq(DESTINATION.frames())),
    }
    manager = loaded.find("KVManager")
    if hasattr(manager, "parse_kv_status_message"):
        found["status"] = list(manager.parse_kv_status_message(manager, STATUS.frames()))[:3]
    for name, message in (("AbortNotification", ABORT), ("AbortAck", ACK)):
        if hasattr(common, name):
            read = getattr(common, name).from_zmq(message.frames())
            found[name] = {"frames": [frame.decode() for frame in read.to_zmq()], "room": read.room}
    os.write(out, json.dumps(found, default=str).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
