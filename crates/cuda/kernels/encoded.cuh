// Rows of activations as products read them: where a value lies, how it is put there, and what is
// left with a row for the norm that products finish.

// Rows of activations as products read them: bf16, columns padded to 64 with zeros. `lo` holds what
// rounding took off, where products are exact, and is null elsewhere.
//
// A tensor core takes sixteen columns at a time, a *step*; in it, lane `4 g + t` of a warp has
// places 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. In a block of 64 columns the lanes with `t` take
// columns 16 t .. 16 t + 15, four a step: so what a lane has of a weight's row shares one scale in
// every format. Column 16 t + 4 s + 2 h + o is place 8 h + 2 t + o of step s.
//
// Up to FEW_ROWS rows lie as lanes read them: block after block the rows, each its 64 columns in
// their order. More lie as wgmma reads them: in tiles of 128 rows and 64 columns, along the columns
// first; in a tile matrices of 8 rows and 8 places, 128 bytes each, in the order of the places.
struct Encoded {
    u16* hi;
    u16* lo;
    u32 rows;
    u32 cols;
};

#define FEW_ROWS 32

__device__ __forceinline__ bool is_few(const Encoded& e) { return e.rows <= FEW_ROWS; }

// Where a value lies; an even column and the next one lie side by side.
__device__ __forceinline__ u64 encoded_place(const Encoded& e, u32 row, u32 col) {
    const u32 block = col / 64;
    if (is_few(e)) return ((u64)block * e.rows + row) * 64 + col % 64;
    const u64 tile = (u64)(row / 128) * ((e.cols + 63) / 64) + block;
    return tile * 8192 + row % 128 / 8 * 512 + col % 16 / 2 * 64 + row % 8 * 8 + col % 64 / 16 * 2
        + col % 2;
}

__device__ __forceinline__ void put_encoded(const Encoded& e, u32 row, u32 col, float value) {
    const u64 place = encoded_place(e, row, col);
    const u16 hi = bf16_bits(value);
    e.hi[place] = hi;
    if (e.lo != nullptr) e.lo[place] = bf16_bits(__fsub_rn(value, bf16_value(hi)));
}

__device__ __forceinline__ u32 encoded_cols(const Encoded& to) { return (to.cols + 63) / 64 * 64; }

// `put_encoded` for kernels of few rows, where nothing is left to ask at run time: not which way
// rows lie, nor (EXACT) whether what rounding takes off is kept.
template <bool EXACT>
__device__ __forceinline__ void put_encoded_few(const Encoded& to, u32 row, u32 col, float value) {
    const u32 place = (col / 64 * to.rows + row) * 64 + col % 64;
    const u16 hi = bf16_bits(value);
    to.hi[place] = hi;
    if (EXACT) to.lo[place] = bf16_bits(__fsub_rn(value, bf16_value(hi)));
}

// What rounding to `hi` took off.
__device__ __forceinline__ u32 rest_pair(u32 hi, float a, float b) {
    return bf16_pair(__fsub_rn(a, low_value(hi)), __fsub_rn(b, high_value(hi)));
}

// Two neighbours; `col` is even.
__device__ __forceinline__ void put_encoded_two(const Encoded& to, u32 row, u32 col, float a,
                                                float b) {
    const u64 place = encoded_place(to, row, col);
    const u32 hi = bf16_pair(a, b);
    *(u32*)(to.hi + place) = hi;
    if (to.lo != nullptr) *(u32*)(to.lo + place) = rest_pair(hi, a, b);
}

// Eight values of a block of 64 columns that lie side by side where rows are many: pair `j`, below
// 8, of each sixteen columns, x[2 t + o] of column 16 t + 2 j + o. `col` is the block's first.
__device__ __forceinline__ void put_encoded_eight(const Encoded& to, u32 row, u32 col, u32 j,
                                                  const float (&x)[8]) {
    if (is_few(to)) {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            put_encoded_two(to, row, col + 16 * t + 2 * j, x[2 * t], x[2 * t + 1]);
        }
        return;
    }
    const u64 place = encoded_place(to, row, col + 2 * j);
    uint4 hi;
    hi.x = bf16_pair(x[0], x[1]), hi.y = bf16_pair(x[2], x[3]);
    hi.z = bf16_pair(x[4], x[5]), hi.w = bf16_pair(x[6], x[7]);
    *(uint4*)(to.hi + place) = hi;
    if (to.lo == nullptr) return;
    uint4 lo;
    lo.x = rest_pair(hi.x, x[0], x[1]), lo.y = rest_pair(hi.y, x[2], x[3]);
    lo.z = rest_pair(hi.z, x[4], x[5]), lo.w = rest_pair(hi.w, x[6], x[7]);
    *(uint4*)(to.lo + place) = lo;
}

// The zeros behind a row, by `threads` threads.
__device__ __forceinline__ void pad_encoded(const Encoded& to, u32 row, u32 thread, u32 threads) {
    for (u32 col = to.cols + thread; col < encoded_cols(to); col += threads) {
        put_encoded(to, row, col, 0.0f);
    }
}

// An RMS norm that products finish: a row was encoded times the norm's gain, and its products are
// multiplied with its scale, 1 / sqrt(mean square + eps). Of few rows there are the squares of each
// sixteen columns, summed, [rows, ceil(cols / 16)]; of more their scales, [rows].
struct Norm {
    float* squares; // null: no norm, and no scales
    float* scales;
    float eps;
    u32 cols; // that the mean is over
};

// The sum over the sixteen lanes of half a warp, of neighbours first; every lane has it.
__device__ __forceinline__ float sixteen_sum(float value) {
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
        value = __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    return value;
}

// The scale of a row from its squares, [ceil(cols / 16)], by a warp; every lane has it.
__device__ __forceinline__ float row_scale(const float* squares, u32 cols, float eps) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x % WARP; i < (cols + 15) / 16; i += WARP) {
        sum = __fadd_rn(sum, squares[i]);
    }
    const float mean = __fmul_rn(warp_sum(sum), reciprocal_fast((float)cols));
    return reciprocal_root_fast(__fadd_rn(mean, eps));
}
