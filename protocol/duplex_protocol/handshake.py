"""Which view of the realtime dialect a connection gets (contract 25). Pure decisions over query and first update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from duplex_protocol.shapes import View
from duplex_protocol.values import Json

TRUE_WORDS: Final = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS: Final = frozenset({"0", "false", "no", "off"})

VIEW_WORDS: Final[dict[str, View]] = {"duplex": "duplex", "openai": "plain"}
"""Values of the query word ``view``; it decides alone."""

QUERY_TRAITS: Final[dict[str, frozenset[str]]] = {
    "duplex": TRUE_WORDS,
    "native_duplex": TRUE_WORDS,
    "minicpmo45_native_duplex": TRUE_WORDS,
    "resume": TRUE_WORDS,
    "autostart": FALSE_WORDS,
}
"""Query words, and the values with which they show a duplex-aware client."""

UPDATE_TRAITS: Final = frozenset(
    {"playback_commit_policy", "extra_body", "ref_audio", "idle_timeout_s", "sample_rate_hz"}
)
"""Top-level keys of a session object that OpenAI does not have; every ``overlap_*`` key is one too."""


def choose_view(query: Mapping[str, str], opening_update: Json | None) -> View:
    """The view that fits a connection: duplex as soon as one trait shows, else plain.

    ``opening_update`` is the session object of the opening ``session.update``; None at the time when only the query is
    known. An explicit ``view=`` in the query is never overruled.
    """
    explicit = VIEW_WORDS.get(query.get("view", "").lower())
    if explicit is not None:
        return explicit
    if any(query.get(name, "").lower() in words for name, words in QUERY_TRAITS.items()):
        return "duplex"
    if opening_update is not None and any(is_update_trait(key) for key in opening_update):
        return "duplex"
    return "plain"


def may_switch(query: Mapping[str, str], view: View) -> bool:
    """Whether the first update of a session that is autostarted in this view may still change it."""
    return view == "plain" and query.get("view", "").lower() not in VIEW_WORDS


def is_update_trait(key: str) -> bool:
    """Whether a key of a session object shows a duplex-aware client."""
    return key in UPDATE_TRAITS or key.startswith("overlap_")
