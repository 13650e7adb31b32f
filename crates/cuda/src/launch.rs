//! One safe function a kernel. Shapes were proven at bind; addresses come from the reservation.

use std::ffi::c_void;

use ignis_backend::{DeviceError, FEW_ROWS, SAMPLE_PART_IDS, StoredProducts, is_long};

use crate::abi::{Encoded, GLU, Norm, PoolView, Prepare, Product, Queries, Samples, Weight};
use crate::driver::{Context, Function, Shape};
use crate::kernels::{FewKernel, Kernels, LinearKernels, ManyKernel, TileKernel};

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
        format: usize,
        table: Weight,
        tokens: u64,
        y: u64,
        rows: u32,
    ) -> Result<(), DeviceError> {
        self.go(self.kernels.embed[format], line(rows, 256), args![table, tokens, y])
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
    pub(crate) fn prepare(&self, stored: usize, p: &Prepare, rows: u32) -> Result<(), DeviceError> {
        let warps = if rows <= 8 { 1 } else { PREPARE_HEADS };
        let grid = (rows, (p.heads + 2 * p.kv_heads).div_ceil(warps), 1);
        let shape = Shape { grid, threads: 32 * warps, shared_bytes: 0 };
        let p = *p;
        self.go(self.kernels.prepare[stored], shape, args![p])
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

    /// On tensor cores, rows of a tile each over `runs` runs side by side; each first makes ready
    /// what `fresh` names, unless that has no queries.
    pub(crate) fn attend_split(
        &self,
        kernel: &TileKernel,
        queries: Queries,
        pool: PoolView,
        fresh: Prepare,
        over: (u32, u32),
    ) -> Result<(), DeviceError> {
        let shape = attention_shape(kernel, &queries, &pool, over);
        self.go(kernel.f, shape, args![queries, pool, fresh])
    }

    /// Joins the runs of rows that attention in scalars has cut.
    pub(crate) fn attention_join(
        &self,
        queries: Queries,
        head_dim: u32,
        tiles: u32,
    ) -> Result<(), DeviceError> {
        let shape =
            Shape { grid: (tiles, queries.heads, 1), threads: SCALAR_THREADS, shared_bytes: 0 };
        let partials = queries.partials;
        self.go(self.kernels.attention_join, shape, args![queries, partials, head_dim])
    }

    /// y += x, both [count].
    pub(crate) fn add_rows(&self, x: u64, y: u64, count: u64) -> Result<(), DeviceError> {
        self.go(self.kernels.add_rows, each(count), args![x, y, count])
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
    let chunks = (queries.heads / pool.kv_heads).div_ceil(kernel.rows);
    let TileKernel { threads, shared_bytes, .. } = *kernel;
    Shape { grid: (tiles, pool.kv_heads * chunks, runs), threads, shared_bytes }
}

/// Which kernel of a format makes these products, and its shape. Up to [`FEW_ROWS`] rows lie in an
/// order of their own, which these kernels read, and write where a norm follows.
fn product_launch(f: &LinearKernels, products: StoredProducts, p: &Product) -> (Function, Shape) {
    let glu = p.mode == GLU;
    // Tiles of `height` rows of each matrix; a gated tile has half of them from each.
    let tiles = |height: u32| -> u32 {
        let counted = if glu { 1 } else { p.count as usize };
        p.parts[..counted].iter().map(|part| part.w.rows.div_ceil(height)).sum()
    };
    let rows = p.x.rows;
    assert!(rows <= FEW_ROWS || p.gain == 0, "of more rows a norm is a launch of its own");
    // As many CTAs as run at a time: each takes tile after tile.
    let few = |kernel: &FewKernel| {
        let FewKernel { f, threads, shared_bytes, ctas } = *kernel;
        (f, Shape { grid: (tiles(16).min(ctas), 1, 1), threads, shared_bytes })
    };
    if p.x.lo != 0 {
        return match rows {
            0..=8 => few(&f.exact[0]),
            9..=FEW_ROWS => few(&f.exact[1]),
            _ => {
                let grid = (rows.div_ceil(64), tiles(64), 1);
                (f.exact_many, Shape { grid, threads: 256, shared_bytes: 0 })
            }
        };
    }
    let long = is_long(p.x.cols);
    assert!(!(glu && long), "so many columns have two products for it");
    let of_few = |width: usize| {
        let kernels = f.few.as_ref().expect("weights in f16 and f32 only meet pairs");
        let kind = if glu {
            &kernels.glu
        } else if long {
            &kernels.long
        } else {
            &kernels.plain
        };
        few(&kind[width])
    };
    match rows {
        0..=8 => of_few(0),
        9..=16 => of_few(1),
        17..=FEW_ROWS => of_few(2),
        _ => {
            let down = tiles(if glu { 64 } else { 128 });
            let all = |many: &ManyKernel| rows.div_ceil(many.tile.rows) * down;
            // A tile of the fast kernel takes about one and a half times as long.
            let turns = |many: &ManyKernel| all(many).div_ceil(many.ctas.unwrap_or(1));
            let is_faster = |fast: &ManyKernel| 3 * turns(fast) < 2 * turns(&f.many);
            let fast = f.many_fast.filter(|_| products == StoredProducts::Fast);
            let many = fast.filter(is_faster).unwrap_or(f.many);
            let grid = match many.ctas {
                Some(ctas) => (ctas.min(all(&many)), 1, 1),
                None => (rows.div_ceil(many.tile.rows), down, 1),
            };
            let TileKernel { f, threads, shared_bytes, .. } = many.tile;
            (f, Shape { grid, threads, shared_bytes })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{ADD, Part, SET};
    use crate::kernels::FewKernels;

    const FEW: [u32; 5] = [1, 8, 9, 17, FEW_ROWS];

    fn kernels() -> LinearKernels {
        let tile = TileKernel { f: Function::fake(7), rows: 64, threads: 256, shared_bytes: 9 };
        let many = ManyKernel { tile, ctas: None };
        let few = |threads, ctas| {
            move |number| FewKernel { f: Function::fake(number), threads, shared_bytes: 5, ctas }
        };
        LinearKernels {
            few: Some(FewKernels {
                plain: [1, 2, 3].map(few(256, 30)),
                long: [11, 12, 13].map(few(512, 20)),
                glu: [4, 5, 6].map(few(256, 12)),
            }),
            many,
            many_fast: None,
            exact: [8, 9].map(few(256, 30)),
            exact_many: Function::fake(10),
        }
    }

    fn product(mode: u32, rows: u32, exact: bool) -> Product {
        let part = |rows| Part { w: Weight { blocks: 0, rows, cols: 64 }, y: 0, bias: 0 };
        let x = Encoded { hi: 1, lo: u64::from(exact), rows, cols: 64 };
        Product {
            parts: [part(200), part(200), part(17)],
            count: if mode == GLU { 2 } else { 3 },
            mode,
            x,
            norm: Norm::default(),
            to: Encoded::default(),
            gain: 0,
            squares: 0,
        }
    }

    #[test]
    fn a_norm_that_follows_changes_no_kernel_of_few_rows() {
        for rows in FEW {
            for exact in [false, true] {
                let plain = product(ADD, rows, exact);
                let (f, shape) = product_launch(&kernels(), StoredProducts::Same, &plain);
                let (same, alike) =
                    product_launch(&kernels(), StoredProducts::Same, &Product { gain: 1, ..plain });
                assert!(f == same && shape.grid == alike.grid, "{rows} {exact}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a launch of its own")]
    fn products_of_many_rows_make_no_norm() {
        let plain = product(ADD, FEW_ROWS + 1, false);
        product_launch(&kernels(), StoredProducts::Same, &Product { gain: 1, ..plain });
    }

    #[test]
    fn the_kernel_changes_only_at_its_number_of_rows() {
        let of = |mode, rows, exact| {
            let (f, shape) =
                product_launch(&kernels(), StoredProducts::Same, &product(mode, rows, exact));
            let number = (0..99).find(|&number| Function::fake(number) == f).unwrap();
            (number, shape.grid, shape.threads)
        };
        let few = 13 + 13 + 2;
        for (rows, f) in [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3), (32, 3)] {
            assert_eq!(of(SET, rows, false), (f, (few, 1, 1), 256), "{rows}");
            assert_eq!(of(GLU, rows, false), (f + 3, (12, 1, 1), 256), "13 tiles, 12 at a time");
        }
        let mut long = product(SET, 9, false);
        long.x.cols = 8192;
        let (f, shape) = product_launch(&kernels(), StoredProducts::Same, &long);
        assert!(f == Function::fake(12) && shape.threads == 512, "{shape:?}");
        assert_eq!(of(ADD, 33, false), (7, (1, 5, 1), 256));
        assert_eq!(of(GLU, 129, false), (7, (3, 4, 1), 256));
        for (rows, f) in [(8, 8), (9, 9), (32, 9)] {
            assert_eq!(of(SET, rows, true), (f, (few, 1, 1), 256), "{rows}");
        }
        assert_eq!(of(SET, 65, true), (10, (2, 4 + 4 + 1, 1), 256));
    }

    #[test]
    fn ctas_that_stay_are_no_more_than_there_are_tiles_or_processors() {
        let tile =
            |f, rows| TileKernel { f: Function::fake(f), rows, threads: 384, shared_bytes: 9 };
        let stay = |f, rows| ManyKernel { tile: tile(f, rows), ctas: Some(132) };
        let kernels =
            LinearKernels { many: stay(20, 128), many_fast: Some(stay(21, 256)), ..kernels() };
        let of = |products, mode, rows, exact| {
            let (f, shape) = product_launch(&kernels, products, &product(mode, rows, exact));
            let number = (0..99).find(|&number| Function::fake(number) == f).unwrap();
            (number, shape.grid)
        };
        use StoredProducts::{Fast, Same};
        assert_eq!(of(Same, SET, 33, false), (20, (5, 1, 1)));
        assert_eq!(of(Same, GLU, 257, false), (20, (12, 1, 1)));
        assert_eq!(of(Same, SET, 100_000, false), (20, (132, 1, 1)));
        // Five tiles of weights: while all small tiles go at once, they are faster.
        for rows in [1, 32, 33, 128, 129, 256, 26 * 128] {
            assert_eq!(of(Fast, SET, rows, false), of(Same, SET, rows, false), "{rows}");
        }
        assert_eq!(of(Fast, SET, 27 * 128, false), (21, (70, 1, 1)));
        assert_eq!(of(Fast, GLU, 40 * 128, false), (21, (80, 1, 1)));
        assert_eq!(of(Fast, SET, 100_000, false), (21, (132, 1, 1)));
        assert_eq!(of(Fast, SET, 100_000, true), of(Same, SET, 100_000, true), "one for pairs");
        let without = LinearKernels { many_fast: None, ..kernels };
        let (f, _) = product_launch(&without, Fast, &product(SET, 100_000, false));
        assert!(f == Function::fake(20), "where there is no other kernel");
    }
}
