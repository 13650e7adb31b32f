//! Joining the ops of a program to the steps of a GPU load.
//!
//! Key properties: ops are only joined where they stand side by side and nothing else reads what
//! lay between them; what no rule joins stays an op of its own, with its input encoded before a
//! product. A device may lack a kernel for such an op, and says so when it is bound.

use ignis_ops::{
    BufferId, GatherRows, Linear, LinearPart, Op, PagedAttention, Program, RmsNorm, Rows, SwiGlu,
    WeightId,
};
use ignis_types::DType;

use crate::fused::{
    EncodedRows, FusedProgram, FusedStep, NormAfter, PARTS_MAX, Prepare, Products,
    StoredActivations,
};
use crate::stored::is_long;

/// Widest row whose norm is encoded at once: what `held` of `rows.cu` has room for.
const NORM_WIDTH_MAX: u32 = 16_384;

impl FusedProgram {
    /// Joins what can be joined.
    pub fn new(program: &Program, activations: StoredActivations) -> FusedProgram {
        let mut fuser = Fuser { program, activations, steps: vec![], section: 0 };
        let head = program.head;
        fuser.run(0, head);
        let first = fuser.steps.len();
        fuser.run(head, program.ops.len());
        FusedProgram { steps: fuser.steps, head: first }
    }
}

struct Fuser<'a> {
    program: &'a Program,
    activations: StoredActivations,
    steps: Vec<FusedStep>,
    /// First step of the ops that are joined now.
    section: usize,
}

/// Rows that products read, and the `eps` of the norm that they finish.
#[derive(Clone, Copy)]
struct Input {
    x: EncodedRows,
    norm: Option<f32>,
}

impl Fuser<'_> {
    /// Steps of the ops `from..to`, which are joined among themselves only.
    fn run(&mut self, from: usize, to: usize) {
        self.section = self.steps.len();
        let mut at = from;
        while at < to {
            at += self.one(at, to);
        }
    }

    /// The step or steps that start with op `at`; how many ops they are.
    fn one(&mut self, at: usize, end: usize) -> usize {
        let program = self.program;
        match &program.ops[at..end] {
            [Op::GatherRows(gather), Op::RmsNorm(norm), Op::Linear(linear), ..]
                if self.gathers(gather, norm, linear, at + 2) =>
            {
                let to = self.encoded(linear, 0);
                let (x, w, eps) = (gather.x, norm.w, norm.eps);
                self.steps.push(FusedStep::NormEncode { x, w, eps, gathered: true, to });
                2 + self.linear(linear, Input { x: to, norm: Some(eps) }, at + 2, end)
            }
            [Op::RmsNorm(norm), Op::Linear(linear), ..]
                if self.is_of_rows(norm) && self.feeds(norm.y, linear, at + 1) =>
            {
                let to = self.encoded(linear, 0);
                let (x, w, eps) = (norm.x, norm.w, norm.eps);
                match self.writer(x, to) {
                    Some(products) => products.then = Some(NormAfter { w, eps, to }),
                    None => {
                        self.steps.push(FusedStep::NormEncode { x, w, eps, gathered: false, to });
                    }
                }
                1 + self.linear(linear, Input { x: to, norm: Some(eps) }, at + 1, end)
            }
            [Op::SwiGlu(op), Op::Linear(linear), ..] if self.feeds(op.y, linear, at + 1) => {
                let to = self.encoded(linear, 1);
                self.steps.push(FusedStep::SwiGluEncode { gate: op.gate, up: op.up, to });
                1 + self.linear(linear, Input { x: to, norm: None }, at + 1, end)
            }
            [Op::PagedAttention(op), Op::Linear(linear), ..]
                if self.feeds(op.o, linear, at + 1) =>
            {
                let to = self.encoded(linear, 1);
                let prepare = self.take_prepare(op, at);
                self.steps.push(FusedStep::Attention { op: op.clone(), prepare, to });
                1 + self.linear(linear, Input { x: to, norm: None }, at + 1, end)
            }
            [Op::Linear(linear), ..] => {
                let to = self.encoded(linear, 0);
                self.steps.push(FusedStep::Encode { x: linear.x, to });
                self.linear(linear, Input { x: to, norm: None }, at, end)
            }
            ops => match prepare(program, ops) {
                Some((step, count)) => {
                    self.steps.push(FusedStep::Prepare(step));
                    count
                }
                None => {
                    self.steps.push(FusedStep::Op(at));
                    1
                }
            },
        }
    }

    /// The products of op `at`, whose input is encoded, and the MLP's second product where the
    /// first one can write its input; how many ops that are.
    fn linear(&mut self, linear: &Linear, input: Input, at: usize, end: usize) -> usize {
        if let [Op::SwiGlu(glu), Op::Linear(next), ..] = &self.program.ops[at + 1..end]
            && let Some((gate, up)) = self.gated(linear, glu, next, at + 2)
        {
            let Input { x, norm } = input;
            let to = self.encoded(next, 1 - x.region);
            self.steps.push(FusedStep::Glu { x, norm, gate, up, to });
            self.products(next, Input { x: to, norm: None });
            return 3;
        }
        self.products(linear, input);
        1
    }

    /// Parts of one kept dtype together, in the order in which dtypes first come.
    fn products(&mut self, linear: &Linear, Input { x, norm }: Input) {
        let dtype = |part: &LinearPart| self.kept_dtype(part.w);
        let mut groups: Vec<Vec<LinearPart>> = vec![];
        for part in &linear.parts {
            let fits = |group: &&mut Vec<LinearPart>| {
                group.len() < PARTS_MAX && dtype(&group[0]) == dtype(part)
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(part.clone()),
                None => groups.push(vec![part.clone()]),
            }
        }
        let accumulate = linear.accumulate;
        let step = |parts| Products { x, norm, parts, accumulate, then: None };
        self.steps.extend(groups.into_iter().map(|parts| FusedStep::Products(step(parts))));
    }

    /// The step right before, where it can make the norm `to` of buffer `x`: products that write
    /// whole rows of it and do not read what they would overwrite.
    fn writer(&mut self, x: BufferId, to: EncodedRows) -> Option<&mut Products> {
        let Some(FusedStep::Products(products)) = self.steps[self.section..].last_mut() else {
            return None;
        };
        let [part] = &products.parts[..] else { return None };
        let whole = self.program.weight(part.w).rows == self.program.buffer(x).width;
        let of_round = products.x.rows == Rows::Round && to.rows == Rows::Round;
        let apart = products.x.region != to.region;
        (part.y == x && whole && of_round && apart).then_some(products)
    }

    /// Takes back the step right before `op`, op `at`, where it makes ready what only `op` reads.
    fn take_prepare(&mut self, op: &PagedAttention, at: usize) -> Option<Prepare> {
        let Some(&FusedStep::Prepare(step)) = self.steps[self.section..].last() else {
            return None;
        };
        let is_its = step.q == op.q && step.layer == op.layer;
        let alone = [step.q, step.k].iter().all(|&id| is_dead(self.program, id, at));
        if !is_its || !alone {
            return None;
        }
        self.steps.pop();
        Some(step)
    }

    /// The input of `linear`, in a region.
    fn encoded(&self, linear: &Linear, region: usize) -> EncodedRows {
        let spec = self.program.buffer(linear.x);
        EncodedRows { region, rows: spec.rows, cols: spec.width }
    }

    fn kept_dtype(&self, id: WeightId) -> DType {
        self.activations.kept_dtype(self.program.weight(id).dtype)
    }

    /// Whether the norm is of whole rows.
    fn is_of_rows(&self, norm: &RmsNorm) -> bool {
        let width = self.program.buffer(norm.x).width;
        self.program.weight(norm.w).cols == width && width <= NORM_WIDTH_MAX
    }

    /// Whether `id` is the input of `linear`, op `at`, and nothing else reads it.
    fn feeds(&self, id: BufferId, linear: &Linear, at: usize) -> bool {
        id == linear.x && is_dead(self.program, id, at)
    }

    fn gathers(&self, gather: &GatherRows, norm: &RmsNorm, linear: &Linear, at: usize) -> bool {
        gather.y == norm.x
            && self.is_of_rows(norm)
            && is_dead(self.program, gather.y, at)
            && self.feeds(norm.y, linear, at)
    }

    /// Gate and up of an MLP whose two products, gated, are the input of `next`, op `at`.
    fn gated(
        &self,
        linear: &Linear,
        glu: &SwiGlu,
        next: &Linear,
        at: usize,
    ) -> Option<(WeightId, WeightId)> {
        let [a, b] = &linear.parts[..] else { return None };
        let (gate, up) = if a.y == glu.gate { (a, b) } else { (b, a) };
        let specs = [gate, up].map(|part| self.program.weight(part.w));
        let is_even =
            self.kept_dtype(gate.w) == self.kept_dtype(up.w) && specs[0].rows == specs[1].rows;
        let is_plain = !linear.accumulate && gate.bias.is_none() && up.bias.is_none();
        let is_theirs = gate.y == glu.gate && up.y == glu.up;
        let dead = [gate.y, up.y].iter().all(|&id| is_dead(self.program, id, at));
        // Of pairs and of long rows there is no gated product.
        let wanted = self.activations == StoredActivations::Bf16 && !is_long(specs[0].cols);
        (wanted && is_even && is_plain && is_theirs && dead && self.feeds(glu.y, next, at))
            .then_some((gate.w, up.w))
    }
}

/// `[norm q] [norm k] rope q, rope k, append k v`, in any order that leaves each its own; how many
/// ops.
fn prepare(program: &Program, ops: &[Op]) -> Option<(Prepare, usize)> {
    let before = ops.iter().position(|op| !matches!(op, Op::RmsNorm(_) | Op::Rope(_)))?;
    let Op::KvAppend(append) = &ops[before] else { return None };
    let head_dim = program.kv.head_dim;
    // Of each buffer: its norm, and whether it was rotated.
    let mut found: Vec<(BufferId, Option<&RmsNorm>, bool)> = vec![];
    for op in &ops[..before] {
        let id = match op {
            Op::RmsNorm(norm) => norm.x,
            Op::Rope(rope) => rope.x,
            _ => return None,
        };
        let at = found.iter().position(|one| one.0 == id).unwrap_or_else(|| {
            found.push((id, None, false));
            found.len() - 1
        });
        let one = &mut found[at];
        match op {
            Op::RmsNorm(norm) => {
                let is_of_heads = program.weight(norm.w).cols == head_dim;
                if norm.y != norm.x || !is_of_heads || one.1.is_some() || one.2 {
                    return None;
                }
                one.1 = Some(norm);
            }
            Op::Rope(rope) if rope.head_dim == head_dim && !one.2 => one.2 = true,
            _ => return None,
        }
    }
    let [a, b] = found[..] else { return None };
    let (q, k) = if b.0 == append.k { (a, b) } else { (b, a) };
    let is_whole = k.0 == append.k && q.2 && k.2 && q.0 != append.v && k.0 != append.v;
    let eps = [q.1, k.1].map(|norm| norm.map(|norm| norm.eps));
    let one_eps = eps[0].zip(eps[1]).is_none_or(|(q, k)| q == k);
    if !is_whole || !one_eps {
        return None;
    }
    let norm = |one: Option<&RmsNorm>| one.map(|norm| norm.w);
    let step = Prepare {
        q: q.0,
        k: k.0,
        v: append.v,
        q_norm: norm(q.1),
        k_norm: norm(k.1),
        eps: eps[0].or(eps[1]).unwrap_or(0.0),
        layer: append.layer,
    };
    Some((step, before + 1))
}

/// Whether nothing reads what `id` holds after op `at`. The head may run again after the last op.
fn is_dead(program: &Program, id: BufferId, at: usize) -> bool {
    let again = &program.ops[program.head..];
    let next = program.ops[at + 1..].iter().chain(again).find(|op| op.touches(id));
    id != program.logits && next.is_none_or(|op| op.overwrites(id))
}
