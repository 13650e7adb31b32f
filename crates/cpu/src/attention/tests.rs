use ignis_backend::KvFormat;
use ignis_ops::{KvShape, Segment};

use super::*;
use crate::kv::{self, KvPool, TOKENS};
use crate::simd::Isa;

/// One lane's keys and values in shuffled pages of a pool, and room for results.
struct Bench {
    pool: KvPool,
    sizes: Sizes,
    bytes: Vec<u64>,
    table: Vec<u32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    heads: usize,
}

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

impl Bench {
    fn new(format: KvFormat, group: usize, kv_heads: usize, head_dim: usize, keys: usize) -> Bench {
        let shape = KvShape { layers: 2, kv_heads: kv_heads as u32, head_dim: head_dim as u32 };
        let pool = KvPool::new(0, format, &shape).unwrap();
        let pages = keys.div_ceil(TOKENS);
        let page_bytes = format.page_bytes(&shape).unwrap().as_usize();
        // What an earlier owner left must not show: NaN everywhere, in either format.
        let mut bytes = vec![u64::MAX; (pages + 1) * page_bytes / 8];
        let table: Vec<u32> = (0..pages as u32).map(|i| pages as u32 - i).collect();
        let heads = group * kv_heads;
        let (k, v) = (values(keys * kv_heads * head_dim, 1), values(keys * kv_heads * head_dim, 2));
        for token in 0..keys {
            let at = token * kv_heads * head_dim;
            let (page, offset) = (table[token / TOKENS], token % TOKENS);
            // SAFETY: the pool has `pages + 1` pages; k and v have a row for each key.
            unsafe {
                let base = bytes.as_mut_ptr().cast();
                kv::append(&pool, base, page, 1, offset, k[at..].as_ptr(), v[at..].as_ptr());
            }
        }
        let sizes = Sizes {
            heads,
            group,
            width: head_dim.next_multiple_of(16),
            head_dim,
            slots: 64,
            rows: keys,
        };
        let q = values(keys * heads * head_dim, 3);
        Bench { pool, sizes, bytes, table, q, k, v, heads }
    }

    /// Rows `from..to` as one segment, planned for `threads`.
    fn run(&mut self, isa: Isa, from: usize, to: usize, threads: usize) -> Vec<f32> {
        let width = self.heads * self.sizes.head_dim;
        let rows = to - from;
        let mut plan = AttentionPlan::new(self.sizes, self.pool.heads, threads);
        plan.fill(&[Segment { lane: 0, row: 0, rows: rows as u32, position: from as u32 }]);
        let mut scratch = vec![f32::NAN; self.sizes.worker_bytes().unwrap().as_usize() / 4];
        let mut partials = vec![f32::NAN; self.sizes.partial_bytes().unwrap().as_usize() / 4];
        let mut o = vec![0f32; rows * width];
        let call = Call {
            base: self.bytes.as_mut_ptr().cast(),
            pool: self.pool,
            sizes: self.sizes,
            layer: 1,
            heads: self.heads,
            scale: 1.7,
            q: self.q[from * width..].as_ptr(),
            o: o.as_mut_ptr(),
            block_tables: self.table.as_ptr(),
            stride: self.table.len(),
            scratch: scratch.as_mut_ptr(),
            partials: partials.as_mut_ptr(),
        };
        // SAFETY: everything has the shape that the call names.
        unsafe {
            for item in &plan.items {
                for head in 0..self.pool.heads {
                    run_item(isa, &call, item, head);
                }
            }
            for (row, &slot) in plan.split.iter().enumerate() {
                if slot != NO_SPLIT {
                    join_row(isa, &call, row, (from + row) as u32, slot as usize);
                }
            }
        }
        o
    }

    fn naive(&self, row: usize) -> Vec<f64> {
        let (dim, kv_heads) = (self.sizes.head_dim, self.pool.heads);
        let stored = |x: f32| match self.pool.format {
            KvFormat::Bf16 => half::bf16::from_f32(x).to_f64(),
            KvFormat::F32 => f64::from(x),
        };
        let mut o = vec![];
        for head in 0..self.heads {
            let q = &self.q[(row * self.heads + head) * dim..][..dim];
            let at = |j: usize, d: usize| (j * kv_heads + head / self.sizes.group) * dim + d;
            let scores: Vec<f64> = (0..=row)
                .map(|j| {
                    let dot: f64 =
                        (0..dim).map(|d| f64::from(q[d]) * stored(self.k[at(j, d)])).sum();
                    1.7 * dot
                })
                .collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
            for d in 0..dim {
                let weighted =
                    (0..=row).map(|j| (scores[j] - largest).exp() * stored(self.v[at(j, d)]));
                o.push(weighted.sum::<f64>() / sum);
            }
        }
        o
    }
}

#[test]
fn rows_are_those_of_the_contract_in_every_cut() {
    // Group, KV heads, head_dim: one query a head, fewer and more than one pass serves, odd widths.
    let shapes = [(1, 2, 64), (3, 1, 64), (6, 1, 32), (7, 2, 16), (2, 1, 24), (5, 1, 128)];
    for format in [KvFormat::Bf16, KvFormat::F32] {
        for (group, kv_heads, dim) in shapes {
            let keys = 300;
            let mut bench = Bench::new(format, group, kv_heads, dim, keys);
            let width = group * kv_heads * dim;
            let whole = bench.run(Isa::detect(), 0, keys, 1);
            for row in [0, 1, 15, 16, 63, 64, 65, 255, 256, 257, 299] {
                let found = &whole[row * width..][..width];
                for (a, b) in bench.naive(row).iter().zip(found) {
                    assert!((a - f64::from(*b)).abs() < 1e-5, "row {row}: {a} is not {b}");
                }
                for isa in crate::testing::isas() {
                    for threads in [1, 4] {
                        let alone = bench.run(isa, row, row + 1, threads);
                        assert_eq!(found, alone, "row {row} alone, {isa}");
                    }
                }
            }
            for isa in crate::testing::isas() {
                for (from, to) in [(0, 70), (60, 130), (250, 260), (255, 300)] {
                    let cut = bench.run(isa, from, to, 4);
                    assert_eq!(whole[from * width..to * width], cut, "{from}..{to} on {isa}");
                }
            }
        }
    }
}

#[test]
fn a_plan_covers_every_row_once_and_every_run_of_it() {
    let sizes = Sizes { heads: 9, group: 3, width: 64, head_dim: 64, slots: 6, rows: 600 };
    for threads in [1, 2, 8] {
        let mut plan = AttentionPlan::new(sizes, 3, threads);
        let segments = [
            Segment { lane: 2, row: 0, rows: 1, position: 900 },
            Segment { lane: 0, row: 1, rows: 500, position: 70 },
            Segment { lane: 1, row: 501, rows: 1, position: 800 },
            Segment { lane: 3, row: 502, rows: 1, position: 255 },
            Segment { lane: 4, row: 503, rows: 1, position: 256 },
        ];
        plan.fill(&segments);
        let mut runs = vec![0; 504];
        for item in &plan.items {
            for row in item.row..item.row + item.rows {
                runs[row as usize] += item.run_to - item.run_from;
            }
        }
        assert_eq!((runs[0], runs[501], runs[502], runs[503]), (4, 4, 1, 2));
        assert!(runs[1..501].iter().all(|&runs| (1..=3).contains(&runs)));
        assert_eq!(plan.split.len(), 504);
        let split: Vec<u32> = plan.split.iter().copied().filter(|&s| s != NO_SPLIT).collect();
        // Four runs of the first row, two of the last; those of row 501 no longer fit.
        assert_eq!(split, [0, 4]);
    }
}
