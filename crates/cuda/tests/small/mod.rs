//! A run that is small enough for tools that watch every access of a kernel.

use ignis_backend::Device;

use crate::recorded::draw;
use crate::support::{llama, naive, prompt};
use crate::{BF16, Choice, PORTABLE, SHAPES, bound, rig_with, worst_of};

/// A prompt in many rows, more of it in few, a decode round that was recorded, draws.
#[test]
#[ignore = "needs an NVIDIA card"]
fn a_small_run_is_right() {
    for choice in [Choice::default(), PORTABLE] {
        for shape in [SHAPES[1], SHAPES[6]] {
            let tokens = prompt(150, shape.vocab, 2);
            let exact = naive::logits(&llama(&shape), &tokens);
            let scale = exact.iter().fold(1.0f64, |most, l| most.max(l.abs()));
            let mut rig = rig_with(&shape, BF16, choice);
            rig.round(&[(0, 0, &tokens[..140])]);
            rig.round(&[(0, 140, &tokens[140..149])]);
            let drawn = draw(&mut rig, &[(0, 149, &tokens[149..])], true);
            let found = rig.device.logits(0).unwrap().to_vec();
            let worst = worst_of(&exact, &found) / scale;
            assert!(worst < bound(&shape, BF16.0), "{shape:?} {choice:?}: off by {worst}");
            let largest = found.iter().copied().fold(f32::MIN, f32::max);
            assert_eq!(found[drawn[0].token as usize], largest, "lane 0 is greedy");
        }
    }
}
