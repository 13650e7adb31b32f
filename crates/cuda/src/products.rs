//! Which kernel makes products, by their number of rows, and its shape.

use ignis_backend::{FEW_ROWS, StoredProducts, is_long};

use crate::abi::{GLU, Product};
use crate::driver::{Function, Shape};
use crate::kernels::{FewKernel, LinearKernels, ManyKernel, TileKernel};

/// Which kernel of a format makes these products, and its shape. Up to [`FEW_ROWS`] rows lie in an
/// order of their own, which these kernels read, and write where a norm follows.
pub(crate) fn product_launch(
    f: &LinearKernels,
    products: StoredProducts,
    p: &Product,
) -> (Function, Shape) {
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
    let pairs = matches!(f, LinearKernels::Pairs(_));
    assert_eq!(p.x.lo != 0, pairs, "inputs and kernels are of one arithmetic");
    let f = match f {
        LinearKernels::Rounded(f) => f,
        LinearKernels::Pairs(f) => {
            return match rows {
                0..=8 => few(&f.few[0]),
                9..=FEW_ROWS => few(&f.few[1]),
                _ => {
                    let grid = (rows.div_ceil(64), tiles(64), 1);
                    (f.many, Shape { grid, threads: 256, shared_bytes: 0 })
                }
            };
        }
    };
    let long = is_long(p.x.cols);
    assert!(!(glu && long), "so many columns have two products for it");
    let of_few = |width: usize| {
        let kind = if glu {
            &f.few.glu
        } else if long {
            &f.few.long
        } else {
            &f.few.plain
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
    use crate::abi::{ADD, Encoded, Norm, Part, SET, Weight};
    use crate::kernels::{FewKernels, PairsKernels, RoundedKernels};

    const FEW: [u32; 5] = [1, 8, 9, 17, FEW_ROWS];

    fn few(threads: u32, ctas: u32) -> impl Fn(usize) -> FewKernel {
        move |number| FewKernel { f: Function::fake(number), threads, shared_bytes: 5, ctas }
    }

    fn rounded() -> RoundedKernels {
        let tile = TileKernel { f: Function::fake(7), rows: 64, threads: 256, shared_bytes: 9 };
        RoundedKernels {
            few: FewKernels {
                plain: [1, 2, 3].map(few(256, 30)),
                long: [11, 12, 13].map(few(512, 20)),
                glu: [4, 5, 6].map(few(256, 12)),
            },
            many: ManyKernel { tile, ctas: None },
            many_fast: None,
        }
    }

    fn kernels(exact: bool) -> LinearKernels {
        if exact {
            let few = [8, 9].map(few(256, 30));
            LinearKernels::Pairs(PairsKernels { few, many: Function::fake(10) })
        } else {
            LinearKernels::Rounded(rounded())
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
                let of = |p| product_launch(&kernels(exact), StoredProducts::Same, &p);
                let (f, shape) = of(plain);
                let (same, alike) = of(Product { gain: 1, ..plain });
                assert!(f == same && shape.grid == alike.grid, "{rows} {exact}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a launch of its own")]
    fn products_of_many_rows_make_no_norm() {
        let plain = product(ADD, FEW_ROWS + 1, false);
        product_launch(&kernels(false), StoredProducts::Same, &Product { gain: 1, ..plain });
    }

    #[test]
    fn the_kernel_changes_only_at_its_number_of_rows() {
        let of = |mode, rows, exact| {
            let (f, shape) =
                product_launch(&kernels(exact), StoredProducts::Same, &product(mode, rows, exact));
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
        let (f, shape) = product_launch(&kernels(false), StoredProducts::Same, &long);
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
        let all =
            RoundedKernels { many: stay(20, 128), many_fast: Some(stay(21, 256)), ..rounded() };
        let kernels = LinearKernels::Rounded(all);
        let of = |products, mode, rows| {
            let (f, shape) = product_launch(&kernels, products, &product(mode, rows, false));
            let number = (0..99).find(|&number| Function::fake(number) == f).unwrap();
            (number, shape.grid)
        };
        use StoredProducts::{Fast, Same};
        assert_eq!(of(Same, SET, 33), (20, (5, 1, 1)));
        assert_eq!(of(Same, GLU, 257), (20, (12, 1, 1)));
        assert_eq!(of(Same, SET, 100_000), (20, (132, 1, 1)));
        // Five tiles of weights: while all small tiles go at once, they are faster.
        for rows in [1, 32, 33, 128, 129, 256, 26 * 128] {
            assert_eq!(of(Fast, SET, rows), of(Same, SET, rows), "{rows}");
        }
        assert_eq!(of(Fast, SET, 27 * 128), (21, (70, 1, 1)));
        assert_eq!(of(Fast, GLU, 40 * 128), (21, (80, 1, 1)));
        assert_eq!(of(Fast, SET, 100_000), (21, (132, 1, 1)));
        let without = LinearKernels::Rounded(RoundedKernels { many_fast: None, ..all });
        let (f, _) = product_launch(&without, Fast, &product(SET, 100_000, false));
        assert!(f == Function::fake(20), "where there is no other kernel");
    }
}
