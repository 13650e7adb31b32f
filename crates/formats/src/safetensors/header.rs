//! The JSON that describes safetensors: a file's header, and the index of several files.

use std::fmt;
use std::path::Path;

use ignis_types::DType;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Number;

use crate::FormatError;
use crate::tensor::{Place, StoredTensor, StoredType, tensor_bytes};

/// The format's own limit for a header; the index obeys the same.
pub(super) const HEADER_BYTES_MAX: u64 = 100_000_000;

const LENGTH_BYTES: usize = 8;

/// Tensors of the file that begins with `bytes`, the `shard`th of its checkpoint, in file order.
///
/// Layout: header length, header, data; offsets count from the end of the header.
/// Errors: `FileEmpty`, `Truncated`, `HeaderTooLarge`, `Json`, `OffsetInvalid`, `OffsetsReversed`,
/// `TensorSize`, `TensorTooLarge`.
pub(super) fn parse(
    file: &Path,
    bytes: &[u8],
    shard: u32,
) -> Result<Vec<StoredTensor>, FormatError> {
    let truncated = |what, at, expected, found: usize| FormatError::Truncated {
        file: file.to_owned(),
        what,
        at,
        expected,
        found: found as u64,
    };
    if bytes.is_empty() {
        return Err(FormatError::FileEmpty { file: file.to_owned() });
    }
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(truncated("header length", 0, LENGTH_BYTES as u64, bytes.len()));
    };
    let found = u64::from_le_bytes(*length);
    if found > HEADER_BYTES_MAX {
        let (file, limit) = (file.to_owned(), HEADER_BYTES_MAX);
        return Err(FormatError::HeaderTooLarge { file, found, limit });
    }
    let Some(header) = rest.get(..found as usize) else {
        return Err(truncated("header", LENGTH_BYTES as u64, found, rest.len()));
    };
    let Header(entries) = serde_json::from_slice(header)
        .map_err(|source| FormatError::Json { file: file.to_owned(), source })?;
    let data_begin = LENGTH_BYTES as u64 + found;
    entries.into_iter().map(|(name, entry)| entry.locate(file, name, shard, data_begin)).collect()
}

/// Entries in file order, duplicates included.
struct Header(Vec<(String, Entry)>);

/// What a header says of one tensor.
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (Number, Number),
}

impl Entry {
    fn locate(
        self,
        file: &Path,
        name: String,
        shard: u32,
        data_begin: u64,
    ) -> Result<StoredTensor, FormatError> {
        let offset = |n: Number| {
            n.as_u64().ok_or_else(|| FormatError::OffsetInvalid {
                file: file.to_owned(),
                tensor: name.clone(),
                found: n.to_string(),
            })
        };
        let (begin, end) = (offset(self.data_offsets.0)?, offset(self.data_offsets.1)?);
        let Some(bytes) = end.checked_sub(begin) else {
            let (file, tensor) = (file.to_owned(), name);
            return Err(FormatError::OffsetsReversed { file, tensor, begin, end });
        };
        let stored = match self.dtype.as_str() {
            "F32" => StoredType::Known(DType::F32),
            "F16" => StoredType::Known(DType::F16),
            "BF16" => StoredType::Known(DType::BF16),
            "I32" => StoredType::Known(DType::I32),
            _ => StoredType::Other(self.dtype),
        };
        if let StoredType::Known(dtype) = stored {
            let expected = tensor_bytes(file, &name, dtype, &self.shape)?;
            if expected != bytes {
                let (file, tensor, found) = (file.to_owned(), name, bytes);
                return Err(FormatError::TensorSize { file, tensor, expected, found });
            }
        }
        let Some(begin) = begin.checked_add(data_begin) else {
            return Err(FormatError::TensorTooLarge { file: file.to_owned(), tensor: name });
        };
        let place = Place { file: shard, begin, bytes };
        Ok(StoredTensor { name, stored, shape: self.shape, place })
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entry, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
                let (mut dtype, mut shape, mut data_offsets) = (None, None, None);
                while let Some(field) = map.next_key::<String>()? {
                    match field.as_str() {
                        "dtype" => fill(&mut dtype, "dtype", &mut map)?,
                        "shape" => fill(&mut shape, "shape", &mut map)?,
                        "data_offsets" => fill(&mut data_offsets, "data_offsets", &mut map)?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Entry {
                    dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
                    shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
                    data_offsets: data_offsets
                        .ok_or_else(|| A::Error::missing_field("data_offsets"))?,
                })
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// The index of a checkpoint in several files: which file holds which tensor.
pub(super) struct Index {
    /// File names, in the order the index first names them.
    pub(super) shards: Vec<String>,
    /// Tensors, and their file as an index into `shards`.
    pub(super) tensors: Vec<(String, u32)>,
}

impl Index {
    /// Errors: `FileTooLarge`, `Json`; `ShardName` for a name that could leave the folder.
    pub(super) fn parse(file: &Path, bytes: &[u8]) -> Result<Index, FormatError> {
        let (found, limit) = (bytes.len() as u64, HEADER_BYTES_MAX);
        if found > limit {
            return Err(FormatError::FileTooLarge { file: file.to_owned(), found, limit });
        }
        let index: Index = serde_json::from_slice(bytes)
            .map_err(|source| FormatError::Json { file: file.to_owned(), source })?;
        match index.shards.iter().find(|name| !is_plain_name(name)) {
            None => Ok(index),
            Some(found) => {
                Err(FormatError::ShardName { file: file.to_owned(), found: found.clone() })
            }
        }
    }
}

/// True when joining `name` to a folder names a file in that folder.
fn is_plain_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains(['/', '\\', ':', '\0'])
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Index, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Index;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with weight_map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Index, A::Error> {
                let mut index = None;
                while let Some(field) = map.next_key::<String>()? {
                    match field.as_str() {
                        "weight_map" => fill(&mut index, "weight_map", &mut map)?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                let WeightMap(index) =
                    index.ok_or_else(|| A::Error::missing_field("weight_map"))?;
                Ok(index)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// `weight_map`, each file name kept once.
struct WeightMap(Index);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightMap, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let (mut numbers, mut shards, mut tensors) =
                    (std::collections::HashMap::new(), Vec::new(), Vec::new());
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    let number = *numbers.entry(shard).or_insert_with_key(|shard: &String| {
                        shards.push(shard.clone());
                        shards.len() as u32 - 1
                    });
                    tensors.push((tensor, number));
                }
                Ok(WeightMap(Index { shards, tensors }))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

/// Reads the value of `field` into `slot`, which must be empty.
fn fill<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    slot: &mut Option<T>,
    field: &'static str,
    map: &mut A,
) -> Result<(), A::Error> {
    if slot.is_some() {
        return Err(A::Error::duplicate_field(field));
    }
    *slot = Some(map.next_value()?);
    Ok(())
}
