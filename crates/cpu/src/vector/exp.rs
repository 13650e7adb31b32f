//! The exponential that attention, the gate and sampling share.

use super::Vector;

/// Below this the result is zero.
const LOWEST: f32 = -86.0;
/// Above this the argument is clamped: the result stays finite.
const HIGHEST: f32 = 88.0;
/// `x + MAGIC` holds round(x) in its low bits.
const MAGIC: f32 = 12_582_912.0;
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;

/// e^x in f32, within two units in the last place on `[-86, 88]`; zero below, e^88 above; NaN
/// stays NaN. The same operations in every instruction set, so the same bits; `exp(0)` is 1.
///
/// # Safety
/// As for [`Vector`].
#[inline(always)]
pub(crate) unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: the caller has the instruction set of `V`.
    unsafe {
        let x = V::splat(HIGHEST).min(x);
        let magic = x.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(MAGIC));
        let n = magic.sub(V::splat(MAGIC));
        let r = n.mul_add(V::splat(-LN2_HI), x);
        let r = n.mul_add(V::splat(-LN2_LO), r);
        let p = V::splat(1.0 / 5040.0);
        let p = p.mul_add(r, V::splat(1.0 / 720.0));
        let p = p.mul_add(r, V::splat(1.0 / 120.0));
        let p = p.mul_add(r, V::splat(1.0 / 24.0));
        let p = p.mul_add(r, V::splat(1.0 / 6.0));
        let p = p.mul_add(r, V::splat(0.5));
        let p = p.mul_add(r, V::splat(1.0));
        let p = p.mul_add(r, V::splat(1.0));
        p.scale_by(magic).zero_below(x, V::splat(LOWEST))
    }
}
