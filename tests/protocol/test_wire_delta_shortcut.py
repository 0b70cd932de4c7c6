"""Most audio deltas are projected without walking the rows; what comes out must be the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from duplex_protocol import events as e
from duplex_protocol import projection
from duplex_protocol.audio_formats import AudioFormat
from duplex_protocol.errors import LocalProtocolError
from duplex_protocol.memory import Memory
from duplex_protocol.values import ContentPart, Item, Playback, TextMark

PCM = AudioFormat("pcm16", 24_000)
SESSION = "sess_1"


def random_events(rng: random.Random) -> Iterator[e.Event]:
    """Moves of two responses in any order, also those that a response cannot make."""
    for _ in range(40):
        name = rng.choice(("resp_1", "resp_2"))
        ids = {"session_id": SESSION, "response_id": name, "epoch": 0}
        item_id = f"item_{name}"
        kind = rng.randrange(10)
        if kind == 0:
            modalities = rng.choice((("audio", "text"), ("text",)))
            yield e.ResponseCreated(**ids, turn_id=1, item_id=item_id, previous_item_id=None, modalities=modalities)
        elif kind == 1:
            yield e.ResponseSpeak(**ids, item_id=item_id)
        elif kind == 2:
            yield e.TextDelta(**ids, item_id=item_id, delta="words")
        elif kind == 3:
            yield e.ResponseListen(session_id=SESSION, epoch=0, reason="silence", response_id=rng.choice((name, None)))
        elif kind == 4 and rng.random() < 0.4:
            item = Item(id=item_id, role="assistant", content=(ContentPart("output_audio", transcript="words"),))
            yield e.ResponseDone(
                **ids,
                status="completed",
                item=item,
                predecessor_id=None,
                committed=True,
                playback=Playback(),
                had_audio=True,
                transcript="words",
                text="",
            )
        else:
            yield e.AudioDelta(
                **ids,
                item_id=item_id,
                audio=rng.choice((b"", b"\0\0" * 10, b"\1\0" * 5_000)),
                format=PCM,
                text=rng.choice(("", "words ")),
                model_speak=rng.random() < 0.7,
                end_of_turn=rng.random() < 0.2,
                audio_duration_ms=100,
                marks=rng.choice(((), (TextMark(text_chars=3, audio_end_ms=100),))),
            )


def told(memory: Memory, events: list[e.Event]) -> list[object]:
    out: list[object] = []
    for event in events:
        try:
            projected = projection.project(memory, event)
        except LocalProtocolError as error:
            out.append(str(error))
        else:
            out.append([(p.frames, p.droppable, p.numbered) for p in projected])
    return out


@pytest.mark.parametrize("view", ["duplex", "plain"])
@pytest.mark.parametrize("seed", range(60))
def test_the_short_way_says_what_the_rows_say(seed: int, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events = list(random_events(random.Random(seed)))
    short = told(Memory(view=view), events)  # type: ignore[arg-type]
    monkeypatch.setattr(projection, "_flows", lambda memory, event: False)
    assert short == told(Memory(view=view), events)  # type: ignore[arg-type]
