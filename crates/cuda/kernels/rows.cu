// What works on one row at a time, in the order of a round: its inputs, embedding, norms and rows
// encoded for products, rotation and the KV slots of a row, gates, sums; and counts for penalties.

#include "common.cuh"
#include "ptx.cuh"
#include "blocks.cuh"
#include "encoded.cuh"
#include "prepare.cuh"

// As `abi.rs` declares it. What a recorded round reads, in pinned memory of the host and on the
// card: of each, words from the start of a piece, where the tokens are.
struct Inputs {
    const u32* from;
    u32* to;
    u32 positions, lanes, logit_rows, tiles, tables;
    u32 stride;         // of the block tables
    const u32* draws;   // [rows, DRAW_WORDS]
    u32* draws_to;
};

#define DRAW_WORDS 16
#define FETCH_CTA 128 // `FETCH_THREADS` of `launch.rs`

__device__ __forceinline__ u32 load_host(const u32* from) {
    u32 word;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}

// Copies words from the host, a thread four at a time, all of them on their way before one is
// stored.
__device__ __forceinline__ void fetch_words(u32* to, const u32* from, u32 count) {
    constexpr u32 EACH = 4;
    for (u32 first = threadIdx.x; first < count; first += EACH * FETCH_CTA) {
        u32 words[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 at = first + i * FETCH_CTA;
            words[i] = at < count ? load_host(from + at) : 0;
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 at = first + i * FETCH_CTA;
            if (at < count) to[at] = words[i];
        }
    }
}

// Fetches the inputs of a decode round, whose rows are lanes that draw. Grid: rows, each with the
// pages that it sees, and one more CTA with the rest.
extern "C" __global__ void __launch_bounds__(FETCH_CTA) fetch_inputs(Inputs in) {
    depend_go();
    depend_wait();
    const u32 rows = gridDim.x - 1, row = blockIdx.x;
    if (row < rows) {
        const u32 lane = load_host(in.from + in.lanes + row);
        const u32 pages = load_host(in.from + in.positions + row) / 64 + 1;
        const u32 table = in.tables + lane * in.stride;
        fetch_words(in.to + table, in.from + table, pages);
        return;
    }
    const u32 arrays[6] = {0, in.positions, in.lanes, in.logit_rows, in.tiles, in.tiles + rows};
    for (u32 i = threadIdx.x; i < rows; i += FETCH_CTA) {
        u32 words[6];
#pragma unroll
        for (int a = 0; a < 6; a++) words[a] = load_host(in.from + arrays[a] + i);
#pragma unroll
        for (int a = 0; a < 6; a++) in.to[arrays[a] + i] = words[a];
    }
    fetch_words(in.draws_to, in.draws, rows * DRAW_WORDS);
}

// One stored value of a weight, as f32: see `load_block` of `weights.cuh` for where it lies.
template <int F>
__device__ __forceinline__ float weight_value(const Weight& w, u32 row, u32 col) {
    const u8* block = w.blocks + block_at<F>(w, row / 16, col / 64);
    const u8* shared = w.blocks + shared_at<F>(w, row / 16, col / 64);
    const u32 g = row % 8, half = row % 16 / 8, t = col % 64 / 16, step = col % 16 / 4;
    const u32 second = col % 4 / 2, odd = col % 2;
    const u32 lane = 4 * g + t, pair = half + 2 * second;
    if (F == BF16 || F == F16) {
        const u16 bits = *(const u16*)(block + step * 512 + lane * 16 + pair * 4 + odd * 2);
        return F == BF16 ? bf16_value(bits) : f16_value(bits);
    }
    if (F == F32) {
        return *(const float*)(block + (2 * step + half) * 512 + lane * 16 + second * 8 + odd * 4);
    }
    if (F == Q8_0) {
        const u32 word = 2 * step + half;
        const u32 code = block[word / 4 * 512 + lane * 16 + word % 4 * 4 + second + 2 * odd];
        const float d = f16_value(*(const u16*)(block + 1024 + lane / 2 * 4 + half * 2));
        return __fmul_rn(d, (float)((int)code - 128));
    }
    const u32 word = *(const u32*)(block + lane * 16 + step * 4);
    const u32 code = (word >> (4 * pair + 16 * odd)) & 15;
    const u8* rest = block + 512;
    if (F == Q4_0) {
        const float d = f16_value(*(const u16*)(rest + lane / 2 * 4 + half * 2));
        return __fmul_rn(d, (float)((int)code - 8));
    }
    if (F == Q4_1) {
        const u32 both = *(const u32*)(rest + lane / 2 * 8 + half * 4);
        const float d = f16_value((u16)both), m = f16_value((u16)(both >> 16));
        return __fadd_rn(__fmul_rn(d, (float)code), m);
    }
    if (F == Q4_K) {
        const u32 both = *(const u32*)(shared + g * 8 + half * 4);
        const u32 word = *(const u16*)(rest + lane / 2 * 2) | (u32)rest[32 + lane / 2] << 16;
        const u32 bits = q4k_scales(word, half);
        const float d = __fmul_rn(f16_value((u16)both), (float)(bits & 63));
        const float m = -__fmul_rn(f16_value((u16)(both >> 16)), (float)(bits >> 16 & 63));
        return __fadd_rn(__fmul_rn(d, (float)code), m);
    }
    const u32 top = *(const u32*)(rest + lane * 8 + step / 2 * 4)
        >> (2 * (pair + 4 * (step % 2)) + 16 * odd);
    const float d = f16_value(*(const u16*)(shared + g * 4 + half * 2));
    const int scale = *(const i8*)(rest + 256 + lane * 2 + half);
    return __fmul_rn(__fmul_rn(d, (float)scale), (float)((int)(code | (top & 3) << 4) - 32));
}

// Grid: rows, 1,024 columns a CTA. y [rows, cols].
template <int F>
__device__ void embed(const Weight& table, const u32* tokens, float* y) {
    constexpr u32 EACH = 1024 / 256;
    depend_go();
    depend_wait();
    const u32 row = blockIdx.x, token = tokens[row], first = blockIdx.y * 1024 + threadIdx.x;
    float values[EACH]; // all on their way before one is stored
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 col = first + i * 256;
        values[i] = col < table.cols ? weight_value<F>(table, token, col) : 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 col = first + i * 256;
        if (col < table.cols) y[(u64)row * table.cols + col] = values[i];
    }
}

#define EMBED(NAME, F)                                                                   \
    extern "C" __global__ void __launch_bounds__(256)                                    \
    NAME(Weight table, const u32* tokens, float* y) { embed<F>(table, tokens, y); }
EMBED(embed_bf16, BF16)
EMBED(embed_f16, F16)
EMBED(embed_f32, F32)
EMBED(embed_q8_0, Q8_0)
EMBED(embed_q4_0, Q4_0)
EMBED(embed_q4_1, Q4_1)
EMBED(embed_q4_k, Q4_K)
EMBED(embed_q6_k, Q6_K)

// The values of a row that `put_encoded_eight` takes: two neighbours from `col`, an even column,
// on, and the same of the next three sixteens; zeros from `width` on.
__device__ __forceinline__ void load_eight(float (&x)[8], const float* row, u32 col, u32 width) {
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const u32 at = col + 16 * t;
        if (width % 2 == 0 && at < width) {
            const float2 pair = *(const float2*)(row + at);
            x[2 * t] = pair.x, x[2 * t + 1] = pair.y;
        } else {
            x[2 * t] = at < width ? row[at] : 0.0f;
            x[2 * t + 1] = at + 1 < width ? row[at + 1] : 0.0f;
        }
    }
}

// Columns that 256 threads take at a time, eight each: a block of 64 in eight threads.
#define EIGHTS 2048

// A row times the gain of a norm, encoded, and what products need to finish it: see `Norm`. Grid:
// rows; row r is `rows_from[r]` of x, or r. x [.., width], width at most 16,384.
extern "C" __global__ void __launch_bounds__(256)
norm_encode(const float* x, const float* gain, u32 width, const u32* rows_from, Encoded to,
            Norm norm) {
    __shared__ float held[16384 / 16]; // NORM_WIDTH_MAX of `fuse.rs`
    depend_go();
    // The gain of a norm comes from memory in each round; 128 bytes a line.
    for (u32 i = threadIdx.x * 32; i < width; i += 256 * 32) {
        prefetch_line(gain + i);
    }
    depend_wait();
    const u32 row = rows_from ? rows_from[blockIdx.x] : blockIdx.x;
    const float* from = x + (u64)row * width;
    float* squares = is_few(to) ? norm.squares + blockIdx.x * ((width + 15) / 16) : held;
    const u32 j = threadIdx.x % 8;
#pragma unroll 2
    for (u32 block = threadIdx.x / 8 * 64; block < encoded_cols(to); block += EIGHTS) {
        float eight[8], by[8];
        load_eight(eight, from, block + 2 * j, width);
        load_eight(by, gain, block + 2 * j, width);
#pragma unroll
        for (int t = 0; t < 4; t++) {
            // As `sixteen_sum` adds: neighbours, then pairs, which eight threads have.
            float sum = __fadd_rn(__fmul_rn(eight[2 * t], eight[2 * t]),
                                  __fmul_rn(eight[2 * t + 1], eight[2 * t + 1]));
#pragma unroll
            for (int step = 1; step < 8; step *= 2) {
                sum = __fadd_rn(sum, __shfl_xor_sync(0xffu << (threadIdx.x & 24), sum, step));
            }
            if (j == t && block + 16 * t < width) squares[block / 16 + t] = sum;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) eight[i] = __fmul_rn(eight[i], by[i]);
        put_encoded_eight(to, blockIdx.x, block, j, eight);
    }
    if (is_few(to)) return;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    const float scale = row_scale(held, width, norm.eps);
    if (threadIdx.x == 0) norm.scales[blockIdx.x] = scale;
}

// Grid: rows. x [rows, width].
extern "C" __global__ void __launch_bounds__(256)
encode(const float* x, u32 width, Encoded to) {
    depend_go();
    depend_wait();
    const float* from = x + (u64)blockIdx.x * width;
    const u32 j = threadIdx.x % 8;
    for (u32 block = threadIdx.x / 8 * 64; block < encoded_cols(to); block += EIGHTS) {
        float eight[8];
        load_eight(eight, from, block + 2 * j, width);
        put_encoded_eight(to, blockIdx.x, block, j, eight);
    }
}

// Cosines and sines of the round's positions: cos, sin [rows, half]. The angle is an f32 product;
// whole turns are taken off in f64.
extern "C" __global__ void __launch_bounds__(128)
rope_angles(const u32* positions, const float* inv_freq, u32 half, float magnitude, float* cos_out,
            float* sin_out) {
    depend_go();
    depend_wait();
    const float position = (float)positions[blockIdx.x];
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        const double turns = (double)__fmul_rn(position, inv_freq[i]) * 0.15915494309189533577;
        const float halves = (float)(2.0 * (turns - rint(turns)));
        cos_out[(u64)blockIdx.x * half + i] = __fmul_rn(cospif(halves), magnitude);
        sin_out[(u64)blockIdx.x * half + i] = __fmul_rn(sinpif(halves), magnitude);
    }
}

#define PREPARE_HEADS 4 // of a CTA, at most

// A warp a head: norm, rotation, slot of the pool. Grid: rows, and heads + 2 * kv_heads in CTAs of
// as many warps as there are.
template <typename T>
__device__ __forceinline__ void prepare(const Prepare& p) {
    __shared__ float held[PREPARE_HEADS][256];
    depend_go();
    depend_wait();
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x;
    u32 head = blockIdx.y * (blockDim.x / WARP) + warp;
    if (head >= p.heads + 2 * p.kv_heads) return;
    const bool is_q = head < p.heads, is_v = head >= p.heads + p.kv_heads;
    if (!is_q) head -= is_v ? p.heads + p.kv_heads : p.heads;
    const u32 position = p.positions[row];
    const u64 page = is_q ? 0 : p.tables[(u64)p.lanes[row] * p.stride + position / 64];
    const float* source = is_q ? p.q : is_v ? p.v : p.k;
    const float* from = source + ((u64)row * (is_q ? p.heads : p.kv_heads) + head) * p.head_dim;
    const float* norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;

    float x[8];
    load_head(x, from, p.head_dim);
    if (norm) {
        float gain[8];
        load_head(gain, norm, p.head_dim);
        norm_head(x, gain, p.head_dim, p.eps);
    }
    if (p.half && !is_v) rotate_head(x, Angles<8>(p, row), p.half, held[warp]);
    if (!is_v && (norm || p.half)) {
        float* to = (is_q ? p.q : p.k) + (from - source);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 at = lane + i * WARP;
            if (at < p.head_dim) to[at] = x[i];
        }
    }
    if (is_q) return;
    const u64 slot = page * p.page_values + p.layer_at + (is_v ? p.values_at : 0)
        + ((u64)head * 64 + position % 64) * p.head_dim;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 at = lane + i * WARP;
        if (at >= p.head_dim) continue;
        if (sizeof(T) == 2) {
            ((u16*)p.pool)[slot + at] = bf16_bits(x[i]);
        } else {
            ((float*)p.pool)[slot + at] = x[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * PREPARE_HEADS)
prepare_bf16(Prepare p) { prepare<u16>(p); }

extern "C" __global__ void __launch_bounds__(32 * PREPARE_HEADS)
prepare_f32(Prepare p) { prepare<float>(p); }

// silu(gate) * up, encoded. Grid: rows, ceil(width / 1024). gate, up [rows, width].
extern "C" __global__ void __launch_bounds__(256)
swiglu_encode(const float* gate, const float* up, u32 width, Encoded to) {
    depend_go();
    depend_wait();
    const u32 row = blockIdx.x, col = blockIdx.y * 1024 + threadIdx.x * 4;
    if (col >= encoded_cols(to)) return;
    const u64 first = (u64)row * width + col;
    float a[4], b[4];
    if (width % 4 == 0 && col < width) {
        const float4 g = *(const float4*)(gate + first), u = *(const float4*)(up + first);
        a[0] = g.x, a[1] = g.y, a[2] = g.z, a[3] = g.w;
        b[0] = u.x, b[1] = u.y, b[2] = u.z, b[3] = u.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            a[i] = col + i < width ? gate[first + i] : 0.0f;
            b[i] = col + i < width ? up[first + i] : 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = gated_exact(a[i], b[i]);
    put_encoded_two(to, row, col, a[0], a[1]);
    put_encoded_two(to, row, col + 2, a[2], a[3]);
}

// y += x, both [count].
extern "C" __global__ void __launch_bounds__(256)
add_rows(const float* x, float* y, u64 count) {
    depend_go();
    depend_wait();
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i < count) y[i] = __fadd_rn(y[i], x[i]);
}

// As `abi.rs` declares it. Ids that a launch brings along: 4,096 bytes is what one may.
struct Ids {
    u32 ids[1000];
};

// Penalty counts of one lane [vocab], cleared before: marks `prompt` ids, counts those behind them.
// Grid: ceil(count / 256).
extern "C" __global__ void __launch_bounds__(256)
count_tokens(u32* counts, const __grid_constant__ Ids tokens, u32 prompt, u32 count) {
    depend_go();
    depend_wait();
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    if (i < prompt) {
        atomicOr(counts + tokens.ids[i], 1u << 31);
    } else {
        atomicAdd(counts + tokens.ids[i], 1);
    }
}
