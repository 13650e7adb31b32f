//! What an op is run on: the CPU and a card, in every arithmetic that they have.

use half::bf16;
use ignis_backend::{
    Activations, Device, KvFormat, StoredActivations, StoredProducts, StoredScratch,
};
use ignis_cpu::{CpuDevice, CpuOptions};
use ignis_cuda::{CudaDevice, CudaKernels, CudaOptions, Libraries, ModelFacts};
use ignis_ops::{KvShape, Program};
use ignis_types::{DType, Limits, PAGE_TOKENS};

use crate::exact::{BF16, F32, PAIR};

/// How a load computes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    Cpu {
        activations: Activations,
        kv_format: KvFormat,
    },
    Card {
        activations: StoredActivations,
        kv_format: KvFormat,
        products: StoredProducts,
        kernels: CudaKernels,
        tables_on_host: bool,
    },
}

/// The CPU in f32 throughout: what a card is compared with.
pub(crate) const CPU: Load = Load::Cpu { activations: Activations::F32, kv_format: KvFormat::F32 };
/// The CPU as it serves.
pub(crate) const CPU_INT8: Load =
    Load::Cpu { activations: Activations::Int8, kv_format: KvFormat::Bf16 };

const fn card(activations: StoredActivations, kv_format: KvFormat) -> Load {
    let (products, kernels) = (StoredProducts::Same, CudaKernels::Own);
    Load::Card { activations, kv_format, products, kernels, tables_on_host: false }
}

/// A card as it serves, and as it is more exact.
pub(crate) const CARD: Load = card(StoredActivations::Bf16, KvFormat::Bf16);
pub(crate) const CARD_PAIRS: Load = card(StoredActivations::F32, KvFormat::F32);
/// Attention in scalars over either pool.
pub(crate) const CARD_MIXED: [Load; 2] =
    [card(StoredActivations::F32, KvFormat::Bf16), card(StoredActivations::Bf16, KvFormat::F32)];
pub(crate) const CARD_PORTABLE: Load = Load::Card {
    activations: StoredActivations::Bf16,
    kv_format: KvFormat::Bf16,
    products: StoredProducts::Same,
    kernels: CudaKernels::Portable,
    tables_on_host: false,
};
pub(crate) const CARD_FAST: Load = Load::Card {
    activations: StoredActivations::Bf16,
    kv_format: KvFormat::Bf16,
    products: StoredProducts::Fast,
    kernels: CudaKernels::Own,
    tables_on_host: false,
};
pub(crate) const CARD_HOST_TABLES: Load = Load::Card {
    activations: StoredActivations::Bf16,
    kv_format: KvFormat::Bf16,
    products: StoredProducts::Same,
    kernels: CudaKernels::Own,
    tables_on_host: true,
};

impl Load {
    /// A device for `program`.
    pub(crate) fn open(self, program: &Program) -> Box<dyn Device> {
        match self {
            Load::Cpu { activations, kv_format } => {
                Box::new(CpuDevice::new(CpuOptions { threads: 2, activations, kv_format }).unwrap())
            }
            Load::Card { activations, kv_format, products, kernels, tables_on_host } => {
                let path = |name| std::env::var_os(name).map(Into::into);
                let nvrtc = path("CARD_NVRTC").into_iter().collect();
                let libraries = Libraries { nvrtc, cache: path("CARD_KERNELS") };
                let model = ModelFacts::of(program);
                let options = CudaOptions {
                    kv_format,
                    activations,
                    products,
                    tables_on_host,
                    kernels,
                    model,
                    libraries,
                };
                Box::new(CudaDevice::new(&options).unwrap())
            }
        }
    }

    /// What to compare with beside float64: of a card, the CPU.
    pub(crate) fn other(self) -> Option<Load> {
        matches!(self, Load::Card { .. }).then_some(CPU)
    }

    fn stored(self) -> Option<StoredActivations> {
        match self {
            Load::Cpu { .. } => None,
            Load::Card { activations, .. } => Some(activations),
        }
    }

    /// Whether weights and inputs of products are rounded to bf16.
    pub(crate) fn is_bf16(self) -> bool {
        self.stored() == Some(StoredActivations::Bf16)
    }

    /// Whether products and, with [`Load::attends_on_tensor_cores`], attention are summed there.
    pub(crate) fn is_card(self) -> bool {
        self.stored().is_some()
    }

    pub(crate) fn is_fast(self) -> bool {
        matches!(self, Load::Card { products: StoredProducts::Fast, .. })
    }

    pub(crate) fn kv_format(self) -> KvFormat {
        match self {
            Load::Cpu { kv_format, .. } | Load::Card { kv_format, .. } => kv_format,
        }
    }

    pub(crate) fn attends_on_tensor_cores(self) -> bool {
        self.is_bf16() && self.kv_format() == KvFormat::Bf16
    }

    /// How a matrix or table of `dtype` is kept.
    pub(crate) fn kept(self, dtype: DType) -> DType {
        self.stored().map_or(dtype, |activations| activations.kept_dtype(dtype))
    }

    /// The most that a value changes, relative, when it becomes an input of products with plain
    /// weights.
    pub(crate) fn input_rounding(self) -> f64 {
        match self.stored() {
            Some(StoredActivations::Bf16) => BF16,
            Some(StoredActivations::F32) => PAIR,
            None => 0.0,
        }
    }

    /// The most that each value of a row changes when it becomes an input of products with weights
    /// of `dtype`.
    ///
    /// The CPU takes 32 columns in steps of their largest value / 127, or / 32,512 where a product
    /// is precise, and rounds to the nearest.
    pub(crate) fn input_roundings(self, x: &[f64], dtype: DType, precise: bool) -> Vec<f64> {
        let int8 = matches!(self, Load::Cpu { activations: Activations::Int8, .. });
        if !(int8 && dtype.is_quantised()) {
            return x.iter().map(|x| self.input_rounding() * x.abs()).collect();
        }
        let steps = if precise { 32_512.0 } else { 127.0 };
        let half_step = |group: &[f64]| {
            let largest = group.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            vec![largest / steps / 2.0; group.len()]
        };
        x.chunks(32).flat_map(half_step).collect()
    }

    /// The most that a key or value changes, relative, in the pool.
    pub(crate) fn kv_rounding(self) -> f64 {
        if self.kv_format() == KvFormat::Bf16 { BF16 } else { F32 }
    }

    /// Bytes of a value in the pool.
    pub(crate) fn kv_bytes(self, value: f32) -> Vec<u8> {
        match self.kv_format() {
            KvFormat::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            KvFormat::F32 => value.to_le_bytes().to_vec(),
        }
    }

    pub(crate) fn kv_value(self, bytes: &[u8]) -> f32 {
        match self.kv_format() {
            KvFormat::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f32(),
            KvFormat::F32 => f32::from_le_bytes(bytes.try_into().unwrap()),
        }
    }

    /// Where value `at` of head `head` of token `offset` lies in a page, in values: keys and values
    /// are `[layers, 2, kv_heads, PAGE_TOKENS, head_dim]` on a card, while the CPU has its keys
    /// `[head_dim, PAGE_TOKENS]`.
    pub(crate) fn kv_place(self, kv: &KvShape, slot: Slot, head: u32, at: u32) -> usize {
        let plane = (2 * slot.layer + u32::from(slot.is_value)) * kv.kv_heads + head;
        let within = if self.is_card() || slot.is_value {
            slot.offset * kv.head_dim + at
        } else {
            at * PAGE_TOKENS + slot.offset
        };
        (plane * kv.head_dim * PAGE_TOKENS + within) as usize
    }

    /// Parts of the scratch that a round must not rely on, as offsets from its start: on a card
    /// all but what binding left there.
    pub(crate) fn loose_scratch(
        self,
        program: &Program,
        limits: &Limits,
        bytes: u64,
    ) -> Vec<(u64, u64)> {
        let Some(activations) = self.stored() else { return vec![(0, bytes)] };
        let map = StoredScratch::new(program, limits, activations).unwrap();
        vec![(0, map.inv_freq), (map.cos, map.arrived), (map.squares, map.end)]
    }
}

/// The keys or the values of one token in a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) layer: u32,
    pub(crate) is_value: bool,
    pub(crate) offset: u32,
}
