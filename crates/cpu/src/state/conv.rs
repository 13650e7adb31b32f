//! The convolution: sixteen channels over the rows of a segment.

use crate::gates::silu;
use crate::vector::{LANES, Vector, by_isa};

/// To the nearest bf16, ties to even, as an f32.
#[inline(always)]
fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) & 0xffff_0000;
    if x.is_nan() { x } else { f32::from_bits(rounded) }
}

#[inline(always)]
unsafe fn conv_columns<V: Vector, const K: usize>(
    x: *const f32,
    w: *const f32,
    y: *mut f32,
    taps: *mut u8,
    channel: usize,
    width: usize,
    rows: usize,
    is_fresh: bool,
    is_bf16: bool,
) {
    // SAFETY: sixteen channels from `channel` on: rows of x and y are `width` apart, taps hold
    // K - 1 columns of `width`, w holds K.
    unsafe {
        let mut weights = [V::splat(0.0); K];
        let mut window = [V::splat(0.0); K];
        for j in 0..K {
            weights[j] = V::load(w.add(j * width));
        }
        for j in 0..K - 1 {
            let at = j * width + channel;
            window[j + 1] = match (is_fresh, is_bf16) {
                (true, _) => V::splat(0.0),
                (false, true) => V::load_bf16(taps.cast::<u16>().add(at)),
                (false, false) => V::load(taps.cast::<f32>().add(at)),
            };
        }
        for row in 0..rows {
            for j in 1..K {
                window[j - 1] = window[j];
            }
            let mut column = [0.0f32; LANES];
            V::load(x.add(row * width)).store(column.as_mut_ptr());
            if is_bf16 {
                column = column.map(round_bf16);
            }
            window[K - 1] = V::load(column.as_ptr());
            let mut sum = weights[0].mul(window[0]);
            for j in 1..K {
                sum = weights[j].mul_add(window[j], sum);
            }
            silu(sum).store(y.add(row * width));
        }
        for j in 0..K - 1 {
            let at = j * width + channel;
            if is_bf16 {
                let mut column = [0.0f32; LANES];
                window[j + 1].store(column.as_mut_ptr());
                let halves = column.map(|x| (x.to_bits() >> 16) as u16);
                taps.cast::<u16>().add(at).copy_from_nonoverlapping(halves.as_ptr(), LANES);
            } else {
                window[j + 1].store(taps.cast::<f32>().add(at));
            }
        }
    }
}

macro_rules! conv_of {
    ($($name:ident, $generic:ident, $kernel:literal;)*) => {$(
        #[inline(always)]
        unsafe fn $generic<V: Vector>(
            x: *const f32, w: *const f32, y: *mut f32, taps: *mut u8, channel: usize,
            width: usize, rows: usize, is_fresh: bool, is_bf16: bool,
        ) {
            // SAFETY: the caller's promises.
            unsafe {
                conv_columns::<V, $kernel>(x, w, y, taps, channel, width, rows, is_fresh, is_bf16)
            }
        }
        by_isa! {
            /// `CausalConv` of sixteen channels over the rows of a segment; `y` may be `x`.
            ///
            /// # Safety
            /// As `conv_columns`.
            pub(super) unsafe fn $name(
                x: *const f32, w: *const f32, y: *mut f32, taps: *mut u8, channel: usize,
                width: usize, rows: usize, is_fresh: bool, is_bf16: bool,
            ) => $generic
        }
    )*};
}
conv_of! {
    conv2, conv2_columns, 2;
    conv3, conv3_columns, 3;
    conv4, conv4_columns, 4;
}
