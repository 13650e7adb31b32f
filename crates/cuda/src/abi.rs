//! Structures that kernels take, as their files declare them. Addresses are of device memory.

use std::mem::{offset_of, size_of};

/// `struct Weight` of `blocks.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    pub(crate) blocks: u64,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
}

/// `struct Encoded` of `encoded.cuh`.
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

/// `struct Norm` of `encoded.cuh`.
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

/// `struct Part` of `products.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) w: Weight,
    pub(crate) y: u64,
    /// 0: none.
    pub(crate) bias: u64,
}

/// `struct Product` of `products.cuh`.
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

/// `struct Cut` of `attend_runs.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) rows: u32,
    pub(crate) ctas: u32,
}

impl Cut {
    /// CTAs that rows of up to `runs` runs take: a row has `ctas` times its share of all runs,
    /// rounded down, but at least one and at most its runs.
    pub(crate) fn ctas_most(&self, runs: u32) -> u32 {
        (self.ctas + self.rows - 1).min(self.rows * runs)
    }
}

/// `struct Inputs` of `rows.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Words from the start, like the next four.
    pub(crate) positions: u32,
    pub(crate) lanes: u32,
    pub(crate) logit_rows: u32,
    pub(crate) tiles: u32,
    pub(crate) tables: u32,
    pub(crate) stride: u32,
    pub(crate) draws: u64,
    pub(crate) draws_to: u64,
}

/// `struct Samples` of `sample.cuh`.
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
    /// In pinned memory of the host.
    pub(crate) rows: u64,
    pub(crate) bias_max: u32,
    pub(crate) vocab: u32,
}

/// Parts of one launch that sums: `SUM_PARTS` of `sums.cu`.
pub(crate) const SUM_PARTS: usize = 64;

/// `struct SumPart` of `sums.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SumPart {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    /// Bytes of this part and those before it.
    pub(crate) end: u64,
}

/// `struct SumParts` of `sums.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumParts {
    pub(crate) parts: [SumPart; SUM_PARTS],
    pub(crate) slot: u64,
    /// Of the host, as the card addresses it.
    pub(crate) out: u64,
    pub(crate) slices: u32,
    pub(crate) unused: u32,
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
    assert!(size_of::<Inputs>() == 56 && offset_of!(Inputs, positions) == 16);
    assert!(offset_of!(Inputs, draws) == 40);
    assert!(size_of::<Samples>() == 72 && offset_of!(Samples, bias_max) == 64);
    assert!(size_of::<SumPart>() == 24 && offset_of!(SumParts, slot) == 24 * SUM_PARTS);
    assert!(size_of::<SumParts>() == 24 * SUM_PARTS + 24);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// `Runs::seek` of `attend_runs.cuh`: CTAs of each row.
    fn shares(cut: Cut, runs: &[u32]) -> Vec<u32> {
        let all: u32 = runs.iter().sum();
        runs.iter().map(|runs| (cut.ctas * runs / all).max(1).min(*runs)).collect()
    }

    #[test]
    fn a_launch_has_a_cta_for_every_share() {
        let rows: [&[u32]; 6] =
            [&[1], &[64], &[1, 64], &[64; 8], &[2, 3, 5, 64, 1, 1, 40, 33], &[1; 100]];
        for runs in rows {
            let most = *runs.iter().max().unwrap();
            for ctas in 1..600 {
                let cut = Cut { rows: runs.len() as u32, ctas };
                let taken: u32 = shares(cut, runs).iter().sum();
                assert!(taken <= cut.ctas_most(most), "{runs:?} in {ctas} CTAs take {taken}");
            }
        }
    }

    #[test]
    fn rows_share_ctas_by_their_runs() {
        assert_eq!(shares(Cut { rows: 3, ctas: 49 }, &[64, 32, 2]), [32, 16, 1]);
        assert_eq!(shares(Cut { rows: 2, ctas: 49 }, &[16, 4]), [16, 4], "a run each, no more");
    }
}
