// Products of rows of activations with matrices, on tensor cores, in one arithmetic for any number
// of rows.
//
//   value of a weight:  bf16(w); of a quantised one code * bf16(scale) + bf16(minimum), rounded once
//   value of an input:  bf16(x)
//   slice  = sum of value * value over its columns, sixteen after sixteen (mma, f32)
//   y      = slice 0 + slice 1 + ... + slice 7, or 15 from 8,192 columns on
//
// Exact loads take both as pairs, hi = bf16(v) and lo = bf16(v - hi), and sum all four products.
// Which columns a slice has depends on their number alone. A warp does one slice (few rows) or all
// in turn (many). `mma.sync` and `wgmma` add sixteen products with the same bits, in any order of
// the sixteen and with either operand first: so few rows and many agree to the last bit.
//
// A file of this text is compiled for one FORMAT of weights.

// Slices of a row of columns: more of them where they are long.
#define SLICES 8
#define SLICES_LONG 16
#define BLOCKS_LONG 128

// Products of one input with up to three matrices, counted in tiles of rows one after the other.
struct Part {
    Weight w;
    float* y;          // [x.rows, w.rows]
    const float* bias; // [w.rows], or null
};

enum Mode { SET = 0, ADD = 1, GLU = 2 };

// GLU: parts are gate and up, and `to` takes silu(gate) * up, encoded.
struct Product {
    Part parts[3];
    u32 count;
    u32 mode;
    Encoded x;
    Encoded to;
};

// This warp's number, in a way that shows the compiler that its lanes have it in common.
__device__ __forceinline__ u32 warp_of() { return __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0); }

// Exact products have SLICES whatever their columns.
__device__ __forceinline__ u32 slices_of(u32 blocks) {
    return blocks >= BLOCKS_LONG ? SLICES_LONG : SLICES;
}

// First block of a slice: blocks that share are never parted.
template <int F>
__device__ __forceinline__ u32 slice_start(u32 blocks, u32 slice, u32 slices) {
    constexpr u32 SPAN = Record<F>::SPAN;
    return blocks / SPAN * slice / slices * SPAN;
}

// D += A B, A [16 weight rows, 16 columns], B [16 columns, 8 rows of x].
__device__ __forceinline__ void mma(float* d, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 bf16_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#define MINUS_ZEROS 0x80008000u

// A half in both halves, said so that the multiplier's own selection of halves can do it.
__device__ __forceinline__ u32 low_twice(u32 pair) {
    u32 twice;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }" : "=r"(twice) : "r"(pair));
    return twice;
}

__device__ __forceinline__ u32 high_twice(u32 pair) {
    u32 twice;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }" : "=r"(twice) : "r"(pair));
    return twice;
}

__device__ __forceinline__ u32 both(float value) { return bf16_pair(value, value); }

// Codes are small whole numbers, and the bits of a whole number c below 256 are, as bf16, c 2^-133.
// So a scale is taken times 2^101 and all else times 2^-32, and sums of quantised weights are
// 2^-32 of what they stand for until `SUM_SCALE` takes that back: powers of two change no bit.
#define CODE_SCALE __int_as_float(0x72000000) // 2^101
#define CODE_SCALE_16 __int_as_float(0x70000000) // 2^97
#define VALUE_SCALE __int_as_float(0x2f800000) // 2^-32
#define SUM_SCALE __int_as_float(0x4f800000) // 2^32

// What one lane holds of one block. Lane 4 g + t has rows g and g + 8 of the tile, and in each step
// of 16 columns columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9: the order of a tensor core's left operand.
template <int F>
struct Raw {
    static constexpr int CODES = F == BF16 || F == F16 ? 16 : F == F32 ? 32 : F == Q8_0 ? 8 : 4;
    static constexpr int MORE = F == Q4_1 || F == Q6_K ? 4 : 2;
    u32 code[CODES];
    u32 more[MORE]; // scales
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
};

struct FromShared {
    static __device__ __forceinline__ uint4 four(const u8* p) { return *(const uint4*)p; }
    static __device__ __forceinline__ uint2 two(const u8* p) { return *(const uint2*)p; }
    static __device__ __forceinline__ u32 one(const u8* p) { return *(const u32*)p; }
    static __device__ __forceinline__ u32 half(const u8* p) { return *(const u16*)p; }
};

// Loads a lane's part of the block that lies `at` bytes from `base`, which a warp has in common.
template <int F, typename From>
__device__ __forceinline__ void load_block(Raw<F>& raw, const u8* base, u32 at, u32 lane) {
    constexpr int PIECES = Raw<F>::CODES / 4, LAST = Raw<F>::MORE - 1;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint4 v = From::four(base + (at + lane * 16) + i * 512);
        raw.code[4 * i] = v.x, raw.code[4 * i + 1] = v.y;
        raw.code[4 * i + 2] = v.z, raw.code[4 * i + 3] = v.w;
    }
    const u32 g = lane / 4;
    if (F == Q8_0 || F == Q4_0) { // [g, half, group] f16
        const uint2 v = From::two(base + (at + g * 8) + PIECES * 512);
        raw.more[0] = v.x, raw.more[1] = v.y;
    } else if (F == Q4_1) { // [g, half, group] (d, m) f16
        const uint4 v = From::four(base + (at + g * 16) + 512);
        raw.more[0] = v.x, raw.more[1] = v.y;
        raw.more[LAST - 1] = v.z, raw.more[LAST] = v.w;
    } else if (F == Q4_K) { // see q4k_scales
        raw.more[0] = From::one(base + (at + g * 4) + 512);
        raw.more[1] = From::half(base + (at + g * 2) + 544);
    } else if (F == Q6_K) { // two high bits, 8 bytes a lane; [g, half, step] i8
        const uint2 high = From::two(base + (at + lane * 8) + 512);
        const uint2 v = From::two(base + (at + g * 8) + 768);
        raw.more[0] = high.x, raw.more[1] = high.y;
        raw.more[LAST - 1] = v.x, raw.more[LAST] = v.y;
    }
}

template <int F, typename From>
__device__ __forceinline__ void load_shared(Shared& shared, const u8* base, u32 at, u32 lane) {
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
    const u32 high = at < 4 ? raw.more[s / 2] << (4 - at) : raw.more[s / 2] >> (at - 4);
    return codes | (high & 0x00300030u);
}

// The code that stands for zero, in both halves.
template <int F>
__device__ __forceinline__ constexpr u32 code_zero() {
    return F == Q8_0 ? 0x00800080u : F == Q4_0 ? 0x00080008u : F == Q6_K ? 0x00200020u : 0;
}

// Scale and minimum of step `s` of row g (`half` 0) or g + 8.
template <int F>
__device__ __forceinline__ void scale_of(const Raw<F>& raw, const Shared& shared, int s, int half,
                                         float& d, float& m) {
    constexpr int MORE = Raw<F>::MORE;
    m = 0.0f;
    if (F == Q8_0 || F == Q4_0) {
        d = f16_value((u16)(raw.more[half] >> (16 * (s / 2))));
    } else if (F == Q4_1) {
        const u32 both = raw.more[(2 * half + s / 2) % MORE];
        d = f16_value((u16)both), m = f16_value((u16)(both >> 16));
    } else if (F == Q4_K) {
        const u32 bits = q4k_scales(raw.more[0], raw.more[1], half) >> (6 * (s / 2));
        d = __fmul_rn(f16_value((u16)shared.word[half]), (float)(bits & 63));
        m = -__fmul_rn(f16_value((u16)(shared.word[half] >> 16)), (float)(bits >> 16 & 63));
    } else {
        const i8 scale = (i8)(raw.more[(2 + half) % MORE] >> (8 * s));
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
            scale_of<F>(raw, shared, s, i % 2, d, m);
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
            const u32 bits = q4k_scales(raw.more[0], raw.more[1], half) >> (6 * (s / 2));
            const u32 whole = bf16_fma((bits & 0x003f003fu) | 0x43004300u, 0x3f803f80u, 0xc300c300u);
            const u32 scales = bf16_fma(whole, by, MINUS_ZEROS);
            dd = low_twice(scales), mm = high_twice(scales);
        } else {
            float d, m;
            scale_of<F>(raw, shared, s, half, d, m);
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

// Adds the products of MT blocks, one under the other, with 8 NT rows of x. `b` holds the right
// operands: [step, n, 2], and for exact products what they lack behind them.
template <int F, int MT, int NT, bool EXACT>
__device__ __forceinline__ void add_block(float (&acc)[MT][NT][4], const Raw<F> (&raw)[MT],
                                          const Shared (&shared)[MT],
                                          const u32 (&b)[EXACT ? 2 : 1][4][NT][2]) {
#pragma unroll
    for (int s = 0; s < 4; s++) {
#pragma unroll
        for (int t = 0; t < MT; t++) {
            u32 a[4], rest[4];
            if (EXACT) fragments<F>(raw[t], shared[t], s, a, rest);
            else fragment<F>(raw[t], shared[t], s, a);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                mma(acc[t][n], a, b[0][s][n][0], b[0][s][n][1]);
                if (EXACT) {
                    constexpr int LO = EXACT ? 1 : 0;
                    mma(acc[t][n], a, b[LO][s][n][0], b[LO][s][n][1]);
                    mma(acc[t][n], rest, b[0][s][n][0], b[0][s][n][1]);
                    mma(acc[t][n], rest, b[LO][s][n][0], b[LO][s][n][1]);
                }
            }
        }
    }
}

// Where a lane finds its right operands: row `row` + lane / 4 of x, from column 0 on. What a lane
// reads behind the last row goes into sums that nobody takes; of one group of rows it is the last
// again, to touch no more memory than there is to read.
template <int NT>
__device__ __forceinline__ u64 lane_place(const Encoded& x, u32 row, u32 lane) {
    row += lane / 4;
    return encoded_place(x, NT == 1 ? min(row, x.rows - 1) : row, lane % 4 * 2);
}

// Right operands of one block, 8 NT rows. `at`: of the first 8.
template <int NT, bool EXACT>
__device__ __forceinline__ void load_rows(u32 (&b)[EXACT ? 2 : 1][4][NT][2], const Encoded& x,
                                          u64 at) {
#pragma unroll
    for (int part = 0; part < (EXACT ? 2 : 1); part++) {
        const u16* from = (part == 0 ? x.hi : x.lo) + at;
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int s = 0; s < 4; s++) {
                b[part][s][n][0] = *(const u32*)(from + n * 512 + s * 128);
                b[part][s][n][1] = *(const u32*)(from + n * 512 + s * 128 + 64);
            }
    }
}

template <int MT, int NT>
__device__ __forceinline__ void clear(float (&acc)[MT][NT][4]) {
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) acc[t][n][c] = 0.0f;
}

template <int MT, int NT>
__device__ __forceinline__ void add_slice(float (&total)[MT][NT][4], const float (&acc)[MT][NT][4]) {
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) total[t][n][c] = __fadd_rn(total[t][n][c], acc[t][n][c]);
}

// The part that tile `tile` of a launch belongs to, and its tile there; a tile has `rows` rows.
__device__ __forceinline__ Part part_of(const Product& p, u32 rows, u32& tile) {
    Part part = p.parts[0];
    u32 tiles = (part.w.rows + rows - 1) / rows;
    if (p.count > 1 && tile >= tiles) {
        tile -= tiles;
        part = p.parts[1];
        tiles = (part.w.rows + rows - 1) / rows;
        if (p.count > 2 && tile >= tiles) {
            tile -= tiles;
            part = p.parts[2];
        }
    }
    return part;
}

__device__ __forceinline__ void put(const Part& part, u32 mode, u32 x_rows, u32 row, u32 x_row,
                                    float sum) {
    if (row >= part.w.rows || x_row >= x_rows) return;
    float* y = part.y + (u64)x_row * part.w.rows + row;
    if (part.bias != nullptr) sum = __fadd_rn(sum, part.bias[row]);
    *y = mode == ADD ? __fadd_rn(*y, sum) : sum;
}

// Four of `put` side by side, where all are there.
__device__ __forceinline__ void put_four(const Part& part, u32 mode, u32 row, u32 x_row, float4 sum) {
    float4* y = (float4*)(part.y + (u64)x_row * part.w.rows + row);
    if (part.bias != nullptr) {
        const float* bias = part.bias + row;
        sum.x = __fadd_rn(sum.x, bias[0]), sum.y = __fadd_rn(sum.y, bias[1]);
        sum.z = __fadd_rn(sum.z, bias[2]), sum.w = __fadd_rn(sum.w, bias[3]);
    }
    if (mode == ADD) {
        const float4 old = *y;
        sum.x = __fadd_rn(old.x, sum.x), sum.y = __fadd_rn(old.y, sum.y);
        sum.z = __fadd_rn(old.z, sum.z), sum.w = __fadd_rn(old.w, sum.w);
    }
    *y = sum;
}

__device__ __forceinline__ float glu_of(float gate, float up) {
    return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
}

__device__ __forceinline__ void put_glu(const Product& p, u32 row, u32 x_row, float gate, float up) {
    if (row >= p.parts[0].w.rows || x_row >= p.x.rows) return;
    put_encoded(p.to, x_row, row, glu_of(gate, up));
}

// Zeros in the columns that pad row `x_row` of a GLU's result.
__device__ __forceinline__ void pad_glu(const Product& p, u32 x_row) {
    if (x_row < p.x.rows) pad_encoded(p.to, x_row, 0, 1);
}

// A warp's own ring of blocks in shared memory, which it fills DEPTH blocks ahead.
template <int F, int MT, int S>
struct Ring {
    static constexpr u32 TILE = Record<F>::BLOCK + Record<F>::SHARED, STAGE = MT * TILE;
    static constexpr u32 FIT = 5120 * SLICES / S / STAGE;
    static constexpr u32 DEPTH = FIT >= 8 ? 8 : FIT >= 4 ? 4 : FIT >= 2 ? 2 : 1;
    static constexpr u32 BYTES = DEPTH * STAGE;
    // Blocks of a turn of the loop: all that share, a part of the ring that fits often, two at least.
    static constexpr u32 LEAST = Record<F>::SPAN > 2 ? Record<F>::SPAN : 2;
    static constexpr u32 TURN = DEPTH > 4 ? 4 : DEPTH > LEAST ? DEPTH : LEAST;
};

// Has the compiler keep a value in registers, where it would compute it again at each use.
__device__ __forceinline__ void keep(u32& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void keep(const u8*& pointer) { asm volatile("" : "+l"(pointer)); }

// Begins to copy BYTES bytes, the lanes of a warp together: `to` and `from` are a lane's first 16.
template <u32 BYTES>
__device__ __forceinline__ void begin_copy(u32 to, const u8* from, u32 lane) {
#pragma unroll
    for (u32 at = 0; at < BYTES; at += 512) {
        if (at + 512 <= BYTES || lane * 16 < BYTES - at) {
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                         ::"r"(to + at), "l"(from + at) : "memory");
        }
    }
}

// Few rows: a CTA of a warp a slice does a tile of 16 weight rows; GLU: one of gate and one of up.
// The first blocks are on their way before the input is there. Grid: tiles of all parts.
template <int F, int NT, bool GLU, bool EXACT, int S>
__device__ __forceinline__ void few(const Product& p) {
    using R = Record<F>;
    constexpr int MT = GLU ? 2 : 1;
    using Blocks = Ring<F, MT, S>;
    constexpr u32 SUMS = S * MT * NT * 8 * 17 * 4, RINGS = S * Blocks::BYTES;
    __shared__ __align__(16) u8 memory[RINGS > SUMS ? RINGS : SUMS];
    const u32 slice = warp_of(), lane = threadIdx.x % WARP;
    u32 tile = blockIdx.x;
    const Part part = GLU ? p.parts[0] : part_of(p, 16, tile);
    const u32 blocks = blocks_of(part.w.cols), first = slice_start<F>(blocks, slice, S);
    const u32 count = slice_start<F>(blocks, slice + 1, S) - first;
    u8* ring = memory + slice * Blocks::BYTES;
    constexpr u32 SPAN_BYTES = 8 * (R::SPAN * R::BLOCK + R::SHARED);
    // A lane's share of the blocks of a turn, and of what is shared.
    const u8* from[MT];
    const u8* shared_from[MT];
#pragma unroll
    for (int t = 0; t < MT; t++) {
        const Weight& w = t == 0 ? part.w : p.parts[1].w;
        from[t] = w.blocks + block_at<F>(w, tile, first) + lane * 16;
        shared_from[t] = w.blocks + shared_at<F>(w, tile, first) + lane * 16;
        keep(from[t]);
        keep(shared_from[t]);
    }
    u32 ring_to = shared_address(ring) + lane * 16;
    keep(ring_to);
    // Begins to copy block `i` from those of this turn on into a stage.
    auto begin = [&](u32 i, u32 stage) {
        const u32 span = i / R::SPAN * SPAN_BYTES, to = ring_to + stage;
#pragma unroll
        for (int t = 0; t < MT; t++) {
            begin_copy<R::BLOCK>(to + t * Blocks::TILE,
                                 from[t] + span + i % R::SPAN * 8 * R::BLOCK, lane);
            if (i % R::SPAN == 0) {
                begin_copy<R::SHARED>(to + t * Blocks::TILE + R::BLOCK, shared_from[t] + span, lane);
            }
        }
    };
#pragma unroll
    for (u32 i = 0; i < Blocks::DEPTH; i++) {
        if (i < count) begin(i, i * Blocks::STAGE);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    depend_wait();
    u64 x = lane_place<NT>(p.x, 0, lane) + first * 8192;
    // Of few rows, what the next block needs of x is fetched before this one is computed.
    constexpr bool EARLY = NT == 1 && !EXACT;
    u32 b[EARLY ? 2 : 1][EXACT ? 2 : 1][4][NT][2];
    if (EARLY && count > 0) load_rows<NT, EXACT>(b[0], p.x, x);
    float acc[MT][NT][4];
    clear(acc);
    Shared shared[MT];
    u32 left = count, turn = 0;
    while (left > 0) {
        const u32 stages = turn;
        if (Blocks::TURN < Blocks::DEPTH) turn ^= Blocks::TURN * Blocks::STAGE;
#pragma unroll
        for (u32 i = 0; i < Blocks::TURN; i++) {
            if (i >= left) break;
            const u32 at = stages + i % Blocks::DEPTH * Blocks::STAGE;
            const u8* stage = ring + at;
            asm volatile("cp.async.wait_group %0;" ::"n"(Blocks::DEPTH - 1) : "memory");
            __syncwarp();
            Raw<F> raw[MT];
#pragma unroll
            for (int t = 0; t < MT; t++) {
                load_block<F, FromShared>(raw[t], stage, t * Blocks::TILE, lane);
                if (i % R::SPAN == 0) {
                    load_shared<F, FromShared>(shared[t], stage, t * Blocks::TILE + R::BLOCK, lane);
                }
            }
            if (EARLY) {
                load_rows<NT, EXACT>(b[(i + 1) % 2], p.x, x + i * 8192 + (i + 1 < left ? 8192 : 0));
            } else {
                load_rows<NT, EXACT>(b[0], p.x, x + i * 8192);
            }
            __syncwarp();
            if (i + Blocks::DEPTH < left) begin(i + Blocks::DEPTH, at);
            asm volatile("cp.async.commit_group;" ::: "memory");
            add_block<F, MT, NT, EXACT>(acc, raw, shared, b[EARLY ? i % 2 : 0]);
        }
#pragma unroll
        for (int t = 0; t < MT; t++) {
            from[t] += Blocks::TURN / R::SPAN * SPAN_BYTES;
            shared_from[t] += Blocks::TURN / R::SPAN * SPAN_BYTES;
        }
        x += Blocks::TURN * 8192;
        left -= min(left, Blocks::TURN);
    }
    depend_go();
    // The sums take the rings' place.
    __syncthreads();
    auto sums = (float (*)[MT][NT * 8][17])memory;
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const u32 x_row = n * 8 + lane % 4 * 2 + c % 2, row = lane / 4 + c / 2 * 8;
                sums[slice][t][x_row][row] = acc[t][n][c];
            }
    __syncthreads();
    for (u32 i = threadIdx.x; i < NT * 8 * 16; i += S * WARP) {
        const u32 x_row = i / 16, row = i % 16;
        float sum[MT];
#pragma unroll
        for (int t = 0; t < MT; t++) {
            sum[t] = 0.0f;
#pragma unroll
            for (int s = 0; s < S; s++) sum[t] = __fadd_rn(sum[t], sums[s][t][x_row][row]);
            sum[t] = whole<F, EXACT>(sum[t]);
        }
        if (GLU) put_glu(p, tile * 16 + row, x_row, sum[0], sum[MT - 1]);
        else put(part, p.mode, p.x.rows, tile * 16 + row, x_row, sum[0]);
    }
    if (GLU && tile + 1 == gridDim.x && threadIdx.x < NT * 8) pad_glu(p, threadIdx.x);
}

// Many rows of an exact product: each of 4 x 2 warps does 16 weight rows and 32 rows of x. Grid:
// tiles of 64 rows of x, tiles of 64 weight rows of all parts.
template <int F>
__device__ __forceinline__ void many_exact(const Product& p) {
    depend_go();
    depend_wait();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 tile = blockIdx.y;
    const Part part = part_of(p, 64, tile);
    const u32 first_row = tile * 64 + warp % 4 * 16, first_x = blockIdx.x * 64 + warp / 4 * 32;
    if (first_row >= part.w.rows || first_x >= p.x.rows) return;
    const u32 blocks = blocks_of(part.w.cols);
    const u64 x = lane_place<4>(p.x, first_x, lane);
    float total[1][4][4];
    clear(total);
    for (u32 slice = 0; slice < SLICES; slice++) {
        float acc[1][4][4];
        clear(acc);
        const u32 end = slice_start<F>(blocks, slice + 1, SLICES);
        for (u32 block = slice_start<F>(blocks, slice, SLICES); block < end; block++) {
            Raw<F> raw[1];
            Shared shared[1];
            load_block<F, FromMemory>(
                raw[0], part.w.blocks + block_at<F>(part.w, first_row / 16, block), 0, lane);
            load_shared<F, FromMemory>(
                shared[0], part.w.blocks + shared_at<F>(part.w, first_row / 16, block), 0, lane);
            u32 b[2][4][4][2];
            load_rows<4, true>(b, p.x, x + (u64)block * 8192);
            add_block<F, 1, 4, true>(acc, raw, shared, b);
        }
        add_slice(total, acc);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            put(part, p.mode, p.x.rows, first_row + c / 2 * 8 + lane / 4,
                first_x + n * 8 + lane % 4 * 2 + c % 2, total[0][n][c]);
        }
}

#if __CUDA_ARCH__ == 900

// Many rows on Hopper: two groups of four warps, each 64 weight rows by 128 rows of x, fed by a
// ninth warp that keeps STAGES blocks on their way. A weight goes through registers, where it
// becomes bf16; x is read by the tensor cores where it lies.

#define MANY_N 128
#define MANY_THREADS 288

template <int F>
struct Stage {
    static constexpr u32 X = MANY_N * 128, SHARED = X + 8 * Record<F>::BLOCK;
    static constexpr u32 FILLED = SHARED + 8 * Record<F>::SHARED;
    static constexpr u32 BYTES = (FILLED + 127) / 128 * 128;
    static constexpr u32 COUNT = 200 * 1024 / BYTES > 6 ? 6 : 200 * 1024 / BYTES;
};

__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Copies `bytes` from memory; the barrier counts them as they land.
__device__ __forceinline__ void copy_in(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Where wgmma finds 16 columns of 128 rows of x: matrices of 128 bytes, 128 bytes apart along the
// columns and 1,024 along the rows.
__device__ __forceinline__ u64 rows_descriptor(const void* x) {
    const u64 address = (shared_address(x) & 0x3ffff) >> 4;
    return address | (u64)(128 >> 4) << 16 | (u64)(1024 >> 4) << 32;
}

#define EIGHT(d, i)                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),          \
        "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// D = A B, or D += A B: A [64, 16] in registers, B [16, 128] in shared memory.
__device__ __forceinline__ void wgmma(float* d, const u32* a, u64 b, u32 add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, add, 1, 1, 0;\n"
        "}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40),
          EIGHT(d, 48), EIGHT(d, 56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

template <int F>
__device__ __forceinline__ void many_rows(const Product& p) {
    using S = Stage<F>;
    extern __shared__ __align__(128) u8 stages[];
    __shared__ u64 full[S::COUNT], empty[S::COUNT];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const bool glu = p.mode == GLU;
    u32 tile = blockIdx.y;
    const Part part = glu ? p.parts[0] : part_of(p, 128, tile);
    const u32 first_x = blockIdx.x * MANY_N, blocks = blocks_of(part.w.cols);
    depend_go();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < S::COUNT; i++) barrier_init(&full[i], 1), barrier_init(&empty[i], 8);
        barriers_ready();
    }
    __syncthreads();
    depend_wait();

    if (warp == 8) {
        if (lane > 0) return;
        const u16* x = p.x.hi + (u64)blockIdx.x * blocks * 8192;
        // Eight tiles of one matrix, or four of each.
        const Weight& other = glu ? p.parts[1].w : part.w;
        const u32 tile0 = glu ? tile * 4 : tile * 8, tile1 = glu ? tile * 4 : tile * 8 + 4;
        for (u32 block = 0, stage = 0, phase = 1; block < blocks; block++) {
            barrier_wait(&empty[stage], phase);
            u8* to = stages + stage * S::BYTES;
            barrier_expect(&full[stage], S::FILLED);
            copy_in(to, x + (u64)block * 8192, S::X, &full[stage]);
            copy_in(to + S::X, part.w.blocks + block_at<F>(part.w, tile0, block),
                    4 * Record<F>::BLOCK, &full[stage]);
            copy_in(to + S::X + 4 * Record<F>::BLOCK, other.blocks + block_at<F>(other, tile1, block),
                    4 * Record<F>::BLOCK, &full[stage]);
            if (Record<F>::SHARED > 0) {
                copy_in(to + S::SHARED, part.w.blocks + shared_at<F>(part.w, tile0, block),
                        4 * Record<F>::SHARED, &full[stage]);
                copy_in(to + S::SHARED + 4 * Record<F>::SHARED,
                        other.blocks + shared_at<F>(other, tile1, block), 4 * Record<F>::SHARED,
                        &full[stage]);
            }
            if (++stage == S::COUNT) stage = 0, phase ^= 1;
        }
        return;
    }

    float total[64], acc[64];
#pragma unroll
    for (int i = 0; i < 64; i++) total[i] = 0.0f;
    u32 block = 0, stage = 0, phase = 0;
    const u32 slices = slices_of(blocks);
    for (u32 slice = 0; slice < slices; slice++) {
        const u32 end = slice_start<F>(blocks, slice + 1, slices);
        if (block == end) continue;
        u32 add = 0;
        for (; block < end; block++) {
            const u8* from = stages + stage * S::BYTES;
            barrier_wait(&full[stage], phase);
            Raw<F> raw;
            Shared shared;
            load_block<F, FromShared>(raw, from, S::X + warp * Record<F>::BLOCK, lane);
            load_shared<F, FromShared>(shared, from, S::SHARED + warp * Record<F>::SHARED, lane);
            u32 a[4][4];
#pragma unroll
            for (int s = 0; s < 4; s++) fragment<F>(raw, shared, s, a[s]);
            const u64 b = rows_descriptor(from);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int s = 0; s < 4; s++) {
                wgmma(acc, a[s], b + s * (256 >> 4), add);
                add = 1;
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (lane == 0) barrier_arrive(&empty[stage]);
            if (++stage == S::COUNT) stage = 0, phase ^= 1;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 64; i++) total[i] = __fadd_rn(total[i], acc[i]);
    }

    // Results go through shared memory, [128 rows of x, 128 weight rows], so that they leave in
    // whole lines.
    constexpr u32 STRIDE = 128 + 4;
    static_assert(MANY_N * STRIDE * 4 <= S::COUNT * S::BYTES, "the results take the stages' place");
    float* results = (float*)stages;
    asm volatile("bar.sync 1, 256;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const u32 x_row = i / 4 * 8 + lane % 4 * 2 + i % 2, row = warp * 16 + lane / 4 + i % 4 / 2 * 8;
        results[x_row * STRIDE + row] = whole<F, false>(total[i]);
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    const u32 rows = part.w.rows, x_rows = p.x.rows;
    if (!glu) {
        const u32 row = tile * 128 + lane * 4;
        for (u32 i = warp; i < MANY_N && first_x + i < x_rows; i += 8) {
            const float4 sum = *(const float4*)(results + i * STRIDE + lane * 4);
            const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
            if (rows % 4 == 0 && row < rows) {
                put_four(part, p.mode, row, first_x + i, sum);
            } else {
#pragma unroll
                for (u32 j = 0; j < 4; j++) put(part, p.mode, x_rows, row + j, first_x + i, sums[j]);
            }
        }
        return;
    }
    for (u32 i = threadIdx.x; i < MANY_N * 8; i += 256) {
        const u32 x_row = first_x + i % MANY_N, col = i / MANY_N * 8;
        const float* gate = results + i % MANY_N * STRIDE + col;
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = glu_of(gate[j], gate[64 + j]);
        if (x_row >= x_rows) continue;
        if (tile * 64 + col + 8 <= rows) {
            const uint4 eight = {bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]),
                                 bf16_pair(v[6], v[7])};
            *(uint4*)(p.to.hi + encoded_place(p.to, x_row, tile * 64 + col)) = eight;
        } else {
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                if (tile * 64 + col + j < rows) put_encoded(p.to, x_row, tile * 64 + col + j, v[j]);
            }
        }
    }
    if (tile + 1 == gridDim.y && threadIdx.x < MANY_N) pad_glu(p, first_x + threadIdx.x);
}

// Rows of x of a CTA, its threads, its bytes of dynamic shared memory.
extern "C" {
__constant__ u32 many_shape[3] = {MANY_N, MANY_THREADS,
                                  Stage<FORMAT>::COUNT * Stage<FORMAT>::BYTES};
}

#else

// Many rows elsewhere: each of 4 x 2 warps does 32 weight rows and 32 rows of x, which come through
// shared memory, STAGES blocks ahead. GLU: 16 rows of gate and the same of up.

#define MANY_N 64
#define MANY_THREADS 256
#define STAGES 3
#define STAGE_BYTES (MANY_N * 128)

template <int F>
__device__ __forceinline__ void many_rows(const Product& p) {
    extern __shared__ __align__(128) u8 stages[];
    depend_go();
    depend_wait();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, m = warp % 4;
    const bool glu = p.mode == GLU;
    u32 tile = blockIdx.y;
    const Part part = glu ? p.parts[0] : part_of(p, 128, tile);
    const u32 first_x = blockIdx.x * MANY_N, blocks = blocks_of(part.w.cols);
    const u32 tiles = (part.w.rows + 15) / 16;
    const Weight& other = glu ? p.parts[1].w : part.w;
    const u32 tile0 = min(glu ? tile * 4 + m : tile * 8 + m * 2, tiles - 1);
    const u32 tile1 = min(glu ? tile * 4 + m : tile * 8 + m * 2 + 1, tiles - 1);
    const u16* x = p.x.hi + (u64)(first_x / 128) * blocks * 8192 + first_x % 128 * 64;
    auto copy = [&](u32 block) {
        if (block < blocks) {
            u8* to = stages + block % STAGES * STAGE_BYTES;
            for (u32 i = threadIdx.x; i < STAGE_BYTES / 16; i += MANY_THREADS) {
                const u16* at = x + (u64)block * 8192 + i * 8;
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                             ::"r"(shared_address(to + i * 16)), "l"(at) : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (u32 i = 0; i + 1 < STAGES; i++) copy(i);

    float total[2][4][4];
    clear(total);
    u32 block = 0;
    const u32 slices = slices_of(blocks);
    for (u32 slice = 0; slice < slices; slice++) {
        float acc[2][4][4];
        clear(acc);
        for (const u32 end = slice_start<F>(blocks, slice + 1, slices); block < end; block++) {
            Raw<F> raw[2];
            Shared shared[2];
#pragma unroll
            for (int t = 0; t < 2; t++) {
                const Weight& w = t == 0 ? part.w : other;
                const u32 at = t == 0 ? tile0 : tile1;
                load_block<F, FromMemory>(raw[t], w.blocks + block_at<F>(w, at, block), 0, lane);
                load_shared<F, FromMemory>(shared[t], w.blocks + shared_at<F>(w, at, block), 0, lane);
            }
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
            copy(block + STAGES - 1);
            const u8* rows = stages + block % STAGES * STAGE_BYTES + warp / 4 * 4096;
            u32 b[1][4][4][2];
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const u8* at = rows + (n * 8 + h * 4 + lane / 8) * 128 + lane % 8 * 16;
                    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                                 : "=r"(b[0][2 * h][n][0]), "=r"(b[0][2 * h][n][1]),
                                   "=r"(b[0][2 * h + 1][n][0]), "=r"(b[0][2 * h + 1][n][1])
                                 : "r"(shared_address(at)) : "memory");
                }
            add_block<F, 2, 4, false>(acc, raw, shared, b);
        }
        add_slice(total, acc);
    }
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) total[t][n][c] = whole<F, false>(total[t][n][c]);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const u32 row = c / 2 * 8 + lane / 4;
            const u32 x_row = first_x + warp / 4 * 32 + n * 8 + lane % 4 * 2 + c % 2;
            if (glu) {
                put_glu(p, (tile * 4 + m) * 16 + row, x_row, total[0][n][c], total[1][n][c]);
            } else {
                for (u32 t = 0; t < 2; t++) {
                    put(part, p.mode, p.x.rows, (tile * 8 + m * 2 + t) * 16 + row, x_row,
                        total[t][n][c]);
                }
            }
        }
    if (glu && tile + 1 == gridDim.y && threadIdx.x < MANY_N) pad_glu(p, first_x + threadIdx.x);
}

extern "C" {
__constant__ u32 many_shape[3] = {MANY_N, MANY_THREADS, STAGES * STAGE_BYTES};
}

#endif

#define FEW(NAME, NT, GLU, EXACT, S, CTAS)                                               \
    extern "C" __global__ void __launch_bounds__(S * WARP, CTAS)                         \
    NAME(const __grid_constant__ Product p) { few<FORMAT, NT, GLU, EXACT, S>(p); }

FEW(few_8, 1, false, false, SLICES, 4)
FEW(few_16, 2, false, false, SLICES, 3)
FEW(few_32, 4, false, false, SLICES, 2)
#if FORMAT != 2 // Of F32, so many rings or two in a CTA are more than it has.
FEW(few_long_8, 1, false, false, SLICES_LONG, 2)
FEW(few_long_16, 2, false, false, SLICES_LONG, 1)
FEW(few_long_32, 4, false, false, SLICES_LONG, 1)
FEW(few_glu_8, 1, true, false, SLICES, 3)
FEW(few_glu_16, 2, true, false, SLICES, 2)
FEW(few_glu_32, 4, true, false, SLICES, 1)
#endif
FEW(exact_8, 1, false, true, SLICES, 2)
FEW(exact_32, 4, false, true, SLICES, 1)

extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1)
many(const __grid_constant__ Product p) { many_rows<FORMAT>(p); }

extern "C" __global__ void __launch_bounds__(256)
exact_many(const __grid_constant__ Product p) { many_exact<FORMAT>(p); }
