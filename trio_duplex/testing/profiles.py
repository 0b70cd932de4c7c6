"""The known models as scripted stand-ins: their capabilities, lanes, framing and refusals, with a script for a voice.

    plugin = ProfilePlugin("nemotron_voicechat")

What a profile refuses is :mod:`duplex_protocol.model_rules`, what it advertises :mod:`duplex_protocol.profiles`; a real
network replaces only what is said, not what is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import attrs

from duplex_protocol import model_rules
from duplex_protocol.dialect import ConfigUpdate, SessionDefaults
from duplex_protocol.profiles import ProfileName, profile
from duplex_protocol.values import Capabilities, SessionConfig, TextMark
from trio_duplex.models import plugin as model
from trio_duplex.testing.scripted_model import Piece, ScriptedOptions, ScriptedPlugin, ScriptedSession, square_wave

__all__ = ["MODELS", "Model", "ProfilePlugin", "UnitVoice"]

TURN_BASED: Final = model.Traits(detects_speech=False, turn_based=True, own_context=True)


@attrs.frozen
class Model:
    """A model's wire name, its clock and rates, and how its sessions are treated (native lane)."""

    name: str
    unit: model.Unit
    traits: model.Traits
    lane_by_client: bool = False


MODELS: Final[dict[ProfileName, Model]] = {
    "minicpmo_4_5": Model(
        "openbmb/MiniCPM-o-4_5",
        model.Unit(1000, 16_000, 24_000),
        model.Traits(
            detects_speech=False, holds_manual_input=True, whole_units=True, silence_units=(8, 64), video="used"
        ),
        lane_by_client=True,
    ),
    "personaplex": Model(
        "nvidia/personaplex-7b-v1",
        model.Unit(80, 24_000, 24_000),
        model.Traits(detects_speech=False, whole_units=True, framing=model.Framing("pcm_f32le", 24_000)),
    ),
    "nemotron_voicechat": Model(
        "nvidia/nemotron-voicechat",
        model.Unit(80, 16_000, 22_050),
        model.Traits(detects_speech=False, whole_units=True, framing=model.Framing("pcm_f32le", 16_000, 1280)),
    ),
    "chat_fallback": Model("chat", model.Unit(1000, 16_000, 24_000), TURN_BASED),
    "qwen3_omni": Model(
        "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        model.Unit(1000, 16_000, 24_000),
        attrs.evolve(TURN_BASED, video="refused", text_needs_all_audio=True),
    ),
}

ANSWER: Final = (Piece("It is sunny, "), Piece("24 degrees."))
Answers = Callable[[ScriptedSession], Sequence[Piece]]


@attrs.define
class _Progress:
    """Where one model session is in its answer."""

    heard: bool = False
    said: int | None = None
    epoch: int = 0


class UnitVoice:
    """The script of a model that is fed units: it listens to speech, then says one piece a unit until all are said.

    An ended epoch ends the answer; speech over it does not by itself.
    """

    def __init__(self, answer: Answers) -> None:
        self._answer = answer
        self._progress: WeakKeyDictionary[ScriptedSession, _Progress] = WeakKeyDictionary()

    def __call__(self, session: ScriptedSession, unit: model.InputUnit) -> Sequence[model.ModelResult]:
        """The decision of one unit."""
        at = self._progress.setdefault(session, _Progress())
        if unit.epoch != at.epoch:
            at.epoch, at.said = unit.epoch, None
        if at.said is None and unit.is_speech:
            at.heard = True
        pieces = self._answer(session)
        if unit.force_listen or not pieces or (at.said is None and (unit.is_speech or not at.heard)):
            return [model.Listened(epoch=unit.epoch)]
        index = 0 if at.said is None else at.said
        last = index == len(pieces) - 1
        at.heard, at.said = False, None if last else index + 1
        return [model.Spoke(epoch=unit.epoch, speech=self._speech(session, pieces, index, last=last))]

    def _speech(self, session: ScriptedSession, pieces: Sequence[Piece], index: int, *, last: bool) -> model.Speech:
        unit = session.plugin.unit
        mark = TextMark(sum(len(p.text) for p in pieces[: index + 1]), unit.period_ms * (index + 1))
        return model.Speech(
            audio=square_wave(index, unit.period_ms, unit.output_rate_hz),
            text=pieces[index].text,
            marks=(mark,),
            end_of_turn=last,
        )


class ProfilePlugin(ScriptedPlugin):
    """One of the known models in a deployment of ``max_sessions``, speaking ``answer``.

    Turn-based lanes speak it in ``respond``, the others unit by unit (one piece each).
    """

    def __init__(self, name: ProfileName, answer: Sequence[Piece] = ANSWER, *, max_sessions: int = 4) -> None:
        self.profile: ProfileName = name
        self.model = MODELS[name]
        self.max_sessions = max_sessions
        unit = self.model.unit
        super().__init__(
            ScriptedOptions(
                name=self.model.name,
                period_ms=unit.period_ms,
                input_rate_hz=unit.input_rate_hz,
                output_rate_hz=unit.output_rate_hz,
                script=lambda _: answer,
                unit_script=UnitVoice(lambda _: answer),
                owns_turns=False,
            )
        )

    @property
    def defaults(self) -> SessionDefaults:
        """The lane is the client's choice where the model has two."""
        unit = self.model.unit
        return SessionDefaults(
            model=self.name,
            input_rate_hz=unit.input_rate_hz,
            output_rate_hz=unit.output_rate_hz,
            native_lane=not self.model.traits.turn_based,
            lane_by_client=self.model.lane_by_client,
        )

    def _in_chat_lane(self, config: SessionConfig) -> bool:
        return self.model.lane_by_client and not config.native_duplex

    def traits(self, config: SessionConfig) -> model.Traits:
        """Those of the lane."""
        return TURN_BASED if self._in_chat_lane(config) else self.model.traits

    def capabilities(self, config: SessionConfig) -> Capabilities:
        """Those of the lane, fitted to the deployment."""
        name = "chat_fallback" if self._in_chat_lane(config) else self.profile
        return profile(name, max_sessions=self.max_sessions)

    def check(self, update: ConfigUpdate) -> SessionConfig:
        """The model's own rules at the opening."""
        return model_rules.check_open(self.profile, update)

    def check_update(self, current: SessionConfig, update: ConfigUpdate, *, audio_started: bool) -> SessionConfig:
        """The model's own rules later."""
        return model_rules.check_update(self.profile, current, update)
