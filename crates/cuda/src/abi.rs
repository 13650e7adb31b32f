//! Structures that kernels take, as their files declare them. Addresses are of device memory.

use std::mem::{offset_of, size_of};

/// `struct Weight` of `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    pub(crate) blocks: u64,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
}

/// `struct Encoded` of `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Encoded {
    /// 0: none.
    pub(crate) hi: u64,
    /// 0 where values are rounded to one bf16.
    pub(crate) lo: u64,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
}

/// `struct Norm` of `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Norm {
    /// Of few rows; 0: no norm.
    pub(crate) squares: u64,
    /// Of more.
    pub(crate) scales: u64,
    pub(crate) eps: f32,
    pub(crate) cols: u32,
}

/// `struct Part` of `linear.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) w: Weight,
    pub(crate) y: u64,
    /// 0: none.
    pub(crate) bias: u64,
}

/// `struct Product` of `linear.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) parts: [Part; 3],
    pub(crate) count: u32,
    /// [`SET`], [`ADD`] or [`GLU`].
    pub(crate) mode: u32,
    pub(crate) x: Encoded,
    /// Of `x`.
    pub(crate) norm: Norm,
    /// Of [`GLU`], or with `gain`.
    pub(crate) to: Encoded,
    /// Of the norm of `y` that is made here too, where rows are few; 0: none.
    pub(crate) gain: u64,
    /// Of that norm.
    pub(crate) squares: u64,
}

/// y = the product.
pub(crate) const SET: u32 = 0;
/// y += the product.
pub(crate) const ADD: u32 = 1;
/// `to` = silu(gate) * up, of the two parts.
pub(crate) const GLU: u32 = 2;

/// `struct Prepare` of `prepare.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prepare {
    /// 0, of attention: all is ready.
    pub(crate) q: u64,
    pub(crate) k: u64,
    pub(crate) v: u64,
    /// 0: none; like the next.
    pub(crate) q_norm: u64,
    pub(crate) k_norm: u64,
    pub(crate) eps: f32,
    pub(crate) cos: u64,
    pub(crate) sin: u64,
    /// 0: no rotation.
    pub(crate) half: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) pool: u64,
    pub(crate) page_values: u64,
    /// From a page's start to the layer's keys, in values.
    pub(crate) layer_at: u64,
    /// From the layer's keys to its values.
    pub(crate) values_at: u64,
    pub(crate) positions: u64,
    pub(crate) lanes: u64,
    pub(crate) tables: u64,
    pub(crate) stride: u32,
}

/// `struct Pool` of `attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolView {
    pub(crate) keys: u64,
    pub(crate) page_values: u64,
    pub(crate) values_at: u64,
    pub(crate) tables: u64,
    pub(crate) stride: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
}

/// `struct Queries` of `attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries {
    pub(crate) q: u64,
    /// Unused where `to` is there.
    pub(crate) o: u64,
    pub(crate) positions: u64,
    pub(crate) lanes: u64,
    pub(crate) tiles: u64,
    pub(crate) heads: u32,
    pub(crate) scale: f32,
    pub(crate) to: Encoded,
    pub(crate) arrived: u64,
    pub(crate) partials: u64,
}

/// `struct Samples` of `sample.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Samples {
    pub(crate) draws: u64,
    pub(crate) biases: u64,
    pub(crate) logits: u64,
    pub(crate) counts: u64,
    pub(crate) adjusted: u64,
    pub(crate) keys: u64,
    pub(crate) states: u64,
    pub(crate) rows: u64,
    pub(crate) bias_max: u32,
    pub(crate) vocab: u32,
}

/// Most ids that a launch brings along: with two counts and an address within the 4,096 bytes that
/// a kernel's parameters may have.
pub(crate) const IDS_MAX: usize = 1000;

/// `struct Ids` of `rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    pub(crate) ids: [u32; IDS_MAX],
}

// The compilers of both sides lay structures out by the same rules; this is what they come to.
const _: () = {
    assert!(size_of::<Ids>() == 4000);
    assert!(size_of::<Weight>() == 16 && offset_of!(Weight, rows) == 8);
    assert!(size_of::<Encoded>() == 24 && offset_of!(Encoded, rows) == 16);
    assert!(size_of::<Part>() == 32 && offset_of!(Part, y) == 16);
    assert!(size_of::<Norm>() == 24 && offset_of!(Norm, eps) == 16);
    assert!(size_of::<Product>() == 192 && offset_of!(Product, count) == 96);
    assert!(offset_of!(Product, x) == 104 && offset_of!(Product, norm) == 128);
    assert!(offset_of!(Product, to) == 152 && offset_of!(Product, gain) == 176);
    assert!(offset_of!(Product, squares) == 184);
    assert!(size_of::<Prepare>() == 144 && offset_of!(Prepare, cos) == 48);
    assert!(offset_of!(Prepare, half) == 64 && offset_of!(Prepare, pool) == 80);
    assert!(offset_of!(Prepare, positions) == 112 && offset_of!(Prepare, stride) == 136);
    assert!(size_of::<PoolView>() == 48 && offset_of!(PoolView, stride) == 32);
    assert!(size_of::<Queries>() == 88 && offset_of!(Queries, heads) == 40);
    assert!(offset_of!(Queries, to) == 48 && offset_of!(Queries, arrived) == 72);
    assert!(size_of::<Samples>() == 72 && offset_of!(Samples, bias_max) == 64);
};
