"""The security model of docs/security.md, line by line, where no other file has its test."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pybase64
import pytest
import structlog
import trio
from click.testing import CliRunner

from tests.server.server_kit import RawClient, open_tcp, raw_client, read_to_end
from trio_duplex import cli
from trio_duplex.config import AuthSettings, Deployment, LimitSettings
from trio_duplex.server.access import AudioBudget
from trio_duplex.server.listener import BoundAddress
from trio_duplex.server.secrets import MAX_LIVE, ClientSecrets, SecretRequest, TooManySecrets, bind
from trio_duplex.server.serve import serve
from trio_duplex.testing import ScriptedPlugin, silence, speech

KEY, OTHER_KEY = "tdx-0123456789abcdef", "tdx-second-key"
PATH = "/v1/realtime?duplex=1"
SECRETS = "/v1/realtime/client_secrets"
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEYS", f"{KEY} {OTHER_KEY}")


@asynccontextmanager
async def served(limits: LimitSettings | None = None, *, keys: bool = True) -> AsyncIterator[BoundAddress]:
    """The whole server with the scripted model."""
    auth = AuthSettings(keys_env="TEST_KEYS") if keys else AuthSettings()
    deployment = Deployment(model="scripted", auth=auth, limits=limits or LimitSettings())
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 20
        bound = await nursery.start(partial(serve, deployment, plugin=ScriptedPlugin()))
        yield bound
        nursery.cancel_scope.cancel()


def bearer(key: str) -> bytes:
    return f"Authorization: Bearer {key}\r\n".encode()


async def ask_secret(bound: BoundAddress, body: Any = None, key: str | None = KEY) -> tuple[int, Json]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    async with httpx.AsyncClient() as http:
        answer = await http.post(bound.url + SECRETS, content=content, headers=headers)
        return answer.status_code, answer.json()


async def opened(client: RawClient, session: Json | None = None) -> Json:
    """Open a session; the event that answers."""
    assert client.status == 101
    await client.send_text(json.dumps({"type": "session.update", "session": session or {}}))
    event: Json = orjson.loads(await client.next_text())
    return event


async def until(client: RawClient, *kinds: str) -> Json:
    while True:
        event: Json = orjson.loads(await client.next_text())
        if event["type"] in kinds:
            return event


# --- ephemeral keys ---------------------------------------------------------------------------------------------------


async def test_an_ephemeral_key_opens_by_header_and_as_a_sub_protocol() -> None:
    async with served() as bound:
        body = {"expires_after": {"anchor": "created_at", "seconds": 60}, "session": {"type": "realtime"}}
        status, secret = await ask_secret(bound, body)
        assert status == 200
        assert set(secret) == {"value", "expires_at", "session"}
        assert secret["value"].startswith("ek_")
        assert len(secret["value"]) > 40
        assert secret["session"]["model"] == "scripted"
        for headers in (
            bearer(secret["value"]),
            f"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{secret['value']}\r\n".encode(),
        ):
            async with raw_client(bound, PATH, headers) as client:
                assert (await opened(client))["type"] == "session.created"
        async with raw_client(bound, PATH, bearer(secret["value"][:-1])) as client:
            assert client.status == 401


async def test_it_is_bound_to_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the key was made with wins over what the page asks for, at the opening and later; the rest is free."""
    async with served() as bound:
        _, secret = await ask_secret(bound, {"session": {"instructions": "be kind"}})
        async with raw_client(bound, PATH, bearer(secret["value"])) as client:
            created = await opened(client, {"instructions": "be evil", "temperature": 0.5})
            assert created["session"]["instructions"] == "be kind"
            monkeypatch.setattr(ClientSecrets, "find", lambda *_: None)  # it expires meanwhile
            await client.send_text(json.dumps({"type": "session.update", "session": {"instructions": "be evil"}}))
            while (updated := await until(client, "session.updated", "error"))["type"] != "session.updated":
                pass
            assert updated["session"]["instructions"] == "be kind"


def test_binding_merges_objects() -> None:
    session = {"a": 1, "audio": {"input": {"x": 1}, "output": {"voice": "mine"}}}
    bound = {"audio": {"output": {"voice": "theirs"}}, "b": [1]}
    merged = bind(session, bound)
    assert merged == {"a": 1, "audio": {"input": {"x": 1}, "output": {"voice": "theirs"}}, "b": [1]}
    assert session["audio"]["output"] == {"voice": "mine"}


async def test_without_a_key_or_with_an_ephemeral_one_there_is_no_other() -> None:
    async with served() as bound:
        assert (await ask_secret(bound, key=None))[0] == 401
        assert (await ask_secret(bound, key="nonsense"))[0] == 401
        _, secret = await ask_secret(bound)
        assert (await ask_secret(bound, key=secret["value"]))[0] == 403


@pytest.mark.parametrize("seconds", [10, 7200])
async def test_its_life_may_be_from_10_s(seconds: int) -> None:
    async with served() as bound:
        assert (await ask_secret(bound, {"expires_after": {"anchor": "created_at", "seconds": seconds}}))[0] == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"anchor": "created_at", "seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": 60.5}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": True}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "last_use", "seconds": 60}}, "expires_after.anchor"),
        ({"expires_after": 60}, "expires_after"),
        ({"session": []}, "session"),
        ({"sesion": {}}, "sesion"),
        ({"session": {"model": "other"}}, "session.model"),
        (b"[]", None),
        (b"{", None),
        (b'{"session":' + b'{"a":' * 200 + b"1" + b"}" * 201, None),
    ],
)
async def test_what_is_wrong_with_the_request_is_named(body: Any, param: str | None) -> None:
    async with served() as bound:
        status, answer = await ask_secret(bound, body)
        assert (status, answer["error"]["param"]) == (400, param)


def test_it_expires_and_only_its_digest_is_kept() -> None:
    now = [1000.0]
    secrets = ClientSecrets(now_s=lambda: now[0])
    value, expires_at = secrets.issue(SecretRequest(seconds=10, session={"instructions": "x"}), b"owner")
    assert expires_at == 1010
    assert value not in repr(secrets)
    assert value.encode() not in b"".join(secrets._live)
    now[0] = 1009.9
    assert secrets.find(value) is not None
    now[0] = 1010.0
    assert secrets.find(value) is None
    now[0] = 1000.0
    assert secrets.find(value) is None, "once void, void for ever"


def test_their_number_is_bounded_and_comes_back() -> None:
    now = [0.0]
    secrets = ClientSecrets(now_s=lambda: now[0])
    for _ in range(MAX_LIVE):
        secrets.issue(SecretRequest(seconds=10, session={}), None)
    with pytest.raises(TooManySecrets):
        secrets.issue(SecretRequest(seconds=10, session={}), None)
    now[0] = 11.0
    secrets.issue(SecretRequest(seconds=10, session={}), None)


async def test_the_body_is_bounded_and_only_post_is_answered() -> None:
    async with served() as bound:
        assert (await ask_secret(bound, b" " * 70_000))[0] == 413
        async with httpx.AsyncClient() as http:
            assert (await http.get(bound.url + SECRETS)).status_code == 405


async def test_a_stranger_is_refused_before_the_body_is_waited_for() -> None:
    async with served() as bound, await open_tcp(bound) as stream:
        head = f"POST {SECRETS} HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"
        with trio.fail_after(2):
            await stream.send_all(head.encode())
            assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 401 ")


# --- how much one client may take -------------------------------------------------------------------------------------


async def test_a_key_has_only_so_many_sessions_also_through_its_ephemeral_keys() -> None:
    async with served(LimitSettings(max_sessions_per_key=1)) as bound:
        _, secret = await ask_secret(bound)
        async with raw_client(bound, PATH, bearer(KEY)) as first:
            assert (await opened(first))["type"] == "session.created"
            for key in (KEY, secret["value"]):
                async with raw_client(bound, PATH, bearer(key)) as second:
                    refused = await opened(second)
                    assert (refused["type"], refused["error"]["code"]) == ("error", "resource_exhausted")
            async with raw_client(bound, PATH, bearer(OTHER_KEY)) as other:
                assert (await opened(other))["type"] == "session.created"
            await first.send_text('{"type": "session.close"}')
            await until(first, "session.closed")
            async with raw_client(bound, PATH, bearer(secret["value"])) as third:
                assert (await opened(third))["type"] == "session.created"


async def test_audio_that_comes_too_fast_is_refused_and_the_session_lives() -> None:
    limits = LimitSettings(max_input_speed=4, input_burst_s=1)
    async with served(limits, keys=False) as bound, raw_client(bound, PATH) as client:
        await opened(client)
        audio = pybase64.b64encode(silence(400)).decode()
        for number in range(5):
            event = {"type": "input_audio_buffer.append", "audio": audio, "event_id": f"e{number}"}
            await client.send_text(json.dumps(event))
        refused = await until(client, "error")
        assert refused["error"]["code"] == "input_backpressure"
        assert refused["error"]["event_id"] == "e2"
        await trio.sleep(0.3)
        await client.send_text(json.dumps({**event, "event_id": "later"}))
        await client.send_text('{"type": "session.heartbeat"}')
        while (answer := await until(client, "error", "session.heartbeat_ack"))["type"] == "error":
            assert answer["error"]["event_id"] != "later"


async def test_the_budget_is_a_burst_and_four_times_real_time(autojump_clock: trio.testing.MockClock) -> None:
    budget = AudioBudget(factor=4, burst_ms=1000)
    assert budget.take(1000)
    assert not budget.take(1)
    for _ in range(100):
        await trio.sleep(0.1)
        assert budget.take(399)
    await trio.sleep(3600)
    assert not budget.take(1001)


# --- what is said and where it listens --------------------------------------------------------------------------------


async def test_nothing_of_a_user_and_no_secret_is_logged() -> None:
    """A conversation with keys, an ephemeral key, a resume and an interruption; then every log line is searched."""
    with structlog.testing.capture_logs() as lines:
        async with served() as bound:
            _, secret = await ask_secret(bound, {"session": {"instructions": "PRIVATE-INSTRUCTIONS"}})
            audio = pybase64.b64encode(speech(320) + silence(640)).decode()
            tokens: list[str] = []
            async with raw_client(bound, PATH, bearer(secret["value"])) as client:
                created = await opened(client, {"extra_body": {"auto_response": True}})
                tokens.append(created["resume_token"])
                await client.send_text(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
                await until(client, "response.output_audio.delta")
                client.reset()
            resume = {
                "type": "session.resume",
                "session_id": created["session"].get("session_id") or created["session"]["id"],
                "resume_token": tokens[0],
                "incarnation": created["incarnation"],
                "last_received_server_event_seq": 0,
            }
            for used in ("not-" + tokens[0], tokens[0]):
                async with raw_client(bound, PATH, bearer(KEY)) as client:
                    await client.send_text(json.dumps({**resume, "resume_token": used}))
                    answer = await until(client, "session.resumed", "error")
                    tokens += [answer["resume_token"]] if "resume_token" in answer else []
                    if answer["type"] == "session.resumed":
                        await client.send_text('{"type": "session.close"}')
                        await until(client, "session.closed")
    text = repr([line for line in lines if line["log_level"] != "debug"])
    assert "session_opened" in text
    assert len(tokens) == 2
    for private in (*tokens, KEY, secret["value"], "PRIVATE-INSTRUCTIONS", "You said", "hello", audio[:40]):
        assert private not in text, private


def test_the_command_listens_on_loopback_by_default() -> None:
    shown = CliRunner().invoke(cli.main, ["serve", "--help"]).output
    assert "127.0.0.1" in shown
    parameters = {p.name: p.default for p in cli.main.commands["serve"].params}
    assert parameters["host"] == "127.0.0.1"


async def test_base64_is_strict_and_names_have_no_path() -> None:
    async with served(keys=False) as bound:
        async with raw_client(bound, PATH) as client:
            await opened(client)
            for bad in ("AAAA\n", "AA=A", "AA", "_-__", "AAAA AAAA"):
                await client.send_text(json.dumps({"type": "input_audio_buffer.append", "audio": bad}))
                assert (await until(client, "error"))["error"]["code"] in ("bad_audio", "bad_event"), bad
        async with raw_client(bound, PATH) as client:
            refused = await opened(client, {"model": "../../etc/passwd"})
            assert refused["error"]["code"] == "model_not_found"


async def test_a_head_that_never_ends_is_cut_off() -> None:
    async with served(keys=False) as bound, await open_tcp(bound) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nX: ")
        with trio.fail_after(5):
            for _ in range(300):
                try:
                    await stream.send_all(b"x" * 1024)
                except trio.BrokenResourceError:
                    break
            await read_to_end(stream)


def test_every_line_has_its_test() -> None:
    root = Path(__file__).parents[2]
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (root / "docs" / "security.md").read_text())
    assert len(named) > 35
    for file, test in named:
        assert f"def {test}" in (root / file).read_text(), (file, test)
