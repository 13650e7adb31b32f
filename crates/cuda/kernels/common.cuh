// What every kernel file starts with: types, conversions, sums of a fixed shape, and how launches
// follow each other. No header of the toolkit is needed. Every sum has one order, whatever the
// launch: results are functions of a row.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32
#define ALL_LANES 0xffffffffu

// Whether there is what was made for this generation of cards alone; PORTABLE leaves it out.
#if __CUDA_ARCH__ == 900 && !defined(PORTABLE)
#define HOPPER
#endif

// A name and a number of the unit, as one name.
#define JOINED(NAME, NUMBER) NAME##_##NUMBER
#define NAMED(NAME, NUMBER) JOINED(NAME, NUMBER)

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

// Near 1 / x and 1 / sqrt(x), within two units in the last place.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float value;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

__device__ __forceinline__ float reciprocal_root_fast(float x) {
    float value;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
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

// This warp's number, in a way that shows the compiler that its lanes have it in common.
__device__ __forceinline__ u32 warp_of() { return __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0); }

// silu(gate) * up, where silu(a) = a / (1 + e^-a). In the products of gate and up, far closer than
// bf16 rounds the result, in a seventh of the instructions of `gated_exact`.
__device__ __forceinline__ float gated(float gate, float up) {
    const float below = __fadd_rn(1.0f, exp2_fast(__fmul_rn(gate, -1.4426950408889634f)));
    return __fmul_rn(__fmul_rn(gate, reciprocal_fast(below)), up);
}

// The same to the last digits of f32, in a launch of its own: for exact loads, and where no one
// product has both. Which of the two a layer takes is decided at load, not in a round.
__device__ __forceinline__ float gated_exact(float gate, float up) {
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
}

// Where the launch lets kernels overlap (9.0 on): the next kernel of the stream may begin, and what
// the ones before wrote may be read. Every thread of every kernel of a round calls `depend_go`, and
// `depend_wait` before it touches anything but weights, the round's inputs, and pages of earlier
// rounds: the first launch of a round does not overlap. A thread may end without waiting, but some
// of each launch wait. So to wait for the launch before is to wait for all before it: that one
// ended after what it waited for.
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
