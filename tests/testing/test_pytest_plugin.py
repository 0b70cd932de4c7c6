"""The pytest plugin as a user has it: fixtures, the seed option, and the seed in the report of a failure."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

USERS_TEST = """
    from trio_duplex.testing.rig import silence, speech

    async def test_turn(duplex_client, scripted_model, duplex_hub):
        await duplex_client.append_audio(speech(320))
        await duplex_client.append_audio(silence(640))
        async for response in duplex_client.responses():
            if response.decision != "listen":
                await response.wait()
                break
        assert response.transcript == "You said hello and that is all."
        assert len(scripted_model.sessions[0].requests) == 1
        assert duplex_hub.statistics().sessions == 1
        print("ids", duplex_client.session_id)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\ntrio_mode = true\n")
    # The entry point does this for an installed package; -p twice is refused.
    pytester.makeconftest(
        "def pytest_configure(config):\n"
        "    pass\n"
        "import importlib.metadata as m\n"
        "if not any('trio_duplex' in e.value for e in m.entry_points(group='pytest11')):\n"
        "    pytest_plugins = ['trio_duplex.pytest_plugin']\n"
    )
    return pytester


def test_the_fixtures_serve_a_conversation(project: pytest.Pytester) -> None:
    project.makepyfile(USERS_TEST)
    result = project.runpytest_inprocess("-s", "--duplex-seed=5")
    result.assert_outcomes(passed=1)
    again = project.runpytest_inprocess("-s", "--duplex-seed=5")
    ids = [line for line in result.outlines if line.startswith("ids")]
    assert ids
    assert ids == [line for line in again.outlines if line.startswith("ids")]


def test_a_failure_prints_its_seed(project: pytest.Pytester) -> None:
    project.makepyfile("async def test_fails(duplex_client):\n    assert False\n")
    result = project.runpytest_inprocess("--duplex-seed=11")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*replay with: pytest --duplex-seed=11*"])


def test_a_broken_promise_fails_the_test(project: pytest.Pytester) -> None:
    project.makepyfile("async def test_leak(duplex_rig):\n    duplex_rig.plugin.open_slots -= 1\n")
    result = project.runpytest_inprocess()
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*slots of the model are still taken*"])
