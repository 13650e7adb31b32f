// Products of rows of activations with a matrix, on tensor cores, in one arithmetic for any number
// of rows.
//
// A row x is encoded once as bf16 pairs: hi = bf16(x), lo = bf16(x - hi), 16 bits in all. Codes are
// whole numbers that bf16 holds exactly, so a group of 32 columns costs four fragments' products:
//     part = hi * code + lo * code                     (mma, f32)
//     acc  = fma(d, part, acc); acc = fma(m, sum(x), acc)
// Plain weights have no group: acc = acc + hi * w + lo * w, f16 and f32 weights as pairs too.
// The columns are cut into SLICES runs whose place depends on their number alone; the sums of the
// slices are added in order. A warp does one slice (few rows) or all in turn (many): same bits.

#define SLICES 8
#define UNIT 4 // groups of 32 columns that a slice is counted in

// D += A B, A [16 weight rows, 16 columns], B [16 columns, 8 rows of x].
__device__ __forceinline__ void mma(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Difference of bf16 pairs; exact for the small whole numbers it is used on.
__device__ __forceinline__ u32 bf16_minus(u32 a, u32 b) {
    u32 difference;
#if __CUDA_ARCH__ >= 900
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(difference)
        : "r"(b), "r"(0xbf80bf80u), "r"(a));
#endif
    return difference;
}

// Bytes i and i + 1 of `word` (i = 0 or 2) in the low bytes of two halves.
__device__ __forceinline__ u32 spread(u32 word, u32 pair) {
    return __byte_perm(word, 0, pair == 0 ? 0x4140 : 0x4342);
}

// What one thread holds of one row and one unit of 4 groups, as loaded.
template <int F>
struct Raw {
    static constexpr int WORDS = F == BF16 || F == F16 ? 16 : F == F32 ? 32 : F == Q8_0 ? 8 : 4;
    u32 code[WORDS];
    u32 high[2];
    u32 scale[4]; // meaning depends on the format
    u32 super;
};

// Loads `held` (1..4) groups of a row from unit `unit` on.
template <int F>
__device__ __forceinline__ void load_unit(Raw<F>& raw, const Weight& w, u32 row, u32 unit,
                                          u32 held, u32 thread) {
    const u32 groups = w.cols / 32;
    if (F == BF16 || F == F16) {
        const u16* from = (const u16*)w.codes + (u64)row * w.cols + unit * 128 + thread * 8;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j < held) {
                const uint4 v = __ldg((const uint4*)(from + j * 32));
                raw.code[4 * j] = v.x, raw.code[4 * j + 1] = v.y;
                raw.code[4 * j + 2] = v.z, raw.code[4 * j + 3] = v.w;
            }
        }
        return;
    }
    if (F == F32) {
        const float* from = (const float*)w.codes + (u64)row * w.cols + unit * 128 + thread * 8;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (j / 2 < held) {
                const uint4 v = __ldg((const uint4*)(from + (j / 2) * 32 + (j % 2) * 4));
                raw.code[(4 * j) % Raw<F>::WORDS] = v.x;
                raw.code[(4 * j + 1) % Raw<F>::WORDS] = v.y;
                raw.code[(4 * j + 2) % Raw<F>::WORDS] = v.z;
                raw.code[(4 * j + 3) % Raw<F>::WORDS] = v.w;
            }
        }
        return;
    }
    if (F == Q8_0) {
        const u8* from = w.codes + (u64)row * w.cols + unit * 128;
        const u16* scales = (const u16*)w.scales + (u64)row * groups + unit * 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (2 * half + 1 < held) {
                const uint4 v = __ldg((const uint4*)(from + half * 64 + thread * 16));
                raw.code[(4 * half) % Raw<F>::WORDS] = v.x;
                raw.code[(4 * half + 1) % Raw<F>::WORDS] = v.y;
                raw.code[(4 * half + 2) % Raw<F>::WORDS] = v.z;
                raw.code[(4 * half + 3) % Raw<F>::WORDS] = v.w;
            } else if (2 * half < held) {
                const uint2 v = __ldg((const uint2*)(from + half * 64 + thread * 8));
                raw.code[(4 * half) % Raw<F>::WORDS] = v.x;
                raw.code[(4 * half + 1) % Raw<F>::WORDS] = v.y;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j < held) raw.scale[j] = __ldg(scales + j);
        }
        return;
    }
    const u32* from = (const u32*)(w.codes + (u64)row * (w.cols / 2)) + unit * 16;
    if (held == 4) {
        const uint4 v = __ldg((const uint4*)(from + thread * 4));
        raw.code[0] = v.x, raw.code[1] = v.y, raw.code[2] = v.z, raw.code[3] = v.w;
    } else {
#pragma unroll
        for (int j = 0; j < 3; j++) {
            if (j < held) raw.code[j] = __ldg(from + thread * held + j);
        }
    }
    if (F == Q4_0) {
        const u16* scales = (const u16*)w.scales + (u64)row * groups + unit * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j < held) raw.scale[j] = __ldg(scales + j);
        }
    } else if (F == Q4_1) {
        const u32* scales = (const u32*)w.scales + (u64)row * groups + unit * 4;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j < held) raw.scale[j] = __ldg(scales + j);
        }
    } else if (F == Q4_K) {
        const uint4 v = __ldg((const uint4*)w.scales + (u64)row * (groups / 8) + unit / 2);
        raw.scale[0] = v.x, raw.scale[1] = v.y, raw.scale[2] = v.z, raw.scale[3] = v.w;
    } else if (F == Q6_K) {
        const u64 super = (u64)row * (groups / 8) + unit / 2;
        const u32* high = (const u32*)w.high + ((u64)row * (groups / 4) + unit) * 8 + thread * 2;
        const uint2 v = __ldg((const uint2*)high);
        raw.high[0] = v.x, raw.high[1] = v.y;
        const uint2 s = __ldg((const uint2*)(w.scales + super * 16 + (unit % 2) * 8));
        raw.scale[0] = s.x, raw.scale[1] = s.y;
        raw.super = __ldg((const u16*)w.supers + super);
    }
}

// The four values of half `i` of group `j`: two bf16 pairs, and for wide weights what they lack.
template <int F>
__device__ __forceinline__ void fragment(const Raw<F>& raw, int j, int i, u32* hi, u32* lo) {
    if (F == BF16) {
        hi[0] = raw.code[(4 * j + 2 * i) % Raw<F>::WORDS];
        hi[1] = raw.code[(4 * j + 2 * i + 1) % Raw<F>::WORDS];
    } else if (F == F16 || F == F32) {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            float a, b;
            if (F == F16) {
                const u32 pair = raw.code[(4 * j + 2 * i + p) % Raw<F>::WORDS];
                a = f16_value((u16)pair), b = f16_value((u16)(pair >> 16));
            } else {
                a = __uint_as_float(raw.code[(8 * j + 4 * i + 2 * p) % Raw<F>::WORDS]);
                b = __uint_as_float(raw.code[(8 * j + 4 * i + 2 * p + 1) % Raw<F>::WORDS]);
            }
            hi[p] = bf16_pair(a, b);
            lo[p] = bf16_pair(__fsub_rn(a, low_value(hi[p])), __fsub_rn(b, high_value(hi[p])));
        }
    } else if (F == Q8_0) {
        const u32 word = raw.code[(2 * j + i) % Raw<F>::WORDS];
#pragma unroll
        for (int p = 0; p < 2; p++) {
            // 128 + the low seven bits, less 128, or 256 where the sign bit is set.
            const u32 bytes = spread(word, 2 * p);
            hi[p] = bf16_minus((bytes & 0x007f007fu) | 0x43004300u,
                               (bytes & 0x00800080u) | 0x43004300u);
        }
    } else {
        const u32 word = raw.code[j % Raw<F>::WORDS];
        const u32 zero = F == Q4_0 ? 0x43084308u : F == Q6_K ? 0x43204320u : 0x43004300u;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            u32 codes = (word >> (4 * (2 * i + p))) & 0x000f000fu;
            if (F == Q6_K) {
                const u32 high = raw.high[j / 2] >> (16 * (j % 2));
                const u32 bits = __byte_perm(high, 0, 0x4140) >> (2 * (2 * i + p));
                codes |= (bits & 0x00030003u) << 4;
            }
            hi[p] = bf16_minus(codes | 0x43004300u, zero);
        }
    }
}

// Scale and minimum of half `i` of group `j` of unit `unit`.
template <int F>
__device__ __forceinline__ void scale_of(const Raw<F>& raw, u32 unit, int j, int i, float& d,
                                         float& m) {
    m = 0.0f;
    if (F == Q8_0 || F == Q4_0) {
        d = f16_value((u16)raw.scale[j]);
    } else if (F == Q4_1) {
        d = f16_value((u16)raw.scale[j]), m = f16_value((u16)(raw.scale[j] >> 16));
    } else if (F == Q4_K) {
        const uint4 header = {raw.scale[0], raw.scale[1], raw.scale[2], raw.scale[3]};
        q4k_scale(header, (unit % 2) * 4 + j, d, m);
    } else {
        const u32 byte = raw.scale[j / 2] >> (8 * (2 * (j % 2) + i));
        d = __fmul_rn(f16_value((u16)raw.super), (float)(i8)byte);
    }
}

// Rows of x, encoded: [rows, groups, 2 (hi, lo), 32] bf16 in fragment order; sums [rows, groups].
struct Encoded {
    const u16* pairs;
    const float* sums;
    u32 rows;
};

// Adds slice `slice` of the products of 16 MT weight rows with 8 NT rows of x to `acc`.
template <int F, int MT, int NT>
__device__ __forceinline__ void add_slice(float (&acc)[MT][NT][4], const Weight& w,
                                          const Encoded& x, u32 first_row, u32 first_x, u32 slice) {
    constexpr bool PLAIN = F == BF16 || F == F16 || F == F32;
    constexpr bool WIDE = F == F16 || F == F32;
    constexpr bool MINS = F == Q4_1 || F == Q4_K;
    constexpr bool HALVES = F == Q6_K;
    const u32 lane = threadIdx.x % WARP, thread = lane % 4, at = lane / 4;
    const u32 groups = w.cols / 32, units = (groups + UNIT - 1) / UNIT;
    const u32 to = (u64)units * (slice + 1) / SLICES;
    for (u32 unit = (u64)units * slice / SLICES; unit < to; unit++) {
        const u32 held = min((u32)UNIT, groups - unit * UNIT);
        Raw<F> raw[MT][2];
#pragma unroll
        for (int t = 0; t < MT; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 row = min(first_row + t * 16 + half * 8 + at, w.rows - 1);
                load_unit<F>(raw[t][half], w, row, unit, held, thread);
            }
        }
#pragma unroll
        for (int j = 0; j < UNIT; j++) {
            if (j >= held) break;
            const u32 group = unit * UNIT + j;
            float part[MT][NT][4];
            if (!PLAIN) {
#pragma unroll
                for (int t = 0; t < MT; t++)
#pragma unroll
                    for (int n = 0; n < NT; n++)
#pragma unroll
                        for (int c = 0; c < 4; c++) part[t][n][c] = 0.0f;
            }
            uint4 hi[NT], lo[NT];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const u32 row = min(first_x + n * 8 + at, x.rows - 1);
                const u16* from = x.pairs + ((u64)row * groups + group) * 64 + thread * 8;
                hi[n] = __ldg((const uint4*)from);
                lo[n] = __ldg((const uint4*)(from + 32));
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int t = 0; t < MT; t++) {
                    u32 a[2], b[2], a_lo[2], b_lo[2];
                    fragment<F>(raw[t][0], j, i, a, a_lo);
                    fragment<F>(raw[t][1], j, i, b, b_lo);
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        float* sum = PLAIN ? acc[t][n] : part[t][n];
                        const u32 h0 = i == 0 ? hi[n].x : hi[n].z, h1 = i == 0 ? hi[n].y : hi[n].w;
                        const u32 l0 = i == 0 ? lo[n].x : lo[n].z, l1 = i == 0 ? lo[n].y : lo[n].w;
                        mma(sum, a[0], b[0], a[1], b[1], h0, h1);
                        mma(sum, a[0], b[0], a[1], b[1], l0, l1);
                        if (WIDE) {
                            mma(sum, a_lo[0], b_lo[0], a_lo[1], b_lo[1], h0, h1);
                            mma(sum, a_lo[0], b_lo[0], a_lo[1], b_lo[1], l0, l1);
                        }
                    }
                    if (!PLAIN && (HALVES || i == 1)) {
                        float d[2], m[2];
                        scale_of<F>(raw[t][0], unit, j, i, d[0], m[0]);
                        scale_of<F>(raw[t][1], unit, j, i, d[1], m[1]);
#pragma unroll
                        for (int n = 0; n < NT; n++) {
#pragma unroll
                            for (int c = 0; c < 4; c++) {
                                acc[t][n][c] = __fmaf_rn(d[c / 2], part[t][n][c], acc[t][n][c]);
                                part[t][n][c] = 0.0f;
                            }
                            if (MINS) {
                                const u32 row = first_x + n * 8 + thread * 2;
                                const float* sums = x.sums + group;
                                const float s0 = sums[(u64)min(row, x.rows - 1) * groups];
                                const float s1 = sums[(u64)min(row + 1, x.rows - 1) * groups];
                                acc[t][n][0] = __fmaf_rn(m[0], s0, acc[t][n][0]);
                                acc[t][n][1] = __fmaf_rn(m[0], s1, acc[t][n][1]);
                                acc[t][n][2] = __fmaf_rn(m[1], s0, acc[t][n][2]);
                                acc[t][n][3] = __fmaf_rn(m[1], s1, acc[t][n][3]);
                            }
                        }
                    }
                }
            }
        }
    }
}

// y [x.rows, w.rows]: overwritten, or added to; `bias` [w.rows] or null.
struct Target {
    float* y;
    const float* bias;
    u32 accumulate;
};

__device__ __forceinline__ void put(const Target& to, const Weight& w, const Encoded& x, u32 row,
                                    u32 x_row, float sum) {
    if (row >= w.rows || x_row >= x.rows) return;
    float* y = to.y + (u64)x_row * w.rows + row;
    if (to.bias != nullptr) sum = __fadd_rn(sum, to.bias[row]);
    *y = to.accumulate ? __fadd_rn(*y, sum) : sum;
}

// Few rows: a CTA of a warp a slice does 16 weight rows. Grid: row tiles, tiles of 8 NT rows of x.
template <int F, int NT>
__device__ __forceinline__ void linear_few(const Weight& w, const Encoded& x, const Target& to) {
    __shared__ float sums[SLICES][NT * 8][17];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 first_row = blockIdx.x * 16, first_x = blockIdx.y * 8 * NT;
    float acc[1][NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) acc[0][n][c] = 0.0f;
    add_slice<F, 1, NT>(acc, w, x, first_row, first_x, warp);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sums[warp][n * 8 + (lane % 4) * 2 + c % 2][lane / 4 + (c / 2) * 8] = acc[0][n][c];
        }
    __syncthreads();
    for (u32 i = threadIdx.x; i < NT * 8 * 16; i += SLICES * WARP) {
        const u32 x_row = i / 16, row = i % 16;
        float sum = sums[0][x_row][row];
#pragma unroll
        for (int slice = 1; slice < SLICES; slice++) {
            sum = __fadd_rn(sum, sums[slice][x_row][row]);
        }
        put(to, w, x, first_row + row, first_x + x_row, sum);
    }
}

// Many rows: each of 4 x 2 warps does 32 weight rows and 32 rows of x, slice after slice.
// Grid: tiles of 128 weight rows, tiles of 64 rows of x.
template <int F>
__device__ __forceinline__ void linear_many(const Weight& w, const Encoded& x, const Target& to) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 first_row = blockIdx.x * 128 + (warp % 4) * 32;
    const u32 first_x = blockIdx.y * 64 + (warp / 4) * 32;
    if (first_row >= w.rows || first_x >= x.rows) return;
    float total[2][4][4];
    for (u32 slice = 0; slice < SLICES; slice++) {
        float acc[2][4][4];
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) acc[t][n][c] = 0.0f;
        add_slice<F, 2, 4>(acc, w, x, first_row, first_x, slice);
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float sum = acc[t][n][c];
                    total[t][n][c] = slice == 0 ? sum : __fadd_rn(total[t][n][c], sum);
                }
    }
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const u32 row = first_row + t * 16 + (c / 2) * 8 + lane / 4;
                put(to, w, x, row, first_x + n * 8 + (lane % 4) * 2 + c % 2, total[t][n][c]);
            }
}

#define FEW(NAME, F, NT)                                                                 \
    extern "C" __global__ void __launch_bounds__(SLICES * WARP)                          \
    NAME(Weight w, Encoded x, Target to) { linear_few<F, NT>(w, x, to); }
#define MANY(NAME, F)                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                    \
    NAME(Weight w, Encoded x, Target to) { linear_many<F>(w, x, to); }
#define LINEAR(NAME, F)                                                                  \
    FEW(NAME##_8, F, 1) FEW(NAME##_16, F, 2) FEW(NAME##_32, F, 4) MANY(NAME##_many, F)

LINEAR(linear_bf16, BF16)
LINEAR(linear_f16, F16)
LINEAR(linear_f32, F32)
LINEAR(linear_q8_0, Q8_0)
LINEAR(linear_q4_0, Q4_0)
LINEAR(linear_q4_1, Q4_1)
LINEAR(linear_q4_k, Q4_K)
LINEAR(linear_q6_k, Q6_K)

// Encodes x [rows, cols] f32, a warp a group of 32 columns; `count` groups in all.
extern "C" __global__ void __launch_bounds__(256)
encode(const float* x, u16* pairs, float* sums, u32 count) {
    const u32 group = blockIdx.x * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (group >= count) return;
    const float value = x[(u64)group * 32 + lane];
    const u16 hi = bf16_bits(value);
    const u16 lo = bf16_bits(__fsub_rn(value, bf16_value(hi)));
    u16* to = pairs + (u64)group * 64 + fragment_place(lane);
    to[0] = hi;
    to[32] = lo;
    const float sum = warp_sum(value);
    if (lane == 0) sums[group] = sum;
}
