"""Configuration checks, capabilities and the life of the plugin."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from duplex_protocol.dialect import ConfigUpdate
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.values import SessionConfig, TurnDetection
from tests.models.demo_client import open_client
from tests.models.models_kit import NOON, VirtualEngine, config_of
from trio_duplex.models.demo import DemoOptions, DemoPlugin
from trio_duplex.models.plugin import OpenRefused, SessionContext, Unit

CONTEXT = SessionContext("sess_1", tuple)


def plugin_of(engine: VirtualEngine | None = None, **options: object) -> DemoPlugin:
    return DemoPlugin(DemoOptions(**options), engine=engine or VirtualEngine(), max_sessions=4)  # type: ignore[arg-type]


def update(named: str = "", **config: object) -> ConfigUpdate:
    return ConfigUpdate(SessionConfig(model="demo", **config), frozenset(named.split()))  # type: ignore[arg-type]


def test_what_it_is() -> None:
    plugin = plugin_of()
    assert plugin.name == "demo"
    assert plugin.unit == Unit(period_ms=96, input_rate_hz=16_000, output_rate_hz=24_000)
    assert plugin.defaults.native_lane
    assert (plugin.defaults.input_rate_hz, plugin.defaults.output_rate_hz) == (16_000, 24_000)
    capabilities = plugin.capabilities(config_of(plugin))
    assert capabilities.supports_barge_in
    assert capabilities.supports_session_resume
    assert capabilities.supports_audio_truncate
    assert capabilities.supports_model_native_turn_policy
    assert capabilities.implementation_level == "model_native_duplex"
    assert capabilities.signal_sources == ("model_native", "client_event", "server_policy")
    assert capabilities.chunk_period_ms == 96
    assert capabilities.supports_multi_session
    assert (
        not DemoPlugin(max_sessions=1, engine=VirtualEngine())
        .capabilities(SessionConfig("demo"))
        .supports_multi_session
    )


@pytest.mark.parametrize(
    ("opening", "auto"),
    [
        pytest.param(update(), True, id="nothing said: the model owns turn-taking"),
        pytest.param(update("extra_body", extra_body={"auto_response": False}), False, id="told not to"),
        pytest.param(update("extra_body", extra_body={"full_duplex": True}), True, id="the other word for it"),
        pytest.param(update("extra_body", extra_body={"native_duplex": True}), True, id="the lane is no answer"),
        pytest.param(update("turn_detection"), False, id="turn detection named null: by hand"),
        pytest.param(
            update("turn_detection extra_body", extra_body={"auto_response": True}), True, id="null, but told to"
        ),
        pytest.param(update("turn_detection", turn_detection=TurnDetection()), True, id="server_vad"),
    ],
)
def test_who_owns_turns(opening: ConfigUpdate, auto: bool) -> None:
    assert plugin_of().check(opening).auto_response is auto


def test_a_later_update_may_hand_turns_over_and_back() -> None:
    plugin = plugin_of()
    opened = plugin.check(update())
    by_hand = plugin.check_update(opened, ConfigUpdate(opened, frozenset({"turn_detection"})), audio_started=True)
    assert not by_hand.auto_response
    again = attrs.evolve(by_hand, extra_body={**by_hand.extra_body, "auto_response": True})
    assert plugin.check_update(
        by_hand, ConfigUpdate(again, frozenset({"extra_body"})), audio_started=True
    ).auto_response
    # An update that touches neither changes nothing.
    assert plugin.check_update(by_hand, ConfigUpdate(by_hand, frozenset({"speed"})), audio_started=True) == by_hand


def test_stock_clients_may_name_any_voice() -> None:
    config = plugin_of().check(update("voice", voice="marin", ref_audio="data:audio/wav;base64,AAAA"))
    assert config.voice == "marin"


def test_instructions_are_fixed_by_the_first_audio() -> None:
    plugin = plugin_of()
    opened = plugin.check(update("instructions", instructions="Be kind."))
    changed = ConfigUpdate(attrs.evolve(opened, instructions="Be brief."), frozenset({"instructions"}))
    assert plugin.check_update(opened, changed, audio_started=False).instructions == "Be brief."
    with pytest.raises(RemoteProtocolError) as caught:
        plugin.check_update(opened, changed, audio_started=True)
    assert (caught.value.code, caught.value.param) == ("instructions_update_unsupported", "instructions")
    same = ConfigUpdate(opened, frozenset({"instructions"}))
    assert plugin.check_update(opened, same, audio_started=True) == opened


@pytest.mark.parametrize(
    "wrong",
    [
        {"unit_ms": 100},
        {"unit_ms": 0},
        {"early_silence_ms": 31},
        {"output_rate_hz": 7_999},
        {"lead_units": -1},
        {"max_utterance_ms": 60_001},
        {"speed": 0},
        {"stuck_after_s": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DemoOptions(**wrong)  # type: ignore[arg-type]


async def test_slots_run_out_and_come_back(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    plugin = plugin_of(VirtualEngine(slots=2))
    await nursery.start(plugin.run)
    config = config_of(plugin)
    sessions = [await plugin.open(config, CONTEXT) for _ in range(2)]
    with pytest.raises(OpenRefused):
        await plugin.open(config, CONTEXT)
    assert plugin.health().detail["open_sessions"] == 2
    await sessions[0].aclose()
    assert plugin.health().detail["open_sessions"] == 1
    await plugin.open(config, CONTEXT)
    nursery.cancel_scope.cancel()


async def test_a_cancelled_open_takes_no_slot(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    engine = VirtualEngine()
    plugin = plugin_of(engine)
    await nursery.start(plugin.run)
    with trio.CancelScope() as scope:
        scope.cancel()
        await plugin.open(config_of(plugin), CONTEXT)
    assert scope.cancelled_caught
    assert engine.open_ears == []
    nursery.cancel_scope.cancel()


def test_health_before_it_runs() -> None:
    health = plugin_of().health()
    assert not health.ready
    assert health.alive


async def test_a_response_may_have_a_context_of_its_own(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """``response.input``: the demo answers its last words, knows what came before them, and forgets it afterwards."""
    plugin = DemoPlugin(engine=VirtualEngine(), clock=lambda: NOON)
    client = await open_client(nursery, plugin)
    client.ask("The grass is green.", output_modalities=["text"])
    await client.until("response.done")
    texts = ("The sky is yellow.", "What did I say?")
    given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]} for text in texts]
    client.send("response.create", response={"input": given, "conversation": "none", "output_modalities": ["text"]})
    aside = (await client.until("response.done", 2))["response"]["output"][0]["content"][0]["text"]
    client.ask("What did I say?", output_modalities=["text"])
    own = (await client.until("response.done", 3))["response"]["output"][0]["content"][0]["text"]
    assert "yellow" in aside
    assert "green" in own
    assert "yellow" not in own
    nursery.cancel_scope.cancel()
