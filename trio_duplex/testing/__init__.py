"""Public testing kit: a scripted model that runs on the Trio side, so that ``MockClock`` drives whole conversations."""

from trio_duplex.testing.scripted_model import (
    Fail,
    Hang,
    Piece,
    ScriptedOptions,
    ScriptedPlugin,
    ScriptedSession,
)

__all__ = ["Fail", "Hang", "Piece", "ScriptedOptions", "ScriptedPlugin", "ScriptedSession"]
