//! Planned memory: a layout that only counts, one reservation, and the seal.
//!
//! Life: a [`Layout`] is filled by the same code that binds later; [`Arena::map`] reserves exactly
//! its bytes; [`Arena::seal`] compares every line with the plan that was printed, and after it
//! nothing can grow, because `Arena<Sealed>` has no method that would.
//!
//! Knows nothing of what is stored in a region, nor of which device holds it.
#![forbid(unsafe_code)]

mod fixed;
mod layout;
mod pack;
mod sealed;

pub use fixed::FixedVec;
pub use layout::{Layout, Region, RegionId};
pub use pack::{Lifetime, Packed, pack_by_lifetime};
pub use sealed::{Arena, ArenaError, Building, Sealed, Space};
