//! GGUF: one file with metadata, tensor descriptions and data.
//!
//! Read: little-endian versions 2 and 3, unsplit. Layout: magic, version, counts; then keys with
//! typed values; then name, dimensions (innermost first), type and offset of each tensor; then,
//! from the next multiple of `general.alignment`, the data.
//!
//! Stricter than the format asks: no duplicate keys or tensors, no overlapping tensors, no arrays
//! of arrays, strings are UTF-8, booleans are 0 or 1. Keys and tensors nobody needs are fine.

mod meta;
mod reader;
mod tensors;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use meta::{MetaArray, MetaValue};

use crate::mmap::MappedFile;
use crate::tensor::TensorTable;
use crate::{Extent, FormatError, TensorInfo, json, tensor};
use meta::ValueType;
use reader::Reader;

const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u32 = 32;

/// A GGUF file: its metadata and tensors.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    metadata: BTreeMap<String, MetaValue>,
    table: TensorTable,
    /// `None` when only the header was opened.
    map: Option<MappedFile>,
}

impl Gguf {
    /// Opens a whole file and maps it.
    ///
    /// Errors: those of the file itself (`Io`, `NotAFile`, `FileEmpty`, `FileChanged`) and of
    /// [`Gguf::parse`].
    pub fn open(path: &Path) -> Result<Gguf, FormatError> {
        let map = MappedFile::open(path)?;
        let gguf = Gguf::parse(path, map.bytes(), Extent::Whole)?;
        Ok(Gguf { map: Some(map), ..gguf })
    }

    /// Opens a file that may end anywhere after its header, such as the first megabytes of one.
    /// Has no data. Errors: as [`Gguf::open`], less `TensorOutOfRange`.
    pub fn open_header(path: &Path) -> Result<Gguf, FormatError> {
        Gguf::parse(path, MappedFile::open(path)?.bytes(), Extent::Header)
    }

    /// Reads the header at the front of `bytes`. `path` is for errors; no file is touched.
    ///
    /// Errors: every variant of [`FormatError`] that tells of a GGUF file's content.
    pub fn parse(path: &Path, bytes: &[u8], extent: Extent) -> Result<Gguf, FormatError> {
        let mut reader = Reader::new(path, bytes);
        read_preamble(&mut reader, bytes)?;
        let tensor_count = reader.u64("tensor count")?;
        let (metadata, alignment) = read_metadata(&mut reader)?;
        let stored = tensors::read(&mut reader, tensor_count, alignment)?;
        let table = TensorTable::build(stored, &[(path, bytes.len() as u64)], extent)?;
        let gguf = Gguf { path: path.to_owned(), metadata, table, map: None };
        match gguf.opt_u64("split.count")? {
            Some(found) if found > 1 => {
                Err(FormatError::SplitUnsupported { file: gguf.path, found })
            }
            _ => Ok(gguf),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every key and its value, sorted by key.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &MetaValue)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.metadata.get(key)
    }

    /// Every tensor, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.table.tensors()
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.table.get(name)
    }

    /// The tensor of that name, or `TensorMissing`.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, FormatError> {
        self.table.require(&self.path, name)
    }

    /// The stored bytes of a tensor of this file. Not aligned beyond the file's own alignment.
    ///
    /// Errors: `HeaderOnly`, `FileChanged`.
    pub fn data(&self, info: &TensorInfo) -> Result<&[u8], FormatError> {
        match &self.map {
            Some(map) => tensor::slice(map, &info.place, &info.name),
            None => {
                Err(FormatError::HeaderOnly { file: self.path.clone(), tensor: info.name.clone() })
            }
        }
    }
}

/// Typed metadata. `get_*` needs the key: `KeyMissing` without it. `opt_*` does not: `None`. Both
/// answer a value of another type with `KeyType`.
impl Gguf {
    json::typed_getters! {
        key: &MetaValue;
        get_u64, opt_u64: u64, "an unsigned integer", |v| v.as_u64();
        get_f64, opt_f64: f64, "a number", |v| v.as_f64();
        get_bool, opt_bool: bool, "a boolean", |v| match v {
            MetaValue::Bool(b) => Some(*b),
            _ => None,
        };
        get_str, opt_str: &str, "a string", |v| match v {
            MetaValue::Str(s) => Some(s.as_str()),
            _ => None,
        };
        get_array, opt_array: &MetaArray, "an array", |v| match v {
            MetaValue::Array(a) => Some(a),
            _ => None,
        };
        get_strings, opt_strings: &[String], "an array of strings", |v| match v {
            MetaValue::Array(MetaArray::Strings(s)) => Some(s.as_slice()),
            _ => None,
        };
    }

    fn find(&self, key: &str) -> Option<&MetaValue> {
        self.get(key)
    }

    fn describe(value: &MetaValue) -> String {
        value.describe()
    }
}

/// Magic and version.
fn read_preamble(reader: &mut Reader<'_>, bytes: &[u8]) -> Result<(), FormatError> {
    let file = reader.file();
    let shown = &bytes[..bytes.len().min(4)];
    if shown.is_empty() {
        return Err(FormatError::FileEmpty { file });
    }
    if !b"GGUF".starts_with(shown) {
        return Err(FormatError::MagicWrong { file, found: shown.to_vec() });
    }
    reader.take(4, "magic")?;
    match reader.u32("version")? {
        2 | 3 => Ok(()),
        // A small number read the wrong way round.
        found if found != 0 && found & 0xffff == 0 => Err(FormatError::BigEndian { file, found }),
        found => Err(FormatError::VersionUnsupported { file, found }),
    }
}

/// Keys, values, and the alignment among them.
fn read_metadata(
    reader: &mut Reader<'_>,
) -> Result<(BTreeMap<String, MetaValue>, u32), FormatError> {
    /// Length and one byte of a key, a type, one byte of a value.
    const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

    let mut metadata = BTreeMap::new();
    let mut alignment = ALIGNMENT_DEFAULT;
    for _ in 0..reader.count("metadata keys", ENTRY_BYTES_MIN)? {
        let key = reader.name("key")?;
        let kind = ValueType::read(reader, key)?;
        let value = meta::read_value(reader, key, kind)?;
        if key == ALIGNMENT_KEY {
            alignment = check_alignment(reader, kind, &value)?;
        }
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(FormatError::KeyDuplicate { file: reader.file(), key: key.to_owned() });
        }
    }
    Ok((metadata, alignment))
}

fn check_alignment(
    reader: &Reader<'_>,
    kind: ValueType,
    value: &MetaValue,
) -> Result<u32, FormatError> {
    let found = value.as_u64().and_then(|n| u32::try_from(n).ok());
    match found {
        Some(found) if kind == ValueType::U32 => {
            if !found.is_power_of_two() {
                return Err(FormatError::AlignmentValue { file: reader.file(), found });
            }
            Ok(found)
        }
        _ => Err(FormatError::AlignmentType { file: reader.file(), found: kind.name() }),
    }
}
