//! How a GPU load joins the ops of real programs, and that it computes what they say.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use ignis_backend::{
    DeviceLayout, EncodedRows, FEW_ROWS, FusedProgram, FusedStep, GRAPH_LANES_MAX, KvFormat,
    Prepare, StoredActivations, StoredLayout, StoredProducts, StoredScratch, run_classes,
};
use ignis_engine::lay_out;
use ignis_formats::Checkpoint;
use ignis_models::Model;
use ignis_ops::{BufferId, LinearPart, Op, Program, WeightId};
use ignis_types::{DType, Limits, PlanLine};

use StoredActivations::{Bf16, F32};

fn layout(kv_format: KvFormat, activations: StoredActivations) -> StoredLayout {
    let products = StoredProducts::Same;
    StoredLayout { kv_format, activations, products, tables_on_host: false }
}

fn golden(family: &str) -> Program {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(family);
    Model::of(&Checkpoint::open(&folder).unwrap()).unwrap().program
}

/// One word a step, with a `'` where it reads the second region or a gated product writes it, and
/// with what it does beside after or before an `&`.
fn words(program: &Program, activations: StoredActivations) -> (Vec<String>, usize) {
    let fused = FusedProgram::new(program, activations);
    let prepare = |step: &Prepare| {
        let norms = u32::from(step.q_norm.is_some()) + u32::from(step.k_norm.is_some());
        format!("prepare{norms}")
    };
    let word = |step: &FusedStep| match step {
        FusedStep::NormEncode { gathered: false, .. } => "norm".into(),
        FusedStep::NormEncode { gathered: true, .. } => "last-norm".into(),
        FusedStep::Encode { .. } => "encode".into(),
        FusedStep::SwiGluEncode { .. } => "swiglu".into(),
        FusedStep::Products(products) => {
            let add = if products.accumulate { "+" } else { "" };
            let second = "'".repeat(products.x.region);
            let norm = if products.then.is_some() { "&norm" } else { "" };
            format!("product{}{add}{second}{norm}", products.parts.len())
        }
        FusedStep::Glu { to, .. } => format!("glu{}", "'".repeat(to.region)),
        FusedStep::Prepare(step) => prepare(step),
        FusedStep::Attention { prepare: None, .. } => "attention".into(),
        FusedStep::Attention { prepare: Some(step), .. } => prepare(step) + "&attention",
        FusedStep::Op(at) => match &program.ops[*at] {
            Op::Embed(_) => "embed".into(),
            other => format!("{other:?}").split('(').next().unwrap().to_lowercase(),
        },
    };
    (fused.steps.iter().map(word).collect(), fused.head)
}

/// Words of three layers, of which each but the last makes the norm of the next.
fn list(layer: &[&str]) -> Vec<String> {
    let mut all = vec!["embed".to_owned(), "norm".to_owned()];
    for at in 0..3 {
        all.extend(layer.iter().map(|&word| word.to_owned()));
        if at < 2 {
            *all.last_mut().unwrap() += "&norm";
        }
    }
    all.extend(["last-norm", "product1"].map(str::to_owned));
    all
}

#[test]
fn a_dense_layer_is_five_steps() {
    for (family, attention) in [
        ("llama", "prepare0&attention"),
        ("qwen2", "prepare0&attention"),
        ("qwen3", "prepare2&attention"),
    ] {
        let program = golden(family);
        let expected = list(&["product3", attention, "product1+'&norm", "glu'", "product1+'"]);
        assert_eq!(words(&program, Bf16), (expected.clone(), expected.len() - 2), "{family}");
        // Pairs have no gated product: both products, then their input of the next one.
        let mlp = ["product2", "swiglu", "product1+'"];
        let expected = list(&[&["product3", attention, "product1+'&norm"], &mlp[..]].concat());
        assert_eq!(words(&program, F32), (expected.clone(), expected.len() - 2), "{family}");
    }
}

#[test]
fn matrices_of_other_dtypes_have_their_own_launch() {
    let mut program = golden("llama");
    let mixed: Vec<WeightId> = program
        .ops
        .iter()
        .filter_map(|op| match op {
            Op::Linear(op) if op.parts.len() > 1 => op.parts.last().map(|part| part.w),
            _ => None,
        })
        .collect();
    for id in mixed {
        program.weights[id.0 as usize].dtype = DType::Q6K;
    }
    let attention = ["product2", "product1", "prepare0&attention", "product1+'&norm"];
    let mlp = ["product1", "product1", "swiglu", "product1+'"];
    assert_eq!(words(&program, Bf16).0, list(&[&attention[..], &mlp].concat()));
}

#[test]
fn plain_matrices_are_joined_where_they_are_kept_alike() {
    let mut program = golden("llama");
    let plain = [DType::BF16, DType::F16, DType::F32];
    for op in &program.ops {
        let Op::Linear(op) = op else { continue };
        for (part, dtype) in op.parts.iter().zip(plain) {
            program.weights[part.w.0 as usize].dtype = dtype;
        }
    }
    let attention = ["prepare0&attention", "product1+'&norm"];
    let joined = [&["product3"], &attention[..], &["glu'", "product1+'"]].concat();
    assert_eq!(words(&program, Bf16).0, list(&joined));
    let mlp = ["product1", "product1", "swiglu", "product1+'"];
    let apart = [&["product1"; 3], &attention[..], &mlp].concat();
    assert_eq!(words(&program, F32).0, list(&apart));
}

/// Index of the first op that `is` holds of.
fn first(program: &Program, is: impl Fn(&Op) -> bool) -> usize {
    program.ops.iter().position(is).unwrap()
}

#[test]
fn products_that_read_where_their_norm_goes_do_not_make_it() {
    let mut program = golden("llama");
    // Attended rows are wanted twice, so they are a buffer, which is encoded for both products.
    let at = first(&program, |op| matches!(op, Op::PagedAttention(_))) + 1;
    program.ops.insert(at, program.ops[at].clone());
    program.head += 1;
    let twice = ["encode", "product1+", "encode", "product1+", "norm", "glu'"];
    let found = words(&program, Bf16).0;
    let at = found.iter().position(|word| word == "encode").unwrap();
    assert_eq!(found[at..at + twice.len()], twice);
}

#[test]
fn the_head_makes_its_norms_itself() {
    let mut program = golden("llama");
    let is_norm = |op: &Op| matches!(op, Op::RmsNorm(_));
    program.head = 1
        + program.ops[1 + first(&program, is_norm)..].iter().position(is_norm).unwrap()
        + first(&program, is_norm);
    let (found, head) = words(&program, Bf16);
    assert_eq!(found[head - 1..head + 2], ["product1+'", "norm", "glu'"]);
}

#[test]
fn queries_that_are_read_again_are_made_ready_in_memory() {
    let mut program = golden("llama");
    let at = first(&program, |op| matches!(op, Op::PagedAttention(_)));
    let Op::PagedAttention(op) = &program.ops[at] else { panic!("it was found") };
    let again = ignis_ops::AddRows { x: op.q, y: op.q };
    program.ops.insert(at + 2, Op::AddRows(again));
    program.head += 1;
    assert_eq!(words(&program, Bf16).0[3..6], ["prepare0", "attention", "product1+'"]);
}

#[test]
fn a_buffer_that_is_read_again_stays_in_memory() {
    let mut program = golden("llama");
    let fused = FusedProgram::new(&program, Bf16).buffers_in_memory(&program);
    let names = |held: &[bool]| {
        let all = program.buffers.iter().zip(held).filter(|(_, held)| !**held);
        let mut names: Vec<&str> = all.map(|(spec, _)| spec.name).collect();
        names.sort_unstable();
        names.dedup();
        names.join(" ")
    };
    let without = names(&fused);
    assert!(without.contains("attended") && without.contains("gate"), "{without}");
    assert!(fused[program.logits.0 as usize]);

    // The first product's input is wanted once more, by the op behind the last layer.
    let Some(Op::RmsNorm(norm)) = program.ops.get(1) else { panic!("a norm is the second op") };
    let (normed, x) = (norm.y, norm.x);
    program.ops.insert(program.head, Op::AddRows(ignis_ops::AddRows { x: normed, y: x }));
    program.head += 1;
    let fused = FusedProgram::new(&program, Bf16);
    assert!(fused.buffers_in_memory(&program)[normed.0 as usize]);
    assert_eq!(words(&program, Bf16).0[1..4], ["rmsnorm", "encode", "product3"]);
}

/// Values that only tell where they came from.
struct Symbols {
    buffers: Vec<u64>,
    /// What was encoded last, and as which rows.
    regions: [(u64, Option<EncodedRows>); 2],
    /// The row whose squares, or whose scale, were kept last.
    squares: u64,
    /// Whether attention leaves queries and keys in memory as they were, as decode rounds do.
    leaves_raw: bool,
    /// What was stored in the pool, all of it so far.
    pool: u64,
}

fn made(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Symbols {
    fn new(program: &Program, leaves_raw: bool) -> Symbols {
        let buffers = (0..program.buffers.len()).map(|i| made(("nothing", i))).collect();
        Symbols { buffers, regions: [(0, None); 2], squares: 0, leaves_raw, pool: 0 }
    }

    fn get(&self, id: BufferId) -> u64 {
        self.buffers[id.0 as usize]
    }

    fn set(&mut self, id: BufferId, value: u64) {
        self.buffers[id.0 as usize] = value;
    }

    fn gained(x: u64, w: WeightId) -> u64 {
        made(("gain", x, w.0))
    }

    fn scaled(gained: u64, squares: u64, eps: f32) -> u64 {
        made(("scale", gained, squares, eps.to_bits()))
    }

    fn norm(x: u64, w: WeightId, eps: f32) -> u64 {
        Self::scaled(Self::gained(x, w), x, eps)
    }

    fn encode(&mut self, to: EncodedRows, value: u64) {
        self.regions[to.region] = (value, Some(to));
    }

    /// The first half of a norm, which products of it finish.
    fn encode_norm(&mut self, to: EncodedRows, x: u64, w: WeightId) {
        assert_eq!(to.region, 0, "squares are of one region");
        self.encode(to, Self::gained(x, w));
        self.squares = x;
    }

    /// What products read, their norm finished.
    fn input(&self, x: EncodedRows, norm: Option<f32>) -> u64 {
        let (value, rows) = self.regions[x.region];
        assert_eq!(rows, Some(x), "other rows were encoded");
        norm.map_or(value, |eps| Self::scaled(value, self.squares, eps))
    }

    /// Queries and keys as they are made ready; keys and values are stored.
    fn prepare(&mut self, p: &Prepare) -> [(BufferId, u64); 2] {
        let ready = [(p.q, p.q_norm), (p.k, p.k_norm)].map(|(id, norm)| {
            let x = self.get(id);
            let x = norm.map_or(x, |w| Self::norm(x, w, p.eps));
            (id, made(("rope", x)))
        });
        self.pool = made((self.pool, p.layer, ready[1].1, self.get(p.v)));
        ready
    }

    fn product(x: u64, w: WeightId) -> u64 {
        made(("product", x, w.0))
    }

    fn products(&mut self, x: u64, parts: &[LinearPart], accumulate: bool) {
        for part in parts {
            let made_of = (Self::product(x, part.w), part.bias.map(|bias| bias.0));
            let before = accumulate.then(|| self.get(part.y));
            self.set(part.y, made((made_of, before)));
        }
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Embed(op) => self.set(op.y, made(("embed", op.table.0))),
            Op::RmsNorm(op) => self.set(op.y, Self::norm(self.get(op.x), op.w, op.eps)),
            Op::Linear(op) => self.products(self.get(op.x), &op.parts, op.accumulate),
            Op::Rope(op) => self.set(op.x, made(("rope", self.get(op.x)))),
            Op::KvAppend(op) => {
                self.pool = made((self.pool, op.layer, self.get(op.k), self.get(op.v)));
            }
            Op::PagedAttention(op) => {
                self.set(op.o, made(("attention", self.get(op.q), op.layer, self.pool)));
            }
            Op::SwiGlu(op) => self.set(op.y, made(("swiglu", self.get(op.gate), self.get(op.up)))),
            Op::AddRows(op) => self.set(op.y, made(("add", self.get(op.x), self.get(op.y)))),
            Op::GatherRows(op) => self.set(op.y, made(("gather", self.get(op.x)))),
            other => panic!("{other:?} is in no dense program"),
        }
    }

    fn step(&mut self, program: &Program, activations: StoredActivations, step: &FusedStep) {
        match step {
            FusedStep::NormEncode { x, w, eps, gathered, to } => {
                let x = self.get(*x);
                let x = if *gathered { made(("gather", x)) } else { x };
                assert!(eps.is_finite());
                self.encode_norm(*to, x, *w);
            }
            FusedStep::Encode { x, to } => self.encode(*to, self.get(*x)),
            FusedStep::SwiGluEncode { gate, up, to } => {
                self.encode(*to, made(("swiglu", self.get(*gate), self.get(*up))));
            }
            FusedStep::Products(op) => {
                let dtype =
                    |part: &LinearPart| activations.kept_dtype(program.weight(part.w).dtype);
                let dtypes: HashSet<DType> = op.parts.iter().map(dtype).collect();
                assert_eq!(dtypes.len(), 1, "a launch has one dtype");
                self.products(self.input(op.x, op.norm), &op.parts, op.accumulate);
                if let Some(norm) = op.then {
                    let [part] = &op.parts[..] else { panic!("a row has several writers") };
                    assert_eq!(norm.to.cols, program.weight(part.w).rows, "a row in parts");
                    assert_ne!(norm.to.region, op.x.region, "it is read while it is written");
                    self.encode_norm(norm.to, self.get(part.y), norm.w);
                }
            }
            FusedStep::Glu { x, norm, gate, up, to } => {
                assert_ne!(to.region, x.region, "it is read while it is written");
                let x = self.input(*x, *norm);
                let plain = |w| made(((Self::product(x, w), None::<u32>), None::<u64>));
                self.encode(*to, made(("swiglu", plain(*gate), plain(*up))));
            }
            FusedStep::Prepare(p) => {
                self.prepare(p).into_iter().for_each(|(id, ready)| self.set(id, ready));
            }
            FusedStep::Attention { op, prepare, to } => {
                let raw = self.buffers.clone();
                if let Some(p) = prepare {
                    self.prepare(p).into_iter().for_each(|(id, ready)| self.set(id, ready));
                }
                self.encode(*to, made(("attention", self.get(op.q), op.layer, self.pool)));
                if self.leaves_raw {
                    self.buffers = raw;
                }
            }
            FusedStep::Op(at) => self.op(&program.ops[*at]),
        }
    }
}

/// Runs the ops and the steps, then both heads again.
fn check_steps(program: &Program, activations: StoredActivations, leaves_raw: bool) {
    let fused = FusedProgram::new(program, activations);
    let held = fused.buffers_in_memory(program);
    let [mut plain, mut joined] = [(); 2].map(|()| Symbols::new(program, leaves_raw));
    for from_head in [false, true] {
        let (ops, steps) = if from_head { (program.head, fused.head) } else { (0, 0) };
        program.ops[ops..].iter().for_each(|op| plain.op(op));
        for step in &fused.steps[steps..] {
            // What is not in memory is never there to be read.
            for (value, _) in joined.buffers.iter_mut().zip(&held).filter(|(_, held)| !**held) {
                *value = 0xdead;
            }
            joined.step(program, activations, step);
        }
        assert_eq!(plain.get(program.logits), joined.get(program.logits), "{:#?}", program.ops);
        assert_eq!(plain.pool, joined.pool, "{:#?}", program.ops);
    }
}

#[test]
fn steps_compute_what_the_ops_say_also_where_programs_are_shuffled() {
    let mut seed = 7u64;
    let mut dice = |sides: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % sides
    };
    for family in ["llama", "qwen2", "qwen3"] {
        for activations in [Bf16, F32] {
            let whole = golden(family);
            check_steps(&whole, activations, false);
            check_steps(&whole, activations, true);
            for _ in 0..2000 {
                let mut program = whole.clone();
                for _ in 0..1 + dice(3) {
                    let at = dice(program.ops.len());
                    let (first, last) = if at < program.head {
                        (0, program.head)
                    } else {
                        (program.head, program.ops.len())
                    };
                    let other = first + dice(last - first);
                    match dice(3) {
                        0 => program.ops.swap(at, other),
                        1 if last - first > 1 => {
                            program.ops.remove(at);
                            program.head -= usize::from(last == program.head);
                        }
                        _ => {
                            let copy = program.ops[at].clone();
                            program.ops.insert(other, copy);
                            program.head += usize::from(last == program.head);
                        }
                    }
                }
                check_steps(&program, activations, dice(2) == 1);
            }
        }
    }
}

const LIMITS: Limits = Limits {
    lanes_max: 8,
    chunk_tokens_max: 1024,
    context_tokens_max: 8192,
    pages: 4,
    retained_device: 0,
    retained_host: 0,
};

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
        assert_eq!(scratch.end - scratch.scales, (4 * 1032u64).next_multiple_of(256));
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
    let mut weight = program.weights[program.weights.len() - 1].clone();
    weight.kind = ignis_ops::WeightKind::Matrix;
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
        let found =
            [Bf16, F32].map(|one| layout(KvFormat::Bf16, one).weight_bytes(&weight).unwrap().0);
        assert_eq!(found, bytes, "{dtype} {rows} {cols}");
    }
    let kept = [Bf16, F32].map(|one| layout(KvFormat::Bf16, one).kept_dtype(&weight));
    assert_eq!(kept, [DType::Q4K; 2]);
    weight.kind = ignis_ops::WeightKind::Vector;
    weight.dtype = DType::F16;
    assert_eq!(
        [Bf16, F32].map(|one| layout(KvFormat::Bf16, one).kept_dtype(&weight)),
        [DType::F32; 2]
    );
}
