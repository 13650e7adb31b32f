"""The ledger's guarantees, and a random life in which they hold after every event."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ignis.reuse import Entry, Kind, Ledger
from ignis.reuse.entry import DEVICE, DISK, KV_RAM

TTL_US = 1_000


def no_chain(tokens: array[int]) -> bytes:
    return bytes(16 * (len(tokens) // 64))


def make(slots: int = 3, *, saves: bool = False) -> Ledger:
    return Ledger(slots, 64, no_chain, TTL_US, saves=saves)


def keep(
    ledger: Ledger,
    first: int,
    kind: Kind = "checkpoint",
    class_index: int = 0,
    parent: Entry | None = None,
    now_us: int = 0,
) -> Entry:
    """An entry in the next free slot."""
    if parent is not None:
        ledger.supersede(parent)
    entry = ledger.enter(array("I", [first, 1]), kind, class_index, b"", now_us, parent)
    ledger.hold(entry, DEVICE, ledger.free_slot())
    return entry


def test_an_entry_lives_as_long_as_it_has_a_copy() -> None:
    ledger = make()
    entry = keep(ledger, 7)
    ledger.hold(entry, KV_RAM, 40)
    assert not ledger.lose(entry, DEVICE)
    assert entry.alive
    assert list(ledger.slots_dropped) == [0]
    assert ledger.lose(entry, KV_RAM)
    assert not entry.alive
    assert list(ledger.images_dropped) == [40]
    assert list(ledger.index) == []


def test_what_is_gone_already_is_not_dropped_again() -> None:
    ledger = make()
    entry = keep(ledger, 7)
    ledger.hold(entry, DISK, 40)
    ledger.lose(entry, DISK, dropped=True)
    assert not ledger.images_dropped


def test_slots_are_handed_out_lowest_first() -> None:
    ledger = make()
    entries = [keep(ledger, at) for at in range(3)]
    assert [entry.copies[DEVICE] for entry in entries] == [0, 1, 2]
    assert ledger.free_slot() == -1
    ledger.lose(entries[1], DEVICE)
    assert ledger.free_slot() == 1


def test_a_conversation_keeps_its_two_latest_checkpoints() -> None:
    ledger = make(slots=8)
    first = keep(ledger, 1)
    second = keep(ledger, 2, parent=first)
    assert first.alive
    third = keep(ledger, 3, parent=second)
    assert (first.alive, second.alive, third.alive) == (False, True, True)
    keep(ledger, 4, parent=third)
    assert (second.alive, third.alive) == (False, True)


def test_an_older_checkpoint_stays_while_it_is_read() -> None:
    ledger = make(slots=8)
    first = keep(ledger, 1)
    second = keep(ledger, 2, parent=first)
    first.claims = 1
    keep(ledger, 3, parent=second)
    assert first.alive


def test_two_conversations_from_one_checkpoint_do_not_end_each_other() -> None:
    ledger = make(slots=8)
    first = keep(ledger, 1)
    keep(ledger, 2, parent=first)
    keep(ledger, 3, parent=first)
    assert len(list(ledger.index)) == 3


def test_what_is_read_or_copied_is_not_given_up() -> None:
    ledger = make()
    claimed, written, free = (keep(ledger, at) for at in range(3))
    claimed.claims, written.writing = 1, True
    assert ledger.worst_slot() is free
    assert ledger.worst_slot(keep=free) is None
    for image, entry in enumerate((claimed, written, free)):
        ledger.hold(entry, KV_RAM, image)
    assert ledger.discards(KV_RAM, 0) == [free]


def test_for_pages_those_that_lanes_share_are_given_up_last() -> None:
    ledger = make()
    shared, alone = keep(ledger, 1), keep(ledger, 2)
    shared.sharers = 1
    assert ledger.worst_slot() is shared
    assert ledger.worst_slot(sharers_last=True) is alone


def test_an_entry_displaces_only_what_is_given_up_before_it() -> None:
    ledger = make(slots=4)
    entries = [keep(ledger, at, class_index=1 - at // 2) for at in range(4)]
    for image, entry in enumerate(entries):
        ledger.hold(entry, KV_RAM, image)
        ledger.hold(entry, DISK, 10 + image)
    assert ledger.discards(KV_RAM, 0, below=entries[2]) == entries[:2]
    assert ledger.discards(KV_RAM, 0, below=entries[0]) == []
    assert ledger.discards(DISK, 0, below=entries[3]) == entries[:3]
    assert ledger.discards(KV_RAM, 0) == entries


def test_prefixes_are_saved_first_and_each_entry_once() -> None:
    ledger = make(saves=True)
    checkpoint, prefix = keep(ledger, 1), keep(ledger, 2, "prefix")
    assert ledger.next_unsaved() is prefix
    prefix.writing = True
    assert ledger.next_unsaved() is checkpoint
    prefix.writing = False
    ledger.hold(prefix, DISK, 5)
    assert ledger.next_unsaved() is checkpoint
    ledger.hold(checkpoint, DISK, 6)
    assert ledger.next_unsaved() is None
    # What gave way is saved again when it was of use again, and not before.
    ledger.lose(prefix, DISK)
    assert ledger.next_unsaved() is None
    ledger.touch(prefix, 0)
    assert ledger.next_unsaved() is prefix


def test_without_kv_disk_nothing_is_to_be_saved() -> None:
    ledger = make()
    ledger.touch(keep(ledger, 1), 0)
    assert not ledger.unsaved


def matched(*kept: tuple[int, int], prompt: int = 1_000) -> int:
    """Tokens that a prompt starts from, of entries given as (tokens, place)."""
    ledger = make(slots=8)
    tokens = array("I", [5] * prompt)
    for copy, (position, place) in enumerate(kept):
        key = ledger.index.key_of(position, no_chain(tokens))
        entry = ledger.enter(tokens[:position], "checkpoint", 0, key, 0)
        ledger.hold(entry, place, copy)
    found = ledger.find(tokens, prompt - 1, no_chain(tokens))
    return 0 if found is None else found.position


def test_the_longest_match_wins_wherever_it_lies_if_it_saves_enough() -> None:
    assert matched() == 0
    assert matched((999, DEVICE), (1_000, DEVICE)) == 999
    assert matched((64, DISK)) == 64
    assert matched((64, DEVICE), (960, DISK), (640, KV_RAM)) == 960
    assert matched((64, DISK), (640, DEVICE)) == 640


@pytest.mark.parametrize(("place", "share"), [(KV_RAM, 32), (DISK, 8)])
def test_an_image_that_saves_little_beside_a_slot_is_not_copied(place: int, share: int) -> None:
    saved = 960 // share
    assert matched((960 - saved, DEVICE), (960, place)) == 960
    assert matched((960 - saved + 1, DEVICE), (960, place)) == 960 - saved + 1


def test_on_the_device_only_slots_are_matched() -> None:
    ledger = make()
    tokens = array("I", [5] * 200)
    for position, place in ((150, KV_RAM), (64, DEVICE)):
        key = ledger.index.key_of(position, no_chain(tokens))
        ledger.hold(ledger.enter(tokens[:position], "prefix", 0, key, 0), place, 1)
    found = ledger.find(tokens, 199, no_chain(tokens), on_device=True)
    assert found is not None
    assert found.position == 64


def test_the_version_tells_when_a_match_may_differ() -> None:
    ledger = make()
    before = ledger.version
    entry = keep(ledger, 1)
    assert ledger.version > before
    before = ledger.version
    ledger.touch(entry, 5)
    assert ledger.version == before
    ledger.lose(entry, DEVICE)
    assert ledger.version > before


class LedgerMachine(RuleBasedStateMachine):
    """Copies come and go at random; what the ledger says of them must agree."""

    @initialize(slots=st.integers(1, 4), saves=st.booleans())
    def start(self, slots: int, saves: bool) -> None:
        self.ledger = make(slots, saves=saves)
        self.entries: list[Entry] = []
        self.images = 0
        self.taken: set[tuple[bool, int]] = set()  # slots and images as an engine would hold them

    @precondition(lambda self: self.ledger.slot_free)
    @rule(
        data=st.data(),
        kind=st.sampled_from(["checkpoint", "prefix"]),
        class_index=st.integers(0, 1),
        length=st.integers(1, 130),
    )
    def capture(self, data: st.DataObject, kind: Kind, class_index: int, length: int) -> None:
        ledger = self.ledger
        tokens = array("I", [data.draw(st.integers(0, 2)), *[0] * length])
        chain = no_chain(tokens)
        if ledger.index.exact(tokens, len(tokens), chain) is not None:
            return
        parents = [one for one in self.alive() if one.kind == "checkpoint"]
        parent = data.draw(st.sampled_from([None, *parents])) if kind == "checkpoint" else None
        if parent is not None:
            ledger.supersede(parent)
            self.drop()
        key = ledger.index.key_of(len(tokens), chain)
        entry = ledger.enter(tokens, kind, class_index, key, 0, parent)
        slot = ledger.free_slot()
        assert (True, slot) not in self.taken, "a slot is dropped before it is handed out again"
        self.taken.add((True, slot))
        ledger.hold(entry, DEVICE, slot)
        self.entries.append(entry)

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), place=st.sampled_from([KV_RAM, DISK]))
    def copied(self, data: st.DataObject, place: int) -> None:
        entry = data.draw(st.sampled_from(self.alive()))
        if entry.copies[place] < 0:
            self.images += 1
            self.taken.add((False, self.images))
            self.ledger.hold(entry, place, self.images)

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.alive()))
        place = data.draw(st.sampled_from([at for at in range(3) if entry.copies[at] >= 0]))
        last = sum(copy >= 0 for copy in entry.copies) == 1
        assert self.ledger.lose(entry, place) == last
        self.drop()

    @precondition(lambda self: self.alive())
    @rule(data=st.data())
    def used(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.alive()))
        entry.claims = data.draw(st.integers(0, 1))
        self.ledger.touch(entry, 0)
        assert entry.used == max(one.used for one in self.entries)

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger = self.ledger
        alive = self.alive()
        assert {id(entry) for entry in ledger.index} == {id(entry) for entry in alive}
        copies = {
            (place == DEVICE, copy)
            for entry in alive
            for place, copy in enumerate(entry.copies)
            if copy >= 0
        }
        assert copies == self.taken
        for place in range(3):
            assert set(ledger.entries(place)) == {one for one in alive if one.copies[place] >= 0}
        assert ledger.slots_used == sum(slot for slot, _ in copies)
        assert ledger.slot_free == (ledger.slots_used < ledger.slots_total)
        assert all(one.alive and one.copies[DISK] < 0 for one in ledger.unsaved)
        worst = ledger.worst_slot()
        assert worst is None or (worst.copies[DEVICE] >= 0 and not worst.claims)

    def alive(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.alive]

    def drop(self) -> None:
        """As the engine does what it is told, once."""
        for slot in self.ledger.slots_dropped:
            self.taken.remove((True, slot))
        for image in self.ledger.images_dropped:
            self.taken.remove((False, image))
        self.ledger.slots_dropped.clear()
        self.ledger.images_dropped.clear()


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("place", [KV_RAM, DISK])
def test_a_copy_belongs_to_one_entry(place: int) -> None:
    ledger = make()
    ledger.hold(keep(ledger, 1), place, 4)
    with pytest.raises(AssertionError):
        ledger.hold(keep(ledger, 2), place, 4)
