// Attention on tensor cores, decode: one run of one row a CTA; the last of a row joins.

#define ONES 0x3f803f80u // two bf16
#define SPLIT_HEADS 16
#define SPLIT_THREADS 128

template <int DIM>
struct Split {
    static constexpr u32 RING = 3;                             // tiles: keys, values, keys, ...
    static constexpr u32 FIRST = RING - 1;                     // that are copied before queries are
    static constexpr u32 KEYS = PAGE / 4;                      // of a warp, for scores
    static constexpr u32 TILES = DIM / 32 > 2 ? DIM / 32 : 2;  // of 8 columns of a warp, for values
    static constexpr u32 WEIGHTS = RING * Tile<DIM>::BYTES;    // where they start
    static constexpr u32 PAGES = WEIGHTS + PAGE * SPLIT_HEADS * 2; // bytes while pages are read
    static constexpr u32 SLOTS = DIM >= 128 ? 16 : 8;              // while runs are joined
    static constexpr u32 JOIN = (3 * SPLIT_HEADS * RUNS_MAX + SLOTS * SPLIT_THREADS * 4) * 4;
    static constexpr u32 SHARED = PAGES > JOIN ? PAGES : JOIN;

    // Fresh queries are made ready where the last tile of the ring will lie: as rows of a tile, and
    // behind them what each warp rotates.
    static constexpr u32 COLUMNS = DIM > WARP ? DIM / WARP : 1; // of a head, each lane
    static constexpr u32 QUERIES = FIRST * Tile<DIM>::BYTES;
    static constexpr u32 HELD = QUERIES + SPLIT_HEADS * Tile<DIM>::ROW;
    static_assert(HELD + SPLIT_THREADS * COLUMNS * 4 <= WEIGHTS, "they are smaller than a tile");
};

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

// Joins the runs of a row for `heads` heads from `head` on, by what `attend_split` left at `from`.
// It happens once, by one CTA: short code counts, as its instructions come from afar, and so do
// values that are on their way early. Each thread copies what it joins itself.
template <int DIM>
__device__ __forceinline__ void join_runs(const Queries& in, const float* from, u8* shared,
                                          u32 row, u32 head, u32 heads, u32 runs, u32 head_dim) {
    constexpr u32 SLOTS = Split<DIM>::SLOTS, STEP = 4, AHEAD = SLOTS - STEP; // of runs
    float* keep_by = (float*)shared; // [SPLIT_HEADS, RUNS_MAX], and so the others
    float* take_by = keep_by + SPLIT_HEADS * RUNS_MAX;
    float* sums = take_by + SPLIT_HEADS * RUNS_MAX;
    // [SLOTS, SPLIT_THREADS]
    float4* parts = (float4*)(sums + SPLIT_HEADS * RUNS_MAX) + threadIdx.x;
    const u32 lane = threadIdx.x % WARP, wide = RUNS_MAX * (head_dim + 2);
    const u32 pieces = head_dim / 4;
    auto copy = [&](u32 at, u32 first) {
        const float* values = from + (u64)(at / pieces) * wide + first * head_dim + at % pieces * 4;
        const u32 to = shared_address(parts + first % SLOTS * SPLIT_THREADS);
#pragma unroll
        for (int n = 0; n < STEP; n++) {
            if (first + n >= runs) break;
            copy_async(to + n * SPLIT_THREADS * 16, values + n * head_dim, 16);
        }
        copies_end_group();
    };
    auto copy_first = [&](u32 at) {
#pragma unroll 1
        for (u32 first = 0; first < AHEAD; first += STEP) copy(at, first);
    };
    if (threadIdx.x < heads * pieces) copy_first(threadIdx.x);

    for (u32 i = threadIdx.x / WARP; i < heads; i += SPLIT_THREADS / WARP) {
        const float* pairs = from + (u64)i * wide + RUNS_MAX * head_dim;
        float before = MINUS_INFINITY;
#pragma unroll 1
        for (u32 run = lane; run - lane < runs; run += WARP) {
            float2 pair = make_float2(MINUS_INFINITY, 0.0f); // largest and sum
            if (run < runs) pair = load_two(pairs + 2 * run);
            float largest = fmaxf(pair.x, before);
#pragma unroll
            for (int step = 1; step < WARP; step *= 2) {
                const float other = __shfl_up_sync(ALL_LANES, largest, step);
                if (lane >= step) largest = fmaxf(largest, other);
            }
            const float left = __shfl_up_sync(ALL_LANES, largest, 1);
            const u32 place = i * RUNS_MAX + run;
            float joined, keep, take;
            join_weights(lane == 0 ? before : left, pair.x, joined, keep, take);
            keep_by[place] = keep, take_by[place] = take, sums[place] = pair.y;
            before = __shfl_sync(ALL_LANES, largest, WARP - 1);
        }
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < heads * pieces; at += SPLIT_THREADS) {
        if (at != threadIdx.x) copy_first(at);
        const u32 weights = at / pieces * RUNS_MAX;
        float sum = 0.0f, total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
        for (u32 first = 0; first < runs; first += STEP) {
            copy(at, first + AHEAD);
            copies_wait<AHEAD / STEP>();
#pragma unroll
            for (int n = 0; n < STEP; n++) {
                const u32 run = first + n;
                if (run >= runs) break;
                const float keep = keep_by[weights + run], take = take_by[weights + run];
                const float4 part = parts[run % SLOTS * SPLIT_THREADS];
                sum = __fmaf_rn(sums[weights + run], take, __fmul_rn(sum, keep));
                total[0] = __fmaf_rn(part.x, take, __fmul_rn(total[0], keep));
                total[1] = __fmaf_rn(part.y, take, __fmul_rn(total[1], keep));
                total[2] = __fmaf_rn(part.z, take, __fmul_rn(total[2], keep));
                total[3] = __fmaf_rn(part.w, take, __fmul_rn(total[3], keep));
            }
        }
        const u32 place = head * head_dim + at * 4, width = in.heads * head_dim;
        put_two(in, row, place, width, __fdiv_rn(total[0], sum), __fdiv_rn(total[1], sum));
        put_two(in, row, place + 2, width, __fdiv_rn(total[2], sum), __fdiv_rn(total[3], sum));
    }
    __syncthreads();
}

// Where a CTA puts the key and the value of its row.
struct OwnSlot {
    u16* keys;   // in the pool; null: the row's last page is another CTA's
    u16* values;
    u32 tile;    // of the run: the page's keys; the next one has its values
    u32 row;     // of both
};

// Makes ready `heads` queries from `head` on, as rows of a tile in shared memory, and the row's key
// and value. What the round's kernels before wrote is first read here.
template <int DIM>
__device__ __forceinline__ void make_ready(const Prepare& p, float scale, u8* tiles, u32 row,
                                           u32 head, u32 heads, u32 kv_head, const OwnSlot& own) {
    using S = Split<DIM>;
    using T = Tile<DIM>;
    constexpr u32 WARPS = SPLIT_THREADS / WARP, N = S::COLUMNS;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, head_dim = p.head_dim;
    float* held = (float*)(tiles + S::HELD) + warp * N * WARP;
    // The gains of norms come from memory in each round.
    float q_gain[N], k_gain[N];
    if (p.q_norm) load_head(q_gain, p.q_norm, head_dim);
    if (p.k_norm && own.keys) load_head(k_gain, p.k_norm, head_dim);
    depend_wait();

    // The heads, the key, the value: one after the other in each warp.
    const u32 count = heads + (own.keys ? 2 : 0);
    const float* q = p.q + ((u64)row * p.heads + head) * head_dim;
    const u64 kv_at = ((u64)row * p.kv_heads + kv_head) * head_dim;
    auto load = [&](float (&x)[N], u32 i) {
        if (i >= count) return;
        load_head(x, i < heads ? q + i * head_dim : (i == heads ? p.k : p.v) + kv_at, head_dim);
    };
    float next[N];
    load(next, warp);
    const Angles<N> angles(p, row);
    for (u32 i = warp; i < count; i += WARPS) {
        float x[N];
#pragma unroll
        for (int n = 0; n < N; n++) x[n] = next[n];
        load(next, i + WARPS);
        if (i < heads ? p.q_norm != nullptr : i == heads && p.k_norm) {
            float gain[N];
#pragma unroll
            for (int n = 0; n < N; n++) gain[n] = i < heads ? q_gain[n] : k_gain[n];
            norm_head(x, gain, head_dim, p.eps);
        }
        if (i <= heads && p.half) rotate_head(x, angles, p.half, held);
        const u32 tile = own.tile + i - heads;
        u8* to = tiles + (i < heads ? S::QUERIES : tile * T::BYTES);
        u16* slot = i == heads ? own.keys : own.values;
        const u32 at = i < heads ? i : own.row;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const u32 col = lane + n * WARP;
            if (col >= DIM) continue;
            const u16 bits = bf16_bits(i < heads ? __fmul_rn(x[n], scale) : x[n]);
            if (i < heads || tile < S::FIRST) { // copies that begin later bring it
                *(u16*)(to + T::piece_at(at, col / 8) + col % 8 * 2) = bits;
            }
            if (i >= heads && col < head_dim) slot[col] = bits;
        }
    }
}

// One run of one row and up to 16 heads of one KV head; the last CTA of the row and KV head joins.
// Grid: rows, kv_heads * ceil(group / 16), runs. Partials of a row and head: values
// [RUNS_MAX, head_dim], then largest and sum [RUNS_MAX, 2].
//
// Queries are ready and slots are written, or `fresh` has what makes them so. Then the round has no
// row but of decode, and the pages of a row, less its own slot, are of rounds before: copies begin
// while the kernel before still runs. So they leave that slot out, and what they bring meets it in
// shared memory. Copies that begin later find it in the pool.
template <int DIM>
__device__ __forceinline__ void attend_split(const Queries& in, const Pool& pool,
                                             const Prepare& fresh) {
    using S = Split<DIM>;
    using T = Tile<DIM>;
    extern __shared__ __align__(128) u8 tiles[];
    __shared__ float largest_of[4][SPLIT_HEADS]; // of each warp's keys
    __shared__ u32 is_last;

    depend_go();
    const bool is_fresh = fresh.q != nullptr;
    if (!is_fresh) depend_wait();
    // Where all rows are cut, as is usual, a row is its own tile: nothing waits for `tiles`.
    const u32 row = in.tiles[2 * blockIdx.x];
    u32 last = in.positions[blockIdx.x], sequence = in.lanes[blockIdx.x];
    if (row != blockIdx.x) last = in.positions[row], sequence = in.lanes[row];
    const u32* table = pool.tables + (u64)sequence * pool.stride;
    const u32 pages = last / PAGE + 1, length = run_pages(pages);
    const u32 from = blockIdx.z * length;
    if (from >= pages) return; // without a wait: the first run's CTAs do
    const u32 to = min(from + length, pages), runs = (pages + length - 1) / length;

    const u32 head_dim = pool.head_dim, group = in.heads / pool.kv_heads;
    const u32 chunks = (group + SPLIT_HEADS - 1) / SPLIT_HEADS;
    const u32 kv_head = blockIdx.y / chunks, first_head = blockIdx.y % chunks * SPLIT_HEADS;
    const u32 heads = min(group - first_head, (u32)SPLIT_HEADS);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 quad = lane / 4, two = lane % 4 * 2; // row and column of a fragment
    const u32 ring = shared_address(tiles);
    uint4* weights = (uint4*)(tiles + S::WEIGHTS); // fragments [4 steps, 32 threads]

    // Tile 2 i has the keys of page i of the run, tile 2 i + 1 its values.
    u32 ids = table[min(from + lane, to - 1)]; // of 32 pages, one a thread
    auto tile_at = [&](u32 tile) { return ring + tile % S::RING * T::BYTES; };
    auto copy = [&](u32 tile, u32 left_out) {
        const u32 page = from + tile / 2;
        if (page < to) {
            if (tile > 0 && tile % (2 * WARP) == 0) ids = table[min(page + lane, to - 1)];
            const u32 id = __shfl_sync(ALL_LANES, ids, tile / 2 % WARP);
            const u16* head = (const u16*)pool.keys + (u64)id * pool.page_values
                + (u64)kv_head * PAGE * head_dim + tile % 2 * pool.values_at;
            T::template copy<SPLIT_THREADS>(tile_at(tile), head, head_dim,
                                            min((u32)PAGE, last + 1 - page * PAGE), left_out);
        }
        copies_end_group();
    };
#pragma unroll 1
    for (u32 i = 0; i < S::FIRST; i++) {
        copy(i, is_fresh && from + i / 2 + 1 == pages ? last % PAGE : PAGE);
    }

    const u32 head = kv_head * group + first_head;
    u32 q[DIM / 16][4];
    if (is_fresh) {
        OwnSlot own = {nullptr, nullptr, 2 * (pages - 1 - from), last % PAGE};
        if (to == pages) {
            own.keys = (u16*)fresh.pool + (u64)table[pages - 1] * pool.page_values + fresh.layer_at
                + ((u64)kv_head * PAGE + last % PAGE) * head_dim;
            own.values = own.keys + pool.values_at;
        }
        make_ready<DIM>(fresh, in.scale, tiles, row, head, heads, kv_head, own);
        __syncthreads();
        // Rows that are no head's hold anything: they are never put.
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            load_matrices(q[step], T::values_at(ring + S::QUERIES, 0, step * 16));
        }
    } else {
        const float* q0 = in.q + ((u64)row * in.heads + head + quad) * head_dim;
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            query_step(q[step], q0, quad < heads, q0 + 8 * head_dim, quad + 8 < heads, step,
                       head_dim, in.scale);
        }
    }

    float top[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float values[S::TILES][4];
#pragma unroll
    for (int n = 0; n < S::TILES; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) values[n][c] = 0.0f;
    const u32 first_col = warp * S::TILES * 8;

    for (u32 page = from; page < to; page++) {
        const u32 tile = (page - from) * 2;
        // The values before these keys (at first, the queries) are done with, and so the keys by
        // the next barrier: their place in the ring is filled at once.
        copies_wait<S::FIRST - 1>();
        __syncthreads();
        copy(tile + S::FIRST, PAGE);
        float score[S::KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < S::KEYS / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) score[n][c] = 0.0f;
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
#pragma unroll
            for (int n = 0; n < S::KEYS / 8; n += 2) {
                u32 b[4];
                load_matrices(b, T::keys_at(tile_at(tile), warp * S::KEYS + n * 8, step));
                mma(score[n], q[step][0], q[step][1], q[step][2], q[step][3], b[0], b[1]);
                mma(score[n + 1], q[step][0], q[step][1], q[step][2], q[step][3], b[2], b[3]);
            }
        }
        float largest[2] = {MINUS_INFINITY, MINUS_INFINITY};
#pragma unroll
        for (int n = 0; n < S::KEYS / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const u32 key = page * PAGE + warp * S::KEYS + n * 8 + two + c % 2;
                if (key > last) score[n][c] = MINUS_INFINITY;
                largest[c / 2] = fmaxf(largest[c / 2], score[n][c]);
            }
        largest[0] = quad_max(largest[0]), largest[1] = quad_max(largest[1]);
        if (two == 0) {
            largest_of[warp][quad] = largest[0];
            largest_of[warp][quad + 8] = largest[1];
        }
        __syncthreads();
        copy(tile + S::RING, PAGE);

        // Weights of those keys; every warp follows the largest scores.
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float next = top[r];
#pragma unroll
            for (int w = 0; w < 4; w++) next = fmaxf(next, largest_of[w][quad + 8 * r]);
            keep[r] = exp2_fast(__fsub_rn(top[r], next));
            top[r] = next;
        }
#pragma unroll
        for (int n = 0; n < S::KEYS / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                score[n][c] = exp2_fast(__fsub_rn(score[n][c], top[c / 2]));
            }
#pragma unroll
        for (int n = 0; n < S::KEYS / 8; n += 2) {
            uint4 a;
            a.x = bf16_pair(score[n][0], score[n][1]);
            a.y = bf16_pair(score[n][2], score[n][3]);
            a.z = bf16_pair(score[n + 1][0], score[n + 1][1]);
            a.w = bf16_pair(score[n + 1][2], score[n + 1][3]);
            weights[(warp * (S::KEYS / 16) + n / 2) * WARP + lane] = a;
        }
        copies_wait<S::RING - 1>();
        __syncthreads();

        // Values: TILES * 8 columns.
        if (first_col >= DIM) continue;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sum[c] = __fmul_rn(sum[c], keep[c / 2]);
#pragma unroll
            for (int n = 0; n < S::TILES; n++) values[n][c] = __fmul_rn(values[n][c], keep[c / 2]);
        }
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const uint4 a = weights[step * WARP + lane];
            mma(sum, a.x, a.y, a.z, a.w, ONES, ONES);
#pragma unroll
            for (int n = 0; n < S::TILES; n += 2) {
                u32 b[4];
                load_transposed(b, T::values_at(tile_at(tile + 1), step, first_col + n * 8));
                mma(values[n], a.x, a.y, a.z, a.w, b[0], b[1]);
                mma(values[n + 1], a.x, a.y, a.z, a.w, b[2], b[3]);
            }
        }
    }

    const u64 wide = (u64)RUNS_MAX * (head_dim + 2);
    float* partials = in.partials + ((u64)blockIdx.x * in.heads + kv_head * group) * wide;
#pragma unroll 1
    for (int r = 0; r < 2; r++) {
        const u32 head = first_head + quad + 8 * r;
        if (head < first_head + heads && first_col < DIM) {
            float* part = partials + head * wide;
#pragma unroll
            for (int n = 0; n < S::TILES; n++) {
                const u32 col = first_col + n * 8 + two;
                if (col >= head_dim) continue;
                const float a = values[n][0], b = values[n][1];
                if (runs == 1) { // as it is joined to nothing
                    put_two(in, row, (kv_head * group + head) * head_dim + col, in.heads * head_dim,
                            __fdiv_rn(__fadd_rn(a, 0.0f), sum[0]),
                            __fdiv_rn(__fadd_rn(b, 0.0f), sum[0]));
                } else {
                    *(float2*)(part + blockIdx.z * head_dim + col) = make_float2(a, b);
                }
            }
            if (runs > 1 && warp == 0 && two == 0) {
                *((float2*)(part + RUNS_MAX * head_dim) + blockIdx.z) = make_float2(top[0], sum[0]);
            }
        }
        // The other row of the fragment takes its place: this code, used once, stays short.
        top[0] = top[1], sum[0] = sum[2];
#pragma unroll
        for (int n = 0; n < S::TILES; n++) values[n][0] = values[n][2], values[n][1] = values[n][3];
    }
    if (runs > 1) {
        __syncthreads();
        if (threadIdx.x == 0) {
            u32* arrived = in.arrived + blockIdx.x * pool.kv_heads + kv_head;
            is_last = count_arrival(arrived) + 1 == runs * chunks;
            if (is_last) *arrived = 0;
        }
        __syncthreads();
        if (!is_last) return;
        for (u32 head = 0; head < group; head += SPLIT_HEADS) {
            join_runs<DIM>(in, partials + head * wide, tiles, row, kv_head * group + head,
                           min(group - head, (u32)SPLIT_HEADS), runs, head_dim);
        }
    }
    if (in.to.hi && kv_head + 1 == pool.kv_heads) {
        pad_encoded(in.to, row, threadIdx.x, SPLIT_THREADS);
    }
}
