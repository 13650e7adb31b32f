//! What a program can get wrong; all of it is found when it is built, none at launch.

/// A shape or id that breaks an op's contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// `op` needs `what` to be `expected`; it is `found`.
    #[error("{op}: {what} is {found}, expected {expected}")]
    Mismatch {
        /// Name of the op.
        op: &'static str,
        /// Which dimension or property.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The value that the contract asks for.
        expected: u64,
    },
    /// `op` needs `what` to be a multiple of `step`.
    #[error("{op}: {what} is {found}, not a multiple of {step}")]
    NotAMultiple {
        /// Name of the op.
        op: &'static str,
        /// Which dimension.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The step.
        step: u64,
    },
}

pub(crate) fn equal(
    op: &'static str,
    what: &'static str,
    found: u64,
    expected: u64,
) -> Result<(), ShapeError> {
    if found == expected { Ok(()) } else { Err(ShapeError::Mismatch { op, what, found, expected }) }
}

pub(crate) fn multiple(
    op: &'static str,
    what: &'static str,
    found: u64,
    step: u64,
) -> Result<(), ShapeError> {
    if step != 0 && found.is_multiple_of(step) {
        Ok(())
    } else {
        Err(ShapeError::NotAMultiple { op, what, found, step })
    }
}
