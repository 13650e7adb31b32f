//! A program run over symbols, as its ops say and as a GPU load joins them.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use ignis_backend::{EncodedRows, FusedProgram, FusedStep, Prepare, StoredActivations};
use ignis_ops::{BufferId, LinearPart, Op, Program, WeightId};
use ignis_types::DType;

/// Values that only tell where they came from.
struct Symbols {
    buffers: Vec<u64>,
    /// What was encoded last, and as which rows.
    regions: [(u64, Option<EncodedRows>); 2],
    /// The row whose squares, or whose scale, were kept last, and with which `eps`.
    squares: (u64, f32),
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
        Symbols { buffers, regions: [(0, None); 2], squares: (0, 0.0), leaves_raw, pool: 0 }
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
    fn encode_norm(&mut self, to: EncodedRows, x: u64, w: WeightId, eps: f32) {
        assert_eq!(to.region, 0, "squares are of one region");
        self.encode(to, Self::gained(x, w));
        self.squares = (x, eps);
    }

    /// What products read, their norm finished.
    fn input(&self, x: EncodedRows, norm: Option<f32>) -> u64 {
        let (value, rows) = self.regions[x.region];
        assert_eq!(rows, Some(x), "other rows were encoded");
        let (squares, kept_eps) = self.squares;
        assert!(norm.is_none_or(|eps| eps == kept_eps), "few rows and many have one norm");
        norm.map_or(value, |eps| Self::scaled(value, squares, eps))
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
                self.encode_norm(*to, x, *w, *eps);
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
                    self.encode_norm(norm.to, self.get(part.y), norm.w, norm.eps);
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

/// Runs the ops and the steps, then both heads again. Where it `leaves_raw`, attention makes ready
/// what it reads without writing it to memory, as in decode rounds.
pub(crate) fn check_steps(program: &Program, activations: StoredActivations, leaves_raw: bool) {
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
