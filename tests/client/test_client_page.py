"""docs/client.md: complete against the client contract, fresh, and its blocks run against a real server."""

from __future__ import annotations

import ast
import re
import textwrap
from functools import partial
from pathlib import Path

import pytest
import trio

import trio_duplex
from trio_duplex.client import write_pcm16_wav
from trio_duplex.client.reference import replace_table
from trio_duplex.testing import speech
from trio_duplex.testing.profiles import ProfilePlugin

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
TEXT = PAGE.read_text(encoding="utf-8")

# What the contract's section on the client names, subsection by subsection.
CONTRACT = {
    "21.1": """PCM16_SAMPLE_RATE PCM16_BYTES_PER_SAMPLE DUPLEX_UNIT_MS DUPLEX_FIRST_UNIT_MS duplex_unit_boundary_ms
        AudioFormat AudioFormat.encoding AudioFormat.sample_rate_hz AudioFormat.bytes_per_sample AudioFormat.duration_ms
        AudioFormat.byte_count SessionConfig SessionConfig.modalities SessionConfig.input_audio
        SessionConfig.output_audio SessionConfig.instructions SessionConfig.ref_audio SessionConfig.voice
        SessionConfig.auto_response SessionConfig.temperature SessionConfig.overlap_policy
        SessionConfig.playback_commit_policy SessionConfig.turn_detection SessionConfig.idle_timeout_s
        SessionConfig.extra_body SessionConfig.max_output_tokens SessionConfig.to_session_payload ReconnectPolicy
        ReconnectPolicy.max_attempts ReconnectPolicy.backoff_s ReconnectPolicy.delay DuplexClientError
        DuplexConnectionError DuplexProtocolError DuplexSessionClosedError WebSocketTransport WebSocketTransport.send
        WebSocketTransport.recv WebSocketTransport.close""",
    "21.2": """DuplexEvent DuplexEvent.raw DuplexEvent.type DuplexEvent.event_id DuplexEvent.session_id
        DuplexEvent.response_id DuplexEvent.item_id DuplexEvent.server_event_seq DuplexEvent.sample_rate_hz
        DuplexEvent.audio DuplexEvent.text SessionCreated SessionCreated.session SessionCreated.resume_token
        SessionCreated.incarnation SessionResumed SessionUpdated SessionClosed SessionExpired ResponseCreated
        ResponseDone AudioDelta TranscriptDelta TextDelta ListenDecision SpeakDecision ErrorEvent ErrorEvent.code
        ErrorEvent.message ErrorEvent.related_event_id ErrorEvent.to_exception ConnectionResumed wrap_event""",
    "21.3": """ResponseHandle ResponseHandle.response_id ResponseHandle.decision ResponseHandle.transcript
        ResponseHandle.text ResponseHandle.played_ms ResponseHandle.created_event ResponseHandle.done_event
        ResponseHandle.finished ResponseHandle.audio ResponseHandle.wait""",
    "21.4": """DuplexClient DuplexClient.url DuplexClient.model DuplexClient.config DuplexClient.session_id
        DuplexClient.session_info DuplexClient.resume_token DuplexClient.incarnation DuplexClient.__aenter__
        DuplexClient.__aexit__ DuplexClient.close DuplexClient.append_audio DuplexClient.stream_pcm DuplexClient.commit
        DuplexClient.cancel_response DuplexClient.clear_input DuplexClient.ack_playback DuplexClient.events
        DuplexClient.__aiter__ DuplexClient.responses DuplexClient.wait_for DuplexClient.send""",
    "21.5": """EventCollector EventCollector.events EventCollector.event_received_at_s EventCollector.response_audio
        EventCollector.response_ids EventCollector.output_sample_rate_hz EventCollector.consume
        EventCollector.response_id EventCollector.add EventCollector.count EventCollector.audio_bytes
        EventCollector.errors EventCollector.response_is_done EventCollector.response_text
        EventCollector.first_received_at EventCollector.last_received_at EventCollector.timing_summary
        EventCollector.global_timing_summary""",
    "21.6": """audio_data_url image_data_url reference_audio_data_url read_pcm16_wav write_pcm16_wav chunk_period_ms
        has_residual_model_unit build_realtime_url wait_for_condition acknowledge_collected_playback
        summarize_session_request_metrics distribution_summary metric_mean summarize_stage_metrics
        presets.minicpmo_4_5.create_duplex_session_config presets.personaplex.create_duplex_session_config
        presets.nemotron_voicechat.create_duplex_session_config concat_frames concat_frames_b64 unit_subframe_offsets
        InlineDuplexClient""",
}


def shown() -> dict[str, list[str]]:
    """Name → the other cells of its row on the page."""
    found = {}
    for line in TEXT.splitlines():
        if line.startswith("| `") and line.count(" | ") >= 3:
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found[cells[0].strip("`")] = cells[1:]
    return found


def test_nothing_of_the_contract_is_missing() -> None:
    rows = shown()
    wanted = {name: section for section, names in CONTRACT.items() for name in names.split()}
    assert {name: rows[name][2] for name in wanted if name in rows} == wanted
    assert {name for name in rows if not rows[name][2].endswith(", own")} == set(wanted)


def test_every_row_says_what_it_is() -> None:
    assert [name for name, cells in shown().items() if not cells[1]] == []


def test_the_table_is_fresh() -> None:
    assert replace_table(TEXT) == TEXT, "stale: run python -m trio_duplex.client.reference docs/client.md"


# --- the blocks

BLOCKS = [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)]


class Stage:
    """A loopback server with a scripted MiniCPM-o, and the files and names that the blocks use."""

    def __init__(self, folder: Path, url: str, plugin: ProfilePlugin) -> None:
        self.folder = folder
        self.url = url
        self.plugin = plugin
        self.heard: list[bytes] = []

    async def run(self, block: str, **names: object) -> dict[str, object]:
        """Execute a block as the body of an async function, with the page's address and files replaced by ours."""
        source = block.replace("ws://127.0.0.1:8099", self.url).replace('Deployment(model="demo")', "DEPLOYMENT")
        source = source.replace("open_hub(trio_duplex.DEPLOYMENT)", "open_hub(DEPLOYMENT, plugin=plugin)")
        source = source.replace("reference_voice.wav", str(self.folder / "reference_voice.wav"))
        source = source.replace("question_16k.wav", str(self.folder / "question_16k.wav"))
        body = "async def body():\n" + textwrap.indent(source, "    ") + "\n    return locals()\n"
        scope: dict[str, object] = {"play": self.heard.append, **names}
        exec(compile(ast.parse(body), str(PAGE), "exec"), scope)
        found: dict[str, object] = await scope["body"]()  # type: ignore[operator]
        return found


@pytest.fixture
async def stage(tmp_path: Path, nursery: trio.Nursery) -> Stage:
    write_pcm16_wav(tmp_path / "reference_voice.wav", bytes(3200), sample_rate_hz=16000)
    write_pcm16_wav(tmp_path / "question_16k.wav", speech(300), sample_rate_hz=16000)
    plugin = ProfilePlugin("minicpmo_4_5")
    deployment = trio_duplex.Deployment(model="scripted")
    bound = await nursery.start(partial(trio_duplex.serve, deployment, plugin=plugin))
    return Stage(tmp_path, bound.ws_url, plugin)


def block(words: str) -> str:
    (found,) = [one for one in BLOCKS if words in one]
    return found


async def test_the_blocks_hold_a_conversation(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's blocks in its order, as the body of the first one."""
    opening = block("create_duplex_session_config")

    async def talk(client: trio_duplex.DuplexClient) -> None:
        await stage.run(block("stream_pcm"), client=client)
        await stage.run(block("client.responses()"), client=client)
        assert b"".join(stage.heard)
        await stage.run(block("cancel_response"), client=client)
        got = await stage.run(block("session.heartbeat"), client=client)
        assert isinstance(got["event_id"], str)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(stage.run, block("async for event in client"), client=client))
            await trio.testing.wait_all_tasks_blocked()
            await stage.run(block("stream_pcm"), client=client)
        await client.stream_pcm(speech(300), realtime=False)
        measured = await stage.run(block("EventCollector"), client=client)
        assert measured["summary"]["request_metrics"]["audio_duration_ms"] == 2000  # type: ignore[index]

    with trio.fail_after(30):
        await stage.run(opening + textwrap.indent("await talk(client)\n", "    "), talk=talk)
    printed = capsys.readouterr().out
    assert "supports_barge_in" in printed
    assert "It is sunny, 24 degrees. completed\n" in printed
    assert "response.done" in printed


async def test_the_block_in_process(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    deployment = trio_duplex.Deployment(model="scripted")
    names = {"DEPLOYMENT": deployment, "plugin": ProfilePlugin("chat_fallback")}
    with trio.fail_after(10):
        await stage.run(block("open_hub"), **names)
    assert "chat\n" in capsys.readouterr().out.splitlines(keepends=True)


def test_every_block_was_run() -> None:
    """The two tests above name their blocks by words; none is left out."""
    words = ("create_duplex_session_config", "stream_pcm", "client.responses()", "cancel_response", "session.heartbeat")
    words += ("async for event in client", "EventCollector", "open_hub")
    assert sorted(map(block, words)) == sorted(BLOCKS)
