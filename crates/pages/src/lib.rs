//! The page table: which pages of the KV pool a lane or a retained slot holds.
//!
//! Key properties: all storage is sized when the table is made and never grows; a reservation is
//! whole or not at all; a page is free, or counted once for each holder. Several holders may share
//! a page: only slots of a page that no other holder counts as its own are ever written, because a
//! lane writes from its position on, and who starts from a retained slot gets a copy of the page
//! that its position lies in ([`TailCopy`]).
//!
//! Also [`prefix_chain`], the hashes by which equal prompts are found. Knows no device and no
//! bytes. Leaves out: who is seated and why (policy), and what a page holds.
#![forbid(unsafe_code)]

mod chain;
mod error;
mod table;
#[cfg(test)]
mod tests;

pub use chain::{CHAIN_BYTES, prefix_chain};
pub use error::PagesError;
pub use table::{Holder, NO_PAGE, PageTable, TailCopy};
