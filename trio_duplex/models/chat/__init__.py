"""The chat lane: turn-based models behind any OpenAI-compatible ``/v1/chat/completions`` (contract 10.2).

===========  ========================================================================================
module       holds
===========  ========================================================================================
``options``  what a deployment may choose: :class:`ChatOptions`; the two profiles
``plugin``   capabilities, config checks, the HTTP client's life: :class:`ChatPlugin`
``session``  one session: a request per answer, tool calls
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
"""

from trio_duplex.models.chat.options import ChatOptions
from trio_duplex.models.chat.plugin import ChatPlugin

__all__ = ["ChatOptions", "ChatPlugin"]
