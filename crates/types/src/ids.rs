//! Newtypes that keep the kinds of index apart.

/// One KV page: `PAGE_TOKENS` slots in every attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// One decode seat, `0..lanes_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// Room for the state that is kept of an earlier prompt; device slots come before host slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

impl SlotId {
    /// The id as an index into per-slot arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl PageId {
    /// The id as an index into per-page arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl LaneId {
    /// The id as an index into per-lane arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
