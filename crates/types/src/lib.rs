//! Ids, units, dtypes, plan lines and limits: the vocabulary of every other crate.
//!
//! Key properties: no `unsafe`, no allocation, no I/O; every arithmetic step that could overflow is
//! checked. Knows nothing of files, models, devices or requests.
#![forbid(unsafe_code)]

mod dtype;
mod ids;
mod limits;
mod line;
mod units;

pub use dtype::DType;
pub use ids::{LaneId, PageId, SlotId};
pub use limits::{LANES_MAX, Limits, LimitsError, PAGE_TOKENS, RETAINED_MAX};
pub use line::PlanLine;
pub use units::{Bytes, Overflow};
