//! Sixteen f32 values that move together, whatever the machine's registers hold.
//!
//! Purpose: every kernel outside the products is written once over [`Vector`] and compiled for each
//! instruction set by [`by_isa!`](crate::vector::by_isa). A value always has sixteen lanes, so a
//! reduction meets its terms in the same order on every machine and the bits agree.
//!
//! Leaves out: integer dot products, which belong to `linear`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exp;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use exp::exp;
pub(crate) use scalar::Scalar;

/// Lanes of every [`Vector`].
pub(crate) const LANES: usize = 16;

/// Sixteen f32 lanes.
///
/// # Safety
/// Every function needs the instruction set of its type, and pointers that are valid for the lanes
/// they name; none asks for alignment.
pub(crate) trait Vector: Copy {
    /// One register holds all lanes.
    const WIDE: bool;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// The first `n` lanes, zero behind them; `n <= 16`.
    unsafe fn load_first(from: *const f32, n: usize) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn store_first(self, to: *mut f32, n: usize);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// `self > other ? self : other`: of a NaN and a number, the second operand.
    unsafe fn max(self, other: Self) -> Self;
    /// `self < other ? self : other`.
    unsafe fn min(self, other: Self) -> Self;
    /// Zero in lanes where `x < limit`.
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self;
    /// The first `n` lanes of `self`, then those of `other`.
    unsafe fn first(self, n: usize, other: Self) -> Self;
    /// `self * 2^n`, where `magic` is `n + 1.5 * 2^23` as f32 and the product is a normal number.
    unsafe fn scale_by(self, magic: Self) -> Self;
    /// Sum over a fixed tree: lanes 8 apart, 4, 2, 1.
    unsafe fn sum(self) -> f32;
    /// Largest lane.
    unsafe fn largest(self) -> f32;
    /// Lane 0.
    unsafe fn lane0(self) -> f32;
    /// Whether any lane is greater than that of `other`.
    unsafe fn any_above(self, other: Self) -> bool;
}

/// Declares `name(isa, ..)`, which calls `generic::<V>(..)` compiled for `isa`.
///
/// The caller of `name` must hold an [`Isa`](crate::simd::Isa) that this machine has.
macro_rules! by_isa {
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?
     => $generic:ident) => {
        $(#[$doc])*
        #[allow(clippy::missing_safety_doc)]
        $vis unsafe fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the features are enabled here; the rest is the caller's contract.
                unsafe { $generic::<$crate::vector::Avx2>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                unsafe { $generic::<$crate::vector::Avx512>($($arg),*) }
            }
            // SAFETY: `isa` was detected on this machine; the rest is the caller's contract.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    $crate::simd::Isa::Avx2 => avx2($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::simd::Isa::Avx512Vnni => avx512($($arg),*),
                    _ => $generic::<$crate::vector::Scalar>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use by_isa;

#[cfg(test)]
mod tests;
