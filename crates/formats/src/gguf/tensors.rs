//! Tensor descriptions of a GGUF header.

use ignis_types::DType;

use super::reader::Reader;
use crate::FormatError;
use crate::tensor::{Place, StoredTensor, StoredType, tensor_bytes};

const DIMENSIONS_MAX: u32 = 4;

/// Type ids as GGML numbers them. Those without a dtype are named in the refusal only.
const TENSOR_TYPES: [(u32, &str, Option<DType>); 39] = [
    (0, "F32", Some(DType::F32)),
    (1, "F16", Some(DType::F16)),
    (2, "Q4_0", Some(DType::Q4_0)),
    (3, "Q4_1", Some(DType::Q4_1)),
    (6, "Q5_0", Some(DType::Q5_0)),
    (7, "Q5_1", Some(DType::Q5_1)),
    (8, "Q8_0", Some(DType::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", Some(DType::Q2K)),
    (11, "Q3_K", Some(DType::Q3K)),
    (12, "Q4_K", Some(DType::Q4K)),
    (13, "Q5_K", Some(DType::Q5K)),
    (14, "Q6_K", Some(DType::Q6K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", None),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", None),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", Some(DType::I32)),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(DType::BF16)),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (39, "MXFP4", None),
    (40, "NVFP4", None),
    (41, "Q1_0", None),
    // Withdrawn ids that old files still carry.
    (4, "Q4_2", None),
    (5, "Q4_3", None),
    (31, "Q4_0_4_4", None),
    (32, "Q4_0_4_8", None),
    (33, "Q4_0_8_8", None),
];

/// The dtype of a GGML type id.
///
/// Errors: the id's name, or "unknown", when it is not read.
fn tensor_type(id: u32) -> Result<DType, &'static str> {
    match TENSOR_TYPES.iter().find(|(known, _, _)| *known == id) {
        Some((_, name, dtype)) => dtype.ok_or(name),
        None => Err("unknown"),
    }
}

/// `count` descriptions, and from them where each tensor lies in the file.
pub(super) fn read(
    reader: &mut Reader<'_>,
    count: u64,
    alignment: u32,
) -> Result<Vec<StoredTensor>, FormatError> {
    /// Length and one byte of a name, number of dimensions, type, offset.
    const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 4 + 8;

    let count = reader.check_count(count, "tensors", ENTRY_BYTES_MIN)?;
    let mut stored = Vec::with_capacity(count);
    for _ in 0..count {
        stored.push(read_one(reader, alignment)?);
    }
    let data_begin = reader.at().next_multiple_of(alignment.into());
    for tensor in &mut stored {
        tensor.place.begin = tensor.place.begin.checked_add(data_begin).ok_or_else(|| {
            FormatError::TensorTooLarge { file: reader.file(), tensor: tensor.name.clone() }
        })?;
    }
    Ok(stored)
}

/// One description. Its place is relative to the data section.
fn read_one(reader: &mut Reader<'_>, alignment: u32) -> Result<StoredTensor, FormatError> {
    let name = reader.name("tensor name")?;
    let at = |reader: &Reader<'_>| (reader.file(), name.to_owned());
    let dimensions = reader.u32("number of dimensions")?;
    if dimensions > DIMENSIONS_MAX {
        let ((file, tensor), found, limit) = (at(reader), dimensions.into(), DIMENSIONS_MAX.into());
        return Err(FormatError::DimensionCount { file, tensor, found, limit });
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        shape.push(reader.u64("dimension")?);
    }
    shape.reverse(); // stored innermost first
    let found = reader.u32("tensor type")?;
    let dtype = tensor_type(found).map_err(|kind| {
        let (file, tensor) = at(reader);
        FormatError::TensorTypeUnknown { file, tensor, found, name: kind }
    })?;
    let bytes = tensor_bytes(reader.path(), name, dtype, &shape)?;
    let begin = reader.u64("tensor offset")?;
    if !begin.is_multiple_of(alignment.into()) {
        let ((file, tensor), alignment) = (at(reader), alignment.into());
        return Err(FormatError::TensorMisaligned { file, tensor, found: begin, alignment });
    }
    Ok(StoredTensor {
        name: name.to_owned(),
        stored: StoredType::Known(dtype),
        shape,
        place: Place { file: 0, begin, bytes },
    })
}
