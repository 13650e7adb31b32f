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

    float total[64];
#pragma unroll
    for (int i = 0; i < 64; i++) total[i] = 0.0f;
    if (warp == 8) {
        const u16* x = p.x.hi + (u64)blockIdx.x * blocks * 8192;
        // Eight tiles of one matrix, or four of each.
        const Weight& other = glu ? p.parts[1].w : part.w;
        const u32 tile0 = glu ? tile * 4 : tile * 8, tile1 = glu ? tile * 4 : tile * 8 + 4;
        for (u32 block = 0, stage = 0, phase = 1; lane == 0 && block < blocks; block++) {
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
    } else {
        float acc[64];
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
    }

    // Results go through shared memory, [128 rows of x, 128 weight rows], so that they leave in
    // whole lines.
    constexpr u32 STRIDE = 128 + 4;
    static_assert(MANY_N * STRIDE * 4 <= S::COUNT * S::BYTES, "the results take the stages' place");
    float* results = (float*)stages;
    const u32 rows = part.w.rows, x_rows = p.x.rows;
    __syncthreads();
    if (warp < 8) {
#pragma unroll
        for (u32 i = 0; i < 64; i++) {
            const u32 x_row = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const u32 row = warp * 16 + lane / 4 + i % 4 / 2 * 8;
            results[x_row * STRIDE + row] = whole<F, false>(total[i]);
        }
    }
    __syncthreads();
    // The scale of row `i` of x; 1 where there is no norm, which changes no bit.
    auto scale_of_row = [&](u32 i) {
        return p.norm.squares != nullptr && i < x_rows ? p.norm.scales[i] : 1.0f;
    };
    if (!glu) {
        const u32 row = tile * 128 + lane * 4;
        for (u32 i = warp; i < MANY_N && first_x + i < x_rows; i += MANY_THREADS / WARP) {
            const float scale = scale_of_row(first_x + i);
            float4 sum = *(const float4*)(results + i * STRIDE + lane * 4);
            sum.x = __fmul_rn(sum.x, scale), sum.y = __fmul_rn(sum.y, scale);
            sum.z = __fmul_rn(sum.z, scale), sum.w = __fmul_rn(sum.w, scale);
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
    // A CTA's columns of the result are one block of 64.
    for (u32 i = threadIdx.x; i < MANY_N * 8; i += MANY_THREADS) {
        const u32 x_row = first_x + i % MANY_N, j = i / MANY_N;
        if (x_row >= x_rows) continue;
        const float scale = scale_of_row(x_row);
        const float* gate = results + i % MANY_N * STRIDE + 2 * j;
        float v[8];
#pragma unroll
        for (u32 k = 0; k < 8; k++) {
            const u32 col = k / 2 * 16 + k % 2;
            v[k] = glu_of(__fmul_rn(gate[col], scale), __fmul_rn(gate[64 + col], scale));
            if (tile * 64 + 2 * j + col >= rows) v[k] = 0.0f;
        }
        put_encoded_eight(p.to, x_row, tile * 64, j, v);
    }
}

// Rows of x of a CTA, its threads, its bytes of dynamic shared memory.
extern "C" {
__constant__ u32 many_shape[3] = {MANY_N, MANY_THREADS,
                                  Stage<FORMAT>::COUNT * Stage<FORMAT>::BYTES};
}
