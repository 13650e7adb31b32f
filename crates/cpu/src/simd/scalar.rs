//! The naive twin: plain Rust.

use half::{bf16, f16};

use super::{Kernel, Simd, codes, cover};

/// Plain Rust, on every machine.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

#[inline(always)]
unsafe fn lanes<A: Copy, B: Copy + Default>(from: *const A, f: impl Fn(A) -> B) -> [B; 16] {
    let mut out = [B::default(); 16];
    for (lane, out) in out.iter_mut().enumerate() {
        // SAFETY: the caller promised 16 values; none needs alignment.
        *out = f(unsafe { from.add(lane).read_unaligned() });
    }
    out
}

impl Simd for Scalar {
    type F = [f32; 16];
    type I = [i32; 16];
    // Nothing is held in registers; both only keep the compiled code small.
    const FEW: usize = 2;
    const MANY: (usize, usize) = (2, 2);
    const CHUNK_BYTES: usize = 256 << 10;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller's promises.
        unsafe { kernel.run::<Scalar>() }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 16] {
        [x; 16]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [f32; 16] {
        // SAFETY: the caller promised 64 bytes.
        unsafe { from.cast::<[f32; 16]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [f32; 16]) {
        // SAFETY: the caller promised 64 bytes.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> [f32; 16] {
        // SAFETY: the caller promised 32 bytes.
        unsafe { lanes(from, |bits| f16::from_bits(bits).to_f32()) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> [f32; 16] {
        // SAFETY: the caller promised 32 bytes.
        unsafe { lanes(from, |bits| bf16::from_bits(bits).to_f32()) }
    }

    #[inline(always)]
    unsafe fn add(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        let mut out = a;
        for lane in 0..16 {
            out[lane] = a[lane] + b[lane];
        }
        out
    }

    #[inline(always)]
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        let mut out = a;
        for lane in 0..16 {
            out[lane] = a[lane] * b[lane];
        }
        out
    }

    #[inline(always)]
    unsafe fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        let mut out = a;
        for lane in 0..16 {
            out[lane] = a[lane].mul_add(b[lane], c[lane]);
        }
        out
    }

    #[inline(always)]
    unsafe fn to_f32(x: [i32; 16]) -> [f32; 16] {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    unsafe fn dot<const P: usize, const T: usize, const CODES: u8, const COVER: u8>(
        w: [*const u8; P],
        a: [*const u8; T],
    ) -> [[[i32; 16]; T]; P] {
        let columns = match COVER {
            cover::ALL => 0..32,
            cover::LOW => 0..16,
            _ => 16..32,
        };
        let mut out = [[[0; 16]; T]; P];
        for (p, w) in w.into_iter().enumerate() {
            for column in columns.clone() {
                for lane in 0..16 {
                    let code = if CODES == codes::NIBBLES {
                        let at = 64 * (column % 16 / 4) + 4 * lane + column % 4;
                        // SAFETY: `at < 256`, the bytes of a nibble group.
                        unsafe { *w.add(at) >> (column / 16 * 4) & 15 }
                    } else {
                        // SAFETY: the index is below 512, the bytes of a group.
                        unsafe { *w.add(64 * (column / 4) + 4 * lane + column % 4) }
                    };
                    for t in 0..T {
                        // SAFETY: each row of activations has 32 bytes.
                        let x = unsafe { *a[t].add(column) } as i8;
                        out[p][t][lane] += i32::from(code) * i32::from(x);
                    }
                }
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn widen(from: *const u8, to: *mut u8) {
        for i in 0..256 {
            // SAFETY: the caller promised 256 bytes to read and 512 to write.
            unsafe {
                let pair = *from.add(i);
                *to.add(i) = pair & 15;
                *to.add(256 + i) = pair >> 4;
            }
        }
    }

    #[inline(always)]
    unsafe fn column(from: *const u8, b: u32) -> [f32; 16] {
        // SAFETY: the caller promised 64 bytes.
        unsafe { lanes(from.cast::<u32>(), |word| f32::from((word >> (8 * b)) as u8)) }
    }

    #[inline(always)]
    unsafe fn abs_max_bits(from: *const f32) -> u32 {
        let mut max = 0;
        for i in 0..32 {
            // SAFETY: the caller promised 32 values.
            max = max.max(unsafe { from.add(i).read_unaligned() }.to_bits() & 0x7fff_ffff);
        }
        max
    }

    #[inline(always)]
    unsafe fn round(x: [f32; 16]) -> [i32; 16] {
        x.map(|x| x.round_ties_even() as i32)
    }

    #[inline(always)]
    unsafe fn split(x: [i32; 16]) -> ([i32; 16], [i32; 16]) {
        let high = x.map(|x| (x + 127).div_euclid(255));
        let mut low = x;
        for lane in 0..16 {
            low[lane] -= 255 * high[lane];
        }
        (high, low)
    }

    #[inline(always)]
    unsafe fn sum(x: [i32; 16]) -> i32 {
        x.iter().sum()
    }

    #[inline(always)]
    unsafe fn store_i8(to: *mut u8, x: [i32; 16]) {
        for (lane, x) in x.into_iter().enumerate() {
            // SAFETY: the caller promised 16 bytes.
            unsafe { *to.add(lane) = x as i8 as u8 };
        }
    }
}
