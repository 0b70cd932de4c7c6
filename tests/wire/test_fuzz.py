"""Random conversations – valid, nearly valid and wrong – against the whole stack; the history checker judges the logs.

What must hold whatever a client does: one terminal per response, brackets closed, numbers without a gap, one transcript
delta per audio delta, the ledger's order, nothing of an ended epoch, slots and tasks conserved, and no internal_error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import structlog
import trio
import trio.testing
from hypothesis import HealthCheck, Phase, given, settings

from duplex_protocol.catalogue import BEYOND_THE_CATALOGUE, SERVER_EVENTS
from tests.protocol.test_wire_openai_types import check_event
from tests.wire.stack import Json, Wire, append
from trio_duplex.models.plugin import InputUnit, Listened, ModelFailed, ModelResult, ToolCalled, Traits, TurnTranscribed
from trio_duplex.server.socket import SocketGone
from trio_duplex.session.settings import SessionSettings
from trio_duplex.testing import (
    BrokenPromises,
    Hang,
    Piece,
    Rig,
    ScriptedOptions,
    ScriptedSession,
    Violation,
    check_history,
    open_rig,
)
from trio_duplex.testing.profiles import UnitVoice
from trio_duplex.testing.truth import check_model_side

ANSWERS: tuple[tuple[Any, ...], ...] = (
    tuple(Piece(f"word{k} ", 100) for k in range(8)),
    (Piece("One "), Hang()),
    (Piece("", 200), Piece("late words")),
    (),
)


def script(request: Any) -> Sequence[Any]:
    """A different answer each time, by the number of the epoch and of the turns."""
    return ANSWERS[(request.epoch + len(request.history)) % len(ANSWERS)]


def voice(session: ScriptedSession, unit: InputUnit) -> Sequence[ModelResult]:
    return VOICE(session, unit)


VOICE = UnitVoice(lambda _: [Piece("one "), Piece("two "), Piece("three")])
MODELS: dict[str, ScriptedOptions] = {
    "owns turns": ScriptedOptions(script=script),
    "answers commits": ScriptedOptions(
        script=script, owns_turns=False, traits=Traits(detects_speech=False, holds_manual_input=True)
    ),
    "units": ScriptedOptions(
        owns_turns=False,
        unit_script=voice,
        traits=Traits(detects_speech=False, holds_manual_input=True, whole_units=True, silence_units=(8, 64)),
    ),
    "clocked units": ScriptedOptions(
        owns_turns=False, barge_in=False, unit_script=voice, traits=Traits(detects_speech=False, whole_units=True)
    ),
    "turn-based": ScriptedOptions(
        script=script, owns_turns=False, traits=Traits(detects_speech=False, turn_based=True, text_needs_all_audio=True)
    ),
}

# --- what a client may say --------------------------------------------------------------------------------------------

ASKED = {name for name, row in (SERVER_EVENTS | BEYOND_THE_CATALOGUE).items() if row.plain == "asked"}
"""What the plain view sends only because the client asked in words of the duplex view."""

MAYBE = st.one_of(st.none(), st.booleans())
REF = st.sampled_from(["@response", "@first_response", "resp_x", None])
ITEM = st.sampled_from(["@item", "@user_item", "item_x", "", None])
MS = st.one_of(st.integers(-100, 3000), st.sampled_from([0, 1e9, "5", None, 0.5]))


def event(kind: str, **fields: Any) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


APPENDS = st.builds(
    lambda ms, loud, hints: {"type": "input_audio_buffer.append", "audio": (ms, 8_000 if loud else 0), **hints},
    st.sampled_from([1, 20, 100, 320, 640, 1500]),
    st.booleans(),
    st.sampled_from(
        [
            {},
            {},
            {"is_speech": True},
            {"is_speech": False},
            {"transcript": "yeah"},
            {"force_barge_in": True},
            {"force_listen": True},
            {"overlap_action": "drop"},
            {"overlap_action": "interrupt"},
            {"sample_rate_hz": 24_000},
            {"format": "nonsense"},
            {"video_frames": ["AAAA"]},
        ]
    ),
)
UPDATES = st.sampled_from(
    [
        {"playback_commit_policy": "ack_only"},
        {"playback_commit_policy": "commit_all_on_done"},
        {"overlap_policy": "listen_only"},
        {"turn_detection": {"type": "server_vad"}},
        {"turn_detection": None},
        {"extra_body": {"auto_response": True}},
        {"extra_body": {"auto_response": False}},
        {"modalities": ["text"]},
        {"modalities": ["audio", "text"]},
        {"output_audio_format": "g711_ulaw"},
        {"output_audio_format": {"type": "audio/pcm", "rate": 24_000}},
        {"input_audio_format": "g711_alaw"},
        {"temperature": "warm"},
        {"voice": "x"},
        {"instructions": "x"},
    ]
)
ITEMS = st.sampled_from(
    [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": (320, 8_000)}]},
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
        {"type": "message", "id": "item_same", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "nonsense"},
    ]
)
SAID = st.one_of(
    APPENDS,
    APPENDS,
    event("input_audio_buffer.commit", response_create=MAYBE, is_speech=MAYBE),
    event("input_audio_buffer.commit"),
    event("input.commit", response_create=MAYBE),
    event("input_audio_buffer.clear"),
    event("input.cancel"),
    event("input.text.append", text=st.sampled_from(["words", "", 3])),
    event("conversation.item.create", item=ITEMS),
    event("conversation.item.retrieve", item_id=ITEM),
    event("conversation.item.delete", item_id=ITEM),
    event("conversation.item.truncate", item_id=ITEM, content_index=st.sampled_from([0, 1, -1]), audio_end_ms=MS),
    event(
        "response.create",
        response=st.sampled_from(
            [None, {}, {"modalities": ["text"]}, {"conversation": "none"}, {"metadata": {"a": "b"}}, {"voice": "x"}, 3]
        ),
    ),
    event("response.create"),
    event("response.cancel", response_id=REF),
    event("output_audio_buffer.clear", response_id=REF),
    event("barge_in"),
    event("turn.signal", event=st.sampled_from(["barge_in", "user_started", "response.cancel", "nonsense", ""])),
    event("playback.ack", response_id=REF, item_id=ITEM, played_ms=MS, committed_ms=MS, truncate=st.booleans()),
    event("session.update", session=UPDATES),
    event("session.heartbeat"),
    event("session.event_ack", server_event_seq=st.sampled_from(["@seq", 0, 10_000, -1])),
    event("session.nonsense"),
    event("session.close", drain=st.sampled_from(["sent", "played"]), drain_timeout_s=st.just(2)),
)
WAITS = st.sampled_from([0.0, 0.03, 0.1, 0.25, 0.6, 2.0])
HEARD: list[ModelResult] = [
    ToolCalled(call_id="call_1", name="get", arguments="{}"),
    ToolCalled(call_id=None, name=None, arguments="{"),
    ModelFailed(code="runtime_append_failed", message="lost", loses_input=True),
    ModelFailed(code="engine_error", message="broken", fails_response=True),
    Listened(),
    Listened(turn_done=True, epoch=0),
]
STEPS = st.lists(
    st.one_of(
        SAID.map(lambda said: ("send", said)),
        SAID.map(lambda said: ("send", said)),
        WAITS.map(lambda wait: ("wait", wait)),
        st.sampled_from(HEARD).map(lambda result: ("hear", result)),
        st.sampled_from(["{", "[]", '{"type":"playback.ack","played_ms":1e999}']).map(lambda raw: ("raw", raw)),
        st.just(("transcribe", None)),
        st.just(("resume", None)),
    ),
    min_size=1,
    max_size=25,
)


def spoken(value: Any) -> Any:
    """The event with its audio, which stands there as (ms, amplitude) to keep failures readable."""
    if isinstance(value, tuple):
        return append(*value)["audio"]
    if isinstance(value, dict):
        return {k: spoken(v) for k, v in value.items()}
    return [spoken(v) for v in value] if isinstance(value, list) else value


def resolved(said: Json, wire: Wire) -> Json:
    """The event with its references to what was received so far."""
    responses = [e["response"]["id"] for e in wire.of("response.created")] or ["resp_none"]
    items = [e["item"]["id"] for e in wire.of("conversation.item.added")] or ["item_none"]
    users = [e["item_id"] for e in wire.of("input_audio_buffer.committed")] or ["item_none"]
    numbers = [e["server_event_seq"] for e in wire.events if "server_event_seq" in e] or [0]
    known = {
        "@response": responses[-1],
        "@first_response": responses[0],
        "@item": items[-1],
        "@user_item": users[-1],
        "@seq": numbers[-1],
    }
    return {k: known.get(v, v) if isinstance(v, str) else spoken(v) for k, v in said.items()}


async def connect(rig: Rig, nursery: trio.Nursery, **query: str) -> Wire:
    wire = Wire(await rig.connect(**query))
    nursery.start_soon(wire.run)
    return wire


DUPLEX = {"duplex": "1", "autostart": "0"}


def token_of(wire: Wire, before: str) -> str:
    """The newest resume token, wherever the view shows it."""
    for event in reversed(wire.events):
        if event["type"] in ("session.created", "session.resumed"):
            return str(event.get("resume_token") or event["session"]["resume_token"])
    return before


async def resume(rig: Rig, nursery: trio.Nursery, old: Wire, token: str, *, plain: bool) -> Wire:
    """Lose the socket and come back with what was received: by URL in the plain view, else by message."""
    seen = [e["server_event_seq"] for e in old.events if "server_event_seq" in e]
    created = next(e for e in old.events if e["type"] in ("session.created", "session.resumed"))
    session_id = created.get("session_id") or created["session"]["id"]
    old.socket.drop()
    if plain:
        last = str(max(seen, default=0))
        wire = await connect(
            rig, nursery, session_id=session_id, resume_token=token, last_received_server_event_seq=last
        )
        await trio.testing.wait_all_tasks_blocked()
        return wire
    wire = await connect(rig, nursery, **DUPLEX)
    await wire.send(
        "session.resume",
        session_id=session_id,
        incarnation=0,
        resume_token=token,
        last_received_server_event_seq=max(seen, default=0),
    )
    await trio.testing.wait_all_tasks_blocked()
    return wire


async def begin(rig: Rig, nursery: trio.Nursery, model: str, auto: bool, *, plain: bool) -> Wire:
    """A client of either view whose session is open."""
    if not plain:
        wire = await connect(rig, nursery, **DUPLEX)
        await wire.send("session.update", session={"extra_body": {"auto_response": auto}})
    else:
        wire = await connect(rig, nursery, model="gpt-realtime")
        detection = {"type": "semantic_vad"} if auto and model != "turn-based" else None
        await wire.send("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    await wire.until("session.updated")
    return wire


async def converse(model: str, auto: bool, steps: list[tuple[str, Any]], plain: bool) -> None:
    """Play the steps, then check every promise about the log, the model's side and what is left over."""
    async with (
        open_rig(MODELS[model], settings=SessionSettings(max_sessions=1), seed=1, check=False) as rig,
        trio.open_nursery() as nursery,
    ):
        wire = await begin(rig, nursery, model, auto, plain=plain)
        token = token_of(wire, "")
        try:
            for what, value in steps:
                if wire.ended.is_set():
                    break
                if what == "send":
                    await wire.send(resolved(value, wire))
                elif what == "raw":
                    await wire.send_raw(value)
                elif what == "wait":
                    await trio.sleep(value)
                elif what == "hear" and not rig.plugin.sessions[-1].closed:
                    rig.plugin.sessions[-1].hear(value)
                elif what == "transcribe":
                    transcribe(rig, wire)
                elif what == "resume":
                    wire = await resume(rig, nursery, wire, token, plain=plain)
                    token = token_of(wire, token)
        except SocketGone:
            pass  # the session ended between two steps
        await trio.sleep(3)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    problems = broken(rig)
    if problems:
        raise BrokenPromises(problems)
    received = [e for s in rig.network.sockets for e in s.received]
    for event in received if plain else ():
        if event["type"] not in ASKED:
            check_event(event)
    assert not [e for e in received if e["type"] == "error" and _code(e) == "internal_error"]


def broken(rig: Rig) -> list[Violation]:
    """Broken promises; what was fed to the model is not counted: formats and items of every kind are sent here."""
    problems = rig.conserved()
    models = {m.context.session_id: m for m in rig.plugin.sessions}
    for session in rig.hub.every_session:
        merged = rig.log(session)
        complete = session.strict and session.ended.is_set() and not session.journal.overflowed
        problems += merged.violations
        problems += check_history(merged.log, complete=complete)
        if session.strict:
            problems += check_model_side(models[session.id], merged.log)
    return problems


def _code(error: Json) -> Any:
    return error["error"]["code"] if isinstance(error["error"], dict) else error["code"]


def transcribe(rig: Rig, wire: Wire) -> None:
    """The model understood the last committed turn late, and once."""
    committed = wire.of("input_audio_buffer.committed")
    told = {e["item_id"] for e in wire.of("conversation.item.input_audio_transcription.completed")}
    if committed and committed[-1]["item_id"] not in told and not rig.plugin.sessions[-1].closed:
        turn = rig.plugin.sessions[-1]._turn()
        turn.item_id, turn.transcript = committed[-1]["item_id"], "late words"
        rig.plugin.sessions[-1].hear(TurnTranscribed(turn=turn))


def play(model: str, auto: bool, steps: list[tuple[str, Any]], plain: bool = False) -> None:
    with structlog.testing.capture_logs() as logs:
        trio.run(converse, model, auto, steps, plain, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not [line for line in logs if line["event"] in ("session_crashed", "endpoint_crashed", "epoch_join_timeout")]


COMMON: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}


@pytest.mark.parametrize("plain", [False, True], ids=["duplex", "plain"])
@pytest.mark.parametrize("model", list(MODELS))
def test_random_conversations(model: str, plain: bool) -> None:
    @settings(max_examples=60, phases=[Phase.generate, Phase.shrink], **COMMON)
    @given(auto=st.booleans(), steps=STEPS)
    def run(auto: bool, steps: list[tuple[str, Any]]) -> None:
        play(model, auto, steps, plain)

    run()


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True], ids=["duplex", "plain"])
@pytest.mark.parametrize("model", list(MODELS))
def test_many_random_conversations(model: str, plain: bool) -> None:
    @settings(max_examples=1_500, phases=[Phase.generate, Phase.shrink], **COMMON)
    @given(auto=st.booleans(), steps=STEPS)
    def run(auto: bool, steps: list[tuple[str, Any]]) -> None:
        play(model, auto, steps, plain)

    run()
