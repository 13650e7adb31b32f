//! Where a token's keys and values lie in the pool. The one description of the layout.
//!
//! ```text
//! pool  [pages] page
//! page  [layers] layer                                  KvFormat::page_bytes in all
//! layer K [kv_heads, head_dim, PAGE_TOKENS], then V [kv_heads, PAGE_TOKENS, head_dim]
//! ```
//! Elements are bf16 (rounded to nearest even) or f32. Keys are transposed so that sixteen scores
//! fill a vector's lanes without a reduction; values are not, so that sixteen dimensions do.

use half::bf16;
use ignis_backend::KvFormat;
use ignis_ops::KvShape;
use ignis_types::{Overflow, PAGE_TOKENS};

/// Tokens of a page, as an index.
pub(crate) const TOKENS: usize = PAGE_TOKENS as usize;

/// The pool of one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvPool {
    /// Offset of the pool from the device base.
    pub(crate) start: usize,
    /// How elements are stored.
    pub(crate) format: KvFormat,
    /// KV heads.
    pub(crate) heads: usize,
    /// Values a head.
    pub(crate) head_dim: usize,
    page_bytes: usize,
}

impl KvPool {
    pub(crate) fn new(start: u64, format: KvFormat, shape: &KvShape) -> Result<KvPool, Overflow> {
        Ok(KvPool {
            start: usize::try_from(start).map_err(|_| Overflow)?,
            format,
            heads: shape.kv_heads as usize,
            head_dim: shape.head_dim as usize,
            page_bytes: format.page_bytes(shape)?.as_usize(),
        })
    }

    /// Bytes of one head's K or V plane in one page of one layer.
    pub(crate) fn plane_bytes(&self) -> usize {
        TOKENS * self.head_dim * self.element_bytes()
    }

    fn element_bytes(&self) -> usize {
        match self.format {
            KvFormat::Bf16 => 2,
            KvFormat::F32 => 4,
        }
    }

    /// Offset from the device base of the K plane of (page, layer, head).
    pub(crate) fn k_plane(&self, page: u32, layer: u32, head: usize) -> usize {
        let layer_bytes = 2 * self.heads * self.plane_bytes();
        self.start
            + page as usize * self.page_bytes
            + layer as usize * layer_bytes
            + head * self.plane_bytes()
    }

    /// Offset from the device base of the V plane of (page, layer, head).
    pub(crate) fn v_plane(&self, page: u32, layer: u32, head: usize) -> usize {
        self.k_plane(page, layer, head) + self.heads * self.plane_bytes()
    }
}

/// Stores one token's keys and values, `[heads * head_dim]` each, in its slot.
///
/// # Safety
/// `base` starts the reservation that `pool` lies in; `page` is one of the pool's and `offset` a
/// token of it; `k` and `v` are readable; nobody reads or writes the slot meanwhile.
pub(crate) unsafe fn append(
    pool: &KvPool,
    base: *mut u8,
    page: u32,
    layer: u32,
    offset: usize,
    k: *const f32,
    v: *const f32,
) {
    for head in 0..pool.heads {
        let first = head * pool.head_dim;
        // SAFETY: the planes of (page, layer, head) lie in the pool, `offset` is below TOKENS.
        unsafe {
            let k_plane = base.add(pool.k_plane(page, layer, head));
            let v_plane = base.add(pool.v_plane(page, layer, head));
            for d in 0..pool.head_dim {
                let (key, value) = (*k.add(first + d), *v.add(first + d));
                let (k_at, v_at) = (d * TOKENS + offset, offset * pool.head_dim + d);
                match pool.format {
                    KvFormat::Bf16 => {
                        *k_plane.cast::<u16>().add(k_at) = bf16::from_f32(key).to_bits();
                        *v_plane.cast::<u16>().add(v_at) = bf16::from_f32(value).to_bits();
                    }
                    KvFormat::F32 => {
                        *k_plane.cast::<f32>().add(k_at) = key;
                        *v_plane.cast::<f32>().add(v_at) = value;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_tile_the_pool_without_gap_or_overlap() {
        let shape = KvShape { layers: 3, kv_heads: 2, head_dim: 24 };
        for format in [KvFormat::Bf16, KvFormat::F32] {
            let pool = KvPool::new(128, format, &shape).unwrap();
            let mut planes = vec![];
            for page in 0..2 {
                for layer in 0..3 {
                    for head in 0..2 {
                        planes.push(pool.k_plane(page, layer, head));
                        planes.push(pool.v_plane(page, layer, head));
                    }
                }
            }
            planes.sort_unstable();
            for (i, plane) in planes.iter().enumerate() {
                assert_eq!(*plane, 128 + i * pool.plane_bytes());
            }
            assert_eq!(planes.len() * pool.plane_bytes(), 2 * pool.page_bytes);
        }
    }

    #[test]
    fn a_slot_holds_the_rounded_values_of_its_token() {
        let shape = KvShape { layers: 2, kv_heads: 2, head_dim: 8 };
        let pool = KvPool::new(0, KvFormat::Bf16, &shape).unwrap();
        let mut bytes = vec![0u16; 2 * pool.page_bytes / 2];
        let k: Vec<f32> = (0..16).map(|i| 1.0 + i as f32 / 300.0).collect();
        let v: Vec<f32> = k.iter().map(|x| -x).collect();
        // SAFETY: the buffer holds two pages; k and v hold kv_heads * head_dim values.
        unsafe { append(&pool, bytes.as_mut_ptr().cast(), 1, 1, 5, k.as_ptr(), v.as_ptr()) };
        for head in 0..2 {
            for d in 0..8 {
                let key = bytes[pool.k_plane(1, 1, head) / 2 + d * TOKENS + 5];
                let value = bytes[pool.v_plane(1, 1, head) / 2 + 5 * 8 + d];
                assert_eq!(key, bf16::from_f32(k[head * 8 + d]).to_bits());
                assert_eq!(value, bf16::from_f32(v[head * 8 + d]).to_bits());
            }
        }
        assert_eq!(bytes.iter().filter(|&&x| x != 0).count(), 32);
    }
}
