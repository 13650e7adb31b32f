//! Failures of a device.

use ignis_types::{Bytes, DType};

/// Why a device could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The memory could not be had.
    #[error("cannot reserve {bytes} of {space}: {reason}")]
    Reserve {
        /// How much.
        bytes: Bytes,
        /// Device or host.
        space: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The device has no kernel for this weight.
    #[error("weight {name} is stored as {dtype}, which this device does not run")]
    DTypeUnsupported {
        /// The weight.
        name: String,
        /// Its dtype.
        dtype: DType,
    },
    /// A weight holds a NaN or an infinity.
    #[error("weight {name} holds a value that is not finite, in block {block}")]
    NotFinite {
        /// The weight.
        name: String,
        /// Index of the first bad block.
        block: u64,
    },
    /// A weight holds a finite value that is infinite as the device keeps it.
    #[error("weight {name} holds a value too large for {kept}, as it is kept, at {at}")]
    TooLarge {
        /// The weight.
        name: String,
        /// Index of the first such value.
        at: u64,
        /// How the device keeps the weight.
        kept: DType,
    },
    /// A weight's bytes do not have the size that its shape asks for.
    #[error("weight {name} has {found} bytes, expected {expected}")]
    WeightBytes {
        /// The weight.
        name: String,
        /// Bytes given.
        found: u64,
        /// Bytes of its shape.
        expected: u64,
    },
    /// A shape that the kernels cannot serve.
    #[error("{what} is {found}; this device needs {expected}")]
    ShapeUnsupported {
        /// Which dimension.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What is possible.
        expected: &'static str,
    },
    /// The device has no kernel for this op.
    #[error("this device does not run the op {op}")]
    OpUnsupported {
        /// Its name.
        op: &'static str,
    },
    /// There is no such device here, or it cannot be used.
    #[error("{problem}; {remedy}")]
    Unavailable {
        /// What was found.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// A call of the driver or its compiler failed.
    #[error("{what}: {code}")]
    Driver {
        /// Which call.
        what: &'static str,
        /// What it said.
        code: String,
    },
    /// An injected or real fault while running.
    #[error("device fault in {what}")]
    Fault {
        /// Where.
        what: &'static str,
    },
}
