// Attention on tensor cores: what decode and prefill have in common.

// A page's keys or values of one head in shared memory: [64, DIM] bf16 in pieces of 16 bytes. The
// place of a piece in its row is XORed with `twist` of the row, so that the same pieces of eight
// rows lie in all banks.
template <int DIM>
struct Tile {
    static constexpr u32 ROW = 2 * DIM, BYTES = PAGE * ROW, PIECES = DIM / 8;

    static __device__ __forceinline__ u32 twist(u32 row) {
        return DIM >= 64 ? row % 8 : DIM == 32 ? row / 2 % 4 : row / 4 % 2;
    }

    // Where a piece of a row lies.
    static __device__ __forceinline__ u32 piece_at(u32 row, u32 piece) {
        return row * ROW + (piece ^ twist(row)) * 16;
    }

    // Starts to copy the first `held` rows; zeros below and beside them. Row `left_out` stays as it
    // is.
    template <int THREADS>
    static __device__ __forceinline__ void copy(u32 to, const u16* from, u32 head_dim, u32 held,
                                                u32 left_out = PAGE) {
        // A thread has one piece of each STEP-th row.
        constexpr u32 STEP = THREADS / PIECES;
        static_assert(STEP * PIECES == THREADS, "whole rows");
        const u32 first = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        const bool real = piece * 8 < head_dim;
        const u16* own = from + (real ? first * head_dim + piece * 8 : 0);
#pragma unroll
        for (u32 at = 0; at < PAGE; at += STEP) {
            const u32 row = first + at;
            if ((PAGE % STEP != 0 && row >= PAGE) || row == left_out) continue;
            copy_async(to + piece_at(row, piece), own + at * head_dim,
                       real && row < held ? 16 : 0);
        }
    }

    // Keys [first, first + 16) and columns [16 * step, + 16): right operands of two mma, keys side
    // by side, from load_matrices.
    static __device__ __forceinline__ u32 keys_at(u32 tile, u32 first, u32 step) {
        const u32 lane = threadIdx.x % WARP, row = lane / 16 * 8 + lane % 8;
        return tile + (first + row) * ROW + (step * 32 ^ (lane / 8 % 2 ^ twist(lane % 8)) * 16);
    }

    // Keys [16 * step, + 16) and columns [first, first + 16): right operands of two mma, columns
    // side by side, from load_transposed. `first` is a multiple of 16.
    static __device__ __forceinline__ u32 values_at(u32 tile, u32 step, u32 first) {
        const u32 lane = threadIdx.x % WARP, row = lane / 8 % 2 * 8 + lane % 8;
        return tile + (step * 16 + row) * ROW + (first * 2 ^ (lane / 16 ^ twist(lane % 8)) * 16);
    }
};

// Adds the products of a step of queries with keys from `first` on, 8 N of them.
template <int DIM, int N>
__device__ __forceinline__ void add_scores(float (&score)[N][4], const u32 (&q)[4], u32 tile,
                                           u32 first, u32 step) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        u32 b[4];
        load_matrices(b, Tile<DIM>::keys_at(tile, first + n * 8, step));
        mma(score[n], q, b[0], b[1]);
        mma(score[n + 1], q, b[2], b[3]);
    }
}

#define ONES 0x3f803f80u // two bf16

// Adds the weights of a step of keys, and their products with columns from `first` on, 8 N of them.
template <int DIM, int N>
__device__ __forceinline__ void add_values(float (&values)[N][4], float (&sum)[4],
                                           const u32 (&weights)[4], u32 tile, u32 step,
                                           u32 first) {
    mma(sum, weights, ONES, ONES);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        u32 b[4];
        load_transposed(b, Tile<DIM>::values_at(tile, step, first + n * 8));
        mma(values[n], weights, b[0], b[1]);
        mma(values[n + 1], weights, b[2], b[3]);
    }
}

// Two neighbours of a query, scaled and rounded; zeros where there is none.
__device__ __forceinline__ u32 query_pair(const float* q, bool real, u32 col, u32 head_dim,
                                          float scale) {
    if (!real || col >= head_dim) return 0;
    const float2 pair = *(const float2*)(q + col);
    return bf16_pair(__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale));
}

// The left operand of step `step` of two queries: q0 for rows 0..8 of the fragment, q1 for 8..16.
__device__ __forceinline__ void query_step(u32 (&a)[4], const float* q0, bool real0,
                                           const float* q1, bool real1, u32 step, u32 head_dim,
                                           float scale) {
    const u32 col = step * 16 + threadIdx.x % 4 * 2;
    a[0] = query_pair(q0, real0, col, head_dim, scale);
    a[1] = query_pair(q1, real1, col, head_dim, scale);
    a[2] = query_pair(q0, real0, col + 8, head_dim, scale);
    a[3] = query_pair(q1, real1, col + 8, head_dim, scale);
}

__device__ __forceinline__ void put_two(const Queries& in, u32 row, u32 col, u32 width, float a,
                                        float b) {
    if (in.to.hi) {
        put_encoded_two(in.to, row, col, a, b);
    } else {
        *(float2*)(in.o + (u64)row * width + col) = make_float2(a, b);
    }
}

// The largest of four threads that have one row of a fragment.
__device__ __forceinline__ float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}
