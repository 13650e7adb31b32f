//! Sixteen lanes on every instruction set.
//!
//! Purpose: the kernels of this crate are written once over [`Simd`], a vector of 16 `f32` lanes
//! and one of 16 `i32` lanes, and run on whatever the machine has. [`Isa`] names what it has.
//!
//! Key properties: every operation is exact (integers) or rounded once as IEEE 754 asks (floats),
//! so a kernel gives the same bits on each of them. [`Scalar`] is the naive twin, plain Rust.
//!
//! Leaves out: NEON. On aarch64 [`Isa::detect`] gives [`Isa::Scalar`], whose fixed loops of 16 the
//! compiler turns into NEON code by itself.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

pub use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub use {avx2::Avx2, avx512::Avx512};

/// An instruction set that the kernels can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and VNNI, on top of AVX2.
    Avx512Vnni,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512Vnni];

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let (avx2, avx512) = (
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c"),
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni"),
        );
        #[cfg(not(target_arch = "x86_64"))]
        let (avx2, avx512) = (false, false);
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2,
            Isa::Avx512Vnni => avx2 && avx512,
        }
    }

    /// The fastest one of this machine.
    pub fn detect() -> Isa {
        Isa::available().last().expect("plain Rust runs everywhere")
    }

    /// Those of this machine, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// A name for tables and events.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Runs `kernel` compiled for this instruction set.
    ///
    /// # Safety
    /// `self` is available here, and the kernel's own contract holds.
    #[inline]
    pub unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            // SAFETY: plain Rust needs nothing of the machine; the rest is the caller's promise.
            Isa::Scalar => unsafe { kernel.run::<Scalar>() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promised that this instruction set is available.
            Isa::Avx2 => unsafe { avx2::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512Vnni => unsafe { avx512::run(kernel) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("not available on this architecture"),
        }
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Work that is compiled once for every instruction set.
pub trait Kernel {
    /// What it gives back.
    type Output;
    /// The work. Implementations are `#[inline(always)]`, so that the body lands in a function that
    /// enables the instructions of `S`.
    ///
    /// # Safety
    /// The instructions of `S` are available, and the kernel's own contract holds.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// How the codes that [`Simd::dot`] reads are stored. Lane `r` is an output row.
pub mod codes {
    /// 256 bytes: byte `64 j + 4 r + b` holds column `4 j + b` of lane `r` in its low half and
    /// column `16 + 4 j + b` in its high half.
    pub const NIBBLES: u8 = 0;
    /// 512 bytes: byte `64 j + 4 r + b` is column `4 j + b` of lane `r`; none is above 15.
    pub const SMALL: u8 = 1;
    /// As `SMALL`, any byte.
    pub const BYTES: u8 = 2;
}

/// Which columns of a group [`Simd::dot`] covers.
pub mod cover {
    /// Columns 0..32.
    pub const ALL: u8 = 0;
    /// Columns 0..16.
    pub const LOW: u8 = 1;
    /// Columns 16..32.
    pub const HIGH: u8 = 2;
}

/// Sixteen lanes.
///
/// # Safety
/// Every method needs the instruction set that implements it, and is `#[inline(always)]` so that it
/// lands in a caller that enables it. Pointers must be valid for the bytes that the method names;
/// none needs alignment.
#[allow(clippy::missing_safety_doc)] // one contract for all, above
pub trait Simd: Copy + 'static {
    /// 16 `f32`.
    type F: Copy;
    /// 16 `i32`.
    type I: Copy;
    /// Rows of activations that share one read of weights when these come from memory.
    const FEW: usize;
    /// Panels, and rows of activations, that share reads when both are cached: as many sums as
    /// registers hold, so that each load serves several products.
    const MANY: (usize, usize);
    /// Bytes of encoded activations that stay close while panels stream past.
    const CHUNK_BYTES: usize;

    /// Runs a kernel as a function of its own, from inside of another.
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::F;
    /// 16 values from 64 bytes.
    unsafe fn load(from: *const f32) -> Self::F;
    /// 16 values to 64 bytes.
    unsafe fn store(to: *mut f32, x: Self::F);
    /// 16 values from 32 bytes of IEEE half precision.
    unsafe fn load_f16(from: *const u16) -> Self::F;
    /// 16 values from 32 bytes of bfloat16.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Nearest `f32`.
    unsafe fn to_f32(x: Self::I) -> Self::F;

    /// Exact products of `T` rows of activations with one group of `P` panels of weights:
    /// `out[p][t][r] = sum_c w[p][r][c] * a[t][c]`, over the columns of `COVER`.
    ///
    /// `w[p]` is laid out as `CODES` says; `a[t]` are 32 signed bytes, none of them -128.
    unsafe fn dot<const P: usize, const T: usize, const CODES: u8, const COVER: u8>(
        w: [*const u8; P],
        a: [*const u8; T],
    ) -> [[Self::I; T]; P];
    /// Turns 256 bytes of [`codes::NIBBLES`] into 512 of [`codes::SMALL`].
    unsafe fn widen(from: *const u8, to: *mut u8);
    /// Column `b` of four: byte `b` of each 4-byte lane of 64 bytes.
    unsafe fn column(from: *const u8, b: u32) -> Self::F;

    /// Bits of the largest `|x|` in 32 values; NaN is larger than infinity.
    unsafe fn abs_max_bits(from: *const f32) -> u32;
    /// `x` rounded to the nearest integer, ties to even. `|x| < 2^31`.
    unsafe fn round(x: Self::F) -> Self::I;
    /// `(h, l)` with `x = 255 h + l` and `|l| <= 127`. `|x| <= 32512`.
    unsafe fn split(x: Self::I) -> (Self::I, Self::I);
    /// Sum of the lanes.
    unsafe fn sum(x: Self::I) -> i32;
    /// 16 signed bytes. Every lane fits.
    unsafe fn store_i8(to: *mut u8, x: Self::I);

    /// Asks for the cache line at `at`, which need not be mapped, soon.
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        let _ = at;
    }
    /// As `prefetch`, into the second-level cache.
    #[inline(always)]
    unsafe fn prefetch_far(at: *const u8) {
        let _ = at;
    }
}
