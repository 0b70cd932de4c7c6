"""What a backend is asked: history within bounds, options of one response, configurations that are refused."""

from __future__ import annotations

import io
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import attrs
import pytest

from duplex_protocol.dialect import ConfigUpdate
from duplex_protocol.errors import RemoteProtocolError
from duplex_protocol.profiles import profile
from duplex_protocol.session_object import parse_open, parse_update
from duplex_protocol.values import SessionConfig
from tests.chat.chat_kit import chatting
from tests.chat.chat_server import chat_server
from trio_duplex.config import DeployError, load_deployment, structure
from trio_duplex.models.chat import BrainOptions, ChatOptions, ChatPlugin
from trio_duplex.models.chat.body import OptionError, build_body
from trio_duplex.models.chat.messages import FORGOTTEN_SOUND, HistoryBounds, KnownCall, build_messages
from trio_duplex.models.plugin import HistoryEntry, traits_of

ROOT = Path(__file__).parents[2]
WIDE = HistoryBounds(max_messages=100, max_audios=100, max_bytes=1 << 30)


def wav(ms: int = 100) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(32 * ms))
    return target.getvalue()


def user(text: str = "", sound: bytes | None = None) -> HistoryEntry:
    return HistoryEntry("item_u", "user", text, wav=sound)


def said(text: str) -> HistoryEntry:
    return HistoryEntry("item_a", "assistant", text)


def result(call_id: str, output: str) -> HistoryEntry:
    return HistoryEntry("item_t", "tool", output, call_id)


def messages(*history: HistoryEntry, bounds: HistoryBounds = WIDE, **more: Any) -> list[dict[str, Any]]:
    arguments: dict[str, Any] = {"instructions": None, "calls": {}, "audio_input": "input_audio", **more}
    return build_messages(history, bounds=bounds, **arguments)


def test_roles_in_order_and_instructions_first() -> None:
    built = messages(user("one"), said("two"), user("three"), instructions="Be kind.")
    assert [(m["role"], m["content"]) for m in built] == [
        ("system", "Be kind."),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]


def test_an_answer_of_which_nothing_was_heard_is_not_there() -> None:
    assert [m["content"] for m in messages(user("one"), said(""), user("two"))] == ["one", "two"]


def test_system_items_of_a_client_stay_in_their_place() -> None:
    built = messages(user("one"), HistoryEntry("item_s", "system", "The user moved."), user("two"))
    assert [m["role"] for m in built] == ["user", "system", "user"]


def test_sound_has_both_forms_and_none() -> None:
    assert messages(user(sound=wav()))[0]["content"][0]["type"] == "input_audio"
    url = messages(user(sound=wav()), audio_input="audio_url")[0]["content"][0]["audio_url"]["url"]
    assert url.startswith("data:audio/wav;base64,UklGR")
    assert messages(user("words", wav()), audio_input="none")[0]["content"] == "words"
    assert [p["type"] for p in messages(user("words", wav()))[0]["content"]] == ["text", "input_audio"]


def test_old_sounds_go_first_and_leave_their_words() -> None:
    history = [
        user("old words", wav()),
        said("a"),
        user("", wav()),
        said("b"),
        user("", wav()),
        said("c"),
        user("", wav()),
    ]
    built = messages(*history, bounds=attrs.evolve(WIDE, max_audios=2))
    contents = [m["content"] for m in built]
    assert contents[0] == "old words"
    assert contents[2] == FORGOTTEN_SOUND
    assert [type(c) for c in contents] == [str, str, str, str, list, str, list]


def test_messages_are_bounded_newest_first() -> None:
    history = [entry for k in range(20) for entry in (user(f"q{k}"), said(f"a{k}"))]
    built = messages(*history, bounds=attrs.evolve(WIDE, max_messages=3), instructions="Be kind.")
    assert [m["content"] for m in built] == ["Be kind.", "a18", "q19", "a19"]


def test_bytes_are_bounded_but_the_newest_turn_always_stays() -> None:
    big = wav(10_000)
    bounds = attrs.evolve(WIDE, max_bytes=100_000)
    assert len(messages(user("old"), said("older"), user("", big), bounds=bounds)) == 1
    assert len(messages(user("x" * 60_000), user("y" * 60_000), user("z"), bounds=bounds)) == 2


def test_results_stand_behind_their_calls_and_fall_with_them() -> None:
    calls = {"c1": KnownCall("weather", "{}"), "c2": KnownCall("time", "")}
    history = [user("q"), result("c1", "rain"), result("c2", "noon"), said("Rain at noon."), user("thanks")]
    built = messages(*history, calls=calls)
    assert [m["role"] for m in built] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [c["function"] for c in built[1]["tool_calls"]] == [
        {"name": "weather", "arguments": "{}"},
        {"name": "time", "arguments": "{}"},
    ]
    short = messages(*history, calls=calls, bounds=attrs.evolve(WIDE, max_messages=4))
    assert [m["role"] for m in short] == ["assistant", "user"]


# --- the body -------------------------------------------------------------------------------------------------------

OPTIONS = ChatOptions(url="http://127.0.0.1:1/v1", model="m")
CONFIG = SessionConfig(model="m")


def body(given: dict[str, Any] | None = None, config: SessionConfig = CONFIG, **options: Any) -> dict[str, Any]:
    return build_body(attrs.evolve(OPTIONS, **options), config, given or {}, [], sound=True)


def test_the_deployment_s_own_fields_cannot_replace_ours() -> None:
    assert body(extra_body={"model": "other", "stream": False, "seed": 42})["model"] == "m"
    assert body(extra_body={"stream": False})["stream"] is True
    assert body(extra_body={"seed": 42})["seed"] == 42


def test_a_limit_that_is_none_means_none() -> None:
    config = attrs.evolve(CONFIG, max_tokens=7)
    assert body(config=config)["max_tokens"] == 7
    assert "max_tokens" not in body({"max_output_tokens": "inf"}, config)
    assert (
        body({"max_output_tokens": 9}, config, max_tokens_field="max_completion_tokens")["max_completion_tokens"] == 9
    )


def test_a_voice_has_three_spellings() -> None:
    assert body({"voice": "a"})["audio"]["voice"] == "a"
    assert body({"audio": {"output": {"voice": {"id": "b"}}}})["audio"]["voice"] == "b"
    assert body(voice="c")["audio"]["voice"] == "c"


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": "hot"},
        {"temperature": True},
        {"voice": 3},
        {"tools": "weather"},
        {"tools": [3]},
        {"tools": [{"type": "mcp"}]},
        {"tools": [{"type": "function", "name": ""}]},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function"}},
        {"tools": [{"type": "function", "name": "f"}], "tool_choice": 3},
    ],
)
def test_options_without_a_meaning_are_told(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        body(given)


def test_reference_audio_is_passed_on_where_deployed() -> None:
    config = attrs.evolve(CONFIG, ref_audio="data:audio/wav;base64,AAAA")
    assert "ref_audio" not in body(config=config)
    assert body(config=config, ref_audio="forwarded")["ref_audio"] == config.ref_audio


# --- configurations -------------------------------------------------------------------------------------------------


def opening(plugin: ChatPlugin, flavour: Any = "duplex", **session: Any) -> ConfigUpdate:
    return parse_open(session, plugin.defaults, flavour=flavour)


def plugin_of(kind: str = "chat_fallback", **options: Any) -> ChatPlugin:
    return ChatPlugin(attrs.evolve(OPTIONS, profile=kind, **options), max_sessions=4)


@pytest.mark.parametrize("kind", ["chat_fallback", "qwen3_omni"])
def test_capabilities_are_the_profile_s(kind: str) -> None:
    assert plugin_of(kind).capabilities(CONFIG) == profile(kind, max_sessions=4)


def test_traits() -> None:
    traits = traits_of(plugin_of(), CONFIG)
    assert (traits.turn_based, traits.detects_speech, traits.video) == (True, False, "refused")
    assert not traits.text_needs_all_audio
    assert traits_of(plugin_of(text_requires_complete_audio=True), CONFIG).text_needs_all_audio


REFUSED = [
    ("chat_fallback", {"extra_body": {"native_duplex": True}}, "runtime_native_stage_role_required"),
    ("chat_fallback", {"extra_body": {"ref_audio_path": "/x.wav"}}, "unsupported_ref_audio_path"),
    ("chat_fallback", {"extra_body": {"tts_ref_audio_path": "/x.wav"}}, "unsupported_ref_audio_path"),
    ("chat_fallback", {"ref_audio": "data:audio/wav;base64,AAAA"}, "invalid_duplex_runtime_config"),
    ("chat_fallback", {"tools": [{"type": "function"}]}, "invalid_duplex_runtime_config"),
    ("qwen3_omni", {"tools": [{"type": "function", "name": "f"}]}, "invalid_duplex_runtime_config"),
    ("qwen3_omni", {"extra_body": {"auto_response": True}}, "invalid_duplex_runtime_config"),
    ("qwen3_omni", {"ref_audio": "https://x/y.wav"}, "invalid_duplex_runtime_config"),
]


@pytest.mark.parametrize(("kind", "session", "code"), REFUSED)
def test_what_a_model_does_not_take_is_refused_at_once_and_later(kind: str, session: dict[str, Any], code: str) -> None:
    plugin = plugin_of(kind)
    with pytest.raises(RemoteProtocolError) as refusal:
        plugin.check(opening(plugin, **session))
    assert refusal.value.code == code
    assert refusal.value.param
    if "native_duplex" in session.get("extra_body", {}):
        return  # the session compares lanes itself
    current = plugin.check(opening(plugin))
    with pytest.raises(RemoteProtocolError) as refusal:
        plugin.check_update(
            current, parse_update(session, current, plugin.defaults, flavour="duplex"), audio_started=True
        )
    assert refusal.value.code == code


def test_interruption_by_speech_needs_a_native_model() -> None:
    plugin = plugin_of()
    with pytest.raises(RemoteProtocolError) as refusal:
        plugin.check(opening(plugin, "native", overlap_policy="barge_in_on_speech"))
    assert (refusal.value.code, refusal.value.param) == ("server_vad_requires_native_duplex", "overlap_policy")


def test_what_is_fine() -> None:
    plugin = plugin_of(ref_audio="forwarded")
    plugin.check(opening(plugin, tools=[{"type": "function", "name": "f"}], extra_body={"auto_response": True}))
    plugin.check(opening(plugin, ref_audio="data:audio/wav;base64,AAAA"))
    plugin.check(opening(plugin, extra_body={"native_duplex": False}))
    current = plugin.check(opening(plugin, instructions="one"))
    for instructions in ("two", None):
        update = parse_update({"instructions": instructions}, current, plugin.defaults, flavour="duplex")
        assert plugin.check_update(current, update, audio_started=True).instructions == instructions
    qwen = plugin_of("qwen3_omni")
    qwen.check(opening(qwen, tools=[], turn_detection={"type": "server_vad"}))


def test_a_backend_without_a_voice() -> None:
    plugin = plugin_of(output="text")
    assert plugin.check(opening(plugin)).modalities == ("text",)
    assert plugin.check(opening(plugin, modalities=["text"])).modalities == ("text",)
    with pytest.raises(RemoteProtocolError) as refusal:
        plugin.check(opening(plugin, modalities=["audio", "text"]))
    assert refusal.value.code == "unsupported_response_modality"


# --- deploy files ---------------------------------------------------------------------------------------------------


def test_the_deploy_file_is_right() -> None:
    deployment = load_deployment(ROOT / "deploy" / "qwen3_omni.yaml")
    assert deployment.model == "chat"
    options: ChatOptions = structure(deployment.options, ChatOptions, where="options")
    plugin = ChatPlugin(options, max_sessions=deployment.duplex_session.max_sessions)
    assert plugin.name == "qwen3-omni"
    assert plugin.capabilities(CONFIG).supports_input_append
    assert plugin.traits(CONFIG).text_needs_all_audio
    assert options.completions_url == "http://127.0.0.1:8091/v1/chat/completions"
    assert (options.max_messages, options.max_audios, options.max_bytes) == (16, 4, 8 * 1024 * 1024)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "m"}, "missing key 'url'"),
        ({"url": "http://h/v1"}, "missing key 'model'"),
        ({"url": "ftp://h/v1", "model": "m"}, "http or https"),
        ({"url": "http://user:secret@h/v1", "model": "m"}, "credentials"),
        ({"url": "http://h/v1", "model": "m", "api_key": "sk-1"}, "unknown key 'api_key'"),
        ({"url": "http://h/v1", "model": "m", "api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE is not set"),
        ({"url": "http://h/v1", "model": "m", "audio_input": "mp3"}, "audio_input"),
        ({"url": "http://h/v1", "model": "m", "stall_timeout_s": 0}, "stall_timeout_s"),
        ({"url": "http://h/v1", "model": "m", "max_lead_ms": "1s"}, "max_lead_ms"),
    ],
)
def test_a_wrong_deploy_file_names_the_key(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DeployError) as error:
        structure(options, ChatOptions, where="options of the chat model")
    assert words in str(error.value)
    assert "secret" not in str(error.value)


@attrs.frozen
class Host:
    """Another model's options that may hold a brain."""

    brain: BrainOptions | None = None


def test_a_brain_is_deployed_inside_another_model_s_options() -> None:
    host: Host = structure({"brain": {"url": "http://h/v1", "model": "small"}}, Host, where="options")
    assert host.brain == BrainOptions(url="http://h/v1", model="small")
    assert structure({}, Host, where="options").brain is None
    with pytest.raises(DeployError, match=r"unknown key 'brain\.temprature'"):
        structure({"brain": {"url": "http://h/v1", "model": "small", "temprature": 1}}, Host, where="options")


def test_options_alone_do_not_load_the_http_library() -> None:
    code = "import sys; sys.modules['httpx'] = None; from trio_duplex.models.chat import BrainOptions, ChatOptions"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "url", ["http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/chat/completions", "http://h:1/v1/chat/completions/"]
)
def test_an_address_may_be_given_in_full(url: str) -> None:
    assert ChatOptions(url=url, model="m").completions_url == "http://h:1/v1/chat/completions"


async def test_a_context_of_its_own_is_the_whole_request() -> None:
    """``response.input`` replaces the conversation, tool calls of it in the form in which the client gave them."""
    async with chat_server() as server, chatting(server, config={"instructions": "Be brief."}) as chat:
        chat.type("What is kept.", id="kept")
        given = [
            {"type": "item_reference", "id": "kept"},
            {"type": "function_call", "call_id": "call_7", "name": "look", "arguments": '{"at":"sky"}'},
            {"type": "function_call_output", "call_id": "call_7", "output": "blue"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "So?"}]},
        ]
        chat.send("response.create", response={"input": given, "conversation": "none", "max_output_tokens": 9})
        await chat.answer()
        function = {"name": "look", "arguments": '{"at":"sky"}'}
        assert server.requests[0]["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is kept."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_7", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_7", "content": "blue"},
            {"role": "user", "content": "So?"},
        ]
        assert server.requests[0]["max_tokens"] == 9


async def test_a_call_that_a_client_brings_back_keeps_its_form() -> None:
    """A client that replays its history after a reconnect stores call and output itself."""
    async with chat_server() as server, chatting(server) as chat:
        call = {"type": "function_call", "call_id": "call_7", "name": "look", "arguments": '{"at":"sky"}'}
        chat.send("conversation.item.create", item=call)
        output = {"type": "function_call_output", "call_id": "call_7", "output": "blue"}
        chat.send("conversation.item.create", item=output)
        chat.send("response.create")
        await chat.answer()
        called = server.requests[0]["messages"][0]["tool_calls"][0]
        assert called["function"] == {"name": "look", "arguments": '{"at":"sky"}'}
