//! Time of the delta rule beside a plain copy of its state: is decode at the speed of memory?
//!
//! Usage: delta_bench [threads]. One lane of 24 layers with 48 heads of 128 x 128, as in a 27B.

use std::hint::black_box;
use std::time::Instant;

use ignis_backend::{Activations, Addresses, Device, KvFormat};
use ignis_cpu::{CpuDevice, CpuOptions};
use ignis_ops::{
    DeltaGates, DeltaRule, Embed, GatherRows, HeadMap, KvShape, Op, Program, ProgramBuilder,
    RopeScaling, RopeTable, Round, Rows, SectionFormat, SectionSpec, Segment, WeightId, WeightKind,
    WeightSpec,
};
use ignis_types::{Bytes, DType, Limits};

const LAYERS: u32 = 24;
const KEY_HEADS: u32 = 16;
const HEADS: u32 = 48;
const DIM: u32 = 128;
const ROUNDS: u32 = 20;
const CHUNK: u32 = 64;

/// Nothing but recurrences over one embedding.
fn program() -> Program {
    let kv = KvShape { layers: 1, kv_heads: 1, head_dim: 16 };
    let mut b = ProgramBuilder::new(kv, RopeTable::new(1e4, 16, &RopeScaling::None));
    let width = (2 * KEY_HEADS + HEADS) * DIM;
    let mut buffer = |rows, width| b.buffer("buffer", rows, width);
    let (qkv, a, gate) = (buffer(Rows::Round, width), buffer(Rows::Round, HEADS), HEADS);
    let (beta, y) = (buffer(Rows::Round, gate), buffer(Rows::Round, HEADS * DIM));
    let logits = buffer(Rows::Logits, HEADS * DIM);
    let elements = HEADS * DIM * DIM;
    let format = SectionFormat::F32;
    let state = b.section(SectionSpec { name: "recurrence", layers: LAYERS, elements, format });
    let mut weight =
        |rows, cols, kind| b.weight(WeightSpec::new("w".into(), DType::F32, rows, cols, kind));
    let table = weight(2, width, WeightKind::Table);
    let decay = weight(1, HEADS, WeightKind::Vector);
    b.push(Op::Embed(Embed { table, y: qkv })).unwrap();
    b.push(Op::DeltaGates(DeltaGates { a, b: beta, decay, dt: decay })).unwrap();
    for layer in 0..LAYERS {
        b.push(Op::DeltaRule(DeltaRule {
            qkv,
            a,
            b: beta,
            y,
            state,
            layer,
            key_heads: KEY_HEADS,
            value_heads: HEADS,
            key_dim: DIM,
            value_dim: DIM,
            map: HeadMap::Grouped,
        }))
        .unwrap();
    }
    b.begin_head();
    b.push(Op::GatherRows(GatherRows { x: y, y: logits })).unwrap();
    b.finish(logits)
}

fn main() {
    let threads = std::env::args().nth(1).map_or(1, |n| n.parse().expect("a number of threads"));
    let options = CpuOptions { threads, activations: Activations::F32, kv_format: KvFormat::Bf16 };
    let limits = Limits {
        lanes_max: 1,
        chunk_tokens_max: CHUNK,
        context_tokens_max: 1024,
        pages: 16,
        retained_device: 0,
        retained_host: 0,
    };
    let program = program();
    let mut device = CpuDevice::new(options).expect("threads start");
    let mut end = 0u64;
    let mut region = |bytes: u64| {
        let start = end;
        end = (start + bytes).next_multiple_of(64);
        start
    };
    let layout = device.layout();
    let size = |bytes: Result<Bytes, _>| bytes.expect("sizes are small").0;
    let rows = u64::from(limits.round_rows_max());
    let scratch = size(layout.attention_scratch(&program, &limits));
    let weights = &program.weights;
    let addresses = Addresses {
        weights: weights.iter().map(|w| region(size(layout.weight_bytes(w)))).collect(),
        buffers: program.buffers.iter().map(|b| region(4 * rows * u64::from(b.width))).collect(),
        sections: program.sections.iter().map(|s| region(size(layout.section_bytes(s)))).collect(),
        scratch: (region(scratch), Bytes(scratch)),
        kv_pool: region(16 * size(layout.kv_page_bytes(&program.kv))),
        penalty_counts: region(4 * u64::from(program.vocab)),
        sampling: region(size(layout.sampling_lane_bytes(program.vocab))),
    };
    device.reserve(Bytes(end)).expect("memory");
    device.bind(&program, &addresses, &limits).expect("the program runs here");
    for (i, weight) in program.weights.iter().enumerate() {
        let values = (0..weight.rows * weight.cols).map(|i| (i % 7) as f32 * 0.01 - 0.03);
        let stored: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        device.put_weight(WeightId(i as u32), &[&stored]).expect("a weight");
    }
    let table: Vec<u32> = (0..16).collect();
    let mut run = |position: u32, rows: u32| {
        let tokens = vec![1; rows as usize];
        let segments = [Segment { lane: 0, row: 0, rows, position }];
        let round = Round {
            tokens: &tokens,
            segments: &segments,
            logit_rows: &[],
            block_tables: &table,
            stride: 16,
        };
        device.run(&round).expect("a round");
    };
    let bytes = f64::from(LAYERS * HEADS * DIM * DIM) * 4.0;
    run(0, CHUNK);
    let start = Instant::now();
    (0..ROUNDS).for_each(|i| run(CHUNK + i, 1));
    let decode = start.elapsed().as_secs_f64() / f64::from(ROUNDS);
    let start = Instant::now();
    (0..4).for_each(|_| run(CHUNK, CHUNK));
    let prefill = start.elapsed().as_secs_f64() / f64::from(4 * CHUNK);

    // Read and written in place, as the state is.
    let mut plain = vec![1.0f32; (bytes / 4.0) as usize];
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(&mut plain).iter_mut().for_each(|x| *x *= 0.999);
    }
    let copy = start.elapsed().as_secs_f64() / f64::from(ROUNDS);
    let rate = |seconds: f64| 2.0 * bytes / seconds / 1e9;
    println!("{}", device.describe());
    println!("decode  {:8.3} ms a row, {:6.2} GB/s", decode * 1e3, rate(decode));
    println!("prefill {:8.3} ms a row", prefill * 1e3);
    println!("in place, one thread: {:8.3} ms, {:6.2} GB/s", copy * 1e3, rate(copy));
}
