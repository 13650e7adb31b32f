//! One safe function a kernel. Shapes were proven at bind; addresses come from the reservation.

use std::ffi::c_void;

use ignis_backend::{DeviceError, SAMPLE_PART_IDS, StoredProducts};

use crate::abi::{
    Cut, Encoded, IDS_MAX, Ids, Inputs, Norm, PoolView, Prepare, Product, Queries, Samples, Weight,
};
use crate::driver::{Context, Function, Shape};
use crate::kernels::{Kernels, TileKernel};
use crate::products::product_launch;

/// Threads of a CTA that fetches inputs: `FETCH_CTA` of `rows.cu`.
const FETCH_THREADS: u32 = 128;

/// Heads of a CTA in `prepare`, a warp each, where rows are many.
const PREPARE_HEADS: u32 = 4;

/// Queries of a CTA of attention in scalars: over all runs, and over one.
pub(crate) const TILE_QUERIES: u32 = 16;
pub(crate) const SPLIT_QUERIES: u32 = 8;
pub(crate) const SCALAR_THREADS: u32 = 128;

/// Shared memory of attention in scalars with tiles of `queries`.
pub(crate) const fn attention_shared(queries: u32, head_dim: u32, value_bytes: u32) -> u32 {
    4 * queries * (head_dim + 64) + 64 * (head_dim * value_bytes + 16)
}

/// The arguments of a launch, on the stack.
macro_rules! args {
    ($($arg:expr),* $(,)?) => {
        &mut [$((&raw const $arg).cast_mut().cast::<c_void>()),*]
    };
}

const fn line(x: u32, threads: u32) -> Shape {
    Shape { grid: (x, 1, 1), threads, shared_bytes: 0 }
}

/// Kernels, and the stream that they are put on.
#[derive(Clone, Copy)]
pub(crate) struct Launcher<'a> {
    pub(crate) context: &'a Context,
    pub(crate) kernels: &'a Kernels,
    pub(crate) products: StoredProducts,
    /// Whether a kernel may begin while the one ahead still runs.
    pub(crate) overlaps: bool,
}

impl Launcher<'_> {
    fn go(&self, f: Function, shape: Shape, args: &mut [*mut c_void]) -> Result<(), DeviceError> {
        // SAFETY: each function below passes the parameters of its kernel; the steps of a program
        // hold addresses inside the sealed reservation, checked against its shapes at bind, and the
        // reservation is dropped only after the stream is idle.
        unsafe { self.context.launch(f, shape, self.overlaps, args) }
    }

    /// What a decode round of `rows` rows reads, from the host.
    pub(crate) fn fetch_inputs(&self, inputs: &Inputs, rows: u32) -> Result<(), DeviceError> {
        let inputs = *inputs;
        self.go(self.kernels.fetch_inputs, line(rows + 1, FETCH_THREADS), args![inputs])
    }

    /// y [rows, cols] from rows of the table.
    pub(crate) fn embed(
        &self,
        format: usize,
        table: Weight,
        tokens: u64,
        y: u64,
        rows: u32,
    ) -> Result<(), DeviceError> {
        let grid = (rows, table.cols.div_ceil(1024), 1);
        let shape = Shape { grid, threads: 256, shared_bytes: 0 };
        self.go(self.kernels.embed[format], shape, args![table, tokens, y])
    }

    /// x [to.rows, width], encoded.
    pub(crate) fn encode(&self, x: u64, width: u32, to: Encoded) -> Result<(), DeviceError> {
        self.go(self.kernels.encode, line(to.rows, 256), args![x, width, to])
    }

    /// Rows of x times the gain of a norm, encoded, and what `norm` names for products to finish
    /// it; those rows that `rows_from` names, unless it is 0.
    pub(crate) fn norm_encode(
        &self,
        (x, gain): (u64, u64),
        rows_from: u64,
        to: Encoded,
        norm: Norm,
    ) -> Result<(), DeviceError> {
        let width = to.cols;
        let args = args![x, gain, width, rows_from, to, norm];
        self.go(self.kernels.norm_encode, line(to.rows, 256), args)
    }

    /// silu(gate) * up, both [to.rows, width], encoded.
    pub(crate) fn swiglu_encode(
        &self,
        (gate, up): (u64, u64),
        width: u32,
        to: Encoded,
    ) -> Result<(), DeviceError> {
        let grid = (to.rows, width.div_ceil(1024), 1);
        let shape = Shape { grid, threads: 256, shared_bytes: 0 };
        self.go(self.kernels.swiglu_encode, shape, args![gate, up, width, to])
    }

    /// Products of the rows of `p.x`: by their number, in one arithmetic.
    pub(crate) fn product(&self, format: usize, p: &Product) -> Result<(), DeviceError> {
        if p.x.rows == 0 {
            return Ok(());
        }
        let kernels = self.kernels.linear[format].as_ref().expect("bind saw that it is loaded");
        let (f, shape) = product_launch(kernels, self.products, p);
        let p = *p;
        self.go(f, shape, args![p])
    }

    /// cos, sin [rows, half].
    pub(crate) fn rope_angles(
        &self,
        positions: u64,
        inv_freq: u64,
        half: u32,
        magnitude: f32,
        (cos, sin): (u64, u64),
        rows: u32,
    ) -> Result<(), DeviceError> {
        let args = args![positions, inv_freq, half, magnitude, cos, sin];
        self.go(self.kernels.rope_angles, line(rows, 128), args)
    }

    /// Queries and keys of `rows` rows made ready, and their slots written.
    pub(crate) fn prepare(&self, p: &Prepare, rows: u32) -> Result<(), DeviceError> {
        let warps = if rows <= 8 { 1 } else { PREPARE_HEADS };
        let grid = (rows, (p.heads + 2 * p.kv_heads).div_ceil(warps), 1);
        let shape = Shape { grid, threads: 32 * warps, shared_bytes: 0 };
        let p = *p;
        self.go(self.kernels.prepare, shape, args![p])
    }

    /// Tiles of rows over all their runs, or, of one row each, over `runs` runs side by side: in
    /// scalars both, on tensor cores the former.
    pub(crate) fn attention(
        &self,
        kernel: &TileKernel,
        queries: Queries,
        pool: PoolView,
        over: (u32, u32),
    ) -> Result<(), DeviceError> {
        let shape = attention_shape(kernel, &queries, &pool, over);
        // Attention on tensor cores takes the first two.
        let partials = queries.partials;
        self.go(kernel.f, shape, args![queries, pool, partials])
    }

    /// On tensor cores, rows of a tile each, which have up to `runs` runs; about `ctas` CTAs share
    /// these. Each first makes ready what `fresh` names, unless that has no queries.
    pub(crate) fn attend_split(
        &self,
        (kernel, ctas): (&TileKernel, u32),
        queries: Queries,
        pool: PoolView,
        fresh: Prepare,
        (rows, runs): (u32, u32),
    ) -> Result<(), DeviceError> {
        let parts = heads_parts(kernel, &queries, &pool);
        let cut = Cut { rows, ctas: (ctas / parts).max(1) };
        let TileKernel { threads, shared_bytes, .. } = *kernel;
        let shape = Shape { grid: (cut.ctas_most(runs), parts, 1), threads, shared_bytes };
        self.go(kernel.f, shape, args![queries, pool, fresh, cut])
    }

    /// Joins the runs of rows that attention in scalars has cut.
    pub(crate) fn attention_join(
        &self,
        join: Function,
        queries: Queries,
        head_dim: u32,
        tiles: u32,
    ) -> Result<(), DeviceError> {
        let shape =
            Shape { grid: (tiles, queries.heads, 1), threads: SCALAR_THREADS, shared_bytes: 0 };
        let partials = queries.partials;
        self.go(join, shape, args![queries, partials, head_dim])
    }

    /// y += x, both `[count]`.
    pub(crate) fn add_rows(&self, x: u64, y: u64, count: u64) -> Result<(), DeviceError> {
        self.go(self.kernels.add_rows, each(count), args![x, y, count])
    }

    /// Marks the ids of a prompt, or counts those of an output, in `counts`, `[vocab]`. They travel
    /// with the launch, so nobody waits; at most [`IDS_MAX`].
    pub(crate) fn count_tokens(
        &self,
        counts: u64,
        ids: &[u32],
        is_prompt: bool,
    ) -> Result<(), DeviceError> {
        let mut sent = Ids { ids: [0; IDS_MAX] };
        sent.ids[..ids.len()].copy_from_slice(ids);
        let count = ids.len() as u32;
        let prompt = if is_prompt { count } else { 0 };
        let shape = line(count.div_ceil(256), 256);
        self.go(self.kernels.count_tokens, shape, args![counts, sent, prompt, count])
    }

    /// One token for each of `lanes` draws.
    pub(crate) fn sample(&self, s: &Samples, lanes: u32) -> Result<(), DeviceError> {
        let s = *s;
        let over = |ids: u32, threads| Shape {
            grid: (s.vocab.div_ceil(ids), lanes, 1),
            threads,
            shared_bytes: 0,
        };
        let part = SAMPLE_PART_IDS as u32;
        self.go(self.kernels.sample_largest, over(part, part / 8), args![s])?;
        self.go(self.kernels.sample_masses, over(part, part / 8), args![s])?;
        self.go(self.kernels.sample_draw, over(8 * 1024, 1024), args![s])
    }
}

/// A thread a value; a CTA where there is none, since a grid has at least one.
fn each(count: u64) -> Shape {
    let ctas = u32::try_from(count.div_ceil(256).max(1)).expect("a round has fewer values");
    line(ctas, 256)
}

/// A CTA for each tile, part of the heads that share a KV head, and run.
fn attention_shape(
    kernel: &TileKernel,
    queries: &Queries,
    pool: &PoolView,
    (tiles, runs): (u32, u32),
) -> Shape {
    let TileKernel { threads, shared_bytes, .. } = *kernel;
    Shape { grid: (tiles, heads_parts(kernel, queries, pool), runs), threads, shared_bytes }
}

/// Parts of the heads, each of one KV head and no more than a CTA takes.
fn heads_parts(kernel: &TileKernel, queries: &Queries, pool: &PoolView) -> u32 {
    pool.kv_heads * (queries.heads / pool.kv_heads).div_ceil(kernel.rows)
}
