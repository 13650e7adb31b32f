//! Buffers that never live together share bytes.

use ignis_types::{Bytes, Overflow};

/// A buffer's size and the span of steps it lives through, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Size.
    pub bytes: Bytes,
    /// First step.
    pub first: usize,
    /// Last step.
    pub last: usize,
}

/// Where each buffer was put, and how much all of them take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Offset of each buffer, in the order given.
    pub offsets: Vec<u64>,
    /// End of the furthest buffer.
    pub total: Bytes,
}

/// Places buffers so that two that live at the same step never overlap.
///
/// Largest first, each at the lowest offset that is free for its whole life. Deterministic. Offsets
/// are multiples of `align`.
pub fn pack_by_lifetime(buffers: &[Lifetime], align: u64) -> Result<Packed, Overflow> {
    let sizes: Vec<u64> =
        buffers.iter().map(|b| b.bytes.aligned(align).map(|b| b.0)).collect::<Result<_, _>>()?;
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(sizes[i]), i));

    let mut offsets = vec![0u64; buffers.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(buffers.len());
    let mut total = 0u64;
    for &i in &order {
        let lives_with =
            |j: usize| buffers[i].first <= buffers[j].last && buffers[j].first <= buffers[i].last;
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&j| lives_with(j))
            .map(|&j| (offsets[j], offsets[j] + sizes[j]))
            .collect();
        taken.sort_unstable();
        let mut at = 0u64;
        for (start, end) in taken {
            if at.checked_add(sizes[i]).ok_or(Overflow)? <= start {
                break;
            }
            at = at.max(end);
        }
        offsets[i] = at;
        total = total.max(at.checked_add(sizes[i]).ok_or(Overflow)?);
        placed.push(i);
    }
    Ok(Packed { offsets, total: Bytes(total) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buffers_that_never_meet_share_bytes() {
        let life = |bytes, first, last| Lifetime { bytes: Bytes(bytes), first, last };
        let packed =
            pack_by_lifetime(&[life(64, 0, 1), life(64, 2, 3), life(64, 1, 2)], 64).unwrap();
        assert_eq!(packed.total, Bytes(128));
        assert_eq!(packed.offsets[0], packed.offsets[1]);
    }

    proptest! {
        #[test]
        fn no_two_live_buffers_overlap(
            buffers in prop::collection::vec((1u64..500, 0usize..20, 0usize..20), 0..40),
        ) {
            let buffers: Vec<Lifetime> = buffers
                .into_iter()
                .map(|(bytes, a, b)| Lifetime {
                    bytes: Bytes(bytes), first: a.min(b), last: a.max(b),
                })
                .collect();
            let packed = pack_by_lifetime(&buffers, 64).unwrap();
            for i in 0..buffers.len() {
                prop_assert_eq!(packed.offsets[i] % 64, 0);
                prop_assert!(packed.offsets[i] + buffers[i].bytes.0 <= packed.total.0);
                for j in 0..i {
                    let (a, b) = (buffers[i], buffers[j]);
                    let meet = a.first <= b.last && b.first <= a.last;
                    let apart = packed.offsets[i] + a.bytes.0 <= packed.offsets[j]
                        || packed.offsets[j] + b.bytes.0 <= packed.offsets[i];
                    prop_assert!(!meet || apart);
                }
            }
        }
    }
}
