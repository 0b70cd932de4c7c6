"""Answering: what is asked, with which tools, and how its answer is thought and said at the same time."""

from __future__ import annotations

from typing import Final

import trio

from duplex_protocol.values import Json, SessionConfig
from trio_duplex.models.demo.engine import Engine, EngineFailed, EngineGone
from trio_duplex.models.demo.options import DemoOptions
from trio_duplex.models.demo.preparation import Preparation
from trio_duplex.models.demo.speaking import Pacer, speak, write
from trio_duplex.models.demo.thinking import Question, Thought
from trio_duplex.models.demo.tool_calls import ToolResult
from trio_duplex.models.demo.unit_cutter import UnitCutter
from trio_duplex.models.limits import token_limit
from trio_duplex.models.plugin import GenerationFailed, HistoryEntry, Say

__all__ = ["DEAD", "answer", "question_of"]

DEAD: Final = "runtime_data_plane_stream_failed"


def question_of(
    text: str,
    history: tuple[HistoryEntry, ...],
    config: SessionConfig,
    instructions: str | None,
    *,
    options: Json | None = None,
    results: tuple[ToolResult, ...] = (),
) -> Question:
    """The question, with the tools of the session or, where ``options`` of a response name them, of that response."""
    options = options or {}
    tools = options.get("tools", config.tools or config.extra_body.get("realtime_tools"))
    return Question(
        text=text,
        history=history,
        instructions=instructions,
        tools=tuple(tools) if isinstance(tools, list | tuple) else (),
        tool_choice=options.get("tool_choice", config.tool_choice),
        results=results,
        max_words=token_limit(options, config.max_tokens),
    )


async def answer(
    thought: Thought,
    prepared: Preparation | None,
    say: Say,
    engine: Engine,
    options: DemoOptions,
    *,
    text_only: bool,
) -> GenerationFailed | None:
    """Think ``thought``, or take the same one as far as it is prepared, and say it meanwhile.

    Returns what went wrong, after what could be said was said.  Cancellation: thinking stops before this returns,
    queued synthesis is dropped, running synthesis abandoned.
    """
    ahead = prepared.thought if prepared is not None else None
    async with trio.open_nursery() as nursery:
        if ahead is not None and ahead.question == thought.question and not ahead.abandoned:
            thought = ahead
        else:
            nursery.start_soon(thought.run)
        failure = await _say(thought, prepared, say, engine, options, text_only=text_only)
        nursery.cancel_scope.cancel()
    return failure


async def _say(
    thought: Thought,
    prepared: Preparation | None,
    say: Say,
    engine: Engine,
    options: DemoOptions,
    *,
    text_only: bool,
) -> GenerationFailed | None:
    """Cancellation: nothing more is said."""
    try:
        if text_only:
            await write(thought, say)
        else:
            cutter = UnitCutter(engine.voice_rate_hz, options.output_rate_hz, options.unit_ms)
            pacer = Pacer(options.unit_ms / 1000, options.lead_units)
            await speak(thought, say, engine=engine, cutter=cutter, pacer=pacer, prepared=prepared)
    except GenerationFailed as failure:
        return failure
    except (EngineFailed, EngineGone) as broken:
        failed = GenerationFailed("engine_error" if isinstance(broken, EngineFailed) else DEAD, str(broken))
        failed.__cause__ = broken
        return failed
    return None
