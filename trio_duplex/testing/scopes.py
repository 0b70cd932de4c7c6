"""The kinds of scope that the explorer cancels: which tasks are theirs, and how each is cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import trio

from duplex_protocol import commands as cmd
from duplex_protocol.errors import RemoteProtocolError
from trio_duplex.testing.rig import Rig

__all__ = ["KINDS", "ScopeKind", "root_of", "tasks_below"]

Task = trio.lowlevel.Task

CALLER = "caller"
HUB = "hub"


@attrs.frozen
class ScopeKind:
    """One kind of scope.

    ``root`` tells the topmost task of such a scope by its name. ``cancel`` cancels the scope that lives now; it
    returns false when there is none (not yet, or no more). ``everywhere``: steps of all tasks are counted while the
    scope lives, not only its own: a scope with few tasks is cancelled at every moment of its life.
    """

    name: str
    root: Callable[[str], bool]
    cancel: Callable[[Rig, trio.CancelScope, Task | None], bool]
    alive: Callable[[Rig, Task | None], bool]
    everywhere: bool = False


def tasks_below(task: Task) -> Iterator[Task]:
    """A task and all tasks in nurseries below it."""
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from tasks_below(child)


def _cancel_caller(rig: Rig, caller: trio.CancelScope, root: Task | None) -> bool:
    caller.cancel()
    return True


def _cancel_hub(rig: Rig, caller: trio.CancelScope, root: Task | None) -> bool:
    rig.hub_scope.cancel()
    return True


def _connection_alive(rig: Rig, root: Task | None) -> bool:
    return rig.network.serving > 0


def _cancel_connection(rig: Rig, caller: trio.CancelScope, root: Task | None) -> bool:
    for scope in reversed(rig.network.scopes):
        if not scope.cancel_called:
            scope.cancel()
            return True
    return False


def _session_alive(rig: Rig, root: Task | None) -> bool:
    """The session was announced as open and has its nursery; before that, the connection's scope is the one."""
    if root is None or not root.child_nurseries:
        return False
    nursery = root.parent_nursery
    return nursery is not None and nursery.parent_task.name == HUB


def _cancel_session(rig: Rig, caller: trio.CancelScope, root: Task | None) -> bool:
    if root is None:
        return False
    root.child_nurseries[0].cancel_scope.cancel()
    return True


def _epoch_alive(rig: Rig, root: Task | None) -> bool:
    sessions = rig.hub.every_session
    return bool(sessions) and sessions[-1].state == "open"


def _cancel_epoch(rig: Rig, caller: trio.CancelScope, root: Task | None) -> bool:
    return _post(rig, cmd.BargeIn())


def _response_alive(rig: Rig, root: Task | None) -> bool:
    return _epoch_alive(rig, root) and rig.hub.every_session[-1].active_response is not None


def _cancel_response(rig: Rig, caller: trio.CancelScope, root: Task | None) -> bool:
    return _post(rig, cmd.CancelResponse())


def _post(rig: Rig, command: cmd.Command) -> bool:
    """An epoch ends by a command in the session's mailbox and in no other way: nobody else holds its scope."""
    try:
        rig.hub.every_session[-1].post(command)
    except RemoteProtocolError:  # it is closing already: this epoch cannot be cancelled any more
        return False
    return True


def _always(rig: Rig, root: Task | None) -> bool:
    return True


KINDS: dict[str, ScopeKind] = {
    kind.name: kind
    for kind in (
        ScopeKind("epoch", lambda n: n.endswith("Epoch.run"), _cancel_epoch, _epoch_alive, everywhere=True),
        ScopeKind("response", lambda n: n.startswith("generate "), _cancel_response, _response_alive, everywhere=True),
        ScopeKind("session", lambda n: n.endswith("Session.run"), _cancel_session, _session_alive),
        ScopeKind("connection", lambda n: n.startswith("connection "), _cancel_connection, _connection_alive),
        ScopeKind("caller", lambda n: n == CALLER, _cancel_caller, _always),
        ScopeKind("hub", lambda n: n == HUB, _cancel_hub, _always),
    )
}


def root_of(kind: ScopeKind, task: Task) -> Task | None:
    """The topmost task of this kind above (or at) ``task``, None if it is in no such scope.

    Looked up anew each time: ``nursery.start`` moves a task to another parent once it has started.
    """
    root: Task | None = None
    above: Task | None = task
    while above is not None:
        if kind.root(above.name):
            root = above
        nursery = above.parent_nursery
        above = nursery.parent_task if nursery is not None else None
    return root
