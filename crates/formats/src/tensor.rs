//! Where the tensors of a checkpoint are: one table for both file formats.

use std::path::Path;

use ignis_types::DType;

use crate::mmap::MappedFile;
use crate::{Extent, FormatError};

/// A tensor of a readable dtype, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// How its elements are stored.
    pub dtype: DType,
    /// Outermost dimension first: a linear layer is `[out, in]`. No dimension for a scalar.
    pub shape: Vec<u64>,
    /// Bytes it takes in the file: those of `shape` in `dtype`.
    pub bytes: u64,
    pub(crate) place: Place,
}

impl TensorInfo {
    /// Product of the dimensions.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product() // cannot wrap: checked when the header was read
    }
}

/// A run of bytes in one of a checkpoint's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) begin: u64,
    pub(crate) bytes: u64,
}

impl Place {
    /// One past the last byte. Cannot wrap: `TensorTable::build` refused what would.
    pub(crate) fn end(&self) -> u64 {
        self.begin + self.bytes
    }
}

/// A dtype as a file spells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredType {
    Known(DType),
    /// Not read, but no reason to refuse the file: checkpoints carry buffers nobody needs.
    Other(String),
}

/// A tensor as a parser found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredTensor {
    pub(crate) name: String,
    pub(crate) stored: StoredType,
    pub(crate) shape: Vec<u64>,
    pub(crate) place: Place,
}

/// Bytes of a tensor of `shape`.
///
/// Errors: `TensorTooLarge`; `RowPartial` when the innermost dimension does not fill whole blocks.
pub(crate) fn tensor_bytes(
    file: &Path,
    name: &str,
    dtype: DType,
    shape: &[u64],
) -> Result<u64, FormatError> {
    let too_large =
        || FormatError::TensorTooLarge { file: file.to_owned(), tensor: name.to_owned() };
    let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
    let row = shape.last().copied().unwrap_or(1);
    let block = dtype.block_elements();
    if !row.is_multiple_of(block) {
        return Err(FormatError::RowPartial {
            file: file.to_owned(),
            tensor: name.to_owned(),
            dtype,
            found: row,
            expected: block,
        });
    }
    (elements / block).checked_mul(dtype.block_bytes()).ok_or_else(too_large)
}

/// The files of a checkpoint, and its tensors by name.
#[derive(Debug)]
pub(crate) struct TensorTable {
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
    /// Tensors of a dtype that is not read, sorted by name.
    unread: Vec<StoredTensor>,
}

impl TensorTable {
    /// Checks what no single entry shows and indexes the rest. `files` are paths and lengths.
    ///
    /// Errors: `TensorDuplicate`, `TensorsOverlap`, `TensorTooLarge` (an end past 2^64), and with
    /// `Extent::Whole` `TensorOutOfRange`.
    pub(crate) fn build(
        stored: Vec<StoredTensor>,
        files: &[(&Path, u64)],
        extent: Extent,
    ) -> Result<TensorTable, FormatError> {
        check_ranges(&stored, files, extent)?;
        check_overlap(&stored, files)?;
        let order = sorted_by_name(&stored);
        for pair in order.windows(2) {
            let [first, second] = [&stored[pair[0] as usize], &stored[pair[1] as usize]];
            if first.name == second.name {
                return Err(FormatError::TensorDuplicate {
                    file: files[second.place.file as usize].0.to_owned(),
                    tensor: second.name.clone(),
                });
            }
        }
        let (mut tensors, mut unread) = (Vec::with_capacity(stored.len()), Vec::new());
        for tensor in stored {
            match tensor.stored {
                StoredType::Known(dtype) => tensors.push(TensorInfo {
                    name: tensor.name,
                    dtype,
                    shape: tensor.shape,
                    bytes: tensor.place.bytes,
                    place: tensor.place,
                }),
                StoredType::Other(_) => unread.push(tensor),
            }
        }
        unread.sort_by(|a, b| a.name.cmp(&b.name));
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        Ok(TensorTable { tensors, by_name, unread })
    }

    pub(crate) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub(crate) fn unread(&self) -> &[StoredTensor] {
        &self.unread
    }

    pub(crate) fn get(&self, name: &str) -> Option<&TensorInfo> {
        let at = |&i: &u32| self.tensors[i as usize].name.as_str().cmp(name);
        let found = self.by_name.binary_search_by(at).ok()?;
        Some(&self.tensors[self.by_name[found] as usize])
    }

    pub(crate) fn get_unread(&self, name: &str) -> Option<&StoredTensor> {
        let found = self.unread.binary_search_by(|t| t.name.as_str().cmp(name)).ok()?;
        Some(&self.unread[found])
    }

    /// `get`, with the reason when there is none: `TensorMissing` or `DTypeUnsupported`.
    pub(crate) fn require(&self, file: &Path, name: &str) -> Result<&TensorInfo, FormatError> {
        if let Some(tensor) = self.get(name) {
            return Ok(tensor);
        }
        let (file, tensor) = (file.to_owned(), name.to_owned());
        match self.get_unread(name).map(|t| &t.stored) {
            Some(StoredType::Other(found)) => {
                Err(FormatError::DTypeUnsupported { file, tensor, found: found.clone() })
            }
            _ => Err(FormatError::TensorMissing { file, tensor }),
        }
    }
}

/// The bytes at `place` of `map`. `tensor` is for the error.
///
/// Errors: `FileChanged`, `Io`; `TensorOutOfRange` for a place of another checkpoint.
pub(crate) fn slice<'a>(
    map: &'a MappedFile,
    place: &Place,
    tensor: &str,
) -> Result<&'a [u8], FormatError> {
    map.check_length()?;
    let bytes = map.bytes();
    let range = usize::try_from(place.begin).ok().zip(usize::try_from(place.end()).ok());
    range.and_then(|(begin, end)| bytes.get(begin..end)).ok_or_else(|| {
        FormatError::TensorOutOfRange {
            file: map.path().to_owned(),
            tensor: tensor.to_owned(),
            expected: place.end(),
            found: bytes.len() as u64,
        }
    })
}

fn check_ranges(
    stored: &[StoredTensor],
    files: &[(&Path, u64)],
    extent: Extent,
) -> Result<(), FormatError> {
    for tensor in stored {
        let (path, found) = files[tensor.place.file as usize];
        let at = || (path.to_owned(), tensor.name.clone());
        let Some(expected) = tensor.place.begin.checked_add(tensor.place.bytes) else {
            let (file, tensor) = at();
            return Err(FormatError::TensorTooLarge { file, tensor });
        };
        if extent == Extent::Whole && expected > found {
            let (file, tensor) = at();
            return Err(FormatError::TensorOutOfRange { file, tensor, expected, found });
        }
    }
    Ok(())
}

fn check_overlap(stored: &[StoredTensor], files: &[(&Path, u64)]) -> Result<(), FormatError> {
    let mut order: Vec<u32> = (0..stored.len() as u32).collect();
    order.retain(|&i| stored[i as usize].place.bytes > 0);
    order.sort_by_key(|&i| {
        let place = &stored[i as usize].place;
        (place.file, place.begin)
    });
    for pair in order.windows(2) {
        let [first, second] = [&stored[pair[0] as usize], &stored[pair[1] as usize]];
        if first.place.file == second.place.file && first.place.end() > second.place.begin {
            return Err(FormatError::TensorsOverlap {
                file: files[first.place.file as usize].0.to_owned(),
                first: first.name.clone(),
                second: second.name.clone(),
            });
        }
    }
    Ok(())
}

fn sorted_by_name(stored: &[StoredTensor]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..stored.len() as u32).collect();
    order.sort_by(|&a, &b| stored[a as usize].name.cmp(&stored[b as usize].name));
    order
}
