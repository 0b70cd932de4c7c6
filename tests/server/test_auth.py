"""Who may connect: keys by header or sub-protocol, browser origins, and how a refusal looks (cases U1, U4, D6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import orjson
import pytest
import trio

from tests.cli.command import error_line, run
from tests.server.server_kit import open_tcp, raw_client, read_to_end, upgrade_request
from trio_duplex.cli.serve_command import with_access
from trio_duplex.config import AuthSettings, DeployError, Deployment, load_deployment
from trio_duplex.server.auth import Gate, is_loopback, load_keys, with_keys_from_environment
from trio_duplex.server.listener import BoundAddress
from trio_duplex.server.serve import serve
from trio_duplex.testing import ScriptedPlugin

KEY = "tdx-0123456789abcdef"
OTHER_KEY = "tdx-second-key"
WRONG = "tdx-0123456789abcdeX"
PATH = "/v1/realtime?model=scripted"
KEYED = AuthSettings(keys_env="TEST_KEYS")

Start = Callable[..., Awaitable[BoundAddress]]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEYS", f"{KEY}, {OTHER_KEY}")
    monkeypatch.delenv("TRIO_DUPLEX_API_KEYS", raising=False)


@asynccontextmanager
async def served(auth: AuthSettings, host: str = "127.0.0.1") -> AsyncIterator[BoundAddress]:
    """The whole server with the scripted model."""
    deployment = Deployment(model="scripted", auth=auth)
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + 20
        bound = await nursery.start(partial(serve, deployment, host=host, plugin=ScriptedPlugin()))
        yield bound
        nursery.cancel_scope.cancel()


async def first_answer(bound: BoundAddress, headers: bytes = b"", path: str = PATH) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON of an upgrade request: the refusal's body, or the first event."""
    async with raw_client(bound, path, headers) as client:
        if client.status == 101:
            return 101, orjson.loads(await client.next_text())
        return client.status, orjson.loads(client.after_head + await client.rest())


def bearer(key: str) -> bytes:
    return b"Authorization: Bearer " + key.encode() + b"\r\n"


def offered(*words: str) -> bytes:
    return b"Sec-WebSocket-Protocol: " + ", ".join(words).encode() + b"\r\n"


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PATH, "/v1/duplex"])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (b"", "missing_api_key"),
        (b"Authorization: Basic dXNlcjpwdw==\r\n", "missing_api_key"),
        (b"Authorization: Bearer \r\n", "missing_api_key"),
        (bearer(WRONG), "invalid_api_key"),
        (bearer(KEY[:-1]), "invalid_api_key"),
        (bearer(KEY + "x"), "invalid_api_key"),
        (bearer(f"{KEY}, {OTHER_KEY}"), "invalid_api_key"),
        (offered("realtime"), "missing_api_key"),
        (offered("realtime", "openai-insecure-api-key."), "missing_api_key"),
        (offered("realtime", f"openai-insecure-api-key.{WRONG}"), "invalid_api_key"),
    ],
)
async def test_u1_u4_without_a_valid_key_there_is_a_reason_and_no_upgrade(headers: bytes, code: str, path: str) -> None:
    async with served(KEYED) as bound:
        status, answer = await first_answer(bound, headers, path)
    assert status == 401
    assert answer["error"]["code"] == code
    assert answer["error"]["type"] == "invalid_request_error"
    if code == "missing_api_key":
        assert "Authorization: Bearer" in answer["error"]["message"]
        assert "openai-insecure-api-key." in answer["error"]["message"]


@pytest.mark.parametrize("where", ["?api_key=", "?key=", "?authorization=Bearer%20"])
async def test_a_key_in_the_url_is_not_read(where: str) -> None:
    async with served(KEYED) as bound:
        status, answer = await first_answer(bound, path=f"/v1/realtime{where}{KEY}")
    assert (status, answer["error"]["code"]) == (401, "missing_api_key")
    assert KEY not in str(answer)


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
async def test_each_key_opens_by_header_in_any_case_of_the_scheme(key: str) -> None:
    async with served(KEYED) as bound:
        for scheme in (b"Bearer", b"bearer"):
            status, event = await first_answer(bound, b"Authorization: " + scheme + b" " + key.encode() + b"\r\n")
            assert (status, event["type"]) == (101, "session.created")


async def test_a_browser_gives_its_key_as_a_sub_protocol_and_gets_realtime_back() -> None:
    async with (
        served(KEYED) as bound,
        raw_client(bound, PATH, offered("realtime", f"openai-insecure-api-key.{KEY}")) as client,
    ):
        assert client.status == 101
        assert client.header("sec-websocket-protocol") == "realtime"
        assert orjson.loads(await client.next_text())["type"] == "session.created"


async def test_d6_a_refused_client_that_does_not_hang_up_is_closed_within_a_second() -> None:
    async with served(KEYED) as bound, await open_tcp(bound) as stream:
        with trio.fail_after(1):
            await stream.send_all(upgrade_request(PATH))
            answer = await read_to_end(stream)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b'www-authenticate: Bearer realm="trio-duplex"' in answer


async def test_pages_ask_for_the_key_too_but_health_is_open() -> None:
    async with served(KEYED) as bound, httpx.AsyncClient(base_url=bound.url) as http:
        assert (await http.get("/health")).status_code == 200
        refused = await http.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_api_key")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        wrong = await http.get("/v1/models", headers={"authorization": f"Bearer {WRONG}"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
        allowed = await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
        assert allowed.json()["data"][0]["object"] == "model"


async def test_no_key_is_logged_whether_right_or_wrong(logs: list[dict[str, Any]], capfd: Any) -> None:
    async with served(KEYED) as bound:
        for key in (KEY, WRONG):
            await first_answer(bound, bearer(key))
            await first_answer(bound, offered("realtime", f"openai-insecure-api-key.{key}"))
    shown = str(logs) + "".join(capfd.readouterr())
    assert [entry["code"] for entry in logs if entry["event"] == "refused"] == ["invalid_api_key"] * 2
    assert KEY not in shown
    assert WRONG not in shown
    assert KEY not in repr(Gate.build(KEYED))


# --- when a key is asked for ------------------------------------------------------------------------------------------


async def test_on_loopback_no_key_is_asked_by_default_and_a_needless_one_does_no_harm() -> None:
    async with served(AuthSettings()) as bound:
        for headers in (b"", bearer("whatever"), offered("realtime", "openai-insecure-api-key.whatever")):
            status, event = await first_answer(bound, headers)
            assert (status, event["type"]) == (101, "session.created")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "server.example.org", ""])
async def test_a_host_that_lets_others_in_needs_keys(host: str) -> None:
    with pytest.raises(DeployError, match="API keys are needed") as refused:
        await serve(Deployment(model="scripted"), host=host, plugin=ScriptedPlugin())
    assert "--no-auth" in str(refused.value)
    assert "TRIO_DUPLEX_API_KEYS" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_bound_elsewhere_with_keys_the_keys_are_asked_for() -> None:
    async with served(KEYED, "0.0.0.0") as bound:
        local = attrs.evolve(bound, host="127.0.0.1")
        assert (await first_answer(local))[0] == 401
        assert (await first_answer(local, bearer(KEY)))[0] == 101


async def test_bound_elsewhere_without_keys_only_when_that_was_said() -> None:
    async with served(AuthSettings(required=False), "0.0.0.0") as bound:
        assert (await first_answer(attrs.evolve(bound, host="127.0.0.1")))[0] == 101


def test_keys_can_be_required_on_loopback_too() -> None:
    with pytest.raises(DeployError, match="required is true"):
        Gate.build(AuthSettings(required=True), host="127.0.0.1")


@attrs.frozen
class Somebody:
    """A visitor from an address."""

    client: tuple[str, int] | None
    headers: dict[str, str] = attrs.field(factory=dict)
    path: str = "/v1/realtime"
    subprotocols: tuple[str, ...] = ()


@pytest.mark.parametrize("client", [("192.0.2.7", 5000), ("::ffff:192.0.2.7", 5000), None])
def test_an_app_without_keys_under_an_unknown_listener_serves_its_own_machine_only(client: Any) -> None:
    gate = Gate.build(AuthSettings())
    refusal = gate(Somebody(client))
    assert refusal is not None
    assert (refusal.status, refusal.code) == (401, "missing_api_key")
    assert "TRIO_DUPLEX_API_KEYS" in refusal.message
    assert gate(Somebody(("127.0.0.1", 5000))) is None
    assert Gate.build(AuthSettings(required=False))(Somebody(client)) is None


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_what_counts_as_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local


# --- where keys come from ---------------------------------------------------------------------------------------------


def test_a_key_file_has_one_key_a_line_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# kitchen\n{KEY}   # old\n\n  {OTHER_KEY}\n")
    assert load_keys(AuthSettings(keys_file=path), {}) == (KEY, OTHER_KEY)
    both = AuthSettings(keys_file=path, keys_env="MORE")
    assert load_keys(both, {"MORE": "third fourth"}) == (KEY, OTHER_KEY, "third", "fourth")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no key"),
        (b"# nothing\n", "no key"),
        (b"\xff\xfe", "not a text file"),
        ("schl\u00fcssel".encode(), "number 1"),
    ],
)
def test_a_key_file_of_no_use_is_said_without_its_content(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(DeployError, match=says) as refused:
        load_keys(AuthSettings(keys_file=path), {})
    assert "schl" not in str(refused.value)


def test_a_source_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="No such file"):
        Gate.build(AuthSettings(keys_file=tmp_path / "missing"), host="127.0.0.1")
    with pytest.raises(DeployError, match="NOT_SET"):
        Gate.build(AuthSettings(keys_env="NOT_SET"), host="127.0.0.1")


def test_the_default_variable_counts_for_entry_points_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIO_DUPLEX_API_KEYS", KEY)
    assert Gate.build(AuthSettings()).digests == ()
    assert len(Gate.build(with_keys_from_environment(AuthSettings())).digests) == 1
    assert with_keys_from_environment(KEYED) == KEYED
    assert with_keys_from_environment(AuthSettings(required=False)).keys_env is None


def test_the_deploy_file_names_sources_never_keys(tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text("model: demo\nauth:\n  keys_env: TEST_KEYS\n  origins: [https://app.example.org]\n")
    auth = load_deployment(path).auth
    assert (auth.keys_env, auth.origins, auth.required) == ("TEST_KEYS", ("https://app.example.org",), None)
    path.write_text(f"model: demo\nauth:\n  keys: [{KEY}]\n")
    with pytest.raises(DeployError, match="known keys: required, keys_file, keys_env, origins"):
        load_deployment(path)
    path.write_text("model: demo\nauth:\n  origins: app.example.org\n")
    with pytest.raises(DeployError, match="an origin looks like"):
        load_deployment(path)


# --- origins ----------------------------------------------------------------------------------------------------------


def origin(value: str) -> bytes:
    return b"Origin: " + value.encode() + b"\r\n"


@pytest.mark.parametrize("page", ["http://localhost:3000", "http://127.0.0.1:8099", "https://[::1]"])
async def test_without_keys_pages_of_this_machine_may_connect(page: str) -> None:
    async with served(AuthSettings()) as bound:
        assert (await first_answer(bound, origin(page)))[0] == 101


@pytest.mark.parametrize(
    "page",
    [
        "https://evil.example.org",
        "null",
        "http://localhost.evil.example.org",
        "http://[",
        "http://127.0.0.1@evil.example.org",
    ],
)
@pytest.mark.parametrize("required", [None, False])
async def test_without_keys_other_pages_may_not(page: str, required: bool | None) -> None:
    async with served(AuthSettings(required=required)) as bound:
        status, answer = await first_answer(bound, origin(page))
    assert (status, answer["error"]["code"]) == (403, "origin_not_allowed")
    assert "auth.origins" in answer["error"]["message"]


async def test_with_a_key_any_page_may_connect_unless_there_is_a_list() -> None:
    async with served(KEYED) as bound:
        assert (await first_answer(bound, origin("https://any.example.org") + bearer(KEY)))[0] == 101
        assert (await first_answer(bound, origin("https://any.example.org")))[0] == 401
    listed = attrs.evolve(KEYED, origins=("https://app.example.org",))
    async with served(listed) as bound:
        assert (await first_answer(bound, origin("https://app.example.org") + bearer(KEY)))[0] == 101
        assert (await first_answer(bound, origin("HTTPS://App.Example.org") + bearer(KEY)))[0] == 101
        assert (await first_answer(bound, origin("https://any.example.org") + bearer(KEY)))[0] == 403
        assert (await first_answer(bound, origin("http://app.example.org") + bearer(KEY)))[0] == 403
        assert (await first_answer(bound, bearer(KEY)))[0] == 101


async def test_a_star_lets_every_page_in() -> None:
    async with served(AuthSettings(origins=("*",))) as bound:
        assert (await first_answer(bound, origin("https://any.example.org")))[0] == 101


async def test_pages_over_http_are_guarded_by_origin_too() -> None:
    async with served(AuthSettings()) as bound, httpx.AsyncClient(base_url=bound.url) as http:
        assert (await http.get("/v1/models")).status_code == 200
        answer = await http.get("/v1/models", headers={"origin": "https://evil.example.org"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


async def test_u7_what_a_browser_meets() -> None:
    """No page is served here that could fail in silence: an address that is opened as one says what speaks there, and
    a page from elsewhere comes in by its Origin and a key in the sub-protocol, the two things that a browser can send.
    """
    listed = attrs.evolve(KEYED, origins=("https://app.example.org",))
    page = {"accept": "text/html", "authorization": f"Bearer {KEY}"}
    async with served(listed) as bound, httpx.AsyncClient(base_url=bound.url) as http:
        opened = await http.get(PATH, headers=page)
        assert (opened.status_code, opened.json()["error"]["code"]) == (426, "upgrade_required")
        assert "wss://" in opened.json()["error"]["message"]
        assert "/v1/realtime" in (await http.get("/", headers=page)).json()["error"]["paths"]
        by_key = offered("realtime", f"openai-insecure-api-key.{KEY}")
        assert (await first_answer(bound, origin("https://app.example.org") + by_key))[0] == 101
        assert (await first_answer(bound, origin("https://app.example.org") + offered("realtime")))[0] == 401
        assert (await first_answer(bound, origin("https://any.example.org") + by_key))[0] == 403


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_in_one_line_that_keys_are_needed() -> None:
    said = error_line(run("serve", "--host", "0.0.0.0", "--port", "0"))
    assert "--api-keys-file" in said
    assert "--no-auth" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--no-auth", "--api-keys-file", "keys"], "exclude each other"),
        (["--allow-origin", "app.example.org"], "an origin looks like"),
        (["--api-keys-file", "missing"], "missing"),
    ],
)
def test_the_commands_flags_are_checked(arguments: list[str], says: str, tmp_path: Path) -> None:
    assert says in error_line(run("serve", "--port", "0", *arguments, cwd=tmp_path))


def test_the_flags_become_the_deployments_auth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIO_DUPLEX_API_KEYS", KEY)
    plain = Deployment(model="demo")
    assert with_access(plain, None, False, ()).auth == AuthSettings(keys_env="TRIO_DUPLEX_API_KEYS")
    assert with_access(plain, None, True, ()).auth == AuthSettings(required=False)
    keyed = with_access(plain, tmp_path, False, ("https://a.example.org",)).auth
    assert keyed == AuthSettings(required=True, keys_file=tmp_path, origins=("https://a.example.org",))
