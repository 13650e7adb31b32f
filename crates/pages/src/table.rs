//! Pages, their counts, and the block table of every holder.

use std::fmt;

use ignis_types::{LaneId, PAGE_TOKENS, PageId, SlotId};

use crate::error::PagesError;

/// Entry of a block table that names no page.
pub const NO_PAGE: u32 = u32::MAX;

/// Who may hold pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A seated sequence.
    Lane(LaneId),
    /// What is kept of an earlier prompt.
    Slot(SlotId),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Lane(lane) => write!(f, "lane {}", lane.0),
            Holder::Slot(slot) => write!(f, "retained slot {}", slot.0),
        }
    }
}

/// A page that must be copied before its new holder runs: the state that it starts from ends
/// inside it, and others go on reading the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailCopy {
    /// The shared page.
    pub from: PageId,
    /// The holder's own.
    pub to: PageId,
}

/// All pages, and one block table for each lane and each retained slot.
#[derive(Debug)]
pub struct PageTable {
    free: Vec<PageId>,
    /// Holders of each page; 0 is free.
    counts: Vec<u32>,
    /// `[lanes + slots, stride]` page ids, `NO_PAGE` past the end of each.
    tables: Vec<u32>,
    /// Pages each lane, then each slot, holds.
    held: Vec<u32>,
    lanes: u32,
    stride: u32,
    /// Pages that [`PageTable::held_together`] has counted in pass `pass`.
    seen: Vec<u64>,
    pass: u64,
}

impl PageTable {
    /// A table whose pages are handed out in ascending order.
    pub fn new(pages: u32, lanes: u32, slots: u32, stride: u32) -> Self {
        Self::with_order((0..pages).map(PageId), lanes, slots, stride)
    }

    /// A table whose pages are handed out in the given order; each id must occur once.
    ///
    /// A simulation shuffles the order so that physical and logical pages differ from the start.
    pub fn with_order(
        order: impl DoubleEndedIterator<Item = PageId> + ExactSizeIterator,
        lanes: u32,
        slots: u32,
        stride: u32,
    ) -> Self {
        let pages = order.len();
        let holders = lanes as usize + slots as usize;
        PageTable {
            free: order.rev().collect(),
            counts: vec![0; pages],
            tables: vec![NO_PAGE; holders * stride as usize],
            held: vec![0; holders],
            lanes,
            stride,
            seen: vec![0; pages],
            pass: 0,
        }
    }

    /// Pages that nobody holds.
    pub fn pages_free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Every page, free or held.
    pub fn pages_total(&self) -> u32 {
        self.counts.len() as u32
    }

    /// The pages of one holder, in the order of its tokens.
    pub fn pages(&self, holder: Holder) -> &[u32] {
        let (row, start) = self.place(holder);
        &self.tables[start..start + self.held[row] as usize]
    }

    /// Distinct pages that these lanes hold: what the others, and the slots, could free at most is
    /// the rest.
    pub fn held_together(&mut self, lanes: impl Iterator<Item = LaneId>) -> u32 {
        self.pass += 1;
        let mut distinct = 0;
        for lane in lanes {
            let (row, start) = self.place(Holder::Lane(lane));
            for &page in &self.tables[start..start + self.held[row] as usize] {
                let seen = &mut self.seen[page as usize];
                distinct += u32::from(*seen != self.pass);
                *seen = self.pass;
            }
        }
        distinct
    }

    /// Gives an empty lane its whole reservation of `count` pages, or nothing.
    pub fn reserve(&mut self, lane: LaneId, count: u32) -> Result<(), PagesError> {
        self.check_room(Holder::Lane(lane), count, 0)?;
        self.fill(lane, 0, count);
        Ok(())
    }

    /// As [`PageTable::reserve`], starting from a slot's first `tokens` tokens: their whole pages
    /// are shared, so only the rest is taken.
    pub fn reserve_from(
        &mut self,
        lane: LaneId,
        count: u32,
        slot: SlotId,
        tokens: u32,
    ) -> Result<Option<TailCopy>, PagesError> {
        let shared = self.check_source(Holder::Slot(slot), tokens)?;
        self.check_room(Holder::Lane(lane), count, shared)?;
        assert!(tokens.div_ceil(PAGE_TOKENS) <= count, "the slot's state exceeds the reservation");
        let (_, from) = self.place(Holder::Slot(slot));
        let (_, to) = self.place(Holder::Lane(lane));
        for at in 0..shared as usize {
            let page = self.tables[from + at];
            self.counts[page as usize] += 1;
            self.tables[to + at] = page;
        }
        self.fill(lane, shared, count);
        Ok(self.tail_copy(lane, slot, tokens))
    }

    /// A lane that has stored nothing yet starts from a slot's first `tokens` tokens instead: the
    /// pages that it now shares replace its own, which return to the free list.
    pub fn adopt(
        &mut self,
        lane: LaneId,
        slot: SlotId,
        tokens: u32,
    ) -> Result<Option<TailCopy>, PagesError> {
        let shared = self.check_source(Holder::Slot(slot), tokens)?;
        let (row, to) = self.place(Holder::Lane(lane));
        let needed = tokens.div_ceil(PAGE_TOKENS);
        if self.held[row] < needed {
            let (holder, held) = (Holder::Lane(lane).to_string(), self.held[row]);
            return Err(PagesError::NotHeld { holder, held, needed });
        }
        let (_, from) = self.place(Holder::Slot(slot));
        for at in 0..shared as usize {
            let page = self.tables[from + at];
            self.counts[page as usize] += 1;
            let own = std::mem::replace(&mut self.tables[to + at], page);
            self.drop_page(own);
        }
        Ok(self.tail_copy(lane, slot, tokens))
    }

    /// An empty slot holds the pages of the first `tokens` tokens of a lane, the last one in part.
    pub fn hold(&mut self, slot: SlotId, lane: LaneId, tokens: u32) -> Result<(), PagesError> {
        let holder = Holder::Slot(slot);
        self.check_source(Holder::Lane(lane), tokens)?;
        self.check_empty(holder)?;
        let count = tokens.div_ceil(PAGE_TOKENS);
        let (_, from) = self.place(Holder::Lane(lane));
        let (row, to) = self.place(holder);
        for at in 0..count as usize {
            let page = self.tables[from + at];
            self.counts[page as usize] += 1;
            self.tables[to + at] = page;
        }
        self.held[row] = count;
        Ok(())
    }

    /// Gives back every page of a holder; one that holds none is left as it is.
    pub fn release(&mut self, holder: Holder) {
        let (row, start) = self.place(holder);
        let count = std::mem::take(&mut self.held[row]) as usize;
        for at in (start..start + count).rev() {
            let page = std::mem::replace(&mut self.tables[at], NO_PAGE);
            self.drop_page(page);
        }
    }

    /// The block tables of all lanes, `[lanes, stride]`.
    pub fn tables(&self) -> &[u32] {
        &self.tables[..self.lanes as usize * self.stride as usize]
    }

    /// Entries of one block table.
    pub fn stride(&self) -> u32 {
        self.stride
    }

    /// Row of `held`, and start of the block table.
    fn place(&self, holder: Holder) -> (usize, usize) {
        let row = match holder {
            Holder::Lane(lane) => {
                assert!(lane.0 < self.lanes, "{holder} of {}", self.lanes);
                lane.index()
            }
            Holder::Slot(slot) => self.lanes as usize + slot.index(),
        };
        (row, row * self.stride as usize)
    }

    fn check_empty(&self, holder: Holder) -> Result<(), PagesError> {
        let held = self.held[self.place(holder).0];
        if held > 0 {
            return Err(PagesError::Taken { holder: holder.to_string(), held });
        }
        Ok(())
    }

    fn check_room(&self, holder: Holder, count: u32, shared: u32) -> Result<(), PagesError> {
        self.check_empty(holder)?;
        if count > self.stride {
            return Err(PagesError::TableTooShort { needed: count, stride: self.stride });
        }
        let needed = count.saturating_sub(shared);
        if needed > self.pages_free() {
            return Err(PagesError::OutOfPages { needed, free: self.pages_free() });
        }
        Ok(())
    }

    /// Whole pages of `tokens` tokens, all of which `holder` must have.
    fn check_source(&self, holder: Holder, tokens: u32) -> Result<u32, PagesError> {
        let (held, needed) = (self.held[self.place(holder).0], tokens.div_ceil(PAGE_TOKENS));
        if held < needed {
            return Err(PagesError::NotHeld { holder: holder.to_string(), held, needed });
        }
        Ok(tokens / PAGE_TOKENS)
    }

    /// Takes pages for entries `from..count` of a lane.
    fn fill(&mut self, lane: LaneId, from: u32, count: u32) {
        let (row, start) = self.place(Holder::Lane(lane));
        for at in start + from as usize..start + count as usize {
            let page = self.free.pop().expect("the count was compared with the free list").0;
            self.counts[page as usize] = 1;
            self.tables[at] = page;
        }
        self.held[row] = count;
    }

    fn tail_copy(&self, lane: LaneId, slot: SlotId, tokens: u32) -> Option<TailCopy> {
        if tokens.is_multiple_of(PAGE_TOKENS) {
            return None;
        }
        let at = (tokens / PAGE_TOKENS) as usize;
        let from = PageId(self.pages(Holder::Slot(slot))[at]);
        Some(TailCopy { from, to: PageId(self.pages(Holder::Lane(lane))[at]) })
    }

    fn drop_page(&mut self, page: u32) {
        let count = &mut self.counts[page as usize];
        *count = count.checked_sub(1).expect("a page was freed twice");
        if *count == 0 {
            self.free.push(PageId(page));
        }
    }
}
