"""Takes and restores a point of a schedule as bytes. Equal bytes are the same point: nothing that can differ is left out.

What is saved is everything in the cores' `vars()` except the names below, which never change after construction, so a field that
a core gets later is saved without anybody's doing.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import random
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .world import World

ENGINE_FIXED = {"index", "settings", "guards", "buffers", "payload", "owners", "record", "_ranks"}
MACHINE_FIXED = {
    "index", "settings", "guards", "buffers", "payload", "record", "layouts", "_clock_ns", "_kv", "_layers", "_rows", "_spans",
}  # fmt: skip
WORLD_SAVED = ("queues", "pending", "completions", "flags", "now")


def _array(array: np.ndarray) -> Any:
    return np.array, (array.tolist(),)


_UNUSED = random.Random(0)


def _unused() -> random.Random:
    return _UNUSED


def _random(_: random.Random) -> Any:
    return _unused, ()  # belongs to pools whose policy is not to draw: it has no state that matters


_TABLE = copyreg.dispatch_table.copy()
_TABLE[np.ndarray] = _array
_TABLE[random.Random] = _random


def dump(world: World) -> bytes:
    """One pickle of everything, so that what is shared between the parts stays shared."""
    state = (
        {name: value for name, value in vars(world.engine).items() if name not in ENGINE_FIXED},
        [
            {name: value for name, value in vars(machine).items() if name not in MACHINE_FIXED}
            for machine in world.machines
        ],
        world.owners.tenures,
        [bytes(view[start:stop]) for view, start, stop in world.spans],
        {name: getattr(world, name) for name in WORLD_SAVED},
        vars(world.judge),
    )
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _TABLE
    pickler.dump(state)
    return file.getvalue()


def restore(world: World, saved: bytes) -> None:
    """Put the world where it was."""
    engine, machines, tenures, memory, own, judge = pickle.loads(saved)
    vars(world.engine).update(engine)
    for machine, held in zip(world.machines, machines, strict=True):
        vars(machine).update(held)
    world.owners.tenures[:] = tenures
    for (view, start, stop), data in zip(world.spans, memory, strict=True):
        view[start:stop] = data
    vars(world).update(own)
    vars(world.judge).update(judge)
