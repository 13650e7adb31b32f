//! Loading the golden checkpoints and what transformers computed for them.
#![allow(dead_code)] // each test file uses its own part

pub(crate) mod rewrite;

use std::path::{Path, PathBuf};

use ignis_backend::{Activations, KvFormat};
use ignis_cpu::{CpuDevice, CpuOptions};
use ignis_engine::{Engine, Progress, Storage, lay_out};
use ignis_formats::Checkpoint;
use ignis_models::Model;
use ignis_types::{Limits, PlanLine};

/// One folder of `tests/golden`.
pub(crate) struct Golden {
    pub(crate) folder: PathBuf,
    header: serde_json::Value,
    data: Vec<u8>,
}

impl Golden {
    pub(crate) fn open(family: &str) -> Self {
        let folder =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(family);
        let file = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&file[8..8 + len]).unwrap();
        Golden { folder, header, data: file[8 + len..].to_vec() }
    }

    fn bytes(&self, name: &str) -> &[u8] {
        let offsets = &self.header[name]["data_offsets"];
        let at = |i: usize| offsets[i].as_u64().unwrap() as usize;
        &self.data[at(0)..at(1)]
    }

    fn longs(&self, name: &str) -> Vec<u32> {
        let words = self.bytes(name).chunks_exact(8);
        words.map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect()
    }

    /// The prompt of length `n`.
    pub(crate) fn ids(&self, n: usize) -> Vec<u32> {
        self.longs(&format!("ids.{n}"))
    }

    /// 24 greedy tokens after it.
    pub(crate) fn greedy(&self, n: usize) -> Vec<u32> {
        self.longs(&format!("greedy.{n}"))
    }

    /// How many last positions have logits, and the logits `[rows, vocab]`.
    pub(crate) fn logits(&self, n: usize) -> (usize, Vec<f32>) {
        let name = format!("logits.{n}");
        let rows = self.header[&name]["shape"][0].as_u64().unwrap() as usize;
        let words = self.bytes(&name).chunks_exact(4);
        (rows, words.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    }
}

/// A sealed engine with 3 lanes and 24 pages on the CPU.
pub(crate) fn load(
    golden: &Golden,
    chunk: u32,
    threads: usize,
    activations: Activations,
    kv_format: KvFormat,
) -> Engine {
    load_from(&golden.folder, chunk, threads, activations, kv_format)
}

/// As [`load`], from any path.
pub(crate) fn load_from(
    path: &Path,
    chunk: u32,
    threads: usize,
    activations: Activations,
    kv_format: KvFormat,
) -> Engine {
    let options = CpuOptions { threads, activations, kv_format };
    load_with(path, options, [0, 0], chunk, Storage::none())
}

/// As [`load_from`], with device and host retained slots, and places for images.
pub(crate) fn load_with(
    path: &Path,
    options: CpuOptions,
    [retained_device, retained_host]: [u32; 2],
    chunk: u32,
    storage: Storage,
) -> Engine {
    let checkpoint = Checkpoint::open(path).unwrap();
    let limits = Limits {
        lanes_max: 3,
        chunk_tokens_max: chunk,
        context_tokens_max: 512,
        pages: 24,
        retained_device,
        retained_host,
    };
    let device = Box::new(CpuDevice::new(options).unwrap());
    let program = Model::of(&checkpoint).unwrap().program;
    let mapped = lay_out(&program, &limits, ignis_backend::Device::layout(&*device)).unwrap();
    let plan = PlanLine::ALL.map(|line| (line, mapped.layout.line_bytes(line)));
    ignis_engine::load(&checkpoint, &limits, device, &plan, storage, &Progress::default()).unwrap()
}
