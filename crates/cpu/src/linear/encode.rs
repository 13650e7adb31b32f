//! Activations as integer codes, one row at a time.

use ignis_types::DType;

use super::GROUP_COLS;
use super::form::Form;
use crate::simd::{Isa, Kernel, Simd};

/// How a row of activations is written for the kernels.
///
/// `Int8` and `Int16` are a record for every group: codes (`Int16`: [32] high, then [32] low bytes,
/// `q = 255 high + low`), then `d`, `s`, `s0`, `s1` as f32. See the module for what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// 8 bits and sign a value: the fast one.
    Int8,
    /// 16 bits, at about twice the integer work: close to f32.
    Int16,
    /// The values themselves.
    F32,
}

/// Offsets inside the record of a group, from the end of its codes.
pub(crate) mod record {
    pub(crate) const D: usize = 0;
    pub(crate) const S: usize = 4;
    pub(crate) const S0: usize = 8;
    pub(crate) const S1: usize = 12;
    pub(crate) const BYTES: usize = 16;
}

impl Encoding {
    /// Bytes of the codes of a group.
    pub(crate) const fn codes_bytes(self) -> usize {
        match self {
            Encoding::Int8 => GROUP_COLS,
            Encoding::Int16 => 2 * GROUP_COLS,
            Encoding::F32 => 4 * GROUP_COLS,
        }
    }

    /// Bytes of the record of a group.
    pub(crate) const fn record_bytes(self) -> usize {
        match self {
            Encoding::Int8 | Encoding::Int16 => self.codes_bytes() + record::BYTES,
            Encoding::F32 => self.codes_bytes(),
        }
    }
}

/// What a product with `dtype` weights reads when the caller would like `want`: float weights are
/// never multiplied with codes.
pub fn encoding_for(dtype: DType, want: Encoding) -> Encoding {
    match Form::of(dtype) {
        Some(Form::Codes { .. }) => want,
        _ => Encoding::F32,
    }
}

/// Bytes of one encoded row, a multiple of 64: the stride of the rows that `run` reads.
pub fn encoded_row_bytes(cols: u32, encoding: Encoding) -> usize {
    let bytes = match encoding {
        Encoding::F32 => 4 * cols as usize,
        _ => (cols as usize).div_ceil(GROUP_COLS) * encoding.record_bytes(),
    };
    bytes.next_multiple_of(64)
}

/// Encodes one row on the fastest instruction set; all give the same bytes.
///
/// `out` has `encoded_row_bytes(x.len(), encoding)` bytes; `x.len()` is a multiple of 32 unless the
/// encoding is `F32`. Both are asserted.
pub fn encode_row(x: &[f32], encoding: Encoding, out: &mut [u8]) {
    encode_row_on(Isa::detect(), x, encoding, out);
}

/// As [`encode_row`], on one instruction set, which must be available.
pub fn encode_row_on(isa: Isa, x: &[f32], encoding: Encoding, out: &mut [u8]) {
    assert!(isa.is_available(), "{isa} is not available here");
    assert_eq!(out.len(), encoded_row_bytes(x.len() as u32, encoding), "bytes of the encoded row");
    if encoding == Encoding::F32 {
        // SAFETY: `out` was checked to hold the bytes of `x`; any alignment will do for bytes.
        unsafe { std::ptr::copy_nonoverlapping(x.as_ptr().cast(), out.as_mut_ptr(), 4 * x.len()) };
        return;
    }
    assert!(x.len().is_multiple_of(GROUP_COLS), "{} columns are no whole groups", x.len());
    // SAFETY: the instruction set was checked; the lengths of `x` and `out` agree.
    unsafe {
        match encoding {
            Encoding::Int8 => isa.run(Rounded::<false> { x, out: out.as_mut_ptr() }),
            _ => isa.run(Rounded::<true> { x, out: out.as_mut_ptr() }),
        }
    }
}

/// Encodes a row whose length is a multiple of 32 to as many records.
struct Rounded<'a, const INT16: bool> {
    x: &'a [f32],
    out: *mut u8,
}

/// Groups whose largest value is below this count as zeros; `127 / A` stays finite above.
const A_MIN: f32 = f32::from_bits((127 - 96) << 23);

impl<const INT16: bool> Kernel for Rounded<'_, INT16> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let encoding = if INT16 { Encoding::Int16 } else { Encoding::Int8 };
        let q_max: f32 = if INT16 { 32512.0 } else { 127.0 };
        for (g, x) in self.x.chunks_exact(GROUP_COLS).enumerate() {
            // SAFETY: `x` has 32 values and `out` a record for each group. The values that are
            // rounded are finite and at most `q_max` large, as `round` and `split` need.
            unsafe {
                let out = self.out.add(g * encoding.record_bytes());
                let params = out.add(encoding.codes_bytes()).cast::<f32>();
                let a = f32::from_bits(S::abs_max_bits(x.as_ptr()));
                // False for NaN too.
                let is_plain = (A_MIN..f32::INFINITY).contains(&a);
                if !is_plain {
                    let bad = if a < A_MIN { 0.0 } else { f32::NAN };
                    std::ptr::write_bytes(out, 0, encoding.codes_bytes());
                    params.cast::<[f32; 4]>().write_unaligned([bad; 4]);
                    continue;
                }
                let (d, inverse) = (a / q_max, S::splat(q_max / a));
                let low = S::round(S::mul(S::load(x.as_ptr()), inverse));
                let high = S::round(S::mul(S::load(x.as_ptr().add(16)), inverse));
                if INT16 {
                    let ((low_h, low_l), (high_h, high_l)) = (S::split(low), S::split(high));
                    S::store_i8(out, low_h);
                    S::store_i8(out.add(16), high_h);
                    S::store_i8(out.add(32), low_l);
                    S::store_i8(out.add(48), high_l);
                } else {
                    S::store_i8(out, low);
                    S::store_i8(out.add(16), high);
                }
                let (s0, s1) = (S::sum(low), S::sum(high));
                let of = |sum: i32| d * sum as f32;
                params.cast::<[f32; 4]>().write_unaligned([d, of(s0 + s1), of(s0), of(s1)]);
            }
        }
    }
}
