//! Each op by itself, in every arithmetic: against float64, and on a card against the CPU too.
//!
//! A program has one op, or where a card joins ops the few that it joins; matrices that pick
//! columns show what is encoded between them. All that a round writes or may rely on is NaN before.
//! Bounds are derived (`exact`), not chosen. The same tables run on the CPU wherever tests run, so
//! that they are tested themselves, and on a card in tests that are ignored without one; `make gpu`
//! runs those.

mod attend;
mod attention;
mod bench;
mod copies;
mod exact;
mod gated;
mod heads;
mod load;
mod matrix;
mod products;
mod rows;
mod sampling;
#[path = "../../../cpu/tests/support/mod.rs"]
mod support;

use exact::{Exact, judge, judge_both};
use load::Load;

/// Holds what a load computes, in rounds of the first so many rows, against float64; and what a
/// card does against the CPU.
fn compare(
    load: Load,
    name: &str,
    width: usize,
    run: impl Fn(Load) -> Vec<Vec<f32>>,
    exact: impl Fn(Load) -> Vec<Exact>,
) {
    let (wanted, found) = (exact(load), run(load));
    for round in &found {
        let rows = round.len() / width;
        judge(&wanted[..round.len()], round, width)
            .unwrap_or_else(|error| panic!("{name}, {rows} rows: {error}"));
    }
    let Some(other) = load.other() else { return };
    let (other_wanted, other_found) = (exact(other), run(other));
    for (round, other) in found.iter().zip(&other_found) {
        judge_both((&wanted, round), (&other_wanted, other))
            .unwrap_or_else(|error| panic!("{name}, against {:?}: {error}", load.other()));
    }
}

/// Tests of one check, for some loads of the CPU, and of a card.
macro_rules! on_both {
    ($($name:ident: $check:path, [$($cpu:expr),*], [$($card:expr),*];)*) => {
        mod cpu {
            use crate::load::*;
            $(#[test]
            fn $name() {
                for load in [$($cpu),*] {
                    $check(load);
                }
            })*
        }
        mod card {
            use crate::load::*;
            $(#[test]
            #[ignore = "needs an NVIDIA card"]
            fn $name() {
                for load in [$($card),*] {
                    $check(load);
                }
            })*
        }
    };
}

on_both! {
    products_of_every_format: crate::products::formats_and_rows,
        [CPU, CPU_INT8], [CARD, CARD_PAIRS];
    products_of_long_rows_and_many_tiles: crate::products::long_rows_and_many_tiles,
        [CPU, CPU_INT8], [CARD, CARD_PAIRS];
    products_of_other_kernels: crate::products::other_kernels, [CPU], [CARD_PORTABLE, CARD_FAST];
    products_of_unlike_parts: crate::products::unlike_parts, [CPU, CPU_INT8], [CARD, CARD_PAIRS];
    embedding: crate::rows::embedding, [CPU], [CARD, CARD_PAIRS, CARD_HOST_TABLES];
    norm: crate::rows::norm, [CPU], [CARD, CARD_PAIRS];
    norm_of_gathered_rows: crate::rows::norm_of_gathered_rows, [CPU], [CARD, CARD_PAIRS];
    norm_behind_products: crate::rows::norm_behind_products, [CPU, CPU_INT8], [CARD, CARD_PAIRS];
    swiglu: crate::gated::swiglu, [CPU], [CARD, CARD_PAIRS];
    gated_products: crate::gated::gated_products,
        [CPU, CPU_INT8], [CARD, CARD_PORTABLE, CARD_PAIRS];
    norm_rotation_and_slots: crate::heads::norm_rotation_and_slots,
        [CPU, CPU_INT8], [CARD, CARD_PAIRS];
    attention: crate::attention::attention,
        [CPU, CPU_INT8], [CARD, CARD_PORTABLE, CARD_PAIRS, CARD_MIXED[0], CARD_MIXED[1]];
    attention_of_fresh_rows: crate::attention::attention_of_fresh_rows,
        [CPU, CPU_INT8], [CARD, CARD_PORTABLE, CARD_PAIRS];
    attention_over_long_contexts: crate::attention::attention_over_long_contexts,
        [CPU], [CARD, CARD_PORTABLE, CARD_PAIRS];
    sampling: crate::sampling::sampling, [CPU], [CARD];
    copies_of_pages_and_sections: crate::copies::pages_and_sections, [CPU, CPU_INT8], [CARD];
    sums_of_rows: crate::rows::sums_of_rows, [CPU], [CARD];
}

#[test]
fn bounds_of_bf16_see_a_dropped_column() {
    products::bounds_of_bf16_see_a_dropped_column();
}

#[test]
fn bounds_of_bf16_see_another_norm_and_activation() {
    rows::bounds_of_bf16_see_another_norm_and_activation();
}

#[test]
fn bounds_of_bf16_see_a_dropped_key() {
    attend::bounds_of_bf16_see_a_dropped_key();
}
