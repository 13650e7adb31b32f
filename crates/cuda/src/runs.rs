//! Whether the kernels run a program, found without a card.

use ignis_backend::{Addresses, DeviceError, StoredLayout, StoredScratch};
use ignis_ops::{Op, Program};
use ignis_types::{Bytes, Limits};

use crate::device::too_large;
use crate::memory::Resolve;
use crate::program::{Place, compile, name_of};
use crate::units::width_of;

/// Of a reservation that is not there: what a program needs is found out all the same.
struct Nowhere;

impl Resolve for Nowhere {
    fn address(&self, _: u64, _: u64) -> u64 {
        0
    }
}

/// Asks what binds a program on a card, with no card.
///
/// Errors: an op, a dtype or a shape that no kernel runs; a size that cannot be counted.
pub fn check_program(
    program: &Program,
    limits: &Limits,
    layout: StoredLayout,
) -> Result<(), DeviceError> {
    let scratch = StoredScratch::new(program, limits, layout.activations).map_err(too_large)?;
    let addresses = Addresses {
        weights: vec![0; program.weights.len()],
        buffers: vec![0; program.buffers.len()],
        sections: vec![0; program.sections.len()],
        scratch: (0, Bytes(scratch.end)),
        ..Addresses::default()
    };
    let memory = &Nowhere;
    let place = Place { program, addresses: &addresses, limits, scratch: &scratch, memory, layout };
    compile(place).map_err(|error| match error {
        // What stands apart for lack of a neighbour says less than what no kernel runs.
        DeviceError::OpUnsupported { .. } => program
            .ops
            .iter()
            .find(|op| !is_run(op))
            .map_or(error, |op| DeviceError::OpUnsupported { op: name_of(op) }),
        other => other,
    })?;
    width_of(program.kv.head_dim).map(|_| ())
}

/// Whether some kernel runs an op, by itself or joined to others.
fn is_run(op: &Op) -> bool {
    matches!(
        op,
        Op::Embed(_)
            | Op::RmsNorm(_)
            | Op::Linear(_)
            | Op::Rope(_)
            | Op::KvAppend(_)
            | Op::PagedAttention(_)
            | Op::SwiGlu(_)
            | Op::AddRows(_)
            | Op::GatherRows(_)
    )
}
