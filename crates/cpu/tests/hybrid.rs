//! Recurrent layers, gates and experts on the device: right against f64, and the same bits in every
//! way to run them.

mod support;

use ignis_backend::{Activations, KvFormat};
use ignis_cpu::CpuOptions;
use ignis_cpu::simd::Isa;
use support::hybrid::{GROUPED, Hybrid, TILED, VOCAB, hybrid};
use support::{LIMITS, Rig, naive, options, prompt};

const SHAPES: [Hybrid; 2] = [GROUPED, TILED];

fn rig(shape: &Hybrid, options: CpuOptions, isa: Isa) -> Rig {
    Rig::of(hybrid(shape), LIMITS, options, isa)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

/// Logits of the last token, prompt cut into chunks.
fn chunked(rig: &mut Rig, lane: u32, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut logits = vec![];
    let mut position = 0;
    for part in tokens.chunks(chunk) {
        logits = rig.round(&[(lane, position, part)]).remove(0);
        position += part.len() as u32;
    }
    logits
}

#[test]
fn f32_logits_are_those_of_the_naive_forward() {
    for shape in SHAPES {
        let program = hybrid(&shape);
        for len in [1, 2, 3, 63, 130] {
            let tokens = prompt(len, VOCAB, len as u64);
            let exact = naive::logits(&program, &tokens);
            let options =
                CpuOptions { threads: 2, activations: Activations::F32, kv_format: KvFormat::F32 };
            let found = chunked(&mut rig(&shape, options, Isa::detect()), 3, &tokens, 50);
            for (a, b) in exact.iter().zip(found) {
                assert!((a - f64::from(b)).abs() < 2e-4, "{shape:?} {len}: {a} is not {b}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_chunks_threads_or_instruction_set() {
    for shape in SHAPES {
        for len in [1, 5, 130] {
            let tokens = prompt(len, VOCAB, len as u64);
            let mut whole = rig(&shape, options(1), Isa::detect());
            let expected = bits(&chunked(&mut whole, 0, &tokens, len));
            assert!(expected.iter().all(|&b| f32::from_bits(b).is_finite()));
            for isa in Isa::available() {
                for threads in 1..=3 {
                    let mut rig = rig(&shape, options(threads), isa);
                    let chunks: &[usize] =
                        if isa == Isa::Scalar { &[50] } else { &[1, 2, 64, 999] };
                    for (lane, &chunk) in chunks.iter().enumerate() {
                        let found = chunked(&mut rig, lane as u32, &tokens, chunk);
                        assert_eq!(expected, bits(&found), "{len} {isa} {threads} {chunk}");
                    }
                }
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_batch_mates() {
    for shape in SHAPES {
        let lens = [5, 100, 64, 3, 1];
        let prompts: Vec<Vec<u32>> =
            lens.iter().map(|&len| prompt(len + 3, VOCAB, len as u64)).collect();
        let mut alone = rig(&shape, options(1), Isa::detect());
        // Every prompt in the same lane: what the last one left behind must not show.
        let expected: Vec<_> =
            prompts.iter().map(|prompt| bits(&alone.round(&[(0, 0, prompt)])[0])).collect();
        let mut rig = rig(&shape, options(2), Isa::detect());
        for (lane, prompt) in prompts.iter().enumerate() {
            rig.round(&[(lane as u32, 0, &prompt[..lens[lane]])]);
        }
        let mut logits = vec![];
        for step in 0..3 {
            let parts: Vec<(u32, u32, &[u32])> = (0..lens.len())
                .map(|i| (i as u32, (lens[i] + step) as u32, &prompts[i][lens[i] + step..][..1]))
                .collect();
            logits = rig.round(&parts);
        }
        for (i, expected) in expected.iter().enumerate() {
            assert_eq!(expected, &bits(&logits[i]), "lane {i}");
        }
    }
}

#[test]
fn prefill_beside_decode_changes_neither() {
    let (first, second) = (prompt(90, VOCAB, 1), prompt(70, VOCAB, 2));
    let mut alone = rig(&GROUPED, options(1), Isa::detect());
    let expected = [&first, &second].map(|tokens| bits(&alone.round(&[(0, 0, tokens)])[0]));
    let mut rig = rig(&GROUPED, options(3), Isa::detect());
    rig.round(&[(4, 0, &first[..89])]);
    let logits = rig.round(&[(4, 89, &first[89..]), (1, 0, &second)]);
    assert_eq!(expected[0], bits(&logits[0]));
    assert_eq!(expected[1], bits(&logits[1]));
}
