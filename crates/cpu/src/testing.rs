//! What the unit tests of this crate share.

use crate::simd::Isa;

/// Instruction sets of this machine.
pub(crate) fn isas() -> Vec<Isa> {
    Isa::available().collect()
}
