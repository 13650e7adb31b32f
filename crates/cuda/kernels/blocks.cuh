// Where weights lie in memory: formats, sizes of a block, offsets. `blocks.rs` writes them and says
// what is where in a block; `weights.cuh` has what a lane loads of one.

// How a weight is stored. See `blocks.rs`, which writes it.
enum Format { BF16 = 0, F16 = 1, F32 = 2, Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, Q4_K = 6, Q6_K = 7 };

// A matrix [rows, cols] in blocks of 16 rows and 64 columns: eight blocks, 128 rows, one under the
// other; then the next 64 columns.
struct Weight {
    const u8* blocks;
    u32 rows;
    u32 cols;
};

// Bytes of a block, and of what its rows share over four blocks: it precedes the first of them.
template <int F>
struct Record {
    static constexpr u32 BLOCK = F == BF16 || F == F16 ? 2048
        : F == F32  ? 4096
        : F == Q8_0 ? 1088
        : F == Q4_0 ? 576
        : F == Q4_1 ? 640
        : F == Q4_K ? 560
                    : 832;
    static constexpr u32 SHARED = F == Q4_K ? 64 : F == Q6_K ? 32 : 0;
    static constexpr u32 SPAN = SHARED > 0 ? 4 : 1; // blocks that share
};

__device__ __forceinline__ u32 blocks_of(u32 cols) { return (cols + 63) / 64; }

// Offset of tile `tile` (of 16 rows), block `block`, and of what it shares.
template <int F>
__device__ __forceinline__ u64 span_at(const Weight& w, u32 tile, u32 block) {
    using R = Record<F>;
    constexpr u32 BYTES = 8 * (R::SPAN * R::BLOCK + R::SHARED);
    return ((u64)(tile / 8) * (blocks_of(w.cols) / R::SPAN) + block / R::SPAN) * BYTES;
}

template <int F>
__device__ __forceinline__ u64 shared_at(const Weight& w, u32 tile, u32 block) {
    return span_at<F>(w, tile, block) + tile % 8 * Record<F>::SHARED;
}

template <int F>
__device__ __forceinline__ u64 block_at(const Weight& w, u32 tile, u32 block) {
    using R = Record<F>;
    return span_at<F>(w, tile, block) + 8 * R::SHARED
        + (block % R::SPAN * 8 + tile % 8) * R::BLOCK;
}

// Scale (low half) and minimum (high half) of row g (`half` 0) or g + 8 of a lane's part of a Q4_K
// block, of the 24 bits that `blocks.rs` describes.
__device__ __forceinline__ u32 q4k_scales(u32 bits, u32 half) {
    if (half == 0) return bits & 0x003f003fu;
    return ((bits >> 6) & 0x0003003fu) | ((bits << 6) & 0x003c0000u);
}
