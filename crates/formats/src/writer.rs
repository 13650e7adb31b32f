//! Small checkpoint files for tests. Nothing is checked: what a test writes is what it gets.

use std::path::Path;

use crate::{MetaArray, MetaValue};

/// Builds the bytes of a GGUF file.
///
/// Metadata is written at the widest type of its kind, but integers as `u32` and `i32` and floats
/// as
/// `f32` where the value fits, as converters do. Tensors are laid out in order, each aligned.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: u32,
    keys: Vec<(String, MetaValue)>,
    tensors: Vec<GgufTensor>,
}

#[derive(Clone, Debug)]
struct GgufTensor {
    name: String,
    type_id: u32,
    /// Outermost first.
    shape: Vec<u64>,
    data: Vec<u8>,
}

impl Default for GgufWriter {
    fn default() -> GgufWriter {
        GgufWriter { version: 3, alignment: 32, keys: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufWriter {
    /// The version in the preamble: 3 unless a test says otherwise.
    pub fn version(self, version: u32) -> GgufWriter {
        GgufWriter { version, ..self }
    }

    /// Where tensors and the data section begin: multiples of this. Written as a key when not 32.
    pub fn alignment(self, alignment: u32) -> GgufWriter {
        GgufWriter { alignment, ..self }
    }

    /// Adds a key.
    pub fn key(mut self, key: &str, value: impl Into<MetaValue>) -> GgufWriter {
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    /// Adds a tensor: its GGML type id, its shape outermost first, its stored bytes.
    pub fn tensor(mut self, name: &str, type_id: u32, shape: &[u64], data: Vec<u8>) -> GgufWriter {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        self.tensors.push(GgufTensor { name, type_id, shape, data });
        self
    }

    /// Adds an F32 tensor.
    pub fn f32s(self, name: &str, shape: &[u64], values: &[f32]) -> GgufWriter {
        self.tensor(name, 0, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// The header alone, up to where the data section begins.
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        let explicit = self.alignment != 32;
        put_u32(&mut out, self.version);
        put_u64(&mut out, self.tensors.len() as u64);
        put_u64(&mut out, self.keys.len() as u64 + u64::from(explicit));
        if explicit {
            put_str(&mut out, "general.alignment");
            put_value(&mut out, &MetaValue::U64(self.alignment.into()));
        }
        for (key, value) in &self.keys {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            put_u32(&mut out, tensor.shape.len() as u32);
            tensor.shape.iter().rev().for_each(|&dimension| put_u64(&mut out, dimension));
            put_u32(&mut out, tensor.type_id);
            put_u64(&mut out, offset);
            offset += (tensor.data.len() as u64).next_multiple_of(self.alignment.into());
        }
        self.pad(&mut out);
        out
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.extend_from_slice(&tensor.data);
            self.pad(&mut out);
        }
        out
    }

    /// Writes the whole file to `path`.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.bytes())
    }

    fn pad(&self, out: &mut Vec<u8>) {
        out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
    }
}

impl From<u64> for MetaValue {
    fn from(n: u64) -> MetaValue {
        MetaValue::U64(n)
    }
}

impl From<f64> for MetaValue {
    fn from(x: f64) -> MetaValue {
        MetaValue::F64(x)
    }
}

impl From<bool> for MetaValue {
    fn from(b: bool) -> MetaValue {
        MetaValue::Bool(b)
    }
}

impl From<&str> for MetaValue {
    fn from(s: &str) -> MetaValue {
        MetaValue::Str(s.to_owned())
    }
}

impl From<&[&str]> for MetaValue {
    fn from(strings: &[&str]) -> MetaValue {
        MetaValue::Array(MetaArray::Strings(strings.iter().map(|&s| s.to_owned()).collect()))
    }
}

impl From<MetaArray> for MetaValue {
    fn from(array: MetaArray) -> MetaValue {
        MetaValue::Array(array)
    }
}

/// Builds the bytes of a safetensors file from name, dtype as spelt there, shape and stored bytes.
pub fn safetensors(tensors: &[(&str, &str, &[u64], Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend_from_slice(bytes);
        let offsets = [begin, data.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

fn put_u32(out: &mut Vec<u8>, n: u32) {
    out.extend_from_slice(&n.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(&n.to_le_bytes());
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    put_u64(out, s.len() as u64);
    out.extend_from_slice(s.as_bytes());
}

/// Type id and value.
fn put_value(out: &mut Vec<u8>, value: &MetaValue) {
    match value {
        MetaValue::U64(n) => match u32::try_from(*n) {
            Ok(n) => [4, n].into_iter().for_each(|word| put_u32(out, word)),
            Err(_) => put_elements(out, 10, [*n], put_u64),
        },
        MetaValue::I64(n) => match i32::try_from(*n) {
            Ok(n) => [5, n as u32].into_iter().for_each(|word| put_u32(out, word)),
            Err(_) => put_elements(out, 11, [*n as u64], put_u64),
        },
        MetaValue::F64(x) if f64::from(*x as f32) == *x => {
            put_elements(out, 6, [(*x as f32).to_bits()], put_u32);
        }
        MetaValue::F64(x) => put_elements(out, 12, [x.to_bits()], put_u64),
        MetaValue::Bool(b) => put_elements(out, 7, [u8::from(*b)], Vec::push),
        MetaValue::Str(s) => put_elements(out, 8, [s], |out, s| put_str(out, s)),
        MetaValue::Array(array) => put_array(out, array),
    }
}

fn put_array(out: &mut Vec<u8>, array: &MetaArray) {
    let type_id = match array {
        MetaArray::Bytes(_) => 0,
        MetaArray::Bools(_) => 7,
        MetaArray::Strings(_) => 8,
        MetaArray::U64s(_) => 10,
        MetaArray::I64s(_) => 11,
        MetaArray::F64s(_) => 12,
    };
    put_u32(out, 9);
    put_u32(out, type_id);
    put_u64(out, array.len() as u64);
    match array {
        MetaArray::Bytes(v) => out.extend_from_slice(v),
        MetaArray::Bools(v) => v.iter().for_each(|&b| out.push(b.into())),
        MetaArray::Strings(v) => v.iter().for_each(|s| put_str(out, s)),
        MetaArray::U64s(v) => v.iter().for_each(|&n| put_u64(out, n)),
        MetaArray::I64s(v) => v.iter().for_each(|&n| put_u64(out, n as u64)),
        MetaArray::F64s(v) => v.iter().for_each(|x| put_u64(out, x.to_bits())),
    }
}

fn put_elements<T, const N: usize>(
    out: &mut Vec<u8>,
    type_id: u32,
    elements: [T; N],
    put: impl Fn(&mut Vec<u8>, T),
) {
    put_u32(out, type_id);
    elements.into_iter().for_each(|element| put(out, element));
}
