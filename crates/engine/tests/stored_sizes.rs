//! The sizes that a GPU load is planned with, of real programs.

use std::path::PathBuf;

use ignis_backend::{
    DeviceLayout, FEW_ROWS, GRAPH_LANES_MAX, KvFormat, StoredActivations, StoredLayout,
    StoredProducts, StoredScratch, run_classes,
};
use ignis_engine::lay_out;
use ignis_formats::Checkpoint;
use ignis_models::Model;
use ignis_ops::{Program, WeightKind};
use ignis_types::{DType, Limits, PlanLine};

use StoredActivations::{Bf16, F32};

fn golden(family: &str) -> Program {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(family);
    Model::of(&Checkpoint::open(&folder).unwrap()).unwrap().program
}

const LIMITS: Limits = Limits {
    lanes_max: 8,
    chunk_tokens_max: 1024,
    context_tokens_max: 8192,
    pages: 4,
    retained_device: 0,
    retained_host: 0,
};

fn layout(kv_format: KvFormat, activations: StoredActivations) -> StoredLayout {
    let products = StoredProducts::Same;
    StoredLayout { kv_format, activations, products, tables_on_host: false }
}

#[test]
fn the_plan_has_the_bytes_that_the_device_uses() {
    let program = golden("qwen3");
    for activations in [Bf16, F32] {
        let layout = layout(KvFormat::Bf16, activations);
        let mapped = lay_out(&program, &LIMITS, &layout).unwrap();
        let scratch = StoredScratch::new(&program, &LIMITS, activations).unwrap();
        assert_eq!(mapped.addresses().scratch.1.0, scratch.end, "{activations:?}");
        // 1,032 rows padded to 1,152: of 128 columns for norms, of 256 for attention and the MLP.
        let images = activations.images();
        let regions =
            [scratch.encoded[1] - scratch.encoded[0], scratch.tokens - scratch.encoded[1]];
        assert_eq!(regions, [128, 256].map(|cols| images * 1152 * cols * 2), "{activations:?}");
        // Squares of sixteen columns for 32 rows; a scale for each row, aligned to 256 bytes.
        assert_eq!(scratch.scales - scratch.squares, 4 * 32 * 8);
        assert_eq!(scratch.sums - scratch.scales, (4 * 1032u64).next_multiple_of(256));
        // Sums of four windows each way, of sixteen bytes each.
        assert_eq!(scratch.end - scratch.sums, (2 * 4 * 16u64).next_multiple_of(256));
        let lines = |line| mapped.layout.line_bytes(line).0;
        assert_eq!(lines(PlanLine::DecodeGraph), layout.graph_bytes(&program, &LIMITS).unwrap().0);
        assert!(lines(PlanLine::DecodeGraph) > 0);
        let name = format!("cuda 3 {} BF16", activations.name());
        assert_eq!(layout.state_format(), name);
        let fast = StoredLayout { products: StoredProducts::Fast, ..layout };
        assert_ne!(fast.state_format(), name);
        // x, q, k and v at once; normed rows are never in memory, nor attended ones.
        let widest = 4 * 1032 * (128 + 256 + 128 + 128);
        assert_eq!(lines(PlanLine::Workspace) - scratch.end, widest, "{activations:?}");
    }
}

#[test]
fn recorded_rounds_are_counted_up_to_their_widest() {
    let program = golden("llama");
    let layout = layout(KvFormat::Bf16, Bf16);
    let bytes =
        |lanes_max| layout.graph_bytes(&program, &Limits { lanes_max, ..LIMITS }).unwrap().0;
    assert!(bytes(1) < bytes(2));
    assert_eq!(bytes(GRAPH_LANES_MAX), bytes(GRAPH_LANES_MAX + 1));
}

#[test]
fn recorded_rounds_are_counted_by_what_they_launch() {
    let program = golden("llama");
    let bytes = |kv_format, lanes_max| {
        let layout = layout(kv_format, Bf16);
        layout.graph_bytes(&program, &Limits { lanes_max, ..LIMITS }).unwrap().0
    };
    let launch = (5 << 9) * run_classes(&LIMITS).len() as u64;
    // Attention in scalars of three layers takes a launch before and one behind.
    let apart = bytes(KvFormat::F32, 1) - bytes(KvFormat::Bf16, 1);
    assert_eq!(apart, 2 * 3 * launch);
    // Five norms are launches of their own where rows are not few.
    let of_width = |width| bytes(KvFormat::Bf16, width) - bytes(KvFormat::Bf16, width - 1);
    assert_eq!(of_width(FEW_ROWS), of_width(2));
    assert_eq!(of_width(FEW_ROWS + 1), of_width(FEW_ROWS) + 5 * launch);
}

#[test]
fn matrices_are_planned_in_whole_groups() {
    let program = golden("llama");
    let layout = |activations| layout(KvFormat::Bf16, activations);
    let mut weight = program.weights[program.weights.len() - 1].clone();
    weight.kind = WeightKind::Matrix;
    // In bf16, and in pairs, for which plain weights are kept as they are.
    for (dtype, rows, cols, bytes) in [
        (DType::BF16, 128, 64, [2 * 128 * 64; 2]),
        (DType::BF16, 129, 65, [2 * 256 * 128; 2]),
        (DType::F16, 128, 64, [2 * 128 * 64; 2]),
        (DType::F32, 128, 64, [2 * 128 * 64, 4 * 128 * 64]),
        (DType::Q8_0, 1, 96, [128 * 4 * 34; 2]),
        (DType::Q4K, 33, 256, [128 * 144; 2]),
    ] {
        (weight.dtype, weight.rows, weight.cols) = (dtype, rows, cols);
        let found = [Bf16, F32].map(|one| layout(one).weight_bytes(&weight).unwrap().0);
        assert_eq!(found, bytes, "{dtype} {rows} {cols}");
    }
    let kept = [Bf16, F32].map(|one| layout(one).kept_dtype(&weight));
    assert_eq!(kept, [DType::Q4K; 2]);
    weight.kind = WeightKind::Vector;
    weight.dtype = DType::F16;
    assert_eq!([Bf16, F32].map(|one| layout(one).kept_dtype(&weight)), [DType::F32; 2]);
}
