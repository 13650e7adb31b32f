//! Times whole rounds on a random model of the shape of SmolLM2-135M, Q4_1.
//!
//! `cargo run --release -p ignis-cpu --example round_bench [quick] [threads=N] [isa=NAME]`
//!
//! Each number is the best of several passes; decode at depth d has d keys behind its first token.

use std::time::Instant;

use ignis_cpu::simd::Isa;
use ignis_types::{DType, Limits};

#[path = "../tests/support/mod.rs"]
mod support;

use support::{Rig, Shape, TINY, options, prompt};

const SMOL: Shape = Shape {
    layers: 30,
    hidden: 576,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    inner: 1536,
    vocab: 49152,
    matrices: DType::Q4_1,
    table: DType::Q8_0,
    extras: false,
};

const LANES: u32 = 8;
const CHUNK: usize = 512;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = args.iter().any(|arg| arg == "quick");
    let value = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name));
    let threads = value("threads=").map_or(2, |n| n.parse().expect("a number of threads"));
    let isa = value("isa=").map_or(Isa::detect(), |name| {
        Isa::available().find(|isa| isa.name() == name).expect("an instruction set of this machine")
    });
    let (shape, depths, passes) =
        if quick { (TINY, [0, 64, 128], 1) } else { (SMOL, [0, 512, 2048], 3) };
    let context = 2048 + 128;
    let limits = Limits {
        lanes_max: LANES,
        chunk_tokens_max: CHUNK as u32,
        context_tokens_max: context,
        pages: LANES * context.div_ceil(64),
        retained_device: 0,
        retained_host: 0,
    };
    let mut rig = Rig::new(&shape, limits, options(threads), isa);
    let tokens = prompt(context as usize, shape.vocab, 1);
    println!("{threads} threads, {isa}");

    for len in [128, 512, 2048] {
        let best = best_of(passes, || {
            let mut position = 0;
            for chunk in tokens[..len].chunks(CHUNK) {
                rig.round(&[(0, position, chunk)]);
                position += chunk.len() as u32;
            }
        });
        println!("prefill {len:>5}  {:>8.1} tok/s", len as f64 / best);
    }
    for lane in 0..LANES {
        let mut position = 0;
        for chunk in tokens[..2048].chunks(CHUNK) {
            rig.round(&[(lane, position, chunk)]);
            position += chunk.len() as u32;
        }
    }
    for width in [1, LANES] {
        for depth in depths {
            let mut step = 0;
            let best = best_of(passes * 8, || {
                let parts: Vec<(u32, u32, &[u32])> =
                    (0..width).map(|lane| (lane, depth + step, &tokens[..1])).collect();
                rig.round(&parts);
                step = (step + 1) % 32;
            });
            let rate = f64::from(width) / best;
            println!("decode  {depth:>5}  {rate:>8.1} tok/s  {width} lanes");
        }
    }
}

/// Seconds of the fastest pass.
fn best_of(passes: u32, mut pass: impl FnMut()) -> f64 {
    pass();
    (0..passes)
        .map(|_| {
            let start = Instant::now();
            pass();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}
