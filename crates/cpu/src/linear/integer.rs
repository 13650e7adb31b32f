//! Codes times codes: the kernels of `Encoding::Int8` and `Encoding::Int16`.
//!
//! Few rows (up to a tile) read the packed panels as they are, once: this is decode, and its limit
//! is memory. More rows first *stage* a part of a panel in the first-level cache, as one byte a
//! code and f32 scales, and walk all rows over it: this is prefill, and its limit is the
//! multipliers.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::GROUP_COLS;
use super::encode::{Encoding, record};
use super::form::{Form, codes_bytes, scales, scales_bytes};
use super::matrix::Job;
use super::tile::{
    AHEAD_BYTES, AHEAD_FAR_BYTES, PANELS_MAX, Place, Sums, chunk_rows, finish, for_tiles,
};
use crate::simd::{Isa, Kernel, Simd, codes, cover};

/// Groups of a panel that are staged at a time: 15 KB.
const STAGE_GROUPS: usize = 24;
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
            if self.job.m <= 2 * S::FEW {
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

    /// One or two tiles of rows: straight from the packed bytes.
    #[inline(always)]
    unsafe fn few<S: Simd>(&self) {
        let job = &self.job;
        let groups = job.cols / GROUP_COLS;
        for panel in 0..job.panels {
            // SAFETY: the panel and the rows are the job's.
            unsafe {
                let w = job.w.add(panel * job.panel_bytes);
                for_tiles!(S::FEW, job.m, |row, T| {
                    let mut acc = [[S::splat(0.0); T]; 1];
                    let a = rows::<T>(job, row, 0);
                    sweep::<S, CODES, SCALES, 1, T, INT16, true>(
                        self.zero,
                        [w],
                        groups,
                        a,
                        &mut acc,
                    );
                    finish::<S, T>(job, panel, row, acc[0]);
                });
            }
        }
    }

    /// Any number of rows, over panels that are staged in parts if `stage`, else used in place;
    /// either way laid out as `C` and `D` say.
    #[inline(always)]
    unsafe fn many<S: Simd, const C: u8, const D: u8>(&self, stage: bool) {
        let job = &self.job;
        let mut staged = MaybeUninit::<Staged>::uninit();
        let mut sums = MaybeUninit::<Sums>::uninit();
        let (staged, sums) = (staged.as_mut_ptr().cast::<u8>(), sums.as_mut_ptr().cast::<f32>());
        let staged = stage.then_some(staged);
        let chunk = chunk_rows::<S>(job, Self::tile::<S>());
        for start in (0..job.m).step_by(chunk) {
            let rows = start..job.m.min(start + chunk);
            let mut panel = 0;
            // SAFETY: rows and panels are the job's.
            unsafe {
                if S::MANY.0 == 2 {
                    while panel + 2 <= job.panels {
                        self.walk::<S, C, D, 2>(panel, rows.clone(), staged, sums);
                        panel += 2;
                    }
                }
                while panel < job.panels {
                    self.walk::<S, C, D, 1>(panel, rows.clone(), staged, sums);
                    panel += 1;
                }
            }
        }
    }

    /// Rows of a tile in `many`; 16 bits need twice the registers.
    const fn tile<S: Simd>() -> usize {
        if INT16 && S::MANY.1 > 4 { 4 } else { S::MANY.1 }
    }

    /// All of `rows` over `P` panels, from `panel` on. `staged` and `sums` are scratch.
    #[inline(always)]
    unsafe fn walk<S: Simd, const C: u8, const D: u8, const P: usize>(
        &self,
        panel: usize,
        rows_here: Range<usize>,
        staged: Option<*mut u8>,
        sums: *mut f32,
    ) {
        let job = &self.job;
        let groups = job.cols / GROUP_COLS;
        let parts = groups.div_ceil(STAGE_GROUPS);
        // The next panels come in from memory while these are used, a bit with every tile.
        let tiles = rows_here.len().div_ceil(Self::tile::<S>()) * parts;
        let fetch_bytes = (P * job.panel_bytes).div_ceil(tiles).next_multiple_of(64);
        let mut fetch = job.w.wrapping_add((panel + P) * job.panel_bytes);
        for part in 0..parts {
            let (from, to) = (groups * part / parts, groups * (part + 1) / parts);
            // SAFETY: the panels, their groups and the rows are the job's; a part fits the stage.
            // Sums of a row are written by its first part and read by later ones.
            unsafe {
                let mut w = [job.w; P];
                for p in 0..P {
                    let at = (panel + p) * job.panel_bytes + from * Self::STEP_BYTES;
                    w[p] = job.w.add(at);
                    if let Some(staged) = staged {
                        let staged = staged.add(p * STAGE_GROUPS * STAGED_BYTES);
                        self.stage::<S>(w[p], to - from, staged);
                        w[p] = staged;
                    }
                }
                for_tiles!(Self::tile::<S>(), rows_here.len(), |row, T| {
                    for line in 0..fetch_bytes / 64 {
                        S::prefetch_far(fetch.wrapping_add(64 * line));
                    }
                    fetch = fetch.wrapping_add(fetch_bytes);
                    S::call(Tile::<C, D, INT16, P, T> {
                        place: Place {
                            job,
                            panel,
                            row: rows_here.start + row,
                            sums: sums.add(16 * row),
                            is_first: part == 0,
                            is_last: part + 1 == parts,
                        },
                        w,
                        a: rows::<T>(job, rows_here.start + row, from * record_bytes(INT16)),
                        groups: to - from,
                    });
                });
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
                let (d, m) = scales::<S, SCALES>(self.zero, from.add(codes_bytes(CODES)));
                S::store(to.add(512).cast(), d[0]);
                S::store(to.add(576).cast(), m[0]);
            }
        }
    }
}

/// One tile of `many`: `T` rows over the same part of `P` panels.
struct Tile<'a, const C: u8, const D: u8, const INT16: bool, const P: usize, const T: usize> {
    place: Place<'a>,
    w: [*const u8; P],
    a: [*const u8; T],
    groups: usize,
}

impl<const C: u8, const D: u8, const INT16: bool, const P: usize, const T: usize> Kernel
    for Tile<'_, C, D, INT16, P, T>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: whoever made the tile answers for its pointers; `D` is never centred here.
        unsafe {
            let mut acc = self.place.begin::<S, P, T>();
            sweep::<S, C, D, P, T, INT16, false>(0.0, self.w, self.groups, self.a, &mut acc);
            self.place.end::<S, P, T>(acc);
        }
    }
}

/// Adds `groups` groups of `P` panels, laid out as `C` and `D` say, to the sums of `T` rows.
#[inline(always)]
unsafe fn sweep<
    S: Simd,
    const C: u8,
    const D: u8,
    const P: usize,
    const T: usize,
    const INT16: bool,
    const AHEAD: bool,
>(
    zero: f32,
    w: [*const u8; P],
    groups: usize,
    a: [*const u8; T],
    acc: &mut [[S::F; T]; P],
) {
    let step_bytes = codes_bytes(C) + scales_bytes(D);
    let mut sums = *acc;
    for g in 0..groups {
        // SAFETY: `w` has `groups` groups and each row as many records. What is prefetched need
        // not exist.
        unsafe {
            let (mut group, mut at) = (w, a);
            let (mut d, mut m) = ([[S::splat(0.0); 2]; P], [[S::splat(0.0); 2]; P]);
            for p in 0..P {
                group[p] = w[p].add(g * step_bytes);
                if AHEAD {
                    for line in 0..step_bytes.div_ceil(64) {
                        S::prefetch_far(group[p].wrapping_add(AHEAD_FAR_BYTES + 64 * line));
                        S::prefetch(group[p].wrapping_add(AHEAD_BYTES + 64 * line));
                    }
                }
                (d[p], m[p]) = scales::<S, D>(zero, group[p].add(codes_bytes(C)));
            }
            for t in 0..T {
                at[t] = a[t].add(g * record_bytes(INT16));
            }
            if D == scales::HALVES {
                let low = products::<S, C, { cover::LOW }, INT16, P, T>(group, at);
                let high = products::<S, C, { cover::HIGH }, INT16, P, T>(group, at);
                for t in 0..T {
                    let scale = param::<S, INT16>(at[t], record::D);
                    let s0 = param::<S, INT16>(at[t], record::S0);
                    let s1 = param::<S, INT16>(at[t], record::S1);
                    for p in 0..P {
                        let sum = S::fma(S::mul(d[p][0], scale), low[p][t], sums[p][t]);
                        let sum = S::fma(S::mul(d[p][1], scale), high[p][t], sum);
                        sums[p][t] = S::fma(m[p][1], s1, S::fma(m[p][0], s0, sum));
                    }
                }
            } else {
                let both = products::<S, C, { cover::ALL }, INT16, P, T>(group, at);
                for t in 0..T {
                    let scale = param::<S, INT16>(at[t], record::D);
                    let s = param::<S, INT16>(at[t], record::S);
                    for p in 0..P {
                        let scale = S::mul(d[p][0], scale);
                        let sum = S::fma(scale, both[p][t], sums[p][t]);
                        sums[p][t] = S::fma(m[p][0], s, sum);
                    }
                }
            }
        }
    }
    *acc = sums;
}

/// Scales and minima of one group: of both halves, or twice the same.
#[inline(always)]
unsafe fn scales<S: Simd, const D: u8>(zero: f32, at: *const u8) -> ([S::F; 2], [S::F; 2]) {
    let (short, long) = (at.cast::<u16>(), at.cast::<f32>());
    // SAFETY: `at` has the scales of a group in the layout `D`.
    unsafe {
        match D {
            scales::CENTRED => {
                let d = S::load_f16(short);
                let m = S::mul(d, S::splat(zero));
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

/// Parts of panels, staged.
#[repr(align(64))]
struct Staged {
    _bytes: [[u8; STAGE_GROUPS * STAGED_BYTES]; PANELS_MAX],
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

/// Bytes of the record of a group of activations.
const fn record_bytes(int16: bool) -> usize {
    if int16 { Encoding::Int16.record_bytes() } else { Encoding::Int8.record_bytes() }
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
unsafe fn products<
    S: Simd,
    const C: u8,
    const COVER: u8,
    const INT16: bool,
    const P: usize,
    const T: usize,
>(
    w: [*const u8; P],
    a: [*const u8; T],
) -> [[S::F; T]; P] {
    // SAFETY: `w` are groups and `a` are records.
    unsafe {
        let high = S::dot::<P, T, C, COVER>(w, a);
        let mut out = [[S::splat(0.0); T]; P];
        for p in 0..P {
            for t in 0..T {
                out[p][t] = S::to_f32(high[p][t]);
            }
        }
        if INT16 {
            let mut low_codes = a;
            for t in 0..T {
                low_codes[t] = a[t].add(GROUP_COLS);
            }
            let low = S::dot::<P, T, C, COVER>(w, low_codes);
            for p in 0..P {
                for t in 0..T {
                    // Both sums are exact in f32, so this rounds the whole sum once.
                    out[p][t] = S::fma(S::splat(255.0), out[p][t], S::to_f32(low[p][t]));
                }
            }
        }
        out
    }
}
