// Ops that work on one row at a time: embedding, norm, rotation, gates, the KV slots of a row.

// One stored value of a weight, as f32: see `load_block` of `linear.cu` for where it lies.
template <int F>
__device__ __forceinline__ float weight_value(const Weight& w, u32 row, u32 col) {
    const u8* block = w.blocks + block_at<F>(w, row / 16, col / 64);
    const u8* shared = w.blocks + shared_at<F>(w, row / 16, col / 64);
    const u32 g = row % 8, half = row % 16 / 8, step = col % 64 / 16;
    const u32 second = col % 16 / 8, odd = col % 2;
    const u32 lane = 4 * g + col % 8 / 2, pair = half + 2 * second;
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
        const float d = f16_value(*(const u16*)(block + 1024 + g * 8 + half * 4 + step / 2 * 2));
        return __fmul_rn(d, (float)((int)code - 128));
    }
    const u32 word = *(const u32*)(block + lane * 16 + step * 4);
    const u32 code = (word >> (4 * pair + 16 * odd)) & 15;
    const u8* rest = block + 512;
    if (F == Q4_0) {
        const float d = f16_value(*(const u16*)(rest + g * 8 + half * 4 + step / 2 * 2));
        return __fmul_rn(d, (float)((int)code - 8));
    }
    if (F == Q4_1) {
        const u32 both = *(const u32*)(rest + g * 16 + half * 8 + step / 2 * 4);
        const float d = f16_value((u16)both), m = f16_value((u16)(both >> 16));
        return __fadd_rn(__fmul_rn(d, (float)code), m);
    }
    if (F == Q4_K) {
        const u32 both = *(const u32*)(shared + g * 8 + half * 4);
        const u32 bits = q4k_scales(*(const u32*)(rest + g * 4), *(const u16*)(rest + 32 + g * 2), half)
            >> (6 * (step / 2));
        const float d = __fmul_rn(f16_value((u16)both), (float)(bits & 63));
        const float m = -__fmul_rn(f16_value((u16)(both >> 16)), (float)(bits >> 16 & 63));
        return __fadd_rn(__fmul_rn(d, (float)code), m);
    }
    const u32 top = *(const u32*)(rest + lane * 8 + step / 2 * 4)
        >> (2 * (pair + 4 * (step % 2)) + 16 * odd);
    const float d = f16_value(*(const u16*)(shared + g * 4 + half * 2));
    const int scale = *(const i8*)(rest + 256 + g * 8 + half * 4 + step);
    return __fmul_rn(__fmul_rn(d, (float)scale), (float)((int)(code | (top & 3) << 4) - 32));
}

// Grid: rows. y [rows, cols].
template <int F>
__device__ void embed(const Weight& table, const u32* tokens, float* y) {
    depend_go();
    depend_wait();
    const u32 row = blockIdx.x, token = tokens[row];
    for (u32 col = threadIdx.x; col < table.cols; col += blockDim.x) {
        y[(u64)row * table.cols + col] = weight_value<F>(table, token, col);
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

// One CTA of 256 a row: the norm of the whole row. x, y [rows, width]; y may be x.
extern "C" __global__ void __launch_bounds__(256)
rms_norm_row(const float* x, const float* w, float* y, u32 width, float eps) {
    __shared__ float sums[8];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const float* from = x + (u64)blockIdx.x * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += 256) squares = __fmaf_rn(from[i], from[i], squares);
    squares = warp_sum(squares);
    if (lane == 0) sums[warp] = squares;
    __syncthreads();
    float total = sums[0];
#pragma unroll
    for (int i = 1; i < 8; i++) total = __fadd_rn(total, sums[i]);
    const float scale = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(total, (float)width), eps)));
    float* to = y + (u64)blockIdx.x * width;
    for (u32 i = threadIdx.x; i < width; i += 256) {
        to[i] = __fmul_rn(__fmul_rn(from[i], scale), w[i]);
    }
}

// One warp a group of `width` values; `groups` of them in all. x, y [groups, width].
extern "C" __global__ void __launch_bounds__(128)
rms_norm_groups(const float* x, const float* w, float* y, u32 width, float eps, u32 groups) {
    const u32 group = blockIdx.x * 4 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (group >= groups) return;
    const float* from = x + (u64)group * width;
    float squares = 0.0f;
    for (u32 i = lane; i < width; i += WARP) squares = __fmaf_rn(from[i], from[i], squares);
    const float mean = __fdiv_rn(warp_sum(squares), (float)width);
    const float scale = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));
    float* to = y + (u64)group * width;
    for (u32 i = lane; i < width; i += WARP) to[i] = __fmul_rn(__fmul_rn(from[i], scale), w[i]);
}

// Cosines and sines of the round's positions: cos, sin [rows, half]. The angle is an f32 product;
// whole turns are taken off in f64.
extern "C" __global__ void __launch_bounds__(128)
rope_angles(const u32* positions, const float* inv_freq, u32 half, float magnitude, float* cos_out,
            float* sin_out) {
    const float position = (float)positions[blockIdx.x];
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        const double turns = (double)__fmul_rn(position, inv_freq[i]) * 0.15915494309189533577;
        const float halves = (float)(2.0 * (turns - rint(turns)));
        cos_out[(u64)blockIdx.x * half + i] = __fmul_rn(cospif(halves), magnitude);
        sin_out[(u64)blockIdx.x * half + i] = __fmul_rn(sinpif(halves), magnitude);
    }
}

// Grid: rows. x [rows, heads * head_dim], in place.
extern "C" __global__ void __launch_bounds__(256)
rope(float* x, const float* cos_in, const float* sin_in, u32 heads, u32 head_dim, u32 half) {
    float* row = x + (u64)blockIdx.x * heads * head_dim;
    const float* c = cos_in + (u64)blockIdx.x * half;
    const float* s = sin_in + (u64)blockIdx.x * half;
    for (u32 i = threadIdx.x; i < heads * half; i += blockDim.x) {
        const u32 head = i / half, at = i % half;
        float* low = row + head * head_dim + at;
        const float a = low[0], b = low[half];
        low[0] = __fsub_rn(__fmul_rn(a, c[at]), __fmul_rn(b, s[at]));
        low[half] = __fadd_rn(__fmul_rn(b, c[at]), __fmul_rn(a, s[at]));
    }
}

// Where the keys (part 0) or values (1) of a layer and head lie in a page, in values.
__device__ __forceinline__ u64 page_place(u64 page, u32 layers, u32 layer, u32 part, u32 kv_heads,
                                          u32 head, u32 head_dim) {
    return (((page * layers + layer) * 2 + part) * kv_heads + head) * 64 * head_dim;
}

// Grid: rows. k, v [rows, kv_heads * head_dim]; one slot of the pool a row.
template <typename T>
__device__ void kv_append(const float* k, const float* v, T* pool, const u32* positions,
                          const u32* lanes, const u32* tables, u32 stride, u32 layers, u32 layer,
                          u32 kv_heads, u32 head_dim) {
    const u32 row = blockIdx.x, width = kv_heads * head_dim, position = positions[row];
    const u64 page = tables[(u64)lanes[row] * stride + position / 64];
    for (u32 i = threadIdx.x; i < 2 * width; i += blockDim.x) {
        const u32 part = i / width, at = i % width, head = at / head_dim;
        const float value = (part == 0 ? k : v)[(u64)row * width + at];
        const u64 place = page_place(page, layers, layer, part, kv_heads, head, head_dim)
            + (u64)(position % 64) * head_dim + at % head_dim;
        if (sizeof(T) == 2) {
            ((u16*)pool)[place] = bf16_bits(value);
        } else {
            ((float*)pool)[place] = value;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
kv_append_bf16(const float* k, const float* v, u16* pool, const u32* positions, const u32* lanes,
               const u32* tables, u32 stride, u32 layers, u32 layer, u32 kv_heads, u32 head_dim) {
    kv_append(k, v, pool, positions, lanes, tables, stride, layers, layer, kv_heads, head_dim);
}

extern "C" __global__ void __launch_bounds__(256)
kv_append_f32(const float* k, const float* v, float* pool, const u32* positions, const u32* lanes,
              const u32* tables, u32 stride, u32 layers, u32 layer, u32 kv_heads, u32 head_dim) {
    kv_append(k, v, pool, positions, lanes, tables, stride, layers, layer, kv_heads, head_dim);
}

__device__ __forceinline__ float sigmoid(float a) {
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-a)));
}

// All [count]; y may be gate or up.
extern "C" __global__ void __launch_bounds__(256)
swiglu(const float* gate, const float* up, float* y, u64 count) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i < count) {
        const float a = gate[i];
        y[i] = __fmul_rn(__fdiv_rn(a, __fadd_rn(1.0f, expf(-a))), up[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256)
add_rows(const float* x, float* y, u64 count) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i < count) y[i] = __fadd_rn(y[i], x[i]);
}

extern "C" __global__ void __launch_bounds__(256)
gate_rows(const float* gate, float* y, u64 count) {
    const u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
    if (i < count) y[i] = __fmul_rn(y[i], sigmoid(gate[i]));
}

// Grid: logit rows. y[i] = x[logit_rows[i]], both `width` wide.
extern "C" __global__ void __launch_bounds__(256)
gather_rows(const float* x, float* y, const u32* logit_rows, u32 width) {
    const float* from = x + (u64)logit_rows[blockIdx.x] * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) y[(u64)blockIdx.x * width + i] = from[i];
}

// Penalty counts of one lane [vocab]: clear, then mark the prompt and count the output.
extern "C" __global__ void __launch_bounds__(256)
count_tokens(u32* counts, const u32* tokens, u32 prompt, u32 count) {
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    if (i < prompt) {
        atomicOr(counts + tokens[i], 1u << 31);
    } else {
        atomicAdd(counts + tokens[i], 1);
    }
}
