//! Whole programs on a card: right against f64, and the same bits in every way to run them.
//!
//! Ignored where `cargo test` runs without a card; `make gpu` runs them on one.

mod recorded;
mod shared;
mod small;
#[path = "../../cpu/tests/support/mod.rs"]
mod support;
mod tall;

use ignis_backend::{
    Activations, Device, KvFormat, LaneSampling, StoredActivations, StoredProducts,
};
use ignis_cpu::CpuOptions;
use ignis_cpu::simd::Isa;
use ignis_cuda::{CudaDevice, CudaKernels, CudaOptions, Libraries, ModelFacts};
use ignis_ops::{Program, SampleOut, Sampling};
use ignis_types::{Bytes, DType};
use support::{Dice, LIMITS, Rig, Shape, TINY, llama, naive, prompt};

const WIDE: Shape = Shape { hidden: 256, inner: 512, head_dim: 64, heads: 8, ..TINY };

/// Every format that a weight can have, and every width that attention is compiled for.
const SHAPES: [Shape; 9] = [
    TINY,
    Shape { matrices: DType::BF16, table: DType::BF16, extras: true, ..TINY },
    Shape { matrices: DType::F16, table: DType::F32, heads: 8, head_dim: 24, ..TINY },
    Shape { matrices: DType::F32, table: DType::F16, heads: 16, head_dim: 16, ..TINY },
    Shape { matrices: DType::Q8_0, table: DType::Q4_0, extras: true, ..TINY },
    Shape { matrices: DType::Q4_0, table: DType::Q4_1, hidden: 288, inner: 160, ..TINY },
    Shape { matrices: DType::Q4K, table: DType::Q6K, heads: 4, head_dim: 128, ..WIDE },
    Shape { matrices: DType::Q6K, table: DType::Q4K, heads: 12, kv_heads: 4, ..WIDE },
    Shape { matrices: DType::Q8_0, heads: 4, kv_heads: 1, head_dim: 256, ..WIDE },
];

/// What a load may be: the arithmetic of products, and the format of the pool.
type Mode = (StoredActivations, KvFormat);

const MODES: [Mode; 4] = [
    (StoredActivations::Bf16, KvFormat::Bf16),
    (StoredActivations::Bf16, KvFormat::F32),
    (StoredActivations::F32, KvFormat::Bf16),
    (StoredActivations::F32, KvFormat::F32),
];
const BF16: Mode = MODES[0];

/// How a load differs from the one that a user gets.
#[derive(Clone, Copy, Debug, Default)]
struct Choice {
    products: StoredProducts,
    kernels: CudaKernels,
}

fn card(program: &Program, (activations, kv_format): Mode, choice: Choice) -> CudaDevice {
    let path = |name| std::env::var_os(name).map(Into::into);
    let nvrtc = path("CARD_NVRTC").into_iter().collect();
    let libraries = Libraries { nvrtc, cache: path("CARD_KERNELS") };
    let Choice { products, kernels } = choice;
    let (tables_on_host, model) = (false, ModelFacts::of(program));
    let options =
        CudaOptions { kv_format, activations, products, tables_on_host, kernels, model, libraries };
    CudaDevice::new(&options).unwrap()
}

fn rig(shape: &Shape, mode: Mode) -> Rig<CudaDevice> {
    rig_with(shape, mode, Choice::default())
}

fn rig_with(shape: &Shape, mode: Mode, choice: Choice) -> Rig<CudaDevice> {
    let program = llama(shape);
    let mut rig = Rig::on(card(&program, mode, choice), program, LIMITS);
    poison(&mut rig);
    rig
}

const FAST: Choice = Choice { products: StoredProducts::Fast, kernels: CudaKernels::Own };
const PORTABLE: Choice = Choice { products: StoredProducts::Same, kernels: CudaKernels::Portable };

/// Fills every buffer with NaN, so that a value that nothing wrote shows.
fn poison(rig: &mut Rig<CudaDevice>) {
    let rows = LIMITS.chunk_tokens_max as usize;
    for (spec, &at) in rig.program.buffers.iter().zip(&rig.addresses.buffers) {
        let rows = if spec.rows == ignis_ops::Rows::Round { rows } else { 8 };
        let bytes = vec![0xff; 4 * spec.width as usize * rows];
        rig.device.write(at, &bytes).unwrap();
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

/// Largest difference from float64 that a mode may have, in parts of the largest logit.
///
/// f32 keeps 16 bits of every factor, bf16 keeps 8. What that comes to was simulated in float64, on
/// 120 random models of these shapes: at most 1.8 % for plain weights; 4.7 % for four bits with a
/// scale and a minimum, whose rounding a group of 32 columns shares.
fn bound(shape: &Shape, activations: StoredActivations) -> f64 {
    let plain = [DType::BF16, DType::F16, DType::F32];
    match activations {
        StoredActivations::F32 => 1e-4,
        _ if plain.contains(&shape.matrices) && plain.contains(&shape.table) => 2.5e-2,
        StoredActivations::Bf16 => 6e-2,
    }
}

fn worst_of(exact: &[f64], found: &[f32]) -> f64 {
    let off = exact.iter().zip(found).map(|(a, b)| (a - f64::from(*b)).abs());
    off.fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most })
}

/// Checks prompts of some lengths against the naive forward, in both arithmetics.
fn check_against_naive(shape: &Shape, lens: &[usize]) {
    for &len in lens {
        let tokens = prompt(len, shape.vocab, len as u64);
        let exact = naive::logits(&llama(shape), &tokens);
        let scale = exact.iter().fold(1.0f64, |most, l| most.max(l.abs()));
        for mode in [BF16, (StoredActivations::F32, KvFormat::F32)] {
            let found = &rig(shape, mode).round(&[(3, 0, &tokens)])[0];
            let worst = worst_of(&exact, found) / scale;
            let name = mode.0.name();
            println!("{} {} {name} len {len}: {worst:.2e}", shape.matrices, shape.head_dim);
            assert!(worst < bound(shape, mode.0), "{shape:?} {mode:?} {len}: off by {worst}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn logits_are_those_of_the_naive_forward() {
    for shape in SHAPES {
        check_against_naive(&shape, &[1, 8, 9, 33, 63, 64, 65, 300]);
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn fast_products_are_as_right_and_those_of_short_chunks_are_the_same() {
    // Of 500 rows such an MLP has more tiles than a card has processors, and so the fast kernel.
    let inner = 2560;
    for shape in [SHAPES[1], SHAPES[4], SHAPES[6]].map(|s| Shape { hidden: 256, inner, ..s }) {
        let mut fast = rig_with(&shape, BF16, FAST);
        let mut same = rig(&shape, BF16);
        for len in [1, 33, 128, 256, 500] {
            let tokens = prompt(len, shape.vocab, len as u64);
            let found = fast.round(&[(3, 0, &tokens)]).remove(0);
            let expected = same.round(&[(3, 0, &tokens)]).remove(0);
            if len <= 256 {
                assert_eq!(bits(&found), bits(&expected), "{shape:?} {len}");
                continue;
            }
            let exact = naive::logits(&llama(&shape), &tokens);
            let scale = exact.iter().fold(1.0f64, |most, l| most.max(l.abs()));
            let [worst, other] = [&found, &expected].map(|one| worst_of(&exact, one) / scale);
            println!("{} fast: {worst:.2e}, same: {other:.2e}", shape.matrices);
            assert!(worst < bound(&shape, BF16.0), "{shape:?} {len}: off by {worst}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn kernels_that_run_on_every_card_have_the_bits_of_its_own() {
    // Products of several tiles each way, and of sixteen slices.
    let tall = Shape { hidden: 512, inner: 1024, ..SHAPES[6] };
    let long = Shape { inner: 8_448, ..tall };
    for shape in SHAPES.into_iter().chain([tall, long]) {
        let mut rigs = [rig(&shape, BF16), rig_with(&shape, BF16, PORTABLE)];
        let mut same = |parts: &[(u32, u32, &[u32])]| {
            rigs.iter_mut().for_each(poison);
            let [own, portable] = rigs.each_mut().map(|rig| rig.round(parts));
            for (lane, (a, b)) in own.iter().zip(&portable).enumerate() {
                assert_eq!(bits(a), bits(b), "{shape:?} lane {lane}");
            }
            portable
        };
        // Behind each a chunk that reads what it left in the pool; both are of many rows.
        let next = prompt(70, shape.vocab, 7);
        for (at, len) in [33, 63, 64, 65, 127, 128, 129, 193, 257, 500, 570].iter().enumerate() {
            let (lane, tokens) = (at as u32 % 8, prompt(*len, shape.vocab, *len as u64));
            let found = same(&[(lane, 0, &tokens)]).remove(0);
            same(&[(lane, *len as u32, &next)]);
            if ![33, 129].contains(len) {
                continue;
            }
            let exact = naive::logits(&llama(&shape), &tokens);
            let scale = exact.iter().fold(1.0f64, |most, l| most.max(l.abs()));
            let worst = worst_of(&exact, &found) / scale;
            println!("{} {} portable {len}: {worst:.2e}", shape.matrices, shape.head_dim);
            assert!(worst < bound(&shape, BF16.0), "{shape:?} {len}: off by {worst}");
        }
        let several = [5, 64, 129].map(|len| prompt(len, shape.vocab, len as u64));
        let parts = [0, 1, 2].map(|lane| (lane as u32, 0, &several[lane][..]));
        same(&parts);
    }
}

/// Logits of the last token, prompt cut into chunks.
fn chunked(rig: &mut Rig<CudaDevice>, lane: u32, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut logits = vec![];
    let mut position = 0;
    for part in tokens.chunks(chunk) {
        logits = rig.round(&[(lane, position, part)]).remove(0);
        position += part.len() as u32;
    }
    logits
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn bits_do_not_depend_on_chunks() {
    for shape in SHAPES {
        for mode in MODES {
            let tokens = prompt(600, shape.vocab, 5);
            let mut rig = rig(&shape, mode);
            let expected = bits(&chunked(&mut rig, 0, &tokens, 600));
            assert!(expected.iter().all(|&b| f32::from_bits(b).is_finite()));
            for (lane, chunk) in [1, 7, 8, 17, 33, 64, 257].into_iter().enumerate() {
                poison(&mut rig);
                let found = bits(&chunked(&mut rig, lane as u32 + 1, &tokens, chunk));
                assert_eq!(expected, found, "{shape:?} {mode:?} {chunk}");
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn bits_do_not_depend_on_batch_mates() {
    for shape in SHAPES {
        for mode in [BF16, (StoredActivations::F32, KvFormat::Bf16)] {
            batch_mates(&shape, mode);
        }
    }
}

fn batch_mates(shape: &Shape, mode: Mode) {
    let lens = [5, 300, 64, 63, 129, 1, 511, 258];
    let prompts: Vec<Vec<u32>> =
        lens.iter().map(|&len| prompt(len, shape.vocab, len as u64)).collect();
    let mut alone = rig(shape, mode);
    let mut expected = vec![];
    for (lane, tokens) in prompts.iter().enumerate() {
        chunked(&mut alone, lane as u32, tokens, 640);
        let next = [lane as u32 + 1];
        let at = tokens.len() as u32;
        expected.push(bits(&alone.round(&[(lane as u32, at, &next)])[0]));
    }
    let mut together = rig(shape, mode);
    for (lane, tokens) in prompts.iter().enumerate() {
        chunked(&mut together, 7 - lane as u32, tokens, 100);
    }
    let ids: Vec<[u32; 1]> = (1..=8).map(|id| [id]).collect();
    let parts: Vec<(u32, u32, &[u32])> = (0..8)
        .map(|lane| (7 - lane as u32, prompts[lane].len() as u32, ids[lane].as_slice()))
        .collect();
    poison(&mut together);
    let found = together.round(&parts);
    for (lane, logits) in found.iter().enumerate() {
        assert_eq!(expected[lane], bits(logits), "{shape:?} {mode:?} lane {lane}");
    }
    // Beside a chunk of a prompt, of few rows in all and of many.
    for chunk in [10, 70] {
        let mut beside = rig(shape, mode);
        for (lane, tokens) in prompts[..7].iter().enumerate() {
            chunked(&mut beside, lane as u32, tokens, 640);
        }
        let other = prompt(chunk, shape.vocab, 99);
        let mut parts: Vec<(u32, u32, &[u32])> = vec![(7, 0, &other)];
        parts.extend(
            (0..7).map(|lane| (lane as u32, prompts[lane].len() as u32, ids[lane].as_slice())),
        );
        poison(&mut beside);
        for (lane, logits) in beside.round(&parts)[1..].iter().enumerate() {
            let found = bits(logits);
            assert_eq!(expected[lane], found, "{shape:?} {mode:?} lane {lane} beside {chunk}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn bits_do_not_depend_on_where_pages_lie() {
    for shape in SHAPES {
        for mode in [BF16, (StoredActivations::F32, KvFormat::Bf16)] {
            let mut rig = rig(&shape, mode);
            let tokens = prompt(300, shape.vocab, 9);
            chunked(&mut rig, 0, &tokens, 128);
            let Bytes(page) = rig.device.layout().kv_page_bytes(&rig.program.kv).unwrap();
            let at = |rig: &Rig<CudaDevice>, lane: usize, i: usize| {
                let page_id = rig.tables[lane * rig.stride + i];
                rig.addresses.kv_pool + u64::from(page_id) * page
            };
            // To the host and to lane 5; then on the card, to lane 6.
            let mut held = vec![0; page as usize];
            for i in 0..5 {
                let (first, fifth, sixth) = (at(&rig, 0, i), at(&rig, 5, i), at(&rig, 6, i));
                rig.device.read(first, &mut held).unwrap();
                rig.device.write(fifth, &held).unwrap();
                rig.device.copy(fifth, sixth, Bytes(page)).unwrap();
            }
            let [a, b, c] = [0, 5, 6].map(|lane| bits(&rig.round(&[(lane, 300, &[3])])[0]));
            assert!(a == b && b == c, "{shape:?} {mode:?}");
        }
    }
}

/// Logits of a round that never ran.
fn put_logits<D: Device>(rig: &mut Rig<D>, row: u32, logits: &[f32]) {
    let at = rig.addresses.buffers[rig.program.logits.0 as usize];
    let bytes: Vec<u8> = logits.iter().flat_map(|l| l.to_le_bytes()).collect();
    rig.device.write(at + u64::from(row) * bytes.len() as u64, &bytes).unwrap();
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn samples_are_those_of_the_cpu() {
    let shape = Shape { vocab: 5000, table: DType::BF16, ..TINY };
    let limits = ignis_types::Limits { pages: 8, chunk_tokens_max: 64, ..LIMITS };
    let options =
        CpuOptions { threads: 1, activations: Activations::F32, kv_format: KvFormat::Bf16 };
    let mut cpu = Rig::of(llama(&shape), limits, options, Isa::detect());
    let program = llama(&shape);
    let mut gpu = Rig::on(card(&program, BF16, Choice::default()), program, limits);
    let plain = Sampling::default();
    let kinds = [
        Sampling { temperature: 0.0, logprobs: Some(20), ..plain.clone() },
        plain.clone(),
        Sampling { temperature: 0.7, top_k: 40, ..plain.clone() },
        Sampling { top_p: 0.9, logprobs: Some(3), ..plain.clone() },
        Sampling { min_p: 0.05, temperature: 1.3, ..plain.clone() },
        Sampling { top_k: 50, top_p: 0.95, min_p: 0.01, logprobs: Some(0), ..plain.clone() },
        Sampling { repetition_penalty: 1.2, presence_penalty: 0.5, ..plain.clone() },
        Sampling { frequency_penalty: 0.3, temperature: 0.0, ..plain.clone() },
    ];
    let (mut drawn, mut differ, mut dice) = (0, 0, Dice(11));
    for turn in 0..60u32 {
        let spread = [0.0, 0.5, 4.0, 30.0][turn as usize % 4];
        let params: Vec<Sampling> = kinds
            .iter()
            .map(|kind| Sampling { seed: u64::from(dice.bits()), ..kind.clone() })
            .collect();
        for lane in 0..8 {
            let mut logits: Vec<f32> =
                (0..shape.vocab).map(|_| spread * (dice.unit() + dice.unit())).collect();
            logits[17] = f32::NAN;
            logits[18] = f32::NEG_INFINITY;
            put_logits(&mut cpu, lane, &logits);
            put_logits(&mut gpu, lane, &logits);
        }
        if turn % 10 == 0 {
            for lane in 0..8 {
                let seen = prompt(300 + 40 * turn as usize, shape.vocab, u64::from(turn + lane));
                let (prompt, output) = seen.split_at(2 * seen.len() / 3);
                cpu.device.reset_penalties(lane, prompt, output).unwrap();
                gpu.device.reset_penalties(lane, prompt, output).unwrap();
            }
        }
        let bias: Vec<(u32, f32)> = (0..50).map(|i| (i * 7, 3.0 * dice.unit())).collect();
        let lanes: Vec<LaneSampling<'_>> = (0..8)
            .map(|lane| LaneSampling {
                lane,
                logit_row: 7 - lane,
                position: turn,
                ids: 4990,
                params: &params[lane as usize],
                logit_bias: if turn % 3 == 0 { &bias } else { &[] },
            })
            .collect();
        let mut results = [[SampleOut::default(); 8]; 2];
        cpu.device.sample(&lanes, &mut results[0]).unwrap();
        gpu.device.sample(&lanes, &mut results[1]).unwrap();
        for (lane, (a, b)) in results[0].iter().zip(&results[1]).enumerate() {
            drawn += 1;
            assert!(b.token < 4990);
            if params[lane].temperature == 0.0 {
                assert_eq!(a.token, b.token, "turn {turn}, lane {lane}");
            }
            if a.token != b.token {
                println!("turn {turn} lane {lane} spread {spread}: {} {}", a.token, b.token);
                differ += 1;
                continue;
            }
            assert!((a.logprob - b.logprob).abs() < 1e-4, "{a:?} {b:?}");
            assert_eq!((a.top_len, a.top_ids), (b.top_len, b.top_ids));
            let pairs = a.top_logprobs.iter().zip(&b.top_logprobs).take(a.top_len as usize);
            pairs.for_each(|(x, y)| assert!((x - y).abs() < 1e-4));
        }
    }
    println!("{differ} of {drawn} draws differ");
    // A draw that falls between two ids may go to either when a weight is off by an ulp.
    assert!(differ * 100 <= drawn, "{differ} of {drawn} draws differ");
}
