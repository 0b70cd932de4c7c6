"""Small helpers around a client: units, waiting, acknowledging what a collector heard (contract section 21.6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio

from .client import DuplexClient
from .collector import EventCollector
from .events import DuplexEvent
from .values import DUPLEX_UNIT_MS, PCM16_BYTES_PER_SAMPLE, PCM16_SAMPLE_RATE

POLL_INTERVAL_S = 0.02


def chunk_period_ms(events: Iterable[DuplexEvent | Mapping[str, Any]], *, default: int = DUPLEX_UNIT_MS) -> int:
    """The unit length the server named last in `session.capabilities`, in ms; `default` if it named none."""
    period = default
    for event in events:
        raw = event.raw if isinstance(event, DuplexEvent) else event
        session = raw.get("session")
        capabilities = session.get("capabilities") if isinstance(session, Mapping) else None
        value = capabilities.get("chunk_period_ms") if isinstance(capabilities, Mapping) else None
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            period = value
    return period


def has_residual_model_unit(pcm16: bytes, *, chunk_period_ms: int) -> bool:
    """Whether 16 kHz PCM16 of this length ends inside a model unit."""
    samples = len(pcm16) // PCM16_BYTES_PER_SAMPLE
    return samples * 1000 % (chunk_period_ms * PCM16_SAMPLE_RATE) != 0


async def wait_for_condition(predicate: Callable[[], bool], *, timeout_s: float, label: str) -> None:
    """Poll every 20 ms until `predicate` holds; TimeoutError naming `label`. Cancellation ends the polling."""
    with trio.move_on_after(timeout_s):
        while not predicate():  # noqa: ASYNC110 - there is no event to wait for, that is what this is for
            await trio.sleep(POLL_INTERVAL_S)
        return
    raise TimeoutError(f"{label} did not happen within {timeout_s} s")


async def acknowledge_collected_playback(client: DuplexClient, collector: EventCollector) -> None:
    """Report everything the collector received as played: one ack per response, with its full length.

    A response that is done and made no sound is skipped. One that is still silent gets an ack of 0 ms, which reserves
    its place in the history for later acks (contract 14.5). Raises and cancels like `DuplexClient.send`.
    """
    for response_id in collector.heard_response_ids():
        received_ms = collector.audio_ms(response_id)
        if received_ms == 0 and collector.response_is_done(response_id):
            continue
        await client.ack_playback(math.floor(received_ms), response_id=response_id, item_id=f"item_{response_id}")
