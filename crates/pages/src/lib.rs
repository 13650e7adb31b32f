//! The page table: which page of the KV pool belongs to which sequence.
//!
//! Key properties: all storage is sized when the table is made and never grows; a reservation is
//! whole or not at all; a page is free or held exactly once. Knows no device and no bytes.
//!
//! Leaves out: who is seated and why (policy), and what a page holds.
#![forbid(unsafe_code)]

use ignis_types::{LaneId, PageId};

/// Entry of a block table that names no page.
pub const NO_PAGE: u32 = u32::MAX;

/// Why pages could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PagesError {
    /// `needed` pages were asked for, `free` remain. The caller may wait, make room or refuse.
    #[error("need {needed} pages, {free} free")]
    OutOfPages {
        /// Pages asked for.
        needed: u32,
        /// Pages left.
        free: u32,
    },
    /// A sequence cannot hold more pages than its block table has entries.
    #[error("need {needed} pages, a block table holds {stride}")]
    TableTooShort {
        /// Pages asked for.
        needed: u32,
        /// Entries of a block table.
        stride: u32,
    },
    /// The lane already holds pages.
    #[error("lane {lane} already holds {held} pages")]
    LaneTaken {
        /// The lane.
        lane: u32,
        /// Pages it holds.
        held: u32,
    },
}

/// All pages, and one block table for each lane.
#[derive(Debug)]
pub struct PageTable {
    free: Vec<PageId>,
    /// `[lanes, stride]` page ids, `NO_PAGE` past the end of each.
    tables: Vec<u32>,
    /// Pages each lane holds.
    held: Vec<u32>,
    stride: u32,
    pages_total: u32,
}

impl PageTable {
    /// A table whose pages are handed out in ascending order.
    pub fn new(pages: u32, lanes: u32, stride: u32) -> Self {
        Self::with_order((0..pages).map(PageId), lanes, stride)
    }

    /// A table whose pages are handed out in the given order; each id must occur once.
    ///
    /// A simulation shuffles the order so that physical and logical pages differ from the start.
    pub fn with_order(
        order: impl DoubleEndedIterator<Item = PageId> + ExactSizeIterator,
        lanes: u32,
        stride: u32,
    ) -> Self {
        let pages_total = u32::try_from(order.len()).expect("page ids are u32");
        PageTable {
            free: order.rev().collect(),
            tables: vec![NO_PAGE; lanes as usize * stride as usize],
            held: vec![0; lanes as usize],
            stride,
            pages_total,
        }
    }

    /// Pages that nobody holds.
    pub fn pages_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Every page, free or held.
    pub fn pages_total(&self) -> u32 {
        self.pages_total
    }

    /// Pages that `lane` holds.
    pub fn held(&self, lane: LaneId) -> u32 {
        self.held[lane.index()]
    }

    /// Gives `lane` its whole reservation of `count` pages, or nothing.
    pub fn reserve(&mut self, lane: LaneId, count: u32) -> Result<(), PagesError> {
        let held = self.held[lane.index()];
        if held > 0 {
            return Err(PagesError::LaneTaken { lane: lane.0, held });
        }
        if count > self.stride {
            return Err(PagesError::TableTooShort { needed: count, stride: self.stride });
        }
        if count > self.pages_free() {
            return Err(PagesError::OutOfPages { needed: count, free: self.pages_free() });
        }
        let start = lane.index() * self.stride as usize;
        for entry in &mut self.tables[start..start + count as usize] {
            *entry = self.free.pop().expect("the count was compared with the free list").0;
        }
        self.held[lane.index()] = count;
        Ok(())
    }

    /// Returns every page of `lane`; a lane that holds none is left as it is.
    pub fn release(&mut self, lane: LaneId) {
        let start = lane.index() * self.stride as usize;
        let count = std::mem::take(&mut self.held[lane.index()]) as usize;
        for entry in self.tables[start..start + count].iter_mut().rev() {
            self.free.push(PageId(std::mem::replace(entry, NO_PAGE)));
        }
        assert!(self.free.len() <= self.pages_total as usize, "a page was freed twice");
    }

    /// The block tables of all lanes, `[lanes, stride]`.
    pub fn tables(&self) -> &[u32] {
        &self.tables
    }

    /// Entries of one block table.
    pub fn stride(&self) -> u32 {
        self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_refused_reservation_takes_nothing() {
        let mut table = PageTable::new(3, 2, 4);
        table.reserve(LaneId(0), 2).unwrap();
        let refused = table.reserve(LaneId(1), 2);
        assert_eq!(refused, Err(PagesError::OutOfPages { needed: 2, free: 1 }));
        assert_eq!((table.pages_free(), table.held(LaneId(1))), (1, 0));
        assert!(matches!(table.reserve(LaneId(0), 1), Err(PagesError::LaneTaken { .. })));
        assert!(matches!(table.reserve(LaneId(1), 5), Err(PagesError::TableTooShort { .. })));
    }

    #[test]
    fn releasing_an_empty_lane_changes_nothing() {
        let mut table = PageTable::new(3, 2, 4);
        table.release(LaneId(1));
        assert_eq!(table.pages_free(), 3);
    }

    proptest! {
        /// Against a naive twin: sets of pages per lane.
        #[test]
        fn every_page_is_free_or_held_once(
            steps in prop::collection::vec((0u32..4, 0u32..6), 1..200),
        ) {
            let mut table = PageTable::new(10, 4, 5);
            let mut twin = [0u32; 4];
            for (lane, count) in steps {
                let free = 10 - twin.iter().sum::<u32>();
                if twin[lane as usize] == 0 {
                    let fits = count <= 5 && count <= free;
                    prop_assert_eq!(table.reserve(LaneId(lane), count).is_ok(), fits);
                    if fits {
                        twin[lane as usize] = count;
                    }
                } else {
                    table.release(LaneId(lane));
                    twin[lane as usize] = 0;
                }
                let held: Vec<u32> =
                    table.tables().iter().copied().filter(|&page| page != NO_PAGE).collect();
                let distinct: BTreeSet<u32> = held.iter().copied().collect();
                prop_assert_eq!(held.len(), distinct.len());
                prop_assert_eq!(held.len() as u32, twin.iter().sum::<u32>());
                prop_assert_eq!(held.len() as u32 + table.pages_free(), 10);
            }
        }
    }
}
