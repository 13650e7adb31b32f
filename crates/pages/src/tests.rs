//! The page table against a naive twin.

use std::collections::BTreeSet;

use ignis_types::{LaneId, PageId, SlotId};
use proptest::prelude::*;

use crate::{Holder, PageTable, PagesError, TailCopy};

const LANE: fn(u32) -> Holder = |lane| Holder::Lane(LaneId(lane));
const SLOT: fn(u32) -> Holder = |slot| Holder::Slot(SlotId(slot));

#[test]
fn a_refused_reservation_takes_nothing() {
    let mut table = PageTable::new(3, 2, 0, 4);
    table.reserve(LaneId(0), 2).unwrap();
    let refused = table.reserve(LaneId(1), 2);
    assert_eq!(refused, Err(PagesError::OutOfPages { needed: 2, free: 1 }));
    assert_eq!((table.pages_free(), table.pages(LANE(1)).len()), (1, 0));
    assert!(matches!(table.reserve(LaneId(0), 1), Err(PagesError::Taken { .. })));
    assert!(matches!(table.reserve(LaneId(1), 5), Err(PagesError::TableTooShort { .. })));
}

#[test]
fn releasing_an_empty_lane_changes_nothing() {
    let mut table = PageTable::new(3, 2, 1, 4);
    table.release(LANE(1));
    table.release(SLOT(0));
    assert_eq!(table.pages_free(), 3);
}

#[test]
fn whole_pages_are_shared_and_the_tail_is_copied() {
    let mut table = PageTable::new(8, 2, 1, 4);
    table.reserve(LaneId(0), 4).unwrap();
    table.hold(SlotId(0), LaneId(0), 130).unwrap();
    assert_eq!(table.pages_free(), 4);
    let copy = table.reserve_from(LaneId(1), 4, SlotId(0), 130).unwrap();
    assert_eq!(table.pages(LANE(0))[..2], table.pages(LANE(1))[..2]);
    let (from, to) = (PageId(table.pages(LANE(0))[2]), PageId(table.pages(LANE(1))[2]));
    assert_eq!(copy, Some(TailCopy { from, to }));
    assert_ne!(from, to);
    assert_eq!(table.pages_free(), 2);

    let lanes = |ids: &'static [u32]| ids.iter().copied().map(LaneId);
    assert_eq!(table.held_together(lanes(&[0])), 4);
    assert_eq!(table.held_together(lanes(&[0, 1])), 6);
    table.release(LANE(0));
    assert_eq!(table.pages_free(), 3, "the slot keeps three of four");
    table.release(SLOT(0));
    assert_eq!(table.pages_free(), 4, "the tail alone was the slot's");
    table.release(LANE(1));
    assert_eq!(table.pages_free(), 8);
}

#[test]
fn a_state_that_ends_with_a_page_needs_no_copy() {
    let mut table = PageTable::new(8, 2, 1, 4);
    table.reserve(LaneId(0), 3).unwrap();
    table.hold(SlotId(0), LaneId(0), 128).unwrap();
    assert_eq!(table.reserve_from(LaneId(1), 3, SlotId(0), 128), Ok(None));
    assert_eq!(table.pages_free(), 4);
}

#[test]
fn who_shares_after_all_gives_back_its_own() {
    let mut table = PageTable::new(8, 2, 1, 4);
    table.reserve(LaneId(0), 4).unwrap();
    table.reserve(LaneId(1), 4).unwrap();
    table.hold(SlotId(0), LaneId(0), 129).unwrap();
    let copy = table.adopt(LaneId(1), SlotId(0), 129).unwrap().unwrap();
    assert_eq!(table.pages_free(), 2);
    assert_eq!(copy.to, PageId(table.pages(LANE(1))[2]));
    let short = table.adopt(LaneId(1), SlotId(0), 250);
    assert!(matches!(short, Err(PagesError::NotHeld { .. })), "{short:?}");
}

/// Sets of pages, by holder: lanes 0..3, slots 3..6.
#[derive(Default)]
struct Twin {
    held: [Vec<u32>; 6],
}

impl Twin {
    fn distinct(&self) -> u32 {
        self.held.iter().flatten().collect::<BTreeSet<_>>().len() as u32
    }
}

const PAGES: u32 = 10;

proptest! {
    /// A page is free or held; what is shared was the sharer's; nothing is freed while held.
    #[test]
    fn counts_balance(
        steps in prop::collection::vec((0u32..5, 0u32..3, 0u32..3, 1u32..5, 1u32..300), 1..200),
    ) {
        let mut table = PageTable::new(PAGES, 3, 3, 5);
        let mut twin = Twin::default();
        for (what, lane, slot, count, tokens) in steps {
            let (l, s) = (lane as usize, 3 + slot as usize);
            let (whole, held) = ((tokens / 64) as usize, tokens.div_ceil(64) as usize);
            match what {
                0 => {
                    let fits = twin.held[l].is_empty() && count <= PAGES - twin.distinct();
                    prop_assert_eq!(table.reserve(LaneId(lane), count).is_ok(), fits);
                }
                1 => {
                    if held > count as usize {
                        continue;
                    }
                    let needed = count - whole as u32;
                    let fits = twin.held[l].is_empty()
                        && twin.held[s].len() >= held
                        && needed <= PAGES - twin.distinct();
                    let done = table.reserve_from(LaneId(lane), count, SlotId(slot), tokens);
                    prop_assert_eq!(done.is_ok(), fits);
                    if fits {
                        prop_assert_eq!(&table.pages(LANE(lane))[..whole], &twin.held[s][..whole]);
                        prop_assert_eq!(done.unwrap().is_some(), whole < held);
                    }
                }
                2 => {
                    let fits = twin.held[s].is_empty() && twin.held[l].len() >= held;
                    let done = table.hold(SlotId(slot), LaneId(lane), tokens);
                    prop_assert_eq!(done.is_ok(), fits);
                }
                3 => {
                    let fits = twin.held[s].len() >= held && twin.held[l].len() >= held;
                    let done = table.adopt(LaneId(lane), SlotId(slot), tokens);
                    prop_assert_eq!(done.is_ok(), fits);
                }
                _ => {
                    let holder = if count % 2 == 0 { LANE(lane) } else { SLOT(slot) };
                    table.release(holder);
                }
            }
            for i in 0..3 {
                twin.held[i as usize] = table.pages(LANE(i)).to_vec();
                twin.held[3 + i as usize] = table.pages(SLOT(i)).to_vec();
            }
            for pages in &twin.held {
                let once: BTreeSet<u32> = pages.iter().copied().collect();
                prop_assert_eq!(once.len(), pages.len(), "a holder has a page twice");
            }
            prop_assert_eq!(twin.distinct() + table.pages_free(), PAGES);
            let lanes: BTreeSet<u32> = twin.held[..3].iter().flatten().copied().collect();
            prop_assert_eq!(table.held_together((0..3).map(LaneId)), lanes.len() as u32);
        }
    }
}
