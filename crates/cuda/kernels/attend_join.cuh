// Attention on tensor cores, decode: how the last CTA of a row joins its runs.

// Counts the CTA, whose threads have met before and meet after, and returns how many were there.
// What they wrote is visible to the CTA that sees the count.
__device__ __forceinline__ u32 count_arrival(u32* arrived) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before) : "l"(arrived) : "memory");
    return before;
}

// What other CTAs wrote, after their arrival.
__device__ __forceinline__ float2 load_two(const float* from) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
    return v;
}

// How the runs of a head are joined, by a warp: for each what is kept of those before it, what is
// taken of it, and its sum. pairs: largest and sum [runs, 2].
__device__ __forceinline__ void weigh_runs(float4* weighed, const float* pairs, u32 runs) {
    const u32 lane = threadIdx.x % WARP;
    float before = MINUS_INFINITY;
#pragma unroll 1
    for (u32 run = lane; run - lane < runs; run += WARP) {
        float2 pair = make_float2(MINUS_INFINITY, 0.0f);
        if (run < runs) pair = load_two(pairs + 2 * run);
        float largest = fmaxf(pair.x, before);
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            const float other = __shfl_up_sync(ALL_LANES, largest, step);
            if (lane >= step) largest = fmaxf(largest, other);
        }
        const float left = __shfl_up_sync(ALL_LANES, largest, 1);
        float joined, keep, take;
        join_weights(lane == 0 ? before : left, pair.x, joined, keep, take);
        weighed[run] = make_float4(keep, take, pair.y, 0.0f);
        before = __shfl_sync(ALL_LANES, largest, WARP - 1);
    }
}

// Joins the runs of a row for `heads` heads from `head` on, by what `attend_split` left at `from`.
// It happens once, by one CTA: short code counts, as its instructions come from afar, and so do
// values that are on their way early. Each thread copies what it joins itself.
template <int DIM>
__device__ __forceinline__ void join_runs(const Queries& in, const float* from, u8* shared,
                                          u32 row, u32 head, u32 heads, u32 runs, u32 head_dim) {
    using S = Split<DIM>;
    constexpr u32 STEP = S::STEP, AHEAD = S::SLOTS - STEP; // of runs
    float4* weighed = (float4*)shared;                     // [SPLIT_HEADS, RUNS_MAX]
    const u8* parts = shared + S::WEIGHED + threadIdx.x * 16; // [SLOTS, SPLIT_THREADS] of 16 bytes
    const u32 wide = RUNS_MAX * (head_dim + 2), pieces = head_dim / 4;
    u32 to; // place of the next runs to be copied
    auto copy = [&](u32 at, u32 first) {
        const float* values = from + (u64)(at / pieces) * wide + first * head_dim + at % pieces * 4;
#pragma unroll
        for (int n = 0; n < STEP; n++) {
            if (first + n >= runs) break;
            copy_async(shared_address(parts) + to + n * S::PART, values + n * head_dim, 16);
        }
        copies_end_group();
        to = to + STEP * S::PART == S::SLOTS * S::PART ? 0 : to + STEP * S::PART;
    };
    auto copy_first = [&](u32 at) {
        to = 0;
#pragma unroll 1
        for (u32 first = 0; first < AHEAD; first += STEP) copy(at, first);
    };
    if (threadIdx.x < heads * pieces) copy_first(threadIdx.x);
    for (u32 i = threadIdx.x / WARP; i < heads; i += SPLIT_WARPS) {
        weigh_runs(weighed + i * RUNS_MAX, from + (u64)i * wide + RUNS_MAX * head_dim, runs);
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < heads * pieces; at += SPLIT_THREADS) {
        if (at != threadIdx.x) copy_first(at);
        const float4* by = weighed + at / pieces * RUNS_MAX;
        float sum = 0.0f, total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        u32 taken = 0;
#pragma unroll 1
        for (u32 first = 0; first < runs; first += STEP) {
            copy(at, first + AHEAD);
            copies_wait<AHEAD / STEP>();
#pragma unroll
            for (int n = 0; n < STEP; n++) {
                if (first + n >= runs) break;
                const float4 w = by[first + n]; // keep, take, sum
                const float4 part = *(const float4*)(parts + taken + n * S::PART);
                sum = __fmaf_rn(w.z, w.y, __fmul_rn(sum, w.x));
                total[0] = __fmaf_rn(part.x, w.y, __fmul_rn(total[0], w.x));
                total[1] = __fmaf_rn(part.y, w.y, __fmul_rn(total[1], w.x));
                total[2] = __fmaf_rn(part.z, w.y, __fmul_rn(total[2], w.x));
                total[3] = __fmaf_rn(part.w, w.y, __fmul_rn(total[3], w.x));
            }
            taken = taken + STEP * S::PART == S::SLOTS * S::PART ? 0 : taken + STEP * S::PART;
        }
        const u32 place = head * head_dim + at * 4, width = in.heads * head_dim;
        put_two(in, row, place, width, __fdiv_rn(total[0], sum), __fdiv_rn(total[1], sum));
        put_two(in, row, place + 2, width, __fdiv_rn(total[2], sum), __fdiv_rn(total[3], sum));
    }
    __syncthreads();
}

// Counts a CTA of runs; true for the last one of a row and KV head, in all of its threads.
__device__ __forceinline__ bool is_last_run(const Queries& in, const Pool& pool, const Share& share,
                                            const Heads& heads) {
    __shared__ u32 is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32* arrived = in.arrived + share.of * pool.kv_heads + heads.kv;
        is_last = count_arrival(arrived) + 1 == share.ctas * heads.chunks;
        if (is_last) *arrived = 0;
    }
    __syncthreads();
    return is_last;
}
