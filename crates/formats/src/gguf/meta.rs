//! Metadata values: what a key of a GGUF header may hold.

use super::reader::Reader;
use crate::FormatError;

/// A metadata value, widened: `u8`..`u64` are `U64`, `i8`..`i64` are `I64`, `f32` is `F64`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum MetaValue {
    U64(u64),
    I64(i64),
    F64(f64),
    Bool(bool),
    Str(String),
    Array(MetaArray),
}

/// An array of one element type. Integers and floats are widened as in [`MetaValue`], except that
/// `u8` arrays stay bytes.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum MetaArray {
    Bytes(Vec<u8>),
    U64s(Vec<u64>),
    I64s(Vec<i64>),
    F64s(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
}

impl MetaValue {
    /// The value as an unsigned integer, if it is an integer and not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            MetaValue::U64(n) => Some(*n),
            MetaValue::I64(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// The value as a float: a float, or an integer that `f64` holds exactly.
    pub fn as_f64(&self) -> Option<f64> {
        const EXACT_MAX: u64 = 1 << 53;
        match self {
            MetaValue::F64(x) => Some(*x),
            MetaValue::U64(n) => (*n <= EXACT_MAX).then_some(*n as f64),
            MetaValue::I64(n) => (n.unsigned_abs() <= EXACT_MAX).then_some(*n as f64),
            _ => None,
        }
    }

    /// The value in few words, for an error: its type, and itself when that is short.
    pub fn describe(&self) -> String {
        match self {
            MetaValue::U64(n) => format!("the unsigned integer {n}"),
            MetaValue::I64(n) => format!("the integer {n}"),
            MetaValue::F64(x) => format!("the float {x}"),
            MetaValue::Bool(b) => format!("the boolean {b}"),
            MetaValue::Str(s) => crate::json::describe_str(s),
            MetaValue::Array(a) => format!("an array of {} {}", a.len(), a.element_name()),
        }
    }
}

impl MetaArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            MetaArray::Bytes(v) => v.len(),
            MetaArray::U64s(v) => v.len(),
            MetaArray::I64s(v) => v.len(),
            MetaArray::F64s(v) => v.len(),
            MetaArray::Bools(v) => v.len(),
            MetaArray::Strings(v) => v.len(),
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the elements are, in the plural.
    pub fn element_name(&self) -> &'static str {
        match self {
            MetaArray::Bytes(_) => "bytes",
            MetaArray::U64s(_) => "unsigned integers",
            MetaArray::I64s(_) => "integers",
            MetaArray::F64s(_) => "floats",
            MetaArray::Bools(_) => "booleans",
            MetaArray::Strings(_) => "strings",
        }
    }
}

/// Type of a value as stored, numbered as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const ALL: [(ValueType, &'static str); 13] = [
        (ValueType::U8, "u8"),
        (ValueType::I8, "i8"),
        (ValueType::U16, "u16"),
        (ValueType::I16, "i16"),
        (ValueType::U32, "u32"),
        (ValueType::I32, "i32"),
        (ValueType::F32, "f32"),
        (ValueType::Bool, "a boolean"),
        (ValueType::Str, "a string"),
        (ValueType::Array, "an array"),
        (ValueType::U64, "u64"),
        (ValueType::I64, "i64"),
        (ValueType::F64, "f64"),
    ];

    pub(super) fn read(reader: &mut Reader<'_>, key: &str) -> Result<ValueType, FormatError> {
        let found = reader.u32("value type")?;
        let known = ValueType::ALL.get(found as usize).map(|&(kind, _)| kind);
        known.ok_or_else(|| FormatError::ValueTypeUnknown {
            file: reader.file(),
            key: key.to_owned(),
            found,
        })
    }

    pub(super) fn name(self) -> &'static str {
        ValueType::ALL[self as usize].1
    }

    /// Fewest bytes an element can take.
    fn bytes_min(self) -> u64 {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::Str => 8,
            ValueType::Array => 12,
        }
    }
}

/// The value of `key`, whose type was read before.
///
/// A scalar is read as an array of one, so that each type has one decoder.
pub(super) fn read_value(
    reader: &mut Reader<'_>,
    key: &str,
    kind: ValueType,
) -> Result<MetaValue, FormatError> {
    if kind == ValueType::Array {
        let element = ValueType::read(reader, key)?;
        if element == ValueType::Array {
            return Err(FormatError::ArrayNested { file: reader.file(), key: key.to_owned() });
        }
        let count = reader.count("array elements", element.bytes_min())?;
        return read_elements(reader, key, element, count).map(MetaValue::Array);
    }
    Ok(match read_elements(reader, key, kind, 1)? {
        MetaArray::Bytes(v) => MetaValue::U64(v[0].into()),
        MetaArray::U64s(v) => MetaValue::U64(v[0]),
        MetaArray::I64s(v) => MetaValue::I64(v[0]),
        MetaArray::F64s(v) => MetaValue::F64(v[0]),
        MetaArray::Bools(v) => MetaValue::Bool(v[0]),
        MetaArray::Strings(mut v) => MetaValue::Str(v.remove(0)),
    })
}

/// `count` elements of `kind`, which is not `Array`.
fn read_elements(
    reader: &mut Reader<'_>,
    key: &str,
    kind: ValueType,
    count: usize,
) -> Result<MetaArray, FormatError> {
    if kind == ValueType::Str {
        let mut strings = Vec::with_capacity(count);
        for _ in 0..count {
            strings.push(reader.string(key)?.to_owned());
        }
        return Ok(MetaArray::Strings(strings));
    }
    let taken = reader.take(count as u64 * kind.bytes_min(), "value")?;
    Ok(match kind {
        ValueType::U8 => MetaArray::Bytes(taken.to_vec()),
        ValueType::I8 => MetaArray::I64s(numbers(taken, |b| i8::from_le_bytes(b).into())),
        ValueType::U16 => MetaArray::U64s(numbers(taken, |b| u16::from_le_bytes(b).into())),
        ValueType::I16 => MetaArray::I64s(numbers(taken, |b| i16::from_le_bytes(b).into())),
        ValueType::U32 => MetaArray::U64s(numbers(taken, |b| u32::from_le_bytes(b).into())),
        ValueType::I32 => MetaArray::I64s(numbers(taken, |b| i32::from_le_bytes(b).into())),
        ValueType::F32 => MetaArray::F64s(numbers(taken, |b| f32::from_le_bytes(b).into())),
        ValueType::U64 => MetaArray::U64s(numbers(taken, u64::from_le_bytes)),
        ValueType::I64 => MetaArray::I64s(numbers(taken, i64::from_le_bytes)),
        ValueType::F64 => MetaArray::F64s(numbers(taken, f64::from_le_bytes)),
        ValueType::Bool => match taken.iter().find(|&&b| b > 1) {
            None => MetaArray::Bools(taken.iter().map(|&b| b == 1).collect()),
            Some(&found) => {
                let (file, key) = (reader.file(), key.to_owned());
                return Err(FormatError::BoolInvalid { file, key, found });
            }
        },
        ValueType::Str | ValueType::Array => unreachable!("strings and arrays are read above"),
    })
}

fn numbers<const N: usize, T>(bytes: &[u8], convert: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| convert(chunk)).collect()
}
