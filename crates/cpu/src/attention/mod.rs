//! Paged attention: the contract of `ignis_ops::PagedAttention`.
//!
//! A query row meets its keys page by page in position order. Runs of [`RUN_PAGES`] pages are
//! reduced each on its own (largest score, sum of weights, weighted values) and then joined in
//! order, so runs of one row may be given to different threads ([`Item`]) and the result has the
//! same bits as when one thread does them all. Within a run the arithmetic of a query depends on
//! that query alone: a tile of queries only shares the loads of keys and values.
//!
//! Cost: decode reads each page once from memory and once more from the first-level cache; prefill
//! converts a page once for a tile of [`TILE_QUERIES`] queries.

mod join;
mod plan;
mod product;
mod reduce;

pub(crate) use join::join_row;
pub(crate) use plan::{AttentionPlan, Item, NO_SPLIT, Sizes};
pub(crate) use reduce::{Call, run_item};

/// Pages reduced together: 256 keys.
pub(crate) const RUN_PAGES: usize = 4;

/// Queries of one tile: rows times the heads that share a KV head.
pub(crate) const TILE_QUERIES: usize = 48;

#[cfg(test)]
mod tests;
