//! Why pages could not be taken.

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
    /// The lane or slot already holds pages.
    #[error("{holder} already holds {held} pages")]
    Taken {
        /// Which lane or slot.
        holder: String,
        /// Pages it holds.
        held: u32,
    },
    /// The holder to share from has fewer pages than its state covers.
    #[error("{holder} holds {held} pages, {needed} are to be shared")]
    NotHeld {
        /// Which lane or slot.
        holder: String,
        /// Pages it holds.
        held: u32,
        /// Pages to share.
        needed: u32,
    },
}
