"""A hub whose own scope is cancelled: later connections are refused, they do not meet a closed nursery."""

from __future__ import annotations

import pytest
import trio

from trio_duplex.client import DuplexClientError
from trio_duplex.testing import open_rig


async def test_a_connection_after_the_hubs_death_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with open_rig() as rig:
        await rig.hub.ready.wait()
        rig.hub_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(DuplexClientError, match=r"session_closed|closed"):
            async with rig.client():
                pass
        assert rig.hub.health()[0] is False
