"""Committed input that has no answer yet: what ``response.create`` or the next answering commit takes along."""

from __future__ import annotations

import attrs

from trio_duplex.models.plugin import Turn


@attrs.define(eq=False)
class Work:
    """Turns and stored items that wait for an answer (contract 10.1, 12.2).

    ``stored``: text items or tool results of the history wait too. ``wanted``: an answer was asked for already and
    only waits for the active one to end. ``precreate``: that answer is visible from its start. ``force_listen``: a
    short acknowledgement, on which the model must not speak.
    """

    turns: list[Turn] = attrs.field(factory=list)
    stored: bool = False
    wanted: bool = False
    precreate: bool = False
    force_listen: bool = False

    def merge(self, later: Work) -> Work:
        """This and what came after it, as one."""
        return Work(
            turns=[*self.turns, *later.turns],
            stored=self.stored or later.stored,
            wanted=self.wanted or later.wanted,
            precreate=self.precreate or later.precreate,
            force_listen=later.force_listen and not self.turns and not self.stored,
        )

    def without(self, item_id: str) -> Work | None:
        """What is left when the item is deleted; None when nothing is."""
        kept = [turn for turn in self.turns if turn.item_id != item_id]
        return attrs.evolve(self, turns=kept) if kept or self.stored else None


def merged(first: Work | None, second: Work | None) -> Work | None:
    """Both as one, None when there is neither."""
    if first is None or second is None:
        return first or second
    return first.merge(second)


@attrs.define(eq=False)
class WaitingUtterance:
    """An utterance of a turn-based session that ended while an answer ran (contract 9.1): announced, not yet stored."""

    turn: Turn
    wanted: bool
