//! The named lines of the device plan.

/// One line of the VRAM plan, in the order in which it is printed.
///
/// The name is the event field (`<line>_bytes`), the metric label and the Monitor's label; it never
/// changes once released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum PlanLine {
    Weights,
    Workspace,
    LaneState,
    RetainedSlots,
    MediaEmbedding,
    CudaContext,
    VerifyRound,
    DecodeGraph,
    DrafterRound,
    Residual,
    Sampling,
    KvPool,
}

impl PlanLine {
    /// Every line, in print order.
    pub const ALL: [PlanLine; 12] = [
        PlanLine::Weights,
        PlanLine::Workspace,
        PlanLine::LaneState,
        PlanLine::RetainedSlots,
        PlanLine::MediaEmbedding,
        PlanLine::CudaContext,
        PlanLine::VerifyRound,
        PlanLine::DecodeGraph,
        PlanLine::DrafterRound,
        PlanLine::Residual,
        PlanLine::Sampling,
        PlanLine::KvPool,
    ];

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            PlanLine::Weights => "weights",
            PlanLine::Workspace => "workspace",
            PlanLine::LaneState => "lane_state",
            PlanLine::RetainedSlots => "retained_slots",
            PlanLine::MediaEmbedding => "media_embedding",
            PlanLine::CudaContext => "cuda_context",
            PlanLine::VerifyRound => "verify_round",
            PlanLine::DecodeGraph => "decode_graph",
            PlanLine::DrafterRound => "drafter_round",
            PlanLine::Residual => "residual",
            PlanLine::Sampling => "sampling",
            PlanLine::KvPool => "kv_pool",
        }
    }

    /// Position in `ALL`.
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_matches_order() {
        for (i, line) in PlanLine::ALL.iter().enumerate() {
            assert_eq!(line.index(), i);
        }
    }
}
