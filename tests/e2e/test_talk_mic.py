"""``trio-duplex talk --mic``, the real command over a real socket; its devices are a thread in real time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from tests.cli.command import command, error_line, run
from trio_duplex.config import Deployment
from trio_duplex.server.serve import serve
from trio_duplex.testing import Piece, ScriptedOptions, ScriptedPlugin

ROOT = Path(__file__).parents[2]

DEVICES = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.live.fake_sounddevice import FakeSoundDevice
from trio_duplex.testing import speech
spoken = bytearray(bytes(32_000) + speech(400))
def source(frames, rate_hz):
    block = bytes(spoken[: 2 * frames])
    del spoken[: 2 * frames]
    return block.ljust(2 * frames, bytes(1))
sys.modules["sounddevice"] = FakeSoundDevice(real_time=True, source=source, SETTINGS)
"""
MIC = ("--mic", "--model", "scripted", "--url")


def devices(settings: str = "") -> str:
    return DEVICES.replace("SETTINGS", settings)


@attrs.define
class Talking:
    """The command in a process; what it prints is read as it comes."""

    process: trio.Process
    printed: str = ""

    async def says(self, text: str) -> None:
        assert self.process.stdout is not None
        with trio.fail_after(60):
            while text not in self.printed:
                chunk = await self.process.stdout.receive_some(4096)
                assert chunk, f"it ended without saying {text!r}: {self.printed}"
                self.printed += chunk.decode()


async def start(nursery: trio.Nursery, url: str, prelude: str) -> Talking:
    arguments = command("talk", *MIC, url, prelude=prelude)
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    process = await nursery.start(
        partial(trio.run_process, arguments, stdout=subprocess.PIPE, check=False, env=environment)
    )
    return Talking(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ask_hear_the_answer_and_leave_by_a_signal(nursery: trio.Nursery, number: signal.Signals) -> None:
    plugin = ScriptedPlugin(ScriptedOptions(script=lambda _: [Piece("well, "), Piece("yes.")]))
    bound = await nursery.start(partial(serve, Deployment(model="demo"), plugin=plugin))
    talking = await start(nursery, bound.ws_url, devices())
    await talking.says("it said: “well, yes.”")
    talking.process.send_signal(number)
    with trio.fail_after(10):
        assert await talking.process.wait() == 0
    await talking.says("the conversation is over")
    assert "listening to the microphone 'Desk mic', playing on the loudspeaker 'Box'" in talking.printed
    assert "it understood: “hello”" in talking.printed
    with trio.fail_after(5):
        while not all(session.closed for session in plugin.sessions):  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert len(plugin.sessions) == 1


async def test_a_device_that_is_unplugged(nursery: trio.Nursery) -> None:
    bound = await nursery.start(partial(serve, Deployment(model="demo"), plugin=ScriptedPlugin()))
    call = partial(run, "talk", *MIC, bound.ws_url, prelude=devices("vanish_after_s=0.7"))
    finished = await trio.to_thread.run_sync(call)
    assert finished.returncode == 1
    assert finished.stderr == "Error: the microphone 'Desk mic' has stopped; was it unplugged?\n"
    assert "session " in finished.stdout


async def test_leaving_before_the_session_is_open(nursery: trio.Nursery) -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    listeners = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    # Nothing is printed before the session is open: the device says that it was opened.
    prelude = devices() + (
        "made = FakeSoundDevice.RawOutputStream\n"
        "FakeSoundDevice.RawOutputStream = lambda self, **s: (print('opened', flush=True), made(self, **s))[1]\n"
    )
    talking = await start(nursery, f"ws://127.0.0.1:{port}", prelude)
    await talking.says("opened")
    talking.process.send_signal(signal.SIGINT)
    with trio.fail_after(10):
        assert await talking.process.wait() == 0


# --- what is missing --------------------------------------------------------------------------------------------------

NOWHERE = "ws://127.0.0.1:1"


@pytest.mark.parametrize("arguments", [("--list-devices",), ("--mic", "--url", NOWHERE)])
@pytest.mark.parametrize(
    ("prelude", "line"),
    [
        (
            "import sys; sys.modules['sounddevice'] = None",
            "a microphone needs the package 'sounddevice'; install the extra: pip install 'trio-duplex[mic]'",
        ),
        pytest.param(
            # The real package, on a machine whose PortAudio is missing; elsewhere the package brings its own.
            "import ctypes.util; ctypes.util.find_library = lambda name: None",
            "the package 'sounddevice' cannot be used: PortAudio library not found "
            "(on Debian and Ubuntu: apt install libportaudio2)",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="PortAudio comes with the package"),
        ),
    ],
)
def test_what_is_not_installed(arguments: tuple[str, ...], prelude: str, line: str) -> None:
    assert error_line(run("talk", *arguments, prelude=prelude)) == line


def test_no_device_at_all() -> None:
    assert error_line(run("talk", "--list-devices", prelude=devices("names=()"))) == "this machine has no sound device"
    line = error_line(run("talk", "--mic", "--url", NOWHERE, prelude=devices("names=()")))
    assert line == "there is no microphone; see trio-duplex talk --list-devices"


def test_the_devices_are_listed() -> None:
    finished = run("talk", "--list-devices", prelude=devices())
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == "  0 Desk mic\n  1 Box\n  2 Other mic\n"


def test_a_server_that_is_not_there() -> None:
    line = error_line(run("talk", "--mic", "--url", NOWHERE, "--input-device", "2", prelude=devices()))
    assert line.startswith(f"cannot connect to {NOWHERE}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give either --wav FILE or --mic"),
        (("--mic", "--wav", "x.wav"), "give either --wav FILE or --mic"),
        (("--mic", "--out", "x"), "--raw-rate and --out belong to --wav"),
        (("--wav", "x.wav", "--input-device", "1"), "--input-device and --output-device belong to --mic"),
    ],
)
def test_options_that_do_not_belong_together(arguments: tuple[str, ...], says: str) -> None:
    finished = run("talk", "--url", NOWHERE, *arguments)
    assert finished.returncode == 2
    assert says in finished.stderr
