"""The chat lane: turn-based models behind any OpenAI-compatible ``/v1/chat/completions`` (contract 10.2).

===========  ========================================================================================
module       holds
===========  ========================================================================================
``options``  what a deployment may choose: :class:`ChatOptions`; the two profiles
``plugin``   capabilities, config checks, the HTTP client's life: :class:`ChatPlugin`
``session``  one session: a request per answer, tool calls
``answer``   the chunks of one answer on their way to the session
``messages`` the true history → ``messages`` of a request (pure)
``body``     session configuration and per-response options → the request body (pure)
``sse``      bytes → server-sent events, bounded (pure)
``chunks``   one JSON chunk of either shape → text, audio, tool calls, end (pure)
``sound``    encoded audio with its metadata → samples at the unit's rate (pure)
``pieces``   text and samples → pieces of speech, the text following the sound (pure)
``pace``     how far an answer may run ahead of real time
``backend``  the HTTP stream: deadlines, faults, immediate close
``brain``    an endpoint as the demo model's brain (text only)
===========  ========================================================================================

There are no threads and no weights here: the endpoint is the engine.

*Errors.* ``chat_error``: the backend is down, slow, refuses, is cut off or talks nonsense.  ``response_error``: its
answer has audio that cannot be trusted (no or wrong metadata, a sample rate that changes), or an option of the
response has no meaning.  Either fails one response; the session goes on.

*Pace.* Backends make speech faster than it plays.  An answer runs at most ``max_lead_ms`` ahead of real time; what
lies beyond is not even read, so TCP holds the backend back, memory is bounded, and an interruption finds unsent audio
to drop.  Text goes out with the sound that speaks it, not when it was written: an interrupted answer is remembered as
far as it was heard, and a whole text that came ahead of its sound would make that a guess.  Text-only answers go out
as they come.

*Interruption* is the cancellation of the epoch's scope, in which the request runs: the connection closes before the
cancellation is over, and the backend stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio_duplex.models.chat.options import BrainOptions, ChatOptions

if TYPE_CHECKING:
    from trio_duplex.models.chat.brain import EndpointBrain
    from trio_duplex.models.chat.plugin import ChatPlugin

__all__ = ["BrainOptions", "ChatOptions", "ChatPlugin", "EndpointBrain"]


def __getattr__(name: str) -> object:
    """What needs the HTTP library is imported when it is used: options alone stay light."""
    if name == "ChatPlugin":
        from trio_duplex.models.chat.plugin import ChatPlugin

        return ChatPlugin
    if name == "EndpointBrain":
        from trio_duplex.models.chat.brain import EndpointBrain

        return EndpointBrain
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
