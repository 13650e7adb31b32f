//! A program made ready to run: a flat list of steps with every address resolved.

use ignis_backend::{Addresses, DeviceError, StoredScratch};
use ignis_ops::{BufferId, Op, Program, Rows, WeightId, WeightKind};
use ignis_types::Limits;

use crate::kernels::{HEAD_DIMS, format_of};
use crate::launch::{Encoded, PoolView, Queries, Target, Weight};
use crate::memory::Memory;
use crate::planes::row_bytes;

/// A matrix and the kernels that read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) format: usize,
    pub(crate) weight: Weight,
}

/// One launch, or a few that belong together. Addresses of device memory.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Angles,
    Embed { table: Matrix, y: u64 },
    RmsNorm { rows: Rows, x: u64, w: u64, y: u64, groups: u32, width: u32, eps: f32 },
    Encode { rows: Rows, x: u64, cols: u32, to: Encoded },
    Linear { rows: Rows, matrix: Matrix, x: Encoded, to: Target },
    Rope { x: u64, heads: u32, head_dim: u32 },
    KvAppend { layer: u32, k: u64, v: u64 },
    Attention { kernels: usize, queries: Queries, pool: PoolView },
    SwiGlu { rows: Rows, gate: u64, up: u64, y: u64, width: u32 },
    Add { rows: Rows, x: u64, y: u64, width: u32 },
    Gate { rows: Rows, gate: u64, y: u64, width: u32 },
    Gather { x: u64, y: u64, width: u32 },
}

/// A bound program.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) steps: Vec<Step>,
    /// First step of the head.
    pub(crate) head: usize,
    /// Ids that the embedding accepts.
    pub(crate) vocab: u32,
    /// Query heads that share a KV head, at most.
    pub(crate) group: u32,
}

/// Resolves `program` against the reservation.
///
/// Errors: an op, a dtype or a shape that no kernel runs.
pub(crate) fn compile(
    program: &Program,
    addresses: &Addresses,
    limits: &Limits,
    scratch: &StoredScratch,
    memory: &Memory,
    value_bytes: u64,
) -> Result<Compiled, DeviceError> {
    let out = Compiled { steps: vec![], head: 0, vocab: u32::MAX, group: 1 };
    let mut compiler = Compiler { program, addresses, limits, scratch, memory, value_bytes, out };
    if !program.rope.inv_freq.is_empty() {
        compiler.out.steps.push(Step::Angles);
    }
    for (at, op) in program.ops.iter().enumerate() {
        if at == program.head {
            compiler.out.head = compiler.out.steps.len();
        }
        compiler.op(op)?;
    }
    Ok(compiler.out)
}

struct Compiler<'a> {
    program: &'a Program,
    addresses: &'a Addresses,
    limits: &'a Limits,
    scratch: &'a StoredScratch,
    memory: &'a Memory,
    value_bytes: u64,
    out: Compiled,
}

/// The name of an op that this device does not run.
fn name_of(op: &Op) -> &'static str {
    match op {
        Op::CausalConv(_) => "causal_conv",
        Op::L2NormHeads(_) => "l2_norm_heads",
        Op::DeltaGates(_) => "delta_gates",
        Op::DeltaRule(_) => "delta_rule",
        Op::GatedNorm(_) => "gated_norm",
        Op::Route(_) => "route",
        Op::ExpertLinear(_) => "expert_linear",
        Op::ExpertSum(_) => "expert_sum",
        Op::AddScaled(_) => "add_scaled",
        _ => "of another device",
    }
}

impl Compiler<'_> {
    fn op(&mut self, op: &Op) -> Result<(), DeviceError> {
        let step = match op {
            Op::Embed(op) => {
                self.needs_round_rows(op.y)?;
                let rows = self.program.weight(op.table).rows;
                self.out.vocab = self.out.vocab.min(rows);
                Step::Embed { table: self.matrix(op.table)?, y: self.buffer(op.y) }
            }
            Op::RmsNorm(op) => {
                let width = self.program.weight(op.w).cols;
                let groups = self.width(op.x) / width;
                let (x, w, y) = (self.buffer(op.x), self.vector(op.w)?, self.buffer(op.y));
                Step::RmsNorm { rows: self.rows(op.x), x, w, y, groups, width, eps: op.eps }
            }
            Op::Linear(op) => return self.linear(op),
            Op::Rope(op) => {
                self.needs_round_rows(op.x)?;
                let heads = self.width(op.x) / op.head_dim;
                Step::Rope { x: self.buffer(op.x), heads, head_dim: op.head_dim }
            }
            Op::KvAppend(op) => {
                self.needs_round_rows(op.k)?;
                Step::KvAppend { layer: op.layer, k: self.buffer(op.k), v: self.buffer(op.v) }
            }
            Op::PagedAttention(op) => self.attention(op)?,
            Op::SwiGlu(op) => Step::SwiGlu {
                rows: self.rows(op.y),
                gate: self.buffer(op.gate),
                up: self.buffer(op.up),
                y: self.buffer(op.y),
                width: self.width(op.y),
            },
            Op::AddRows(op) => {
                let (x, y) = (self.buffer(op.x), self.buffer(op.y));
                Step::Add { rows: self.rows(op.y), x, y, width: self.width(op.y) }
            }
            Op::Gate(op) => {
                let (gate, y) = (self.buffer(op.gate), self.buffer(op.y));
                Step::Gate { rows: self.rows(op.y), gate, y, width: self.width(op.y) }
            }
            Op::GatherRows(op) => {
                let (x, y) = (self.buffer(op.x), self.buffer(op.y));
                Step::Gather { x, y, width: self.width(op.y) }
            }
            other => return Err(DeviceError::OpUnsupported { op: name_of(other) }),
        };
        self.out.steps.push(step);
        Ok(())
    }

    /// Encodes the input once, then a product for each part.
    fn linear(&mut self, op: &ignis_ops::Linear) -> Result<(), DeviceError> {
        let (rows, cols) = (self.rows(op.x), self.width(op.x));
        let rows_max = self.rows_max(rows);
        let pairs_bytes = 4 * rows_max * u64::from(cols);
        let sums_bytes = 4 * rows_max * u64::from(cols / 32);
        let at = self.addresses.scratch.0 + self.scratch.encoded;
        let encoded = Encoded {
            pairs: self.memory.address(at, pairs_bytes),
            sums: self.memory.address(at + pairs_bytes, sums_bytes),
            rows: 0,
        };
        let x = self.buffer(op.x);
        self.out.steps.push(Step::Encode { rows, x, cols, to: encoded });
        for part in &op.parts {
            let matrix = self.matrix(part.w)?;
            let bias = part.bias.map_or(Ok(0), |bias| self.vector(bias))?;
            let accumulate = u32::from(op.accumulate);
            let to = Target { y: self.buffer(part.y), bias, accumulate };
            self.out.steps.push(Step::Linear { rows, matrix, x: encoded, to });
        }
        Ok(())
    }

    fn attention(&mut self, op: &ignis_ops::PagedAttention) -> Result<Step, DeviceError> {
        self.needs_round_rows(op.q)?;
        let kv = self.program.kv;
        let wrong = |what, found, expected| DeviceError::ShapeUnsupported { what, found, expected };
        let dims = HEAD_DIMS.iter().position(|&dim| kv.head_dim <= dim);
        let kernels = dims.filter(|_| kv.head_dim.is_multiple_of(8) && kv.head_dim > 0);
        let kernels = kernels.ok_or_else(|| {
            wrong("head_dim", u64::from(kv.head_dim), "a multiple of 8, at most 256")
        })?;
        let heads = self.width(op.q) / kv.head_dim;
        self.out.group = self.out.group.max(heads / kv.kv_heads);
        let head_values = 64 * u64::from(kv.head_dim);
        let part_values = u64::from(kv.kv_heads) * head_values;
        let page_values = u64::from(kv.layers) * 2 * part_values;
        let layer_at = u64::from(op.layer) * 2 * part_values * self.value_bytes;
        let tables = self.scratch(self.scratch.tables);
        let pool = PoolView {
            keys: self.memory.address(self.addresses.kv_pool + layer_at, 0),
            page_values,
            values_at: part_values,
            tables,
            stride: self.limits.sequence_pages_max(),
            kv_heads: kv.kv_heads,
            head_dim: kv.head_dim,
        };
        let queries = Queries {
            q: self.buffer(op.q),
            o: self.buffer(op.o),
            positions: self.scratch(self.scratch.positions),
            lanes: self.scratch(self.scratch.lanes),
            tiles: self.scratch(self.scratch.tiles),
            heads,
            scale: op.scale * std::f32::consts::LOG2_E,
        };
        Ok(Step::Attention { kernels, queries, pool })
    }

    fn needs_round_rows(&self, id: BufferId) -> Result<(), DeviceError> {
        match self.rows(id) {
            Rows::Round => Ok(()),
            Rows::Logits => Err(DeviceError::ShapeUnsupported {
                what: "op on rows of logits that reads positions",
                found: u64::from(id.0),
                expected: "a buffer of round rows",
            }),
        }
    }

    fn rows(&self, id: BufferId) -> Rows {
        self.program.buffer(id).rows
    }

    fn rows_max(&self, rows: Rows) -> u64 {
        u64::from(match rows {
            Rows::Round => self.limits.round_rows_max(),
            Rows::Logits => self.limits.lanes_max,
        })
    }

    fn width(&self, id: BufferId) -> u32 {
        self.program.buffer(id).width
    }

    fn buffer(&self, id: BufferId) -> u64 {
        let bytes = 4 * self.rows_max(self.rows(id)) * u64::from(self.width(id));
        self.memory.address(self.addresses.buffers[id.0 as usize], bytes)
    }

    fn scratch(&self, offset: u64) -> u64 {
        self.memory.address(self.addresses.scratch.0 + offset, 0)
    }

    fn vector(&self, id: WeightId) -> Result<u64, DeviceError> {
        let weight = self.program.weight(id);
        if weight.kind != WeightKind::Vector {
            return Err(unsupported(weight));
        }
        let at = self.addresses.weights[id.0 as usize];
        Ok(self.memory.address(at, 4 * u64::from(weight.cols)))
    }

    fn matrix(&self, id: WeightId) -> Result<Matrix, DeviceError> {
        let weight = self.program.weight(id);
        let sizes = row_bytes(weight.dtype, weight.cols);
        let format = format_of(weight.dtype).zip(sizes);
        let (format, sizes) = format.ok_or_else(|| unsupported(weight))?;
        let mut at = self.addresses.weights[id.0 as usize];
        let mut plane = |row_bytes: usize| {
            let bytes = row_bytes as u64 * u64::from(weight.rows);
            let address = self.memory.address(at, bytes);
            at += bytes;
            address
        };
        let weight = Weight {
            codes: plane(sizes.codes),
            high: plane(sizes.high),
            scales: plane(sizes.scales),
            supers: plane(sizes.supers),
            rows: weight.rows,
            cols: weight.cols,
        };
        Ok(Matrix { format, weight })
    }
}

fn unsupported(weight: &ignis_ops::WeightSpec) -> DeviceError {
    DeviceError::DTypeUnsupported { name: weight.name.clone(), dtype: weight.dtype }
}
