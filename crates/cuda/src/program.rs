//! A program made ready to run: a flat list of launches with every address resolved.

use ignis_backend::{
    Addresses, DeviceError, DeviceLayout, EncodedRows, FusedProgram, FusedStep, NormAfter,
    Prepare as PrepareStep, Products, StoredActivations, StoredLayout, StoredScratch,
    encoded_image,
};
use ignis_ops::{BufferId, Op, PagedAttention, Program, Rows, WeightId, WeightKind};
use ignis_types::Limits;

use crate::abi::{ADD, Encoded, GLU, Norm, Part, PoolView, Prepare, Product, Queries, SET, Weight};
use crate::memory::Memory;
use crate::units::format_of;

/// A norm as a launch of its own. Products of `to` finish it, with what `norm` names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormStep {
    pub(crate) rows: Rows,
    pub(crate) x: u64,
    pub(crate) gain: u64,
    /// Which rows of `x`; 0: all.
    pub(crate) rows_from: u64,
    pub(crate) to: Encoded,
    pub(crate) norm: Norm,
}

/// One launch, or a few that belong together. Rows of what is encoded are those of the round.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Angles,
    Embed {
        format: usize,
        table: Weight,
        y: u64,
    },
    NormEncode(NormStep),
    Encode {
        rows: Rows,
        x: u64,
        to: Encoded,
    },
    SwiGluEncode {
        rows: Rows,
        gate: u64,
        up: u64,
        to: Encoded,
    },
    /// With the norm that follows, which a product of few rows makes too.
    Product {
        rows: Rows,
        format: usize,
        product: Product,
        then: Option<NormStep>,
    },
    Prepare(Prepare),
    /// With what makes queries and keys ready, which some rounds need as a launch of its own.
    Attention {
        queries: Queries,
        pool: PoolView,
        prepare: Option<Prepare>,
    },
    Add {
        rows: Rows,
        x: u64,
        y: u64,
        width: u32,
    },
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

/// What a program is resolved against.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) program: &'a Program,
    pub(crate) addresses: &'a Addresses,
    pub(crate) limits: &'a Limits,
    pub(crate) scratch: &'a StoredScratch,
    pub(crate) memory: &'a Memory,
    pub(crate) layout: StoredLayout,
}

/// Resolves a program against the reservation.
///
/// Errors: an op, a dtype or a shape that no kernel runs.
pub(crate) fn compile(place: Place<'_>) -> Result<Compiled, DeviceError> {
    let fused = FusedProgram::new(place.program, place.layout.activations);
    let out = Compiled { steps: vec![], head: 0, vocab: u32::MAX, group: 1 };
    let mut compiler = Compiler { place, out };
    if !place.program.rope.inv_freq.is_empty() {
        compiler.out.steps.push(Step::Angles);
    }
    for (at, step) in fused.steps.iter().enumerate() {
        if at == fused.head {
            compiler.out.head = compiler.out.steps.len();
        }
        let step = compiler.step(step)?;
        compiler.out.steps.push(step);
    }
    Ok(compiler.out)
}

struct Compiler<'a> {
    place: Place<'a>,
    out: Compiled,
}

/// The name of an op that this device does not run, or not by itself.
fn name_of(op: &Op) -> &'static str {
    match op {
        Op::RmsNorm(_) => "rms_norm",
        Op::Rope(_) => "rope",
        Op::KvAppend(_) => "kv_append",
        Op::SwiGlu(_) => "swiglu",
        Op::Gate(_) => "gate",
        Op::GatherRows(_) => "gather",
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
    fn step(&mut self, step: &FusedStep) -> Result<Step, DeviceError> {
        Ok(match step {
            FusedStep::NormEncode { x, w, eps, gathered, to } => {
                let logit_rows = self.scratch(self.place.scratch.logit_rows);
                let rows_from = if *gathered { logit_rows } else { 0 };
                let after = NormAfter { w: *w, eps: *eps, to: *to };
                Step::NormEncode(NormStep { rows_from, ..self.norm_step(*x, &after)? })
            }
            FusedStep::Encode { x, to } => {
                Step::Encode { rows: to.rows, x: self.buffer(*x), to: self.encoded(to) }
            }
            FusedStep::SwiGluEncode { gate, up, to } => Step::SwiGluEncode {
                rows: to.rows,
                gate: self.buffer(*gate),
                up: self.buffer(*up),
                to: self.encoded(to),
            },
            FusedStep::Products(products) => self.products(products)?,
            FusedStep::Glu { x, norm, gate, up, to } => {
                let (format, gate) = self.matrix(*gate)?;
                let (_, up) = self.matrix(*up)?;
                let part = |w| Part { w, ..Part::default() };
                let product = Product {
                    parts: [part(gate), part(up), Part::default()],
                    count: 2,
                    mode: GLU,
                    x: self.encoded(x),
                    norm: self.norm(*norm, x),
                    to: self.encoded(to),
                    gain: 0,
                    squares: 0,
                };
                Step::Product { rows: x.rows, format, product, then: None }
            }
            FusedStep::Prepare(step) => Step::Prepare(self.prepare(step)?),
            FusedStep::Attention { op, prepare, to } => {
                let prepare = prepare.as_ref().map(|step| self.prepare(step)).transpose()?;
                self.attention(op, prepare, Some(to))?
            }
            FusedStep::Op(at) => self.op(&self.place.program.ops[*at])?,
        })
    }

    /// An op that nothing was joined to; of those that dense programs always join there is no
    /// kernel by itself.
    fn op(&mut self, op: &Op) -> Result<Step, DeviceError> {
        Ok(match op {
            Op::Embed(op) => {
                self.needs_round_rows(op.y)?;
                let (format, table) = self.matrix(op.table)?;
                self.out.vocab = self.out.vocab.min(table.rows);
                Step::Embed { format, table, y: self.buffer(op.y) }
            }
            Op::PagedAttention(op) => self.attention(op, None, None)?,
            Op::AddRows(op) => {
                let (x, y) = (self.buffer(op.x), self.buffer(op.y));
                Step::Add { rows: self.rows(op.y), x, y, width: self.width(op.y) }
            }
            other => return Err(DeviceError::OpUnsupported { op: name_of(other) }),
        })
    }

    fn products(&mut self, products: &Products) -> Result<Step, DeviceError> {
        let mut parts = [Part::default(); 3];
        let mut format = 0;
        for (part, to) in products.parts.iter().zip(&mut parts) {
            let w;
            (format, w) = self.matrix(part.w)?;
            let bias = part.bias.map_or(Ok(0), |bias| self.vector(bias))?;
            *to = Part { w, y: self.buffer(part.y), bias };
        }
        let written = products.parts[0].y;
        let then = products.then.as_ref().map(|norm| self.norm_step(written, norm)).transpose()?;
        let product = Product {
            parts,
            count: products.parts.len() as u32,
            mode: if products.accumulate { ADD } else { SET },
            x: self.encoded(&products.x),
            norm: self.norm(products.norm, &products.x),
            to: then.map_or(Encoded::default(), |step| step.to),
            gain: then.map_or(0, |step| step.gain),
            squares: then.map_or(0, |step| step.norm.squares),
        };
        Ok(Step::Product { rows: products.x.rows, format, product, then })
    }

    /// A norm of all rows of `x`.
    fn norm_step(&self, x: BufferId, after: &NormAfter) -> Result<NormStep, DeviceError> {
        let NormAfter { w, eps, to } = after;
        Ok(NormStep {
            rows: to.rows,
            x: self.buffer(x),
            gain: self.vector(*w)?,
            rows_from: 0,
            to: self.encoded(to),
            norm: self.norm(Some(*eps), to),
        })
    }

    /// What products of `x` finish its norm with, where it has one.
    fn norm(&self, eps: Option<f32>, x: &EncodedRows) -> Norm {
        let StoredScratch { squares, scales, .. } = *self.place.scratch;
        eps.map_or(Norm::default(), |eps| Norm {
            squares: self.scratch(squares),
            scales: self.scratch(scales),
            eps,
            cols: x.cols,
        })
    }

    fn prepare(&mut self, step: &PrepareStep) -> Result<Prepare, DeviceError> {
        self.needs_round_rows(step.q)?;
        self.needs_round_rows(step.k)?;
        let scratch = self.place.scratch;
        let kv = self.place.program.kv;
        let pool = self.pool(0);
        let norm = |w: Option<WeightId>| w.map_or(Ok(0), |w| self.vector(w));
        Ok(Prepare {
            q: self.buffer(step.q),
            k: self.buffer(step.k),
            v: self.buffer(step.v),
            q_norm: norm(step.q_norm)?,
            k_norm: norm(step.k_norm)?,
            eps: step.eps,
            cos: self.scratch(scratch.cos),
            sin: self.scratch(scratch.sin),
            half: self.place.program.rope.inv_freq.len() as u32,
            heads: self.width(step.q) / kv.head_dim,
            kv_heads: kv.kv_heads,
            head_dim: kv.head_dim,
            pool: pool.keys,
            page_values: pool.page_values,
            layer_at: u64::from(step.layer) * 2 * pool.values_at,
            values_at: pool.values_at,
            positions: self.scratch(scratch.positions),
            lanes: self.scratch(scratch.lanes),
            tables: pool.tables,
            stride: pool.stride,
        })
    }

    /// The pool, from the keys of `layer` in its first page on.
    fn pool(&self, layer: u32) -> PoolView {
        let kv = self.place.program.kv;
        let values_at = 64 * u64::from(kv.head_dim) * u64::from(kv.kv_heads);
        let value_bytes = self.place.layout.kv_format.dtype().block_bytes();
        let layer_at = u64::from(layer) * 2 * values_at * value_bytes;
        PoolView {
            keys: self.place.memory.address(self.place.addresses.kv_pool + layer_at, 0),
            page_values: u64::from(kv.layers) * 2 * values_at,
            values_at,
            tables: self.scratch(self.place.scratch.tables),
            stride: self.place.limits.sequence_pages_max(),
            kv_heads: kv.kv_heads,
            head_dim: kv.head_dim,
        }
    }

    fn attention(
        &mut self,
        op: &PagedAttention,
        prepare: Option<Prepare>,
        to: Option<&EncodedRows>,
    ) -> Result<Step, DeviceError> {
        self.needs_round_rows(op.q)?;
        let (kv, scratch) = (self.place.program.kv, self.place.scratch);
        let heads = self.width(op.q) / kv.head_dim;
        self.out.group = self.out.group.max(heads / kv.kv_heads);
        let queries = Queries {
            q: self.buffer(op.q),
            o: if to.is_some() { 0 } else { self.buffer(op.o) },
            positions: self.scratch(scratch.positions),
            lanes: self.scratch(scratch.lanes),
            tiles: self.scratch(scratch.tiles),
            heads,
            scale: op.scale * std::f32::consts::LOG2_E,
            to: to.map_or(Encoded::default(), |to| self.encoded(to)),
            arrived: self.scratch(scratch.arrived),
            partials: self.scratch(scratch.partials),
        };
        Ok(Step::Attention { queries, pool: self.pool(op.layer), prepare })
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
        self.place.program.buffer(id).rows
    }

    fn width(&self, id: BufferId) -> u32 {
        self.place.program.buffer(id).width
    }

    fn buffer(&self, id: BufferId) -> u64 {
        let rows = match self.rows(id) {
            Rows::Round => self.place.limits.round_rows_max(),
            Rows::Logits => self.place.limits.lanes_max,
        };
        let bytes = 4 * u64::from(rows) * u64::from(self.width(id));
        self.place.memory.address(self.place.addresses.buffers[id.0 as usize], bytes)
    }

    fn scratch(&self, offset: u64) -> u64 {
        self.place.memory.address(self.place.addresses.scratch.0 + offset, 0)
    }

    fn encoded(&self, rows: &EncodedRows) -> Encoded {
        let Place { limits, scratch, memory, layout, .. } = self.place;
        let image = encoded_image(rows, limits).expect("the scratch was laid out with it").0;
        let at = self.place.addresses.scratch.0 + scratch.encoded[rows.region];
        let lo = match layout.activations {
            StoredActivations::Bf16 => 0,
            StoredActivations::F32 => memory.address(at + image, image),
        };
        Encoded { hi: memory.address(at, image), lo, rows: 0, cols: rows.cols }
    }

    fn vector(&self, id: WeightId) -> Result<u64, DeviceError> {
        let weight = self.place.program.weight(id);
        if weight.kind != WeightKind::Vector {
            return Err(unsupported(weight));
        }
        let at = self.place.addresses.weights[id.0 as usize];
        Ok(self.place.memory.address(at, 4 * u64::from(weight.cols)))
    }

    /// A matrix and its format.
    fn matrix(&self, id: WeightId) -> Result<(usize, Weight), DeviceError> {
        let weight = self.place.program.weight(id);
        let kept = self.place.layout.kept_dtype(weight);
        let format = format_of(kept).ok_or_else(|| unsupported(weight))?;
        let bytes = self.place.layout.weight_bytes(weight).expect("it was laid out with it").0;
        let at = self.place.addresses.weights[id.0 as usize];
        let blocks = self.place.memory.address(at, bytes);
        Ok((format, Weight { blocks, rows: weight.rows, cols: weight.cols }))
    }
}

fn unsupported(weight: &ignis_ops::WeightSpec) -> DeviceError {
    DeviceError::DTypeUnsupported { name: weight.name.clone(), dtype: weight.dtype }
}
