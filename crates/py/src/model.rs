//! Headers, limits and needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ignis_formats::{Checkpoint, ConfigJson};
use ignis_models::Model;
use ignis_types::DType;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

use crate::devices::DeviceOptions;
use crate::errors;

/// What the headers of a checkpoint say.
#[pyclass(frozen, get_all, module = "ignis._native")]
pub(crate) struct ModelInfo {
    format: &'static str,
    architecture: &'static str,
    name: String,
    file: String,
    stored_bytes: u64,
    parameters: u64,
    quantisation: String,
    layers: u32,
    hidden: u32,
    ffn: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    vocab: u32,
    context_trained: u32,
}

/// The headers of a checkpoint, and its model.
pub(crate) fn open(path: &Path) -> PyResult<(Checkpoint, Model)> {
    let checkpoint = Checkpoint::open_header(path)
        .map_err(|error| errors::FileError::new_err(error.to_string()))?;
    let model = Model::of(&checkpoint).map_err(errors::from_model)?;
    Ok((checkpoint, model))
}

/// Random weights in the geometry of a config.json.
#[pyclass(frozen, module = "ignis._native")]
pub(crate) struct RandomModel {
    config: ConfigJson,
    matrices: DType,
}

#[pymethods]
impl RandomModel {
    #[new]
    fn new(config: &str, matrices: &str) -> PyResult<Self> {
        let matrices = match matrices {
            "bf16" => DType::BF16,
            "q8_0" => DType::Q8_0,
            "q4_k" => DType::Q4K,
            other => {
                let expected = "expected bf16, q8_0 or q4_k";
                return Err(PyValueError::new_err(format!("matrices is {other:?}, {expected}")));
            }
        };
        let config = ConfigJson::parse(Path::new("config.json"), config.as_bytes())
            .map_err(|error| errors::FileError::new_err(error.to_string()))?;
        let model = RandomModel { config, matrices };
        model.model().map(|_| model)
    }

    /// Bytes of all weights, as a file would store them.
    fn stored_bytes(&self) -> PyResult<u64> {
        Ok(stored_bytes(&self.model()?))
    }
}

impl RandomModel {
    pub(crate) fn model(&self) -> PyResult<Model> {
        Model::of_config(&self.config, self.matrices).map_err(errors::from_model)
    }
}

/// A checkpoint by its path, or random weights.
#[derive(FromPyObject)]
pub(crate) enum Source<'py> {
    Random(PyRef<'py, RandomModel>),
    Path(PathBuf),
}

impl Source<'_> {
    /// The model that its headers describe.
    pub(crate) fn model(&self, py: Python<'_>) -> PyResult<Model> {
        match self {
            Source::Random(random) => random.model(),
            Source::Path(path) => Ok(py.detach(|| open(path))?.1),
        }
    }
}

fn stored_bytes(model: &Model) -> u64 {
    let bytes = model.program.weights.iter().map(|weight| {
        let elements = u64::from(weight.rows) * u64::from(weight.cols);
        elements / weight.dtype.block_elements() * weight.dtype.block_bytes()
    });
    bytes.sum()
}

/// Headers of a checkpoint.
#[pyfunction]
pub(crate) fn inspect(py: Python<'_>, path: PathBuf) -> PyResult<ModelInfo> {
    let (checkpoint, model) = py.detach(|| open(&path))?;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for weight in &model.program.weights {
        *counts.entry(weight.dtype.name()).or_default() += 1;
    }
    let stored_bytes = stored_bytes(&model);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    let quantisation: Vec<String> =
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let (format, file) = match &checkpoint {
        Checkpoint::Gguf(gguf) => ("gguf", gguf.path().to_owned()),
        Checkpoint::Safetensors { .. } | Checkpoint::Config(_) => ("safetensors", path.clone()),
    };
    let parameters = model.parameters();
    let shape = model.shape;
    Ok(ModelInfo {
        format,
        architecture: shape.family.name(),
        parameters,
        name: shape.name,
        file: file.display().to_string(),
        stored_bytes,
        quantisation: quantisation.join(", "),
        layers: shape.layers,
        hidden: shape.hidden,
        ffn: shape.ffn,
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        vocab: shape.vocab,
        context_trained: shape.context_trained,
    })
}

/// What a load is sized for.
#[pyclass(frozen, get_all, module = "ignis._native")]
#[derive(Clone)]
pub(crate) struct Limits {
    lanes_max: u32,
    chunk_tokens_max: u32,
    context_tokens_max: u32,
    pages: u32,
    retained_device: u32,
    retained_host: u32,
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(signature = (
        lanes_max,
        chunk_tokens_max,
        context_tokens_max,
        pages,
        retained_device = 0,
        retained_host = 0,
    ))]
    fn new(
        lanes_max: u32,
        chunk_tokens_max: u32,
        context_tokens_max: u32,
        pages: u32,
        retained_device: u32,
        retained_host: u32,
    ) -> Self {
        Limits {
            lanes_max,
            chunk_tokens_max,
            context_tokens_max,
            pages,
            retained_device,
            retained_host,
        }
    }
}

impl Limits {
    pub(crate) fn native(&self) -> ignis_types::Limits {
        ignis_types::Limits {
            lanes_max: self.lanes_max,
            chunk_tokens_max: self.chunk_tokens_max,
            context_tokens_max: self.context_tokens_max,
            pages: self.pages,
            retained_device: self.retained_device,
            retained_host: self.retained_host,
        }
    }
}

/// Bytes of each plan line but `kv_pool`.
#[pyclass(frozen, get_all, module = "ignis._native")]
pub(crate) struct Needs {
    lines: Vec<(&'static str, u64)>,
    kv_page_bytes: u64,
    page_tokens: u32,
    retained_slot_bytes: u64,
    pinned_bytes: u64,
    image_payload_bytes: u64,
    window_bytes: u32,
}

/// The dry run of a load: sizes, and whether the device has kernels for the model at all.
#[pyfunction]
pub(crate) fn needs(
    py: Python<'_>,
    model: Source<'_>,
    limits: &Limits,
    options: &DeviceOptions,
) -> PyResult<Needs> {
    let limits = ignis_types::Limits { pages: 1, ..limits.native() };
    let layout = options.layout();
    limits.check().map_err(|error| errors::from_engine(error.into()))?;
    let model = model.model(py)?;
    let needs = ignis_engine::needs(&model.program, &limits, &*layout)
        .map_err(|error| errors::from_engine(error.into()))?;
    options
        .check(&model.program, &limits)
        .map_err(|error| errors::DeviceUnsuitedError::new_err(error.to_string()))?;
    let window_bytes = ignis_tiers::window_bytes(needs.image_payload.0)
        .ok_or_else(|| PyOverflowError::new_err("an image is larger than 960 windows of 2 GiB"))?;
    Ok(Needs {
        lines: needs.lines.iter().map(|(line, bytes)| (line.name(), bytes.0)).collect(),
        kv_page_bytes: needs.kv_page.0,
        page_tokens: ignis_types::PAGE_TOKENS,
        retained_slot_bytes: needs.host_slot.0,
        pinned_bytes: needs.pinned.0,
        image_payload_bytes: needs.image_payload.0,
        window_bytes,
    })
}
