//! Metadata of a checkpoint as plain Python values.

use std::path::PathBuf;

use ignis_formats::{Checkpoint, MetaArray, MetaValue};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors;

/// GGUF metadata, or the content of a folder's config.json.
#[pyfunction]
pub(crate) fn read_metadata(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let checkpoint = py
        .detach(|| Checkpoint::open_header(&path))
        .map_err(|error| errors::FileError::new_err(error.to_string()))?;
    let out = PyDict::new(py);
    match &checkpoint {
        Checkpoint::Gguf(gguf) => {
            for (key, value) in gguf.metadata() {
                out.set_item(key, meta(py, value)?)?;
            }
        }
        Checkpoint::Safetensors { config, .. } | Checkpoint::Config(config) => {
            if let Some(object) = config.raw().as_object() {
                for (key, value) in object {
                    out.set_item(key, json(py, value)?)?;
                }
            }
        }
    }
    Ok(out)
}

fn meta<'py>(py: Python<'py>, value: &MetaValue) -> PyResult<Bound<'py, PyAny>> {
    match value {
        MetaValue::U64(n) => n.into_bound_py_any(py),
        MetaValue::I64(n) => n.into_bound_py_any(py),
        MetaValue::F64(x) => x.into_bound_py_any(py),
        MetaValue::Bool(b) => b.into_bound_py_any(py),
        MetaValue::Str(s) => s.into_bound_py_any(py),
        MetaValue::Array(array) => match array {
            MetaArray::Bytes(v) => Ok(PyList::new(py, v)?.into_any()),
            MetaArray::U64s(v) => Ok(PyList::new(py, v)?.into_any()),
            MetaArray::I64s(v) => Ok(PyList::new(py, v)?.into_any()),
            MetaArray::F64s(v) => Ok(PyList::new(py, v)?.into_any()),
            MetaArray::Bools(v) => Ok(PyList::new(py, v)?.into_any()),
            MetaArray::Strings(v) => {
                let list = PyList::empty(py);
                for text in v {
                    list.append(text)?;
                }
                Ok(list.into_any())
            }
        },
    }
}

/// Nesting is bounded by the parser of `config.json`.
fn json<'py>(py: Python<'py>, value: &serde_json::Value) -> PyResult<Bound<'py, PyAny>> {
    use serde_json::Value;
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(b) => b.into_bound_py_any(py),
        Value::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => n.into_bound_py_any(py),
            (None, Some(n)) => n.into_bound_py_any(py),
            _ => n.as_f64().unwrap_or(f64::NAN).into_bound_py_any(py),
        },
        Value::String(s) => s.into_bound_py_any(py),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(json(py, item)?)?;
            }
            Ok(list.into_any())
        }
        Value::Object(object) => {
            let dict = PyDict::new(py);
            for (key, item) in object {
                dict.set_item(key, json(py, item)?)?;
            }
            Ok(dict.into_any())
        }
    }
}
