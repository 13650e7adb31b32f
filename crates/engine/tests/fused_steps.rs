//! How a GPU load joins the ops of real programs, and that it computes what they say.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use ignis_backend::{
    DeviceLayout, FusedProgram, FusedStep, GRAPH_LANES_MAX, KvFormat, StoredActivations,
    StoredLayout, StoredScratch,
};
use ignis_engine::lay_out;
use ignis_formats::Checkpoint;
use ignis_models::Model;
use ignis_ops::{BufferId, Op, Program, WeightId};
use ignis_types::{DType, Limits, PlanLine};

use StoredActivations::{Bf16, F32};

fn golden(family: &str) -> Program {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(family);
    Model::of(&Checkpoint::open(&folder).unwrap()).unwrap().program
}

/// One word a step, and what it encodes for the second region with a `'`.
fn words(program: &Program, activations: StoredActivations) -> (Vec<String>, usize) {
    let fused = FusedProgram::new(program, activations);
    let word = |step: &FusedStep| match step {
        FusedStep::NormEncode { gathered: false, .. } => "norm".into(),
        FusedStep::NormEncode { gathered: true, .. } => "last-norm".into(),
        FusedStep::Encode { .. } => "encode".into(),
        FusedStep::SwiGluEncode { .. } => "swiglu".into(),
        FusedStep::Products(products) => {
            let add = if products.accumulate { "+" } else { "" };
            format!("product{}{add}{}", products.parts.len(), "'".repeat(products.x.region))
        }
        FusedStep::Glu { to, .. } => format!("glu{}", "'".repeat(to.region)),
        FusedStep::Prepare(step) => {
            let norms = u32::from(step.q_norm.is_some()) + u32::from(step.k_norm.is_some());
            format!("prepare{norms}")
        }
        FusedStep::Attention { .. } => "attention".into(),
        FusedStep::Op(at) => match &program.ops[*at] {
            Op::Embed(_) => "embed".into(),
            other => format!("{other:?}").split('(').next().unwrap().to_lowercase(),
        },
    };
    (fused.steps.iter().map(word).collect(), fused.head)
}

fn list(layer: &[&str], layers: usize) -> Vec<String> {
    let body = std::iter::repeat_n(layer, layers).flatten();
    let all = ["embed"].iter().chain(body).chain(&["last-norm", "product1"]);
    all.map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_dense_layer_is_seven_launches() {
    for (family, prepare) in [("llama", "prepare0"), ("qwen2", "prepare0"), ("qwen3", "prepare2")] {
        let program = golden(family);
        let attention = ["norm", "product3", prepare, "attention", "product1+"];
        let layer = [&attention[..], &["norm", "glu'", "product1+'"]].concat();
        let expected = list(&layer, 3);
        assert_eq!(words(&program, Bf16), (expected.clone(), expected.len() - 2), "{family}");
        // Pairs have no gated product: both products, then their input of the next one.
        let layer = [&attention[..], &["norm", "product2", "swiglu", "product1+"]].concat();
        let expected = list(&layer, 3);
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
    let attention = ["norm", "product2", "product1", "prepare0", "attention", "product1+"];
    let mlp = ["norm", "product1", "product1", "swiglu", "product1+"];
    assert_eq!(words(&program, Bf16).0, list(&[&attention[..], &mlp].concat(), 3));
}

#[test]
fn matrices_of_four_bytes_have_no_gated_product() {
    let mut program = golden("llama");
    program.weights.iter_mut().for_each(|weight| weight.dtype = DType::F32);
    let layer = ["norm", "product3", "prepare0", "attention", "product1+"];
    let layer = [&layer[..], &["norm", "product2", "swiglu", "product1+"]].concat();
    assert_eq!(words(&program, Bf16).0, list(&layer, 3));
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
    regions: [u64; 2],
    /// What was stored in the pool, all of it so far.
    pool: u64,
}

fn made(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Symbols {
    fn new(program: &Program) -> Symbols {
        let buffers = (0..program.buffers.len()).map(|i| made(("nothing", i))).collect();
        Symbols { buffers, regions: [0; 2], pool: 0 }
    }

    fn get(&self, id: BufferId) -> u64 {
        self.buffers[id.0 as usize]
    }

    fn set(&mut self, id: BufferId, value: u64) {
        self.buffers[id.0 as usize] = value;
    }

    fn norm(x: u64, w: WeightId, eps: f32) -> u64 {
        made(("norm", x, w.0, eps.to_bits()))
    }

    fn product(x: u64, w: WeightId) -> u64 {
        made(("product", x, w.0))
    }

    fn products(&mut self, x: u64, parts: &[ignis_ops::LinearPart], accumulate: bool) {
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

    fn step(&mut self, program: &Program, step: &FusedStep) {
        match step {
            FusedStep::NormEncode { x, w, eps, gathered, to } => {
                let x = self.get(*x);
                let x = if *gathered { made(("gather", x)) } else { x };
                self.regions[to.region] = Self::norm(x, *w, *eps);
            }
            FusedStep::Encode { x, to } => self.regions[to.region] = self.get(*x),
            FusedStep::SwiGluEncode { gate, up, to } => {
                self.regions[to.region] = made(("swiglu", self.get(*gate), self.get(*up)));
            }
            FusedStep::Products(op) => {
                let dtypes: HashMap<DType, ()> =
                    op.parts.iter().map(|part| (program.weight(part.w).dtype, ())).collect();
                assert_eq!(dtypes.len(), 1, "a launch has one dtype");
                self.products(self.regions[op.x.region], &op.parts, op.accumulate);
            }
            FusedStep::Glu { x, gate, up, to } => {
                let x = self.regions[x.region];
                let plain = |w| made(((Self::product(x, w), None::<u32>), None::<u64>));
                self.regions[to.region] = made(("swiglu", plain(*gate), plain(*up)));
            }
            FusedStep::Prepare(p) => {
                for (id, norm) in [(p.q, p.q_norm), (p.k, p.k_norm)] {
                    let x = self.get(id);
                    let x = norm.map_or(x, |w| Self::norm(x, w, p.eps));
                    self.set(id, made(("rope", x)));
                }
                self.pool = made((self.pool, p.layer, self.get(p.k), self.get(p.v)));
            }
            FusedStep::Attention { op, to } => {
                self.regions[to.region] = made(("attention", self.get(op.q), op.layer, self.pool));
            }
            FusedStep::Op(at) => self.op(&program.ops[*at]),
        }
    }
}

/// Runs the ops and the steps, then both heads again.
fn check_steps(program: &Program, activations: StoredActivations) {
    let fused = FusedProgram::new(program, activations);
    let held = fused.buffers_in_memory(program);
    let (mut plain, mut joined) = (Symbols::new(program), Symbols::new(program));
    for from_head in [false, true] {
        let (ops, steps) = if from_head { (program.head, fused.head) } else { (0, 0) };
        program.ops[ops..].iter().for_each(|op| plain.op(op));
        for step in &fused.steps[steps..] {
            // What is not in memory is never there to be read.
            for (value, _) in joined.buffers.iter_mut().zip(&held).filter(|(_, held)| !**held) {
                *value = 0xdead;
            }
            joined.step(program, step);
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
            check_steps(&whole, activations);
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
                check_steps(&program, activations);
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
        let layout = StoredLayout { kv_format: KvFormat::Bf16, activations, tables_on_host: false };
        let mapped = lay_out(&program, &LIMITS, &layout).unwrap();
        let scratch = StoredScratch::new(&program, &LIMITS, activations).unwrap();
        assert_eq!(mapped.addresses().scratch.1.0, scratch.end, "{activations:?}");
        // 1,032 rows padded to 1,152; 256 columns are the widest, of q and of the MLP.
        let image = 1152 * 256 * 2;
        let regions =
            [scratch.encoded[1] - scratch.encoded[0], scratch.tokens - scratch.encoded[1]];
        let expected = if activations == Bf16 { [image, image] } else { [2 * image, 0] };
        assert_eq!(regions, expected, "{activations:?}");
        let lines = |line| mapped.layout.line_bytes(line).0;
        assert_eq!(lines(PlanLine::DecodeGraph), layout.graph_bytes(&program, &LIMITS).unwrap().0);
        assert!(lines(PlanLine::DecodeGraph) > 0);
        let name = format!("cuda 2 {} BF16", activations.name());
        assert_eq!(layout.state_format(), name);
        // x, q, k and v at once; normed rows are never in memory, nor attended ones.
        let widest = 4 * 1032 * (128 + 256 + 128 + 128);
        assert_eq!(lines(PlanLine::Workspace) - scratch.end, widest, "{activations:?}");
    }
}

#[test]
fn recorded_rounds_are_counted_up_to_their_widest() {
    let program = golden("llama");
    let layout =
        StoredLayout { kv_format: KvFormat::Bf16, activations: Bf16, tables_on_host: false };
    let bytes =
        |lanes_max| layout.graph_bytes(&program, &Limits { lanes_max, ..LIMITS }).unwrap().0;
    assert!(bytes(1) < bytes(2));
    assert_eq!(bytes(GRAPH_LANES_MAX), bytes(GRAPH_LANES_MAX + 1));
}

#[test]
fn matrices_are_planned_in_whole_groups() {
    let program = golden("llama");
    let layout =
        StoredLayout { kv_format: KvFormat::Bf16, activations: Bf16, tables_on_host: false };
    let mut weight = program.weights[program.weights.len() - 1].clone();
    weight.kind = ignis_ops::WeightKind::Matrix;
    for (dtype, rows, cols, bytes) in [
        (DType::BF16, 128, 64, 2 * 128 * 64),
        (DType::BF16, 129, 65, 2 * 256 * 128),
        (DType::Q8_0, 1, 96, 128 * 4 * 34),
        (DType::Q4K, 33, 256, 128 * 144),
    ] {
        (weight.dtype, weight.rows, weight.cols) = (dtype, rows, cols);
        assert_eq!(layout.weight_bytes(&weight).unwrap().0, bytes, "{dtype} {rows} {cols}");
    }
}
