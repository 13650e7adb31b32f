//! One Python class for each kind of failure; every Rust variant maps to one of them.

use ignis_engine::EngineError;
use ignis_models::ModelError;
use ignis_tiers::TierError;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(ignis._native, NativeError, PyException, "Base of what the core raises.");
create_exception!(ignis._native, FileError, NativeError, "A model file is missing or damaged.");
create_exception!(
    ignis._native,
    ShapeUnsupportedError,
    NativeError,
    "The model's architecture or a shape in it is not supported."
);
create_exception!(
    ignis._native,
    DeviceUnsuitedError,
    ShapeUnsupportedError,
    "The device has no kernels for an op, a dtype or a shape of the model; another may have."
);
create_exception!(
    ignis._native,
    MemoryRefusedError,
    NativeError,
    "The system did not give the planned memory, or a region differs from its plan line."
);
create_exception!(
    ignis._native,
    DeviceUnavailableError,
    NativeError,
    "There is no such device here, or something that it needs is missing."
);
create_exception!(ignis._native, DeviceFaultError, NativeError, "The device failed while running.");

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    m.add("NativeError", py.get_type::<NativeError>())?;
    m.add("FileError", py.get_type::<FileError>())?;
    m.add("ShapeUnsupportedError", py.get_type::<ShapeUnsupportedError>())?;
    m.add("DeviceUnsuitedError", py.get_type::<DeviceUnsuitedError>())?;
    m.add("MemoryRefusedError", py.get_type::<MemoryRefusedError>())?;
    m.add("DeviceUnavailableError", py.get_type::<DeviceUnavailableError>())?;
    m.add("DeviceFaultError", py.get_type::<DeviceFaultError>())
}

/// The Python exception of a model that cannot be read or is not supported.
pub(crate) fn from_model(error: ModelError) -> PyErr {
    let text = error.to_string();
    match error {
        ModelError::Format(_) | ModelError::TensorShape { .. } => FileError::new_err(text),
        _ => ShapeUnsupportedError::new_err(text),
    }
}

/// The Python exception of a tier that cannot be had, or of a move that cannot begin.
pub(crate) fn from_tier(error: TierError) -> PyErr {
    let text = error.to_string();
    match error {
        TierError::Reserve { .. }
        | TierError::File { .. }
        | TierError::Locked { .. }
        | TierError::VolumeFull { .. } => MemoryRefusedError::new_err(text),
        TierError::Disk { .. } | TierError::Device(_) | TierError::Damaged { .. } => {
            DeviceFaultError::new_err(text)
        }
        _ => PyValueError::new_err(text),
    }
}

/// The Python exception of a failed load or round.
pub(crate) fn from_engine(error: EngineError) -> PyErr {
    use ignis_backend::DeviceError as D;
    let text = error.to_string();
    match error {
        EngineError::Format(_)
        | EngineError::Vocabulary { .. }
        | EngineError::Device(D::NotFinite { .. } | D::TooLarge { .. } | D::WeightBytes { .. }) => {
            FileError::new_err(text)
        }
        EngineError::Model(error) => from_model(error),
        EngineError::Device(D::Unavailable { .. }) => DeviceUnavailableError::new_err(text),
        EngineError::Device(
            D::DTypeUnsupported { .. } | D::ShapeUnsupported { .. } | D::OpUnsupported { .. },
        )
        | EngineError::Overflow(_) => ShapeUnsupportedError::new_err(text),
        EngineError::Arena(_) | EngineError::Device(D::Reserve { .. }) => {
            MemoryRefusedError::new_err(text)
        }
        EngineError::Device(_) => DeviceFaultError::new_err(text),
        EngineError::Tier(error) => from_tier(error),
        _ => PyValueError::new_err(text),
    }
}
