"""The carrier: the scheduler's actions as calls of the engine, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import structlog

from ignis.engine.actions import (
    IN_FAILED,
    OUT_FAILED,
    OUT_LANDED,
    AbandonOut,
    Action,
    Admit,
    Adopt,
    Capture,
    CopyDown,
    DropImage,
    DropSlot,
    MoveIn,
    MoveOut,
    Note,
    Release,
    Spill,
)
from ignis.engine.native import Core, OutT, SamplingT
from ignis.engine.scheduler import Scheduler
from ignis.engine.sequence import Sequence

log = structlog.get_logger("ignis.scheduler")


class Carrier(Generic[SamplingT, OutT]):
    """Carries actions out and takes what the engine's transfers report."""

    def __init__(
        self,
        core: Core[SamplingT, OutT],
        scheduler: Scheduler,
        sequences: dict[int, Sequence],
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._scheduler = scheduler
        self._sequences = sequences  # open ones, by key
        self._clock = clock
        self._out_began = 0.0
        self._in_began = 0.0
        self._write_refused = False

    def carry(self, action: Action) -> None:
        """One call of the engine. Raises what it raises; ValueError where it will not seat."""
        engine = self._core.engine
        match action:
            case Admit(key, lane, pages, slot):
                sequence = self._sequences[key]
                sampling = self._core.sampling(sequence.sampling)
                prompt_tokens = sequence.prompt_tokens
                engine.admit(lane, sequence.tokens, pages, sampling, prompt_tokens, slot)
            case Capture(lane, slot):
                engine.capture(lane, slot)
            case Adopt(lane, slot):
                engine.adopt(lane, slot)
            case DropSlot(slot):
                engine.drop_slot(slot)
            case DropImage(image):
                engine.drop_image(image)
            case Release(lane):
                engine.release(lane)
            case MoveOut(lane, tier):
                self._began(engine.move_out(lane, tier))
            case Spill(slot, tier, kind, class_index):
                self._began(engine.spill(slot, tier, kind, class_index))
            case CopyDown(image, class_index):
                self._began(engine.copy_image(image, class_index))
            case AbandonOut():
                engine.abandon_out()
            case MoveIn(key, lane, image, pages):
                sequence = self._sequences[key]
                sampling = self._core.sampling(sequence.sampling)
                prompt_tokens = sequence.prompt_tokens
                engine.move_in(image, lane, sequence.tokens, pages, sampling, prompt_tokens)
                self._in_began = self._clock()

    def advance(self, wait_us: int, now_us: int) -> None:
        """Move each transfer on by what has travelled, and tell the scheduler which ended."""
        for event, image, intact, text in self._core.engine.advance(wait_us):
            if event == IN_FAILED:
                log.error("ignis.kv_disk.read_refused", reason=text, damaged=not intact)
            elif event == OUT_FAILED and not self._write_refused:
                # Once, until a write succeeds: a full disk is asked again every second.
                log.error("ignis.kv_disk.write_refused", reason=text)
            if event in {OUT_LANDED, OUT_FAILED}:
                self._write_refused = event == OUT_FAILED
            notes = self._scheduler.board.notes
            before = len(notes)
            self._scheduler.ended(event, image, intact, now_us)
            notes[before:] = map(self._timed, notes[before:])

    def _timed(self, note: Note) -> Note:
        """The note with how long its move took, up to now."""
        if note.what == "evicted":
            began = self._out_began
        elif note.what == "resumed":
            began = self._in_began
        else:
            return note
        return note._replace(ms=round((self._clock() - began) * 1e3, 3))

    def _began(self, image: int) -> None:
        self._out_began = self._clock()
        self._scheduler.out_began(image)
