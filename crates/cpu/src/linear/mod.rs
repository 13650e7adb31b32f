//! Products of a few rows of activations with a packed matrix, and everything they need: packing at
//! load, encoding of activations, reading single rows back.
//!
//! Purpose: the arithmetic of `ops::Linear` and `ops::Embed` at the level of pointers. A matrix
//! `[rows, cols]` is packed into *panels* of 16 rows; a SIMD lane is a row, and columns follow each
//! other in time. So there is no horizontal sum, and one result is always summed in one order.
//!
//! # The numerical contract
//! A quantised weight is `w = d * u + m`, `u` an unsigned code, with `d` and `m` for every row and
//! *half group* of 16 columns (most formats: the same for both halves of a group of 32). Codes with
//! a signed zero `z` have `m = -z * d`, which `f32` holds exactly.
//!
//! Activations are encoded for every row and group of 32 columns, from `x`:
//! ```text
//! A = max |x|                      over the group
//! d = A / Q;  i = Q / A            Q = 127 (Int8) or 32512 (Int16)
//! q = round_ties_even(x * i)       |q| <= Q
//! s0, s1, s = d * sum(q)           over columns 0..16, 16..32, 0..32 of the group
//! ```
//! A group with `A < 2^-96` counts as zeros. A group that holds NaN or an infinity has `q = 0` and
//! `d = s = NaN`: its row's results are NaN, and other rows are untouched.
//!
//! Then one result is, every step rounded once to `f32`, for the groups in order:
//! ```text
//! acc = fma(d_w * d, f32(sum(u * q)), acc)     acc = fma(m_w, s, acc)
//! ```
//! and, where halves have scales of their own, first both products (low, high), then both minima
//! with `s0` and `s1`. Integer sums are exact, so neither the instruction set nor the blocking
//! shows. Not encoded (`F32`, and always for float weights): `acc = fma(w, x, acc)` for the columns
//! in order, `w = fma(d_w, u, m_w)`. At the end `y = acc`, `acc + bias`, or `y + (acc + bias)`.
//!
//! So a result depends on its row of activations and its row of weights, and on nothing else: not
//! on the number of rows, the split into panels, threads, or [`Isa`]. Tests compare bits.
//!
//! Leaves out: threads (the caller splits the range of panels), and where memory comes from.

mod encode;
mod float;
mod form;
mod integer;
mod matrix;
mod pack;
mod tile;

#[cfg(test)]
mod tests;

pub use crate::simd::Isa;
pub use encode::{Encoding, encode_row, encode_row_on, encoded_row_bytes, encoding_for};
pub use form::{packed_bytes, panels, supports};
pub use matrix::{Matrix, run, table_row};
pub use pack::{PackError, pack};

/// Rows of a panel: the lanes of [`crate::simd::Simd`].
pub const PANEL_ROWS: usize = 16;
/// Columns that share one scale of the activations.
pub const GROUP_COLS: usize = 32;
