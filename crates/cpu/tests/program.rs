//! A whole program on the device: right against f64, and the same bits in every way to run it.

mod support;

use ignis_backend::{Activations, Device, KvFormat};
use ignis_cpu::CpuOptions;
use ignis_cpu::simd::Isa;
use ignis_ops::{Round, Segment};
use ignis_types::DType;
use support::{LIMITS, Rig, Shape, TINY, llama, naive, options, prompt};

const SHAPES: [Shape; 3] = [
    TINY,
    Shape { matrices: DType::F16, table: DType::F32, head_dim: 24, extras: true, ..TINY },
    Shape { heads: 16, kv_heads: 2, head_dim: 16, extras: true, ..TINY },
];

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

#[test]
fn f32_logits_are_those_of_the_naive_forward() {
    for shape in SHAPES {
        for len in [1, 63, 64, 65, 300] {
            let tokens = prompt(len, shape.vocab, len as u64);
            let exact = naive::logits(&llama(&shape), &tokens);
            let f32_only =
                CpuOptions { threads: 2, activations: Activations::F32, kv_format: KvFormat::F32 };
            let mut rig = Rig::new(&shape, LIMITS, f32_only, Isa::detect());
            let found = &rig.round(&[(3, 0, &tokens)])[0];
            for (a, b) in exact.iter().zip(found) {
                assert!((a - f64::from(*b)).abs() < 1e-4, "{shape:?} {len}: {a} is not {b}");
            }
        }
    }
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
fn bits_do_not_depend_on_chunks_threads_or_instruction_set() {
    for shape in SHAPES {
        for len in [1, 64, 70, 257, 600] {
            let tokens = prompt(len, shape.vocab, len as u64);
            let mut whole = Rig::new(&shape, LIMITS, options(1), Isa::detect());
            let expected = bits(&chunked(&mut whole, 0, &tokens, len));
            assert!(expected.iter().all(|&b| f32::from_bits(b).is_finite()));
            for isa in Isa::available() {
                // Plain Rust is slow where it calls a function for each fused multiply-add.
                if isa == Isa::Scalar && len != 70 {
                    continue;
                }
                for threads in 1..=3 {
                    let mut rig = Rig::new(&shape, LIMITS, options(threads), isa);
                    let chunks: &[usize] = if len > 100 { &[37, 64, 999] } else { &[1, 7, 64] };
                    let chunks = if isa == Isa::Scalar { &[50] } else { chunks };
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
        let lens = [5, 300, 64, 63, 129, 1, 511, 258];
        let prompts: Vec<Vec<u32>> =
            lens.iter().map(|&len| prompt(len + 3, shape.vocab, len as u64)).collect();
        let mut alone = Rig::new(&shape, LIMITS, options(1), Isa::detect());
        let expected: Vec<Vec<u32>> =
            (0..8).map(|i| bits(&alone.round(&[(i as u32, 0, &prompts[i])])[0])).collect();
        for width in 1..=8 {
            let mut rig = Rig::new(&shape, LIMITS, options(2), Isa::detect());
            for i in 0..width {
                rig.round(&[(i as u32, 0, &prompts[i][..lens[i]])]);
            }
            let mut logits = vec![];
            for step in 0..3 {
                let parts: Vec<(u32, u32, &[u32])> = (0..width)
                    .map(|i| {
                        (i as u32, (lens[i] + step) as u32, &prompts[i][lens[i] + step..][..1])
                    })
                    .collect();
                logits = rig.round(&parts);
            }
            for i in 0..width {
                assert_eq!(expected[i], bits(&logits[i]), "lane {i} of {width}");
            }
        }
    }
}

#[test]
fn prefill_beside_decode_changes_neither() {
    let (first, second) = (prompt(330, TINY.vocab, 1), prompt(280, TINY.vocab, 2));
    let mut alone = Rig::new(&TINY, LIMITS, options(1), Isa::detect());
    let expected = [&first, &second].map(|tokens| bits(&alone.round(&[(0, 0, tokens)])[0]));
    let mut rig = Rig::new(&TINY, LIMITS, options(3), Isa::detect());
    rig.round(&[(4, 0, &first[..329])]);
    let logits = rig.round(&[(4, 329, &first[329..]), (1, 0, &second)]);
    assert_eq!(expected[0], bits(&logits[0]));
    assert_eq!(expected[1], bits(&logits[1]));
}

#[test]
fn head_runs_again_for_other_rows() {
    let tokens = prompt(40, TINY.vocab, 9);
    let mut rig = Rig::new(&TINY, LIMITS, options(2), Isa::detect());
    let expected = bits(&rig.round(&[(0, 0, &tokens[..11])])[0]);
    rig.round(&[(1, 0, &tokens)]);
    let segments = [Segment { lane: 1, row: 0, rows: 40, position: 0 }];
    let round = Round {
        tokens: &tokens,
        segments: &segments,
        logit_rows: &[3, 10],
        block_tables: &rig.tables,
        stride: rig.stride,
    };
    rig.device.run_head(&round).unwrap();
    assert_eq!(expected, bits(rig.device.logits(1).unwrap()));
}
