//! Codes times codes: the kernels of `Encoding::Int8` and `Encoding::Int16`.
//!
//! Few rows (up to a tile) read the packed panels as they are, once: this is decode, and its limit
//! is memory. More rows first *stage* a part of a panel in the first-level cache, as one byte a code
//! and f32 scales, and walk all rows over it: this is prefill, and its limit is the multipliers.

use std::mem::MaybeUninit;

use super::GROUP_COLS;
use super::encode::{Encoding, record};
use super::form::{Form, codes_bytes, scales, scales_bytes};
use super::matrix::Job;
use super::tile::{Sums, chunk_rows, finish, for_tiles};
use crate::simd::{Isa, Kernel, Simd, codes, cover};

/// Bytes that a read of packed weights runs ahead of their use: the memory latency at full speed.
const AHEAD_BYTES: usize = 2048;
/// Groups of a panel that are staged at a time: 20 KB.
const STAGE_GROUPS: usize = 32;
/// Bytes of a staged group: 512 codes, 16 scales and 16 minima in f32.
const STAGED_BYTES: usize = 640;

/// Runs `job` on weights in `form`, which holds codes.
///
/// # Safety
/// As `matrix::run`; `INT16` says how its rows are encoded.
pub(super) unsafe fn run<const INT16: bool>(isa: Isa, form: Form, job: Job) {
    use codes::{BYTES, NIBBLES};
    use scales::{CENTRED, HALVES, MINS, WIDE};
    let Form::Codes { codes, scales, zero } = form else {
        unreachable!("float weights have no integer kernel")
    };
    let zero = -f32::from(zero);
    // SAFETY: the caller's promises are the kernel's.
    unsafe {
        match (codes, scales) {
            (NIBBLES, CENTRED) => isa.run(Product::<NIBBLES, CENTRED, INT16> { job, zero }),
            (NIBBLES, MINS) => isa.run(Product::<NIBBLES, MINS, INT16> { job, zero }),
            (NIBBLES, _) => isa.run(Product::<NIBBLES, WIDE, INT16> { job, zero }),
            (_, CENTRED) => isa.run(Product::<BYTES, CENTRED, INT16> { job, zero }),
            (_, MINS) => isa.run(Product::<BYTES, MINS, INT16> { job, zero }),
            (_, WIDE) => isa.run(Product::<BYTES, WIDE, INT16> { job, zero }),
            (_, _) => isa.run(Product::<BYTES, HALVES, INT16> { job, zero }),
        }
    }
}

/// A job on one form; `zero` is minus the code that means 0.
struct Product<const CODES: u8, const SCALES: u8, const INT16: bool> {
    job: Job,
    zero: f32,
}

impl<const CODES: u8, const SCALES: u8, const INT16: bool> Kernel
    for Product<CODES, SCALES, INT16>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promises.
        unsafe {
            if self.job.m <= S::TILE {
                self.few::<S>();
            } else if SCALES == scales::HALVES || (CODES == codes::BYTES && SCALES == scales::WIDE)
            {
                // Packed as they would be staged.
                self.many::<S, CODES, SCALES>(false);
            } else if CODES == codes::NIBBLES {
                self.many::<S, { codes::SMALL }, { scales::WIDE }>(true);
            } else {
                self.many::<S, { codes::BYTES }, { scales::WIDE }>(true);
            }
        }
    }
}

impl<const CODES: u8, const SCALES: u8, const INT16: bool> Product<CODES, SCALES, INT16> {
    const STEP_BYTES: usize = codes_bytes(CODES) + scales_bytes(SCALES);
    const RECORD_BYTES: usize =
        if INT16 { Encoding::Int16.record_bytes() } else { Encoding::Int8.record_bytes() };

    /// At most a tile of rows: straight from the packed bytes.
    #[inline(always)]
    unsafe fn few<S: Simd>(&self) {
        let job = &self.job;
        let groups = job.cols / GROUP_COLS;
        for panel in 0..job.panels {
            // SAFETY: the panel and the rows are the job's.
            unsafe {
                let w = job.w.add(panel * job.panel_bytes);
                for_tiles!(S, job.m, |row, T| {
                    let mut acc = [S::splat(0.0); T];
                    let a = rows::<T>(job, row, 0);
                    self.sweep::<S, CODES, SCALES, T, true>(w, groups, a, &mut acc);
                    finish::<S, T>(job, panel, row, acc);
                });
            }
        }
    }

    /// Any number of rows, over panels that are staged in parts if `stage`, else used in place;
    /// either way laid out as `C` and `D` say.
    #[inline(always)]
    unsafe fn many<S: Simd, const C: u8, const D: u8>(&self, stage: bool) {
        let job = &self.job;
        let groups = job.cols / GROUP_COLS;
        let parts = groups.div_ceil(STAGE_GROUPS);
        let mut staged = MaybeUninit::<Staged>::uninit();
        let mut sums = MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        let chunk = chunk_rows::<S>(job);
        for chunk_at in (0..job.m).step_by(chunk) {
            let rows_here = chunk.min(job.m - chunk_at);
            // The next panel comes in from memory while this one is used, a bit with every tile.
            let tiles = rows_here.div_ceil(S::TILE) * parts;
            let fetch_bytes = job.panel_bytes.div_ceil(tiles).next_multiple_of(64);
            for panel in 0..job.panels {
                let mut fetch = job.w.wrapping_add((panel + 1) * job.panel_bytes);
                for part in 0..parts {
                    let from = groups * part / parts;
                    let to = groups * (part + 1) / parts;
                    // SAFETY: the panel, its groups and the rows are the job's; a part fits the
                    // stage. Sums of a row are written by its first part and read by later ones.
                    unsafe {
                        let packed = job.w.add(panel * job.panel_bytes + from * Self::STEP_BYTES);
                        let w = if stage {
                            let staged = staged.as_mut_ptr().cast::<u8>();
                            self.stage::<S>(packed, to - from, staged);
                            staged.cast_const()
                        } else {
                            packed
                        };
                        for_tiles!(S, rows_here, |row, T| {
                            for line in 0..fetch_bytes / 64 {
                                S::prefetch_far(fetch.wrapping_add(64 * line));
                            }
                            fetch = fetch.wrapping_add(fetch_bytes);
                            let mut acc = [S::splat(0.0); T];
                            let sums = sums.add(16 * row);
                            if part > 0 {
                                for t in 0..T {
                                    acc[t] = S::load(sums.add(16 * t));
                                }
                            }
                            let a = rows::<T>(job, chunk_at + row, from * Self::RECORD_BYTES);
                            self.sweep::<S, C, D, T, false>(w, to - from, a, &mut acc);
                            if part + 1 == parts {
                                finish::<S, T>(job, panel, chunk_at + row, acc);
                            } else {
                                for t in 0..T {
                                    S::store(sums.add(16 * t), acc[t]);
                                }
                            }
                        });
                    }
                }
            }
        }
    }

    /// Adds `groups` groups from `w`, laid out as `C` and `D` say, to the sums of `T` rows.
    #[inline(always)]
    unsafe fn sweep<S: Simd, const C: u8, const D: u8, const T: usize, const AHEAD: bool>(
        &self,
        w: *const u8,
        groups: usize,
        a: [*const u8; T],
        acc: &mut [S::F; T],
    ) {
        let step_bytes = codes_bytes(C) + scales_bytes(D);
        let mut sums = *acc;
        for g in 0..groups {
            // SAFETY: `w` has `groups` groups and each row as many records. What is prefetched need
            // not exist.
            unsafe {
                let w = w.add(g * step_bytes);
                if AHEAD {
                    for line in 0..step_bytes.div_ceil(64) {
                        S::prefetch(w.wrapping_add(AHEAD_BYTES + 64 * line));
                    }
                }
                let mut at = a;
                for t in 0..T {
                    at[t] = a[t].add(g * Self::RECORD_BYTES);
                }
                let (d, m) = self.scales::<S, D>(w.add(codes_bytes(C)));
                if D == scales::HALVES {
                    let low = products::<S, C, { cover::LOW }, INT16, T>(w, at);
                    let high = products::<S, C, { cover::HIGH }, INT16, T>(w, at);
                    for t in 0..T {
                        let scale = param::<S, INT16>(at[t], record::D);
                        sums[t] = S::fma(S::mul(d[0], scale), low[t], sums[t]);
                        sums[t] = S::fma(S::mul(d[1], scale), high[t], sums[t]);
                        let (s0, s1) = (
                            param::<S, INT16>(at[t], record::S0),
                            param::<S, INT16>(at[t], record::S1),
                        );
                        sums[t] = S::fma(m[0], s0, sums[t]);
                        sums[t] = S::fma(m[1], s1, sums[t]);
                    }
                } else {
                    let both = products::<S, C, { cover::ALL }, INT16, T>(w, at);
                    for t in 0..T {
                        let scale = S::mul(d[0], param::<S, INT16>(at[t], record::D));
                        sums[t] = S::fma(scale, both[t], sums[t]);
                        sums[t] = S::fma(m[0], param::<S, INT16>(at[t], record::S), sums[t]);
                    }
                }
            }
        }
        *acc = sums;
    }

    /// Scales and minima of one group: of both halves, or twice the same.
    #[inline(always)]
    unsafe fn scales<S: Simd, const D: u8>(&self, at: *const u8) -> ([S::F; 2], [S::F; 2]) {
        let (short, long) = (at.cast::<u16>(), at.cast::<f32>());
        // SAFETY: `at` has the scales of a group in the layout `D`.
        unsafe {
            match D {
                scales::CENTRED => {
                    let d = S::load_f16(short);
                    let m = S::mul(d, S::splat(self.zero));
                    ([d; 2], [m; 2])
                }
                scales::MINS => ([S::load_f16(short); 2], [S::load_f16(short.add(16)); 2]),
                scales::WIDE => ([S::load(long); 2], [S::load(long.add(16)); 2]),
                _ => (
                    [S::load(long), S::load(long.add(16))],
                    [S::load(long.add(32)), S::load(long.add(48))],
                ),
            }
        }
    }

    /// Writes `groups` packed groups as bytes and f32 scales.
    #[inline(always)]
    unsafe fn stage<S: Simd>(&self, packed: *const u8, groups: usize, staged: *mut u8) {
        for g in 0..groups {
            // SAFETY: `packed` has `groups` groups, `staged` has room for them.
            unsafe {
                let (from, to) = (packed.add(g * Self::STEP_BYTES), staged.add(g * STAGED_BYTES));
                if CODES == codes::NIBBLES {
                    S::widen(from, to);
                } else {
                    std::ptr::copy_nonoverlapping(from, to, 512);
                }
                let (d, m) = self.scales::<S, SCALES>(from.add(codes_bytes(CODES)));
                S::store(to.add(512).cast(), d[0]);
                S::store(to.add(576).cast(), m[0]);
            }
        }
    }
}

/// Part of a panel, staged.
#[repr(align(64))]
struct Staged {
    _bytes: [u8; STAGE_GROUPS * STAGED_BYTES],
}

/// Where `T` rows of activations start, `offset` bytes in.
#[inline(always)]
unsafe fn rows<const T: usize>(job: &Job, row: usize, offset: usize) -> [*const u8; T] {
    let mut a = [job.enc; T];
    for t in 0..T {
        // SAFETY: the rows are the job's, and `offset` is inside of a row.
        a[t] = unsafe { job.enc.add((row + t) * job.enc_stride + offset) };
    }
    a
}

/// One number of a record, in all lanes.
#[inline(always)]
unsafe fn param<S: Simd, const INT16: bool>(record: *const u8, offset: usize) -> S::F {
    let codes = if INT16 { Encoding::Int16.codes_bytes() } else { Encoding::Int8.codes_bytes() };
    // SAFETY: a record has its numbers behind its codes.
    unsafe { S::splat(record.add(codes + offset).cast::<f32>().read_unaligned()) }
}

/// `f32(sum(u * q))` over the columns of `COVER`.
#[inline(always)]
unsafe fn products<S: Simd, const C: u8, const COVER: u8, const INT16: bool, const T: usize>(
    w: *const u8,
    a: [*const u8; T],
) -> [S::F; T] {
    // SAFETY: `w` is a group and `a` are records.
    unsafe {
        let high = S::dot::<T, C, COVER>(w, a);
        let mut out = [S::splat(0.0); T];
        if INT16 {
            let mut low_codes = a;
            for t in 0..T {
                low_codes[t] = a[t].add(GROUP_COLS);
            }
            let low = S::dot::<T, C, COVER>(w, low_codes);
            for t in 0..T {
                // Both sums are exact in f32, so this rounds the whole sum once.
                out[t] = S::fma(S::splat(255.0), S::to_f32(high[t]), S::to_f32(low[t]));
            }
        } else {
            for t in 0..T {
                out[t] = S::to_f32(high[t]);
            }
        }
        out
    }
}
