"""Public testing kit: whole conversations in memory, on a virtual clock, replayable, and checked.

- :mod:`~trio_duplex.testing.scripted_model`: a model that does what its script says.
- :mod:`~trio_duplex.testing.rig`: hub, model, sockets and clients in memory; counted when put away.
- :mod:`~trio_duplex.testing.sockets`: WebSockets in memory with faults on a schedule.
- :mod:`~trio_duplex.testing.history`: the invariants as one pure function over a recorded wire log.
- :mod:`~trio_duplex.testing.schedule`: one seed, one history.
- :mod:`~trio_duplex.testing.explorer`: cancels a scenario at every step and checks the invariants after each.
- :mod:`~trio_duplex.pytest_plugin`: fixtures; pytest finds it by itself.
"""

from trio_duplex.testing.history import INVARIANTS, Merged, Violation, check_history, merge_logs
from trio_duplex.testing.rig import BrokenPromises, Rig, open_rig, silence, speech
from trio_duplex.testing.schedule import run_seeded, seeded_schedule
from trio_duplex.testing.scripted_model import (
    Fail,
    Hang,
    Piece,
    ScriptedOptions,
    ScriptedPlugin,
    ScriptedSession,
)
from trio_duplex.testing.sockets import Faults, MemoryClientSocket, MemoryNetwork, MemoryTransport

__all__ = [
    "INVARIANTS",
    "BrokenPromises",
    "Fail",
    "Faults",
    "Hang",
    "MemoryClientSocket",
    "MemoryNetwork",
    "MemoryTransport",
    "Merged",
    "Piece",
    "Rig",
    "ScriptedOptions",
    "ScriptedPlugin",
    "ScriptedSession",
    "Violation",
    "check_history",
    "merge_logs",
    "open_rig",
    "run_seeded",
    "seeded_schedule",
    "silence",
    "speech",
]
