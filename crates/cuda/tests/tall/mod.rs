//! Matrices of more rows or columns than the other shapes have: CTAs that take several tiles, and
//! rows of sixteen slices.

use ignis_backend::{KvFormat, StoredActivations};
use ignis_types::DType;

use crate::support::{Shape, llama, naive, prompt};
use crate::{BF16, FAST, WIDE, bits, bound, check_against_naive, chunked, rig, rig_with, worst_of};

#[test]
#[ignore = "needs an NVIDIA card"]
fn matrices_of_more_tiles_than_run_at_a_time_are_multiplied_whole() {
    let tall = Shape { inner: 7_936, vocab: 24_000, ..WIDE };
    for (matrices, table, hidden) in [
        (DType::Q4K, DType::Q6K, 512),
        (DType::BF16, DType::BF16, 512),
        (DType::Q8_0, DType::Q4_0, 288),
    ] {
        let shape = Shape { matrices, table, hidden, ..tall };
        check_against_naive(&shape, &[1, 3, 12, 30]);
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn long_rows_are_right_and_have_the_same_bits_in_every_chunk() {
    for matrices in [DType::Q4K, DType::BF16] {
        // 132 blocks of columns: sixteen slices, of which some have a block more than others.
        let shape = Shape { matrices, table: matrices, hidden: 512, inner: 8_448, ..WIDE };
        let tokens = prompt(100, shape.vocab, 3);
        let exact = naive::logits(&llama(&shape), &tokens);
        let scale = exact.iter().fold(1.0f64, |most, l| most.max(l.abs()));
        for mode in [BF16, (StoredActivations::F32, KvFormat::F32)] {
            let mut rig = rig(&shape, mode);
            let expected = chunked(&mut rig, 0, &tokens, 100);
            let worst = worst_of(&exact, &expected) / scale;
            assert!(worst < bound(&shape, mode.0), "{shape:?} {mode:?}: off by {worst}");
            for (lane, chunk) in [1, 9, 17, 33].into_iter().enumerate() {
                let found = chunked(&mut rig, lane as u32 + 1, &tokens, chunk);
                assert_eq!(bits(&expected), bits(&found), "{shape:?} {mode:?} {chunk}");
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn ctas_that_take_several_tiles_of_many_rows_keep_their_bits() {
    // 34 tiles of weight rows by four of 500 rows of x are more than a card has processors.
    let shape = Shape {
        matrices: DType::BF16,
        table: DType::BF16,
        hidden: 4_352,
        heads: 40,
        extras: true,
        ..WIDE
    };
    let tokens = prompt(500, shape.vocab, 7);
    let mut same = rig(&shape, BF16);
    let expected = chunked(&mut same, 0, &tokens, 500);
    let found = chunked(&mut same, 1, &tokens, 32);
    assert_eq!(bits(&expected), bits(&found), "in chunks of few rows");
    let fast = rig_with(&shape, BF16, FAST).round(&[(0, 0, &tokens)]).remove(0);
    let near: Vec<f64> = expected.iter().map(|&logit| f64::from(logit)).collect();
    let scale = near.iter().fold(1.0f64, |most, l| most.max(l.abs()));
    let worst = worst_of(&near, &fast) / scale;
    assert!(worst < bound(&shape, BF16.0), "fast is off by {worst}");
}
