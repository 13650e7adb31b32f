// What products of few rows and of many have in common: what a launch is given, how columns are cut
// into slices, and what becomes of a block's operands and of sums.

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

// GLU: parts are gate and up, and `to` takes silu(gate) * up, encoded. Else, of few rows, with a
// gain: y is a row that a norm follows, and `to` takes y * gain, encoded, `squares` their sums, as
// `Norm` has them; such a product has one part.
struct Product {
    Part parts[3];
    u32 count;
    u32 mode;
    Encoded x;
    Norm norm; // of x
    Encoded to;
    const float* gain; // [w.rows], or null
    float* squares;    // [x.rows, ceil(w.rows / 16)]
};

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

template <int MT, int NT>
__device__ __forceinline__ void clear(float (&acc)[MT][NT][4]) {
#pragma unroll
    for (int t = 0; t < MT; t++) clear(acc[t]);
}

template <int MT, int NT>
__device__ __forceinline__ void add_slice(float (&total)[MT][NT][4],
                                          const float (&acc)[MT][NT][4]) {
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

// A sum times the scale of its row's norm, of many rows.
__device__ __forceinline__ float scaled(const Product& p, u32 x_row, float sum) {
    if (p.norm.squares == nullptr || x_row >= p.x.rows) return sum;
    return __fmul_rn(sum, p.norm.scales[x_row]);
}

// Of a gated product a lane has values of one column of two rows, `v`; with those of its neighbour,
// lane ^ 4, which has the column beside, it has two columns of one row: the second where `odd`.
__device__ __forceinline__ u32 two_columns(const float (&v)[2], bool odd) {
    const float got = __shfl_xor_sync(ALL_LANES, odd ? v[0] : v[1], 4);
    return odd ? bf16_pair(got, v[1]) : bf16_pair(v[0], got);
}

// Puts one value of a result, of many rows where threads do not have neighbours.
__device__ __forceinline__ void put(const Part& part, u32 mode, u32 x_rows, u32 row, u32 x_row,
                                    float sum) {
    if (row >= part.w.rows || x_row >= x_rows) return;
    float* y = part.y + (u64)x_row * part.w.rows + row;
    if (part.bias != nullptr) sum = __fadd_rn(sum, part.bias[row]);
    *y = mode == ADD ? __fadd_rn(*y, sum) : sum;
}
