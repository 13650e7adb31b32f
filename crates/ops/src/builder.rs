//! Writing a program, checked op by op.

use crate::RopeTable;
use crate::error::{ShapeError, equal};
use crate::program::{BufferId, BufferSpec, KvShape, Op, Program, Rows, WeightId};
use crate::section::{SectionId, SectionSpec};
use crate::weight::WeightSpec;

/// Collects a program op by op and checks every shape on the way.
#[derive(Debug)]
pub struct ProgramBuilder {
    weights: Vec<WeightSpec>,
    buffers: Vec<BufferSpec>,
    sections: Vec<SectionSpec>,
    ops: Vec<Op>,
    pub(crate) kv: KvShape,
    pub(crate) rope: RopeTable,
    head: Option<usize>,
}

impl ProgramBuilder {
    /// An empty program over a pool of `kv` and the frequencies of `rope`.
    pub fn new(kv: KvShape, rope: RopeTable) -> Self {
        let (weights, buffers, sections, ops) = (vec![], vec![], vec![], vec![]);
        ProgramBuilder { weights, buffers, sections, ops, kv, rope, head: None }
    }

    /// Declares a weight.
    pub fn weight(&mut self, spec: WeightSpec) -> WeightId {
        self.weights.push(spec);
        WeightId(self.weights.len() as u32 - 1)
    }

    /// Declares a buffer; it lives from its first to its last op.
    pub fn buffer(&mut self, name: &'static str, rows: Rows, width: u32) -> BufferId {
        self.buffers.push(BufferSpec { name, rows, width });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Declares state of a sequence.
    pub fn section(&mut self, spec: SectionSpec) -> SectionId {
        self.sections.push(spec);
        SectionId(self.sections.len() as u32 - 1)
    }

    /// Appends an op, after checking it against its contract.
    pub fn push(&mut self, op: Op) -> Result<(), ShapeError> {
        self.check(&op)?;
        self.ops.push(op);
        Ok(())
    }

    /// Everything pushed from here on belongs to the head.
    pub fn begin_head(&mut self) {
        self.head = Some(self.ops.len());
    }

    /// The program, whose logits are in `logits`.
    pub fn finish(self, logits: BufferId) -> Program {
        let vocab = self.buffers[logits.0 as usize].width;
        Program {
            head: self.head.expect("every program has a head"),
            weights: self.weights,
            buffers: self.buffers,
            sections: self.sections,
            ops: self.ops,
            logits,
            vocab,
            kv: self.kv,
            rope: self.rope,
        }
    }

    pub(crate) fn width(&self, id: BufferId) -> u64 {
        u64::from(self.buffers[id.0 as usize].width)
    }

    pub(crate) fn spec(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }

    /// Checks that a section has `elements` values for `layer`.
    pub(crate) fn section_holds(
        &self,
        op: &'static str,
        id: SectionId,
        layer: u32,
        elements: u64,
    ) -> Result<(), ShapeError> {
        let section = &self.sections[id.0 as usize];
        if layer >= section.layers {
            let (found, expected) = (u64::from(layer), u64::from(section.layers));
            return Err(ShapeError::Mismatch { op, what: "layer of the section", found, expected });
        }
        equal(op, "elements of the section", u64::from(section.elements), elements)
    }
}
