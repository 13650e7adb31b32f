//! One safe function a kernel. Shapes were proven at bind; addresses come from the reservation.

use std::ffi::c_void;

use ignis_backend::DeviceError;

use crate::driver::{Context, Function, Shape};
use crate::kernels::{FormatKernels, Kernels};

/// `struct Weight` of `common.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub(crate) codes: u64,
    pub(crate) high: u64,
    pub(crate) scales: u64,
    pub(crate) supers: u64,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
}

/// `struct Encoded` of `linear.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoded {
    pub(crate) pairs: u64,
    pub(crate) sums: u64,
    pub(crate) rows: u32,
}

/// `struct Target` of `linear.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) y: u64,
    /// 0: none.
    pub(crate) bias: u64,
    pub(crate) accumulate: u32,
}

/// `struct Pool` of `attention.cu`.
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

/// `struct Queries` of `attention.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queries {
    pub(crate) q: u64,
    pub(crate) o: u64,
    pub(crate) positions: u64,
    pub(crate) lanes: u64,
    pub(crate) tiles: u64,
    pub(crate) heads: u32,
    pub(crate) scale: f32,
}

/// Queries of a CTA: over all runs, and over one.
pub(crate) const TILE_QUERIES: u32 = 16;
pub(crate) const SPLIT_QUERIES: u32 = 8;

/// Shared memory of attention with tiles of `queries`.
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
}

impl Launcher<'_> {
    fn go(&self, f: Function, shape: Shape, args: &mut [*mut c_void]) -> Result<(), DeviceError> {
        // SAFETY: each function below passes the parameters of its kernel; the steps of a program
        // hold addresses inside the sealed reservation, checked against its shapes at bind, and the
        // reservation is dropped only after the stream is idle.
        unsafe { self.context.launch(f, shape, args) }
    }

    /// y [rows, cols] from rows of the table.
    pub(crate) fn embed(
        &self,
        f: &FormatKernels,
        table: Weight,
        tokens: u64,
        y: u64,
        rows: u32,
    ) -> Result<(), DeviceError> {
        self.go(f.embed, line(rows, 256), args![table, tokens, y])
    }

    /// x [groups, cols of 32] as pairs, and its sums.
    pub(crate) fn encode(&self, x: u64, to: Encoded, cols: u32) -> Result<(), DeviceError> {
        let count = to.rows * (cols / 32);
        let shape = line(count.div_ceil(8), 256);
        self.go(self.kernels.encode, shape, args![x, to.pairs, to.sums, count])
    }

    /// y [x.rows, w.rows]: by the number of rows, in one arithmetic.
    pub(crate) fn linear(
        &self,
        f: &FormatKernels,
        w: Weight,
        x: Encoded,
        to: Target,
    ) -> Result<(), DeviceError> {
        let (f, grid) = match x.rows {
            0 => return Ok(()),
            1..=8 => (f.few[0], (w.rows.div_ceil(16), 1, 1)),
            9..=16 => (f.few[1], (w.rows.div_ceil(16), 1, 1)),
            17..=32 => (f.few[2], (w.rows.div_ceil(16), 1, 1)),
            rows => (f.many, (w.rows.div_ceil(128), rows.div_ceil(64), 1)),
        };
        self.go(f, Shape { grid, threads: 256, shared_bytes: 0 }, args![w, x, to])
    }

    /// x, y [rows, groups * width].
    pub(crate) fn rms_norm(
        &self,
        x: u64,
        w: u64,
        y: u64,
        (rows, groups, width): (u32, u32, u32),
        eps: f32,
    ) -> Result<(), DeviceError> {
        if width > 256 {
            let shape = line(rows * groups, 256);
            return self.go(self.kernels.rms_norm_row, shape, args![x, w, y, width, eps]);
        }
        let count = rows * groups;
        let shape = line(count.div_ceil(4), 128);
        self.go(self.kernels.rms_norm_groups, shape, args![x, w, y, width, eps, count])
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

    /// x [rows, heads * head_dim], in place.
    pub(crate) fn rope(
        &self,
        x: u64,
        (cos, sin): (u64, u64),
        (heads, head_dim, half): (u32, u32, u32),
        rows: u32,
    ) -> Result<(), DeviceError> {
        let args = args![x, cos, sin, heads, head_dim, half];
        self.go(self.kernels.rope, line(rows, 256), args)
    }

    /// One slot of the pool a row. `stored`: 0 bf16, 1 f32.
    pub(crate) fn kv_append(
        &self,
        stored: usize,
        (k, v): (u64, u64),
        (pool, tables, stride): (u64, u64, u32),
        (positions, lanes): (u64, u64),
        (layers, layer, kv_heads, head_dim): (u32, u32, u32, u32),
        rows: u32,
    ) -> Result<(), DeviceError> {
        let args =
            args![k, v, pool, positions, lanes, tables, stride, layers, layer, kv_heads, head_dim];
        self.go(self.kernels.kv_append[stored], line(rows, 256), args)
    }

    /// Tiles of rows over all their runs.
    pub(crate) fn attention(
        &self,
        f: Function,
        queries: Queries,
        pool: PoolView,
        tiles: u32,
        value_bytes: u32,
    ) -> Result<(), DeviceError> {
        let none = 0u64;
        let chunks = (queries.heads / pool.kv_heads).div_ceil(TILE_QUERIES);
        let shape = Shape {
            grid: (tiles, pool.kv_heads * chunks, 1),
            threads: 128,
            shared_bytes: attention_shared(TILE_QUERIES, pool.head_dim, value_bytes),
        };
        self.go(f, shape, args![queries, pool, none])
    }

    /// Rows cut into at most `runs` runs of keys, then joined.
    pub(crate) fn attention_split(
        &self,
        f: Function,
        queries: Queries,
        pool: PoolView,
        partials: u64,
        (tiles, runs): (u32, u32),
        value_bytes: u32,
    ) -> Result<(), DeviceError> {
        let chunks = (queries.heads / pool.kv_heads).div_ceil(SPLIT_QUERIES);
        let shape = Shape {
            grid: (tiles, pool.kv_heads * chunks, runs),
            threads: 128,
            shared_bytes: attention_shared(SPLIT_QUERIES, pool.head_dim, value_bytes),
        };
        self.go(f, shape, args![queries, pool, partials])?;
        let shape = Shape { grid: (tiles, queries.heads, 1), threads: 128, shared_bytes: 0 };
        let head_dim = pool.head_dim;
        self.go(self.kernels.attention_join, shape, args![queries, partials, head_dim])
    }

    /// All [count].
    pub(crate) fn swiglu(&self, gate: u64, up: u64, y: u64, count: u64) -> Result<(), DeviceError> {
        self.go(self.kernels.swiglu, each(count), args![gate, up, y, count])
    }

    /// y += x, both [count].
    pub(crate) fn add_rows(&self, x: u64, y: u64, count: u64) -> Result<(), DeviceError> {
        self.go(self.kernels.add_rows, each(count), args![x, y, count])
    }

    /// y *= sigmoid(gate), both [count].
    pub(crate) fn gate_rows(&self, gate: u64, y: u64, count: u64) -> Result<(), DeviceError> {
        self.go(self.kernels.gate_rows, each(count), args![gate, y, count])
    }

    /// y [rows, width] from the rows of x that `logit_rows` names.
    pub(crate) fn gather_rows(
        &self,
        x: u64,
        y: u64,
        logit_rows: u64,
        width: u32,
        rows: u32,
    ) -> Result<(), DeviceError> {
        self.go(self.kernels.gather_rows, line(rows, 256), args![x, y, logit_rows, width])
    }

    /// Marks the first `prompt` of `count` tokens and counts the others in `counts` [vocab].
    pub(crate) fn count_tokens(
        &self,
        counts: u64,
        tokens: u64,
        prompt: u32,
        count: u32,
    ) -> Result<(), DeviceError> {
        let shape = line(count.div_ceil(256), 256);
        self.go(self.kernels.count_tokens, shape, args![counts, tokens, prompt, count])
    }

    /// One token for each of `lanes` draws.
    pub(crate) fn sample(&self, s: &SampleArgs, lanes: u32) -> Result<(), DeviceError> {
        let &SampleArgs { draws, biases, bias_max, logits, vocab, counts, adjusted, keys, rows } =
            s;
        let args = args![draws, biases, bias_max, logits, vocab, counts, adjusted, keys, rows];
        self.go(self.kernels.sample, line(lanes, 1024), args)
    }
}

/// What `sample` reads and writes; addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleArgs {
    pub(crate) draws: u64,
    pub(crate) biases: u64,
    pub(crate) bias_max: u32,
    pub(crate) logits: u64,
    pub(crate) vocab: u32,
    pub(crate) counts: u64,
    pub(crate) adjusted: u64,
    pub(crate) keys: u64,
    pub(crate) rows: u64,
}

/// A thread a value; a CTA where there is none, since a grid has at least one.
fn each(count: u64) -> Shape {
    let ctas = u32::try_from(count.div_ceil(256).max(1)).expect("a round has fewer values");
    line(ctas, 256)
}
