//! What every part of a program is written with: weights found and checked, buffers, pushes.

use ignis_formats::Checkpoint;
use ignis_ops::{
    BufferId, Linear, LinearPart, Op, ProgramBuilder, RmsNorm, RowOrder, Rows, SectionId,
    VectorMap, WeightId, WeightKind, WeightSpec,
};
use ignis_types::DType;

use crate::error::ModelError;
use crate::names::{Part, name};
use crate::shape::ModelShape;

/// State of the recurrent layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sections {
    pub(crate) recurrence: SectionId,
    pub(crate) taps: SectionId,
}

/// Writes one program. Buffers are made anew for each layer: those that never live together share
/// bytes when the program is laid out.
pub(crate) struct Writer<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) shape: &'a ModelShape,
    /// Dtype of tensors that nothing but a `config.json` speaks of.
    pub(crate) implied: Option<DType>,
    pub(crate) builder: ProgramBuilder,
    /// Residual stream `[rows, hidden]`.
    pub(crate) x: BufferId,
    pub(crate) sections: Option<Sections>,
    /// Orders of rows that all layers share.
    orders: Vec<(Part, RowOrder)>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        shape: &'a ModelShape,
        implied: Option<DType>,
        builder: ProgramBuilder,
        x: BufferId,
        sections: Option<Sections>,
    ) -> Self {
        Writer { checkpoint, shape, implied, builder, x, sections, orders: Vec::new() }
    }

    pub(crate) fn push(&mut self, op: Op) -> Result<(), ModelError> {
        Ok(self.builder.push(op)?)
    }

    pub(crate) fn buffer(&mut self, name: &'static str, width: u32) -> BufferId {
        self.builder.buffer(name, Rows::Round, width)
    }

    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self.checkpoint, Checkpoint::Gguf(_))
    }

    pub(crate) fn name(&self, part: Part, layer: u32) -> String {
        name(self.checkpoint, part, layer, self.shape.family.is_hybrid())
    }

    /// Whether the checkpoint has a tensor for `part`; never of one that is only implied.
    pub(crate) fn has(&self, part: Part, layer: u32) -> bool {
        self.checkpoint.tensor(&self.name(part, layer)).is_some()
    }

    pub(crate) fn linear(
        &mut self,
        x: BufferId,
        parts: Vec<LinearPart>,
        accumulate: bool,
    ) -> Result<(), ModelError> {
        self.push(Op::Linear(Linear { x, parts, accumulate, precise: false }))
    }

    /// The norm before a mixer or an MLP: a new buffer.
    pub(crate) fn normed(&mut self, part: Part, layer: u32) -> Result<BufferId, ModelError> {
        let (x, hidden) = (self.x, self.shape.hidden);
        let y = self.buffer("normed", hidden);
        self.norm(part, layer, hidden, x, y)?;
        Ok(y)
    }

    pub(crate) fn norm(
        &mut self,
        part: Part,
        layer: u32,
        width: u32,
        x: BufferId,
        y: BufferId,
    ) -> Result<(), ModelError> {
        let centred = self.shape.family.is_hybrid() && !self.is_gguf();
        let map = if centred { VectorMap::PlusOne } else { VectorMap::AsStored };
        let w = self.mapped(part, layer, width, map)?;
        self.push(Op::RmsNorm(RmsNorm { x, w, y, eps: self.shape.rms_eps }))
    }

    pub(crate) fn matrix(
        &mut self,
        part: Part,
        layer: u32,
        rows: u32,
        cols: u32,
        kind: WeightKind,
    ) -> Result<WeightId, ModelError> {
        let stored = [rows, cols];
        self.weight(
            part,
            layer,
            &stored,
            WeightSpec::new(String::new(), DType::F32, rows, cols, kind),
        )
    }

    /// Some rows of a stored matrix `[stored_rows, cols]`.
    pub(crate) fn picked(
        &mut self,
        part: Part,
        layer: u32,
        stored_rows: u32,
        cols: u32,
        picks: RowOrder,
    ) -> Result<WeightId, ModelError> {
        let rows = match &picks {
            RowOrder::AsStored => stored_rows,
            RowOrder::Picked(picks) => picks.len() as u32,
        };
        let spec = WeightSpec::new(String::new(), DType::F32, rows, cols, WeightKind::Matrix);
        self.weight(part, layer, &[stored_rows, cols], WeightSpec { order: picks, ..spec })
    }

    pub(crate) fn vector(
        &mut self,
        part: Part,
        layer: u32,
        width: u32,
    ) -> Result<WeightId, ModelError> {
        self.mapped(part, layer, width, VectorMap::AsStored)
    }

    pub(crate) fn mapped(
        &mut self,
        part: Part,
        layer: u32,
        width: u32,
        map: VectorMap,
    ) -> Result<WeightId, ModelError> {
        let spec = WeightSpec::new(String::new(), DType::F32, 1, width, WeightKind::Vector);
        self.weight(part, layer, &[width], WeightSpec { map, ..spec })
    }

    /// A weight that is the tensor of `part`, of shape `stored`; name and dtype are filled in.
    pub(crate) fn weight(
        &mut self,
        part: Part,
        layer: u32,
        stored: &[u32],
        spec: WeightSpec,
    ) -> Result<WeightId, ModelError> {
        let name = self.name(part, layer);
        let dtype = self.dtype(&name, stored)?;
        Ok(self.builder.weight(WeightSpec { name, dtype, ..spec }))
    }

    /// The dtype of a tensor of shape `stored`. Dimensions of 1 say nothing and may come and go.
    pub(crate) fn dtype(&self, name: &str, stored: &[u32]) -> Result<DType, ModelError> {
        if let Some(dtype) = self.implied {
            return Ok(dtype);
        }
        let tensor = self.checkpoint.require(name)?;
        let plain = |shape: &mut dyn Iterator<Item = u64>| -> Vec<u64> {
            shape.filter(|&dimension| dimension != 1).collect()
        };
        let expected = stored.iter().map(|&dimension| u64::from(dimension));
        if plain(&mut tensor.shape.iter().copied()) == plain(&mut expected.clone()) {
            return Ok(tensor.dtype);
        }
        let (tensor, found) = (name.to_owned(), tensor.shape.clone());
        Err(ModelError::TensorShape { tensor, found, expected: expected.collect() })
    }

    /// The order of `part`, made once for all layers.
    pub(crate) fn order(&mut self, part: Part, picks: impl Iterator<Item = u32>) -> RowOrder {
        if let Some((_, order)) = self.orders.iter().find(|(known, _)| *known == part) {
            return order.clone();
        }
        let order = RowOrder::picked(picks);
        self.orders.push((part, order.clone()));
        order
    }
}
