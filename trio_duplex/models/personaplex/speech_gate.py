"""Where a response of PersonaPlex begins and ends: a rule of our own, because the network has no token for either.

The network gives a frame of sound and one text token every 80 ms, for ever; quiet is just another sound. The rule:

* *listening → speaking* at the first column whose token carries text (words come a little before their sound), or once
  ``onset_frames`` frames in a row were louder than ``onset_energy`` (laughter, humming: sound without words);
* *speaking → listening* once ``quiet_frames`` columns in a row carried no text and were quieter than ``quiet_energy``,
  the last of them being the answer's last frame. One frame between the two levels keeps the answer open: that is the
  hysteresis;
* *speaking → muted* when the client cuts the answer. The network knows nothing of it and finishes its sentence, so that
  nothing is said until it came to its end by the rule above, or for ``mute_frames`` frames at most.

Pure: no clock, no network.
"""

from __future__ import annotations

from typing import Literal

import attrs

__all__ = ["CONTROL_IDS", "GateSettings", "SpeechGate", "Verdict"]

CONTROL_IDS = frozenset({0, 1, 2, 3})
"""End of padding, begin, end, padding: tokens that carry no text (models/personaplex, text stream)."""

Verdict = Literal["listen", "speak", "end"]
"""What becomes of a frame: it is not heard; it is part of an answer; it is the last frame of one."""


@attrs.frozen
class GateSettings:
    """Energies are RMS of samples in -1..1; counts are frames of 80 ms."""

    onset_energy: float = 0.01
    onset_frames: int = 3
    quiet_energy: float = 0.004
    quiet_frames: int = 10
    mute_frames: int = 125


@attrs.define
class SpeechGate:
    """One session's gate; :meth:`step` once per column, :meth:`cut` when what is being said was cut off."""

    settings: GateSettings = GateSettings()
    state: Literal["listening", "speaking", "muted"] = "listening"
    _loud: int = 0
    _quiet: int = 0
    _muted: int = 0

    def step(self, text_id: int, energy: float) -> Verdict:
        """The verdict on the frame of one column."""
        settings = self.settings
        text = text_id not in CONTROL_IDS
        self._quiet = self._quiet + 1 if not text and energy < settings.quiet_energy else 0
        self._loud = self._loud + 1 if energy >= settings.onset_energy else 0
        if self.state == "muted":
            self._muted += 1
            if self._quiet >= settings.quiet_frames or self._muted >= settings.mute_frames:
                self._listen()
            return "listen"
        if self.state == "listening":
            if not text and self._loud < settings.onset_frames:
                return "listen"
            self.state = "speaking"
            return "speak"
        if self._quiet < settings.quiet_frames:
            return "speak"
        self._listen()
        return "end"

    def cut(self) -> None:
        """The answer was cut off: what the network still says of it is not heard. Without effect when quiet."""
        if self.state == "speaking":
            self.state, self._muted = "muted", 0
            if not self.settings.mute_frames:
                self._listen()

    def _listen(self) -> None:
        self.state, self._loud, self._muted = "listening", 0, 0
