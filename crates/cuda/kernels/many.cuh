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
                const u8* all = w.blocks + shared_at<F>(w, at, block);
                load_shared<F, FromMemory>(shared[t], all, 0, lane);
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
            for (u32 t = 0; t < 2; t++) total[t][n][c] = scaled(p, x_row, total[t][n][c]);
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
__constant__ u32 many_shape[4] = {MANY_N, MANY_THREADS, STAGES * STAGE_BYTES, 0};
}
