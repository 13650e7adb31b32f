"""The naive twin's pages, lanes, retained slots and rounds, on the witness model.

Each next token is hashed from what lies in the sequence's pages and from the section that travels
with it, so a page that two sequences hold, one freed too early, or a section left behind changes
the text. Contracts are checked, not trusted.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from ignis.engine.api import SamplingParams
from ignis.engine.native import TOP_MAX
from tests.simulation.witness import hash_of, section_next, section_start, witness_next


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

    tokens: array[int]
    prompt_tokens: int
    table: list[int]  # page ids, in the order of the sequence
    sampling: SamplingParams
    section: int
    stored: int = 0  # tokens in the pages
    begun: bool = False  # whether anything was computed in this seat
    state: str = "prefill"  # decode, leaving, arriving

    def stand_at(self, stored: int) -> None:
        self.stored = stored
        drawn = len(self.tokens) > self.prompt_tokens and stored + 1 == len(self.tokens)
        self.state = "decode" if drawn else "prefill"


@dataclass(slots=True)
class Kept:
    """A retained slot that is taken."""

    tokens: array[int]
    table: list[int]
    section: int


@dataclass
class ReferenceLanes:
    """Pages are handed out last freed first, so a busy pool is soon out of order."""

    lanes_max: int
    pages_total: int
    chunk_tokens_max: int
    vocab: int = 97
    seed: int = 1
    page_tokens: int = 64
    fail_at_round: int = -1  # raises there, as a device fault would
    rounds: int = 0
    retained_slots: int = 0
    lanes: dict[int, Lane] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = list(range(self.pages_total))
        self._holders = [0] * self.pages_total
        self._slots = array("I", [0] * (self.pages_total * self.page_tokens))
        self.kept: dict[int, Kept] = {}
        self._begun: tuple[int, int, list[int]] | None = None
        # As the core's device: it says that it runs rounds by itself, or that it does not.
        self.starts = witness_next([0xFFFF_FFFF], 3, self.seed) > 0

    # --- pages ------------------------------------------------------------------------------------

    def pages_free(self) -> int:
        return len(self._free)

    def pages_held(self, lanes: array[int], count: int) -> int:
        return len({page for lane in lanes[:count] for page in self.lanes[lane].table})

    def plan_allocations_after_seal(self) -> int:
        return 0

    def _take(self, count: int) -> list[int]:
        if count > len(self._free):
            raise ValueError(f"{count} pages are more than are free")
        pages = [self._free.pop() for _ in range(count)]
        self._hold(pages)
        return pages

    def _hold(self, pages: list[int]) -> None:
        for page in pages:
            self._holders[page] += 1

    def _give(self, pages: list[int]) -> None:
        for page in pages:
            self._holders[page] -= 1
            assert self._holders[page] >= 0, "a page is freed once"
            if not self._holders[page]:
                begin = page * self.page_tokens
                poison = array("I", [self.vocab] * self.page_tokens)
                self._slots[begin : begin + self.page_tokens] = poison
                self._free.append(page)

    def _place(self, table: list[int], at: int) -> int:
        return table[at // self.page_tokens] * self.page_tokens + at % self.page_tokens

    # --- lanes and slots --------------------------------------------------------------------------

    def admit(
        self,
        lane: int,
        tokens: array[int],
        pages: int,
        sampling: SamplingParams,
        prompt_tokens: int | None = None,
        slot: int = -1,
    ) -> None:
        self._check(lane, tokens, pages)
        table, section, stored = [], section_start(self.seed), 0
        if slot >= 0:
            kept = self.kept[slot]
            stored, section = len(kept.tokens), kept.section
            if stored >= len(tokens) or kept.tokens != tokens[:stored]:
                raise ValueError("the slot is of other tokens")
            table = kept.table[: stored // self.page_tokens]
        own = self._take(pages - len(table))
        self._hold(table)
        seat = Lane(tokens[:], prompt_tokens or len(tokens), table + own, sampling, section)
        self.lanes[lane] = seat
        if slot >= 0:
            self._copy_tail(kept, seat.table)
        seat.stand_at(stored)

    def _check(self, lane: int, tokens: array[int], pages: int) -> None:
        assert self._begun is None, "nobody is seated beside a round"
        if lane in self.lanes or not 0 <= lane < self.lanes_max:
            raise ValueError(f"lane {lane} is taken or does not exist")
        if not tokens or max(tokens) >= self.vocab:
            raise ValueError("the prompt is empty or outside the vocabulary")
        if pages * self.page_tokens < len(tokens) + 1:
            raise ValueError(f"{pages} pages are too few")

    def _copy_tail(self, kept: Kept, table: list[int]) -> None:
        stored = len(kept.tokens)
        for at in range(stored - stored % self.page_tokens, stored):
            self._slots[self._place(table, at)] = self._slots[self._place(kept.table, at)]

    def adopt(self, lane: int, slot: int) -> None:
        self._at_rest(lane)
        seat, kept = self.lanes[lane], self.kept[slot]
        stored = len(kept.tokens)
        assert seat.state == "prefill"
        assert not seat.begun, "only what has not begun adopts"
        assert stored > seat.stored, "only what is more is adopted"
        assert kept.tokens == seat.tokens[:stored]
        assert stored < len(seat.tokens)
        whole = stored // self.page_tokens
        shared = kept.table[:whole]
        self._hold(shared)
        self._give(seat.table[:whole])
        seat.table[:whole] = shared
        seat.section = kept.section
        self._copy_tail(kept, seat.table)
        seat.stand_at(stored)

    def capture(self, lane: int, slot: int) -> None:
        self._at_rest(lane)
        seat = self.lanes[lane]
        assert slot not in self.kept, "a slot is empty before it is taken"
        assert 0 <= slot < self.retained_slots
        assert seat.state in {"prefill", "decode"}
        assert seat.stored > 0
        table = seat.table[: -(-seat.stored // self.page_tokens)]
        self._hold(table)
        self.kept[slot] = Kept(seat.tokens[: seat.stored], table, seat.section)

    def drop_slot(self, slot: int) -> None:
        kept = self.kept.pop(slot, None)
        if kept is not None:
            self._give(kept.table)

    def release(self, lane: int) -> None:
        self._at_rest(lane)
        self._give(self.lanes.pop(lane).table)

    def position(self, lane: int) -> int:
        return self.lanes[lane].stored

    # --- rounds -----------------------------------------------------------------------------------

    def begin_round(
        self, prefill_lane: int, prefill_tokens: int, decode_lanes: array[int], decode_count: int
    ) -> bool:
        assert self._begun is None, "one round at a time"
        decodes = list(decode_lanes[:decode_count])
        if prefill_lane >= 0:
            lane = self.lanes[prefill_lane]
            assert lane.state == "prefill", "a lane prefills before it decodes"
            assert 0 < prefill_tokens <= self.chunk_tokens_max
            assert lane.stored + prefill_tokens <= len(lane.tokens)
        for lane_id in decodes:
            assert self.lanes[lane_id].state == "decode", "a lane decodes after its prompt"
        assert len({prefill_lane, *decodes}) == 1 + len(decodes), "a lane is once in a round"
        self._begun = prefill_lane, prefill_tokens, decodes
        return self.starts

    def finish_round(self, out: ReferenceOut) -> int:
        assert self._begun is not None, "what is finished was begun"
        (prefill_lane, prefill_tokens, decodes), self._begun = self._begun, None
        self.rounds += 1
        if self.rounds == self.fail_at_round:
            raise RuntimeError("the device fell off the bus")
        count = 0
        if prefill_lane >= 0:
            lane = self.lanes[prefill_lane]
            for _ in range(prefill_tokens):
                self._store(lane)
            if lane.stored == len(lane.tokens):
                self._sample(prefill_lane, count, out)
                count += 1
        for lane_id in decodes:
            self._store(self.lanes[lane_id])
            self._sample(lane_id, count, out)
            count += 1
        return count

    def _at_rest(self, lane: int) -> None:
        if self._begun is not None:
            prefill_lane, _, decodes = self._begun
            assert lane != prefill_lane, "the lane is in the round under way"
            assert lane not in decodes, "the lane is in the round under way"

    def _store(self, lane: Lane) -> None:
        token = lane.tokens[lane.stored]
        page = lane.table[lane.stored // self.page_tokens]
        holders = self._holders[page]
        assert holders == 1 or lane.stored % self.page_tokens, "a shared page is whole"
        self._slots[self._place(lane.table, lane.stored)] = token
        lane.section = section_next(lane.section, token)
        lane.stored += 1
        lane.begun = True

    def _sample(self, lane_id: int, at: int, out: ReferenceOut) -> None:
        lane = self.lanes[lane_id]
        prefix: list[int] = []
        for page in lane.table:
            begin = page * self.page_tokens
            prefix += self._slots[begin : begin + self.page_tokens]
        token = (hash_of(prefix[: lane.stored], self.seed) ^ lane.section) % self.vocab
        lane.tokens.append(token)
        lane.state = "decode"
        out.lanes[at], out.tokens[at] = lane_id, token
        alternatives = lane.sampling.logprobs or 0
        out.logprobs[at] = -0.5
        out.top_len[at] = alternatives
        for rank in range(alternatives):
            out.top_ids[at * TOP_MAX + rank] = (token + rank) % self.vocab
            out.top_logprobs[at * TOP_MAX + rank] = -0.5 - rank
