// Many rows of an exact product, on any card: straight from memory. It is not made to be fast.

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
    const u64 x = (u64)(first_x / 128) * blocks * 8192 + first_x % 128 * 64 + lane / 4 * 8
        + lane % 4 * 2;
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
#pragma unroll
            for (int part = 0; part < 2; part++)
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    const u16* from = (part == 0 ? p.x.hi : p.x.lo) + x + (u64)block * 8192;
                    b[part][i / 8][i / 2 % 4][i % 2] =
                        *(const u32*)(from + i / 2 % 4 * 512 + i / 8 * 128 + i % 2 * 64);
                }
            add_block<F, 1, 4, true>(acc, raw, shared, b);
        }
        add_slice(total, acc);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const u32 x_row = first_x + n * 8 + lane % 4 * 2 + c % 2;
            put(part, p.mode, p.x.rows, first_row + c / 2 * 8 + lane / 4, x_row,
                scaled(p, x_row, total[0][n][c]));
        }
}
