// What every kernel file starts with: types, conversions, sums of a fixed shape. No header of the
// toolkit is needed. Every sum has one order, whatever the launch: results are functions of a row.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32
#define ALL_LANES 0xffffffffu

__device__ __forceinline__ float bf16_value(u16 bits) {
    return __uint_as_float((u32)bits << 16);
}

__device__ __forceinline__ float f16_value(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Two values as bf16, rounded to nearest even; the first in the low half.
__device__ __forceinline__ u32 bf16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ u16 bf16_bits(float value) {
    return (u16)bf16_pair(value, 0.0f);
}

__device__ __forceinline__ float low_value(u32 pair) {
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_value(u32 pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

// 2^x; results below the normal range are zero.
__device__ __forceinline__ float exp2_fast(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// The sum over a warp in one tree; every lane has it.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        value = __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    return value;
}

// Kernels of a round overlap from 9.0 on: one says that the next may be put on the card, and waits
// for the one before to end before it reads or writes what others touch.
__device__ __forceinline__ void depend_go() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void depend_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Rows that products read: bf16, in blocks of 8 rows by 8 columns; columns up to the next multiple
// of 64 are zero. `lo` holds what rounding took from `hi`; null where products do without.
struct Encoded {
    u16* hi;
    u16* lo;
    u32 rows;
    u32 cols;
};

__device__ __forceinline__ u32 encoded_cols(const Encoded& to) { return (to.cols + 63) / 64 * 64; }

__device__ __forceinline__ u64 encoded_place(const Encoded& to, u32 row, u32 col) {
    return ((u64)(row / 8) * (encoded_cols(to) / 8) + col / 8) * 64 + row % 8 * 8 + col % 8;
}

__device__ __forceinline__ void put_encoded(const Encoded& to, u32 row, u32 col, float value) {
    const u64 place = encoded_place(to, row, col);
    const u16 hi = bf16_bits(value);
    to.hi[place] = hi;
    if (to.lo) to.lo[place] = bf16_bits(__fsub_rn(value, bf16_value(hi)));
}

// Two neighbours; `col` is even.
__device__ __forceinline__ void put_encoded_two(const Encoded& to, u32 row, u32 col, float a,
                                                float b) {
    const u64 place = encoded_place(to, row, col);
    const u32 hi = bf16_pair(a, b);
    *(u32*)(to.hi + place) = hi;
    if (to.lo) {
        *(u32*)(to.lo + place) =
            bf16_pair(__fsub_rn(a, low_value(hi)), __fsub_rn(b, high_value(hi)));
    }
}

// The zeros behind a row, by `threads` threads.
__device__ __forceinline__ void pad_encoded(const Encoded& to, u32 row, u32 thread, u32 threads) {
    for (u32 col = to.cols + thread; col < encoded_cols(to); col += threads) {
        put_encoded(to, row, col, 0.0f);
    }
}

// How a weight lies in device memory. See `planes.rs`, which writes them.
enum Format { BF16 = 0, F16 = 1, F32 = 2, Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, Q4_K = 6, Q6_K = 7 };

// A matrix [rows, cols]: codes, then the planes that only some formats have.
struct Weight {
    const u8* codes;
    const u8* high;    // Q6_K: bits 4 and 5 of the codes
    const u8* scales;  // quantised formats
    const u8* supers;  // Q6_K: one f16 a super-block
    u32 rows;
    u32 cols;
};

// Place of column `col` (0..31) of a group of 32 in fragment order: thread t of a tensor-core
// fragment finds its eight columns side by side.
__device__ __forceinline__ u32 fragment_place(u32 col) {
    return ((col >> 2) & 3) * 8 + (col >> 4) * 4 + (col & 3);
}

// Scale and minimum of group `group` (of 8) in the 16-byte header of a Q4_K super-block.
__device__ __forceinline__ void q4k_scale(const uint4& header, u32 group, float& d, float& m) {
    // Bytes 4..16: the first four groups whole, the others in nibbles and top bits.
    const u32 low = header.y, high = header.z, both = header.w;
    const u32 shift = 8 * (group & 3);
    u32 scale, min;
    if (group < 4) {
        scale = (low >> shift) & 63;
        min = (high >> shift) & 63;
    } else {
        const u32 byte = both >> shift;
        scale = (byte & 15) | (((low >> shift) >> 6) & 3) << 4;
        min = ((byte >> 4) & 15) | (((high >> shift) >> 6) & 3) << 4;
    }
    d = __fmul_rn(f16_value((u16)header.x), (float)scale);
    m = -__fmul_rn(f16_value((u16)(header.x >> 16)), (float)min);
}
