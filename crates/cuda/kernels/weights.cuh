// Weights as products read them: what a lane holds of a block, its codes, its values.

#define MINUS_ZEROS 0x80008000u

// A half in both halves, said so that the multiplier's own selection of halves can do it.
__device__ __forceinline__ u32 low_twice(u32 pair) {
    u32 twice;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }"
        : "=r"(twice) : "r"(pair));
    return twice;
}

__device__ __forceinline__ u32 high_twice(u32 pair) {
    u32 twice;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }"
        : "=r"(twice) : "r"(pair));
    return twice;
}

__device__ __forceinline__ u32 bf16_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ u32 both(float value) { return bf16_pair(value, value); }

// Codes are small whole numbers, and the bits of a whole number c below 256 are, as bf16, c 2^-133.
// So a scale is taken times 2^101 and all else times 2^-32, and sums of quantised weights are
// 2^-32 of what they stand for until `SUM_SCALE` takes that back: powers of two change no bit.
#define CODE_SCALE __int_as_float(0x72000000) // 2^101
#define CODE_SCALE_16 __int_as_float(0x70000000) // 2^97
#define VALUE_SCALE __int_as_float(0x2f800000) // 2^-32
#define SUM_SCALE __int_as_float(0x4f800000) // 2^32

// What one lane holds of one block: see `blocks.rs`. Lane 4 g + t has rows g and g + 8 and columns
// 16 t to 16 t + 15, four in each step: the order of a tensor core's left operand.
template <int F>
struct Raw {
    static constexpr int CODES = F == BF16 || F == F16 ? 16 : F == F32 ? 32 : F == Q8_0 ? 8 : 4;
    static constexpr int MORE = F == Q6_K ? 3 : F == Q4_1 ? 2 : 1;
    u32 code[CODES];
    u32 more[MORE]; // scales, and high bits before them
};

// What it holds of what four blocks share: d and minimum, or d, of rows g and g + 8.
struct Shared {
    u32 word[2];
};

struct FromMemory {
    static __device__ __forceinline__ uint4 four(const u8* p) {
        uint4 v;
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
            : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
        return v;
    }
    static __device__ __forceinline__ uint2 two(const u8* p) { return __ldg((const uint2*)p); }
    static __device__ __forceinline__ u32 one(const u8* p) { return __ldg((const u32*)p); }
    static __device__ __forceinline__ u32 half(const u8* p) { return __ldg((const u16*)p); }
    static __device__ __forceinline__ u32 byte(const u8* p) { return __ldg(p); }
};

struct FromShared {
    static __device__ __forceinline__ uint4 four(const u8* p) { return *(const uint4*)p; }
    static __device__ __forceinline__ uint2 two(const u8* p) { return *(const uint2*)p; }
    static __device__ __forceinline__ u32 one(const u8* p) { return *(const u32*)p; }
    static __device__ __forceinline__ u32 half(const u8* p) { return *(const u16*)p; }
    static __device__ __forceinline__ u32 byte(const u8* p) { return *p; }
};

// By addresses of shared memory: a lane's own part of them is added once, the rest in the loads.
struct FromRing {
    static __device__ __forceinline__ uint4 four(u32 at) { return load_shared_four(at); }
    static __device__ __forceinline__ uint2 two(u32 at) {
        uint2 v;
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
        return v;
    }
    static __device__ __forceinline__ u32 one(u32 at) {
        u32 v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
        return v;
    }
    static __device__ __forceinline__ u32 half(u32 at) {
        u32 v;
        asm volatile("{ .reg .u16 h; ld.shared.u16 h, [%1]; cvt.u32.u16 %0, h; }"
                     : "=r"(v) : "r"(at) : "memory");
        return v;
    }
    static __device__ __forceinline__ u32 byte(u32 at) {
        u32 v;
        asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
        return v;
    }
};

// Loads a lane's part of the block that lies `at` bytes from `base`, which a warp has in common.
template <int F, typename From, typename At>
__device__ __forceinline__ void load_block(Raw<F>& raw, At base, u32 at, u32 lane) {
    constexpr int PIECES = Raw<F>::CODES / 4, LAST = Raw<F>::MORE - 1;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint4 v = From::four(base + (at + lane * 16) + i * 512);
        raw.code[4 * i] = v.x, raw.code[4 * i + 1] = v.y;
        raw.code[4 * i + 2] = v.z, raw.code[4 * i + 3] = v.w;
    }
    constexpr u32 REST = PIECES * 512;
    if (F == Q8_0 || F == Q4_0) { // [g, group, half] f16
        raw.more[0] = From::one(base + (at + lane / 2 * 4) + REST);
    } else if (F == Q4_1) { // [g, group, half] (d, m) f16
        const uint2 v = From::two(base + (at + lane / 2 * 8) + REST);
        raw.more[0] = v.x, raw.more[LAST] = v.y;
    } else if (F == Q4_K) { // see q4k_scales
        const u32 low = From::half(base + (at + lane / 2 * 2) + REST);
        raw.more[0] = low | From::byte(base + (at + lane / 2) + REST + 32) << 16;
    } else if (F == Q6_K) { // two high bits, 8 bytes a lane; [g, t, half] i8
        const uint2 high = From::two(base + (at + lane * 8) + REST);
        raw.more[0] = high.x, raw.more[LAST - 1] = high.y;
        raw.more[LAST] = From::half(base + (at + lane * 2) + REST + 256);
    }
}

template <int F, typename From, typename At>
__device__ __forceinline__ void load_shared(Shared& shared, At base, u32 at, u32 lane) {
    if (F == Q4_K) { // [g, half] (d, m) f16
        const uint2 v = From::two(base + (at + lane / 4 * 8));
        shared.word[0] = v.x, shared.word[1] = v.y;
    } else if (F == Q6_K) { // [g, half] f16
        shared.word[0] = From::one(base + (at + lane / 4 * 4));
    }
}

// Codes of pair `i` (0 row g, 1 row g + 8, 2 and 3 their second columns) of step `s`: the first in
// the low half. Never negative: quantised formats whose codes have a sign add `code_zero`.
template <int F>
__device__ __forceinline__ u32 codes_of(const Raw<F>& raw, int s, int i) {
    constexpr int N = Raw<F>::CODES;
    if (F == Q8_0) {
        return __byte_perm(raw.code[(2 * s + i % 2) % N], 0, i < 2 ? 0x4240 : 0x4341);
    }
    const u32 codes = (raw.code[s % N] >> (4 * i)) & 0x000f000fu;
    if (F != Q6_K) return codes;
    const int at = 2 * (i + 4 * (s % 2));
    constexpr int MORE = Raw<F>::MORE;
    const u32 both = raw.more[s / 2 % MORE]; // of two steps
    const u32 high = at < 4 ? both << (4 - at) : both >> (at - 4);
    return codes | (high & 0x00300030u);
}

// The code that stands for zero, in both halves.
template <int F>
__device__ __forceinline__ constexpr u32 code_zero() {
    return F == Q8_0 ? 0x00800080u : F == Q4_0 ? 0x00080008u : F == Q6_K ? 0x00200020u : 0;
}

// Scale and minimum of row g (`half` 0) or g + 8.
template <int F>
__device__ __forceinline__ void scale_of(const Raw<F>& raw, const Shared& shared, int half,
                                         float& d, float& m) {
    constexpr int MORE = Raw<F>::MORE;
    m = 0.0f;
    if (F == Q8_0 || F == Q4_0) {
        d = f16_value((u16)(raw.more[0] >> (16 * half)));
    } else if (F == Q4_1) {
        const u32 both = raw.more[half % MORE];
        d = f16_value((u16)both), m = f16_value((u16)(both >> 16));
    } else if (F == Q4_K) {
        const u32 bits = q4k_scales(raw.more[0], half);
        d = __fmul_rn(f16_value((u16)shared.word[half]), (float)(bits & 63));
        m = -__fmul_rn(f16_value((u16)(shared.word[half] >> 16)), (float)(bits >> 16 & 63));
    } else {
        const i8 scale = (i8)(raw.more[MORE - 1] >> (8 * half));
        d = __fmul_rn(f16_value((u16)(shared.word[0] >> (16 * half))), (float)scale);
    }
}

// The eight values of step `s` in f32: of pairs 0 to 3, first and second.
template <int F>
__device__ __forceinline__ void values(const Raw<F>& raw, const Shared& shared, int s, float* v) {
    constexpr int N = Raw<F>::CODES;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (F == F32) {
            const int at = 4 * (2 * s + i % 2) + i / 2 * 2;
            v[2 * i] = __uint_as_float(raw.code[at % N]);
            v[2 * i + 1] = __uint_as_float(raw.code[(at + 1) % N]);
        } else if (F == BF16 || F == F16) {
            const u32 pair = raw.code[(4 * s + i) % N];
            v[2 * i] = F == F16 ? f16_value((u16)pair) : low_value(pair);
            v[2 * i + 1] = F == F16 ? f16_value((u16)(pair >> 16)) : high_value(pair);
        } else {
            float d, m;
            scale_of<F>(raw, shared, i % 2, d, m);
            const u32 codes = codes_of<F>(raw, s, i);
            constexpr int ZERO = code_zero<F>() & 0xff;
            v[2 * i] = __fadd_rn(__fmul_rn(d, (float)((int)(codes & 0xff) - ZERO)), m);
            v[2 * i + 1] = __fadd_rn(__fmul_rn(d, (float)((int)(codes >> 16) - ZERO)), m);
        }
    }
}

// `codes_of`, of four-bit codes of rows g + 8 times 16: where they lie. Shifts cost more than the
// scale that takes this back.
template <int F>
__device__ __forceinline__ u32 placed_codes(const Raw<F>& raw, int s, int i) {
    if (F == Q8_0 || F == Q6_K) return codes_of<F>(raw, s, i);
    const u32 word = raw.code[s % Raw<F>::CODES];
    return (i < 2 ? word : word >> 8) & (i % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
}

// The left operand of step `s`; of quantised weights 2^-32 of it.
template <int F>
__device__ __forceinline__ void fragment(const Raw<F>& raw, const Shared& shared, int s, u32* a) {
    if (F == BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = raw.code[(4 * s + i) % Raw<F>::CODES];
        return;
    }
    if (F == F16 || F == F32) {
        float v[8];
        values<F>(raw, shared, s, v);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool times16 = half == 1 && F != Q8_0 && F != Q6_K;
        const float code_scale = times16 ? CODE_SCALE_16 : CODE_SCALE;
        u32 dd, mm;
        if (F == Q4_K) {
            // (scale, minimum) as bf16, times (d, -dmin).
            const float d = f16_value((u16)shared.word[half]);
            const float m = f16_value((u16)(shared.word[half] >> 16));
            const u32 by = bf16_pair(__fmul_rn(d, code_scale), __fmul_rn(m, -VALUE_SCALE));
            const u32 whole = bf16_fma(q4k_scales(raw.more[0], half) | 0x43004300u, 0x3f803f80u,
                                       0xc300c300u);
            const u32 scales = bf16_fma(whole, by, MINUS_ZEROS);
            dd = low_twice(scales), mm = high_twice(scales);
        } else {
            float d, m;
            scale_of<F>(raw, shared, half, d, m);
            dd = both(__fmul_rn(d, code_scale));
            const u32 zero = code_zero<F>() << (times16 ? 4 : 0);
            mm = F == Q4_1 ? both(__fmul_rn(m, VALUE_SCALE))
                           : bf16_fma(zero | MINUS_ZEROS, dd, MINUS_ZEROS);
        }
        a[half] = bf16_fma(placed_codes<F>(raw, s, half), dd, mm);
        a[half + 2] = bf16_fma(placed_codes<F>(raw, s, half + 2), dd, mm);
    }
}

// The left operand of step `s` of an exact product, and what it lacks.
template <int F>
__device__ __forceinline__ void fragments(const Raw<F>& raw, const Shared& shared, int s, u32* hi,
                                          u32* lo) {
    float v[8];
    values<F>(raw, shared, s, v);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        hi[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
        lo[i] = bf16_pair(__fsub_rn(v[2 * i], low_value(hi[i])),
                          __fsub_rn(v[2 * i + 1], high_value(hi[i])));
    }
}

// What a sum of products has to be multiplied with.
template <int F, bool EXACT>
__device__ __forceinline__ float whole(float sum) {
    return F >= Q8_0 && !EXACT ? __fmul_rn(sum, SUM_SCALE) : sum;
}
