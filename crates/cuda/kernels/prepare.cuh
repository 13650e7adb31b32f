// What becomes of a row's queries, keys and values before attention: a norm and a rotation of each
// head, and the slots of the pool. A kernel of its own does it (`rows.cu`), or attention itself
// where rows are decoded (`attend_split.cuh`): same operations, same bits.

struct Prepare {
    float* q;            // [rows, heads * head_dim]
    float* k;            // [rows, kv_heads * head_dim]
    const float* v;      // as k
    const float* q_norm; // [head_dim]; null: none
    const float* k_norm;
    float eps;
    const float* cos; // [rows, half]
    const float* sin;
    u32 half; // 0: no rotation
    u32 heads;
    u32 kv_heads;
    u32 head_dim; // at most 256
    void* pool; // as `Pool` of `attention.cuh` says, from page 0 and layer 0 on
    u64 page_values;
    u64 layer_at;  // from a page's start to the keys of the layer, in values
    u64 values_at; // from a head's keys to its values
    const u32* positions;
    const u32* lanes;
    const u32* tables;
    u32 stride;
};

// A head is with a warp: lane l has columns l, l + 32 and so on, N of them; zeros from `head_dim`
// on.
template <int N>
__device__ __forceinline__ void load_head(float (&x)[N], const float* from, u32 head_dim) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        const u32 col = threadIdx.x % WARP + i * WARP;
        x[i] = col < head_dim ? from[col] : 0.0f;
    }
}

template <int N>
__device__ __forceinline__ void norm_head(float (&x)[N], const float (&gain)[N], u32 head_dim,
                                          float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) squares = __fmaf_rn(x[i], x[i], squares);
    const float mean = __fdiv_rn(warp_sum(squares), (float)head_dim);
    const float scale = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = __fmul_rn(__fmul_rn(x[i], scale), gain[i]);
}

// Cosines and sines of a head's columns.
template <int N>
struct Angles {
    float cos[N], sin[N];

    __device__ __forceinline__ Angles(const Prepare& p, u32 row) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const u32 col = threadIdx.x % WARP + i * WARP;
            const u32 at = row * p.half + (col < p.half ? col : col - p.half);
            cos[i] = col < 2 * p.half ? p.cos[at] : 0.0f;
            sin[i] = col < 2 * p.half ? p.sin[at] : 0.0f;
        }
    }
};

// Rotates columns [0, half) against [half, 2 half). `held` is the warp's own, [32 N]: partners may
// be with another lane.
template <int N>
__device__ __forceinline__ void rotate_head(float (&x)[N], const Angles<N>& by, u32 half,
                                            float* held) {
    const u32 lane = threadIdx.x % WARP;
    __syncwarp(); // who read what was held before
#pragma unroll
    for (int i = 0; i < N; i++) held[lane + i * WARP] = x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const u32 col = lane + i * WARP;
        if (col < half) {
            x[i] = __fsub_rn(__fmul_rn(x[i], by.cos[i]), __fmul_rn(held[col + half], by.sin[i]));
        } else if (col < 2 * half) {
            x[i] = __fadd_rn(__fmul_rn(x[i], by.cos[i]), __fmul_rn(held[col - half], by.sin[i]));
        }
    }
}
