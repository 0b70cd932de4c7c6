"""Speaking: one answer in the making, from its start over its first visible output to its last delta.

What ends an answer is in :mod:`trio_duplex.session.endings`; what ends its epoch in
:mod:`trio_duplex.session.epochs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from duplex_protocol import events as ev
from trio_duplex.models.plugin import GenerationFailed, HistoryEntry, ResponseRequest, Speech
from trio_duplex.session.continuation import run_units
from trio_duplex.session.response import Response, ResponseOptions
from trio_duplex.session.work import Work

if TYPE_CHECKING:
    from trio_duplex.session.core import Session


@attrs.define(eq=False)
class Generation:
    """One answer in the making. ``response`` is None until it becomes visible (its first output, or precreated).

    ``work`` is what it answers. ``explicit``: a client asked for it, so that silence units are few (contract 10.4).
    ``in_units``: the model speaks in results, unit by unit; the task only feeds it. ``context``: what it answers
    instead of the conversation.
    """

    session: Session
    epoch: int
    work: Work
    options: ResponseOptions
    response_id: str
    explicit: bool = False
    in_units: bool = False
    response: Response | None = None
    context: tuple[HistoryEntry, ...] | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)

    def end(self) -> None:
        """It is over, whatever the reason; what is left of its task goes."""
        self.over.set()
        self.scope.cancel()

    async def run(self) -> None:
        """The generation task, a child of the epoch; its own scope ends what is left of it after its answer ended.

        Cancellation: an interruption; nothing is said any more.
        """
        session = self.session
        with self.scope:
            try:
                if self.in_units:
                    await run_units(session, self)
                    return
                await session.model.respond(self._request(), self.say)
            except GenerationFailed as error:
                session.generation_over(self, error)
            else:
                session.generation_over(self, None)

    def _request(self) -> ResponseRequest:
        session = self.session
        modalities = self.options.modalities or session.config.modalities
        turns = tuple(self.work.turns)
        return ResponseRequest(
            epoch=self.epoch,
            response_id=self.response_id,
            config=session.config,
            history=session.conversation.history() if self.context is None else self.context,
            turn=turns[-1] if turns else None,
            turns=turns,
            text_only="audio" not in modalities,
            instructions=self.options.instructions or session.config.instructions,
            options=self.options.raw,
        )

    @property
    def current(self) -> bool:
        """Whether it may still be heard: nothing ended it, its epoch or the session."""
        session = self.session
        return session.generation is self and session.epoch.open and session.state == "open"

    def say(self, speech: Speech) -> None:
        """One piece of the answer. After the epoch ended this does nothing: its tasks are being unwound."""
        if self.current:
            spoken(self.session, self, speech)


def start_generation(
    session: Session,
    work: Work,
    options: ResponseOptions | None = None,
    *,
    precreate: bool = False,
    explicit: bool = False,
    context: tuple[HistoryEntry, ...] | None = None,
) -> Generation:
    """Begin an answer in the current epoch; ``precreate`` makes the response visible at once. No checkpoint."""
    generation = Generation(
        session,
        session.epoch.number,
        work,
        options or ResponseOptions(),
        session.ids.response(),
        explicit=explicit or precreate,
        in_units=session.traits.whole_units,
        context=context,
    )
    session.generation = generation
    session.tool_results_waiting = 0
    session.turn_state = "assistant_generating"
    if precreate:
        announce(session, generation)
    session.epoch.start_soon(generation.run, name=f"generate {session.id} epoch {session.epoch.number}")
    return generation


def announce(session: Session, generation: Generation) -> Response:
    """Make the response visible: ``response.created``; its item enters the chain now."""
    options = generation.options
    output_format = options.output_format or session.config.output_format
    response = Response(
        id=generation.response_id,
        epoch=generation.epoch,
        turn_id=session.turn_id,
        modalities=options.modalities or session.config.modalities,
        output_format=output_format,
        options=options,
        whole_text=session.traits.text_needs_all_audio,
    )
    generation.response = response
    previous = session.conversation.tail_id
    if response.in_history:
        session.conversation.add(response.item("in_progress"))
    session.remember(response)
    session.output.begin(output_format)
    session.emit(
        ev.ResponseCreated(
            session_id=session.id,
            response_id=response.id,
            epoch=response.epoch,
            turn_id=response.turn_id,
            item_id=response.item_id,
            previous_item_id=previous,
            modalities=response.modalities,
            metadata=options.metadata if options.metadata is not None else session.config.metadata,
            conversation=options.conversation,
            prompt=options.prompt,
            output_format=output_format,
        )
    )
    return response


def spoken(session: Session, generation: Generation, speech: Speech) -> None:
    """Project one piece of speech: response.created and speak first if need be, then the delta. No checkpoint."""
    if generation.response is None and not len(speech.audio) and not speech.text:
        return
    response = generation.response or announce(session, generation)
    if speech.finish_reason is not None:
        response.finish_reason = speech.finish_reason
    if "audio" not in response.modalities:
        if speech.text:
            response.add_text(speech.text)
            session.emit(
                ev.TextDelta(
                    session_id=session.id,
                    response_id=response.id,
                    item_id=response.item_id,
                    epoch=response.epoch,
                    delta=speech.text,
                ),
                epoch=response.epoch,
                tag=response.deltas[-1],
            )
        return
    audio, samples = session.output.encode(speech.audio, last=speech.end_of_turn)
    if not audio and not speech.text:
        return
    # In the chat lane nobody chose to speak: a commit asked for it (seed, capability implementation_level).
    model_speak = not session.traits.turn_based
    if model_speak and not response.speak_announced:
        response.speak_announced = True
        session.emit(
            ev.ResponseSpeak(
                session_id=session.id, response_id=response.id, item_id=response.item_id, epoch=response.epoch
            )
        )
    session.turn_state = "assistant_playing"
    session.audio_started = True
    if response.first_audio_s is None:
        response.first_audio_s = trio.current_time()
    end_ms = response.add_audio(speech.text, samples, speech.marks)
    session.emit(
        ev.AudioDelta(
            session_id=session.id,
            response_id=response.id,
            item_id=response.item_id,
            epoch=response.epoch,
            audio=audio,
            format=response.output_format,
            text=speech.text,
            model_speak=model_speak,
            end_of_turn=speech.end_of_turn,
            audio_duration_ms=end_ms,
            marks=response.marks,
            playback=response.ledger.snapshot(),
        ),
        epoch=response.epoch,
        tag=response.deltas[-1],
    )
