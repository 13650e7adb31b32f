"""The engine as a naive twin in Python: the same calls, pages and witness model as the core's.

Each next token is hashed from what lies in the sequence's pages, so a page that two sequences hold,
or one freed too early, changes the text. Contracts are checked, not trusted.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from ignis.engine.api import SamplingParams
from ignis.engine.native import TOP_MAX, Core
from tests.simulation.witness import witness_next


class ReferenceOut:
    """Results of a round."""

    def __init__(self, lanes_max: int) -> None:
        rows = lanes_max + 1
        self.lanes = array("I", [0] * rows)
        self.tokens = array("I", [0] * rows)
        self.logprobs = array("f", [0.0] * rows)
        self.top_len = array("I", [0] * rows)
        self.top_ids = array("I", [0] * (rows * TOP_MAX))
        self.top_logprobs = array("f", [0.0] * (rows * TOP_MAX))


@dataclass(slots=True)
class Lane:
    """A seated sequence."""

    prompt: array[int]
    table: list[int]  # page ids, in the order of the sequence
    sampling: SamplingParams
    stored: int = 0  # tokens in the pages
    pending: int | None = None  # sampled, not yet stored


@dataclass
class ReferenceEngine:
    """Pages are handed out last freed first, so a busy pool is soon out of order."""

    lanes_max: int
    pages_total: int
    chunk_tokens_max: int
    vocab: int = 97
    seed: int = 1
    page_tokens: int = 64
    fail_at_round: int = -1  # raises there, as a device fault would
    rounds: int = 0
    lanes: dict[int, Lane] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = list(range(self.pages_total))
        self._slots = array("I", [0] * (self.pages_total * self.page_tokens))

    def pages_free(self) -> int:
        return len(self._free)

    def plan_allocations_after_seal(self) -> int:
        return 0

    def admit(self, lane: int, prompt: array[int], pages: int, sampling: SamplingParams) -> None:
        if lane in self.lanes or not 0 <= lane < self.lanes_max:
            raise ValueError(f"lane {lane} is taken or does not exist")
        if not prompt or max(prompt) >= self.vocab:
            raise ValueError("the prompt is empty or outside the vocabulary")
        if pages * self.page_tokens < len(prompt) + 1 or pages > len(self._free):
            raise ValueError(f"{pages} pages are too few, or more than are free")
        table = [self._free.pop() for _ in range(pages)]
        self.lanes[lane] = Lane(prompt, table, sampling)

    def release(self, lane: int) -> None:
        freed = self.lanes.pop(lane)
        for page in freed.table:
            begin = page * self.page_tokens
            self._slots[begin : begin + self.page_tokens] = array("I", [self.vocab] * 64)
        self._free += freed.table

    def round(
        self,
        prefill_lane: int,
        prefill_tokens: int,
        decode_lanes: array[int],
        decode_count: int,
        out: ReferenceOut,
    ) -> int:
        self.rounds += 1
        if self.rounds == self.fail_at_round:
            raise RuntimeError("the device fell off the bus")
        count = 0
        if prefill_lane >= 0:
            lane = self.lanes[prefill_lane]
            assert 0 < prefill_tokens <= self.chunk_tokens_max
            assert lane.stored + prefill_tokens <= len(lane.prompt)
            for token in lane.prompt[lane.stored : lane.stored + prefill_tokens]:
                self._store(lane, token)
            if lane.stored == len(lane.prompt):
                self._sample(prefill_lane, count, out)
                count += 1
        seen = set()
        for lane_id in decode_lanes[:decode_count]:
            lane = self.lanes[lane_id]
            assert lane_id not in seen, "a lane decodes once a round"
            assert lane_id != prefill_lane, "a lane decodes or prefills"
            assert lane.pending is not None, "a lane decodes after its prompt"
            seen.add(lane_id)
            self._store(lane, lane.pending)
            self._sample(lane_id, count, out)
            count += 1
        return count

    def _store(self, lane: Lane, token: int) -> None:
        page = lane.table[lane.stored // self.page_tokens]
        self._slots[page * self.page_tokens + lane.stored % self.page_tokens] = token
        lane.stored += 1

    def _sample(self, lane_id: int, at: int, out: ReferenceOut) -> None:
        lane = self.lanes[lane_id]
        prefix: list[int] = []
        for page in lane.table:
            begin = page * self.page_tokens
            prefix += self._slots[begin : begin + self.page_tokens]
        token = witness_next(prefix[: lane.stored], self.vocab, self.seed)
        lane.pending = token
        out.lanes[at], out.tokens[at] = lane_id, token
        alternatives = lane.sampling.logprobs or 0
        out.logprobs[at] = -0.5
        out.top_len[at] = alternatives
        for rank in range(alternatives):
            out.top_ids[at * TOP_MAX + rank] = (token + rank) % self.vocab
            out.top_logprobs[at * TOP_MAX + rank] = -0.5 - rank


def reference_core(engine: ReferenceEngine) -> Core[SamplingParams, ReferenceOut]:
    """The twin, as the engine package takes it."""
    return Core(engine, ReferenceOut(engine.lanes_max), lambda params: params)
