// Attention on tensor cores, decode: some runs of one row a CTA; the last of a row joins.

// The pages of a CTA on their way to a ring: tile 2 i has the keys of page i, tile 2 i + 1 its
// values.
template <int DIM>
struct Pages {
    using T = Tile<DIM>;
    const Runs& runs;
    const Pool& pool;
    const u16* head; // of the pool's first page
    u32 ring;
    u32 ids; // of 32 pages, one a thread

    __device__ __forceinline__ Pages(const Runs& runs, const Pool& pool, u32 kv_head, u32 ring)
        : runs(runs), pool(pool), ring(ring) {
        head = (const u16*)pool.keys + (u64)kv_head * PAGE * pool.head_dim;
        ids = runs.table[min(runs.from + threadIdx.x % WARP, runs.to - 1)];
    }

    __device__ __forceinline__ u32 at(u32 tile) const {
        return ring + tile % Split<DIM>::RING * T::BYTES;
    }

    // Starts to copy a tile, if there is one, but for its row `left_out`.
    __device__ __forceinline__ void copy(u32 tile, u32 left_out = PAGE) {
        const u32 page = runs.from + tile / 2;
        if (page < runs.to) {
            if (tile > 0 && tile % (2 * WARP) == 0) {
                ids = runs.table[min(page + threadIdx.x % WARP, runs.to - 1)];
            }
            const u32 id = __shfl_sync(ALL_LANES, ids, tile / 2 % WARP);
            T::template copy<SPLIT_THREADS>(
                at(tile), head + (u64)id * pool.page_values + tile % 2 * pool.values_at,
                pool.head_dim, min((u32)PAGE, runs.last + 1 - page * PAGE), left_out);
        }
        copies_end_group();
    }
};

// Where a CTA puts the key and the value of its row.
struct OwnSlot {
    u16* keys;   // in the pool; null: the row's last page is another CTA's
    u16* values;
    u32 tile;    // of the CTA: the page's keys; the next one has its values
    u32 row;     // of both
};

// Makes ready `heads` queries from `head` on, as rows of a tile in shared memory, and the row's key
// and value. What the round's kernels before wrote is first read here.
template <int DIM>
__device__ __forceinline__ void make_ready(const Prepare& p, float scale, u8* tiles, u32 row,
                                           u32 head, u32 heads, u32 kv_head, const OwnSlot& own) {
    using S = Split<DIM>;
    using T = Tile<DIM>;
    constexpr u32 N = S::COLUMNS;
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
    for (u32 i = warp; i < count; i += SPLIT_WARPS) {
        float x[N];
#pragma unroll
        for (int n = 0; n < N; n++) x[n] = next[n];
        load(next, i + SPLIT_WARPS);
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

// A warp's part of a run, reduced so far: for two rows of fragments, `lane / 4` and 8 more, the
// largest score and, in columns [first, first + 8 TILES), weighted values; the sum of weights.
template <int DIM>
struct Reduced {
    using S = Split<DIM>;
    using T = Tile<DIM>;
    float top[2], sum[4], values[S::TILES][4];
    u32 first;

    __device__ __forceinline__ Reduced() : first(threadIdx.x / WARP * S::TILES * 8) {
        top[0] = top[1] = MINUS_INFINITY;
#pragma unroll
        for (int c = 0; c < 4; c++) sum[c] = 0.0f;
#pragma unroll
        for (int n = 0; n < S::TILES; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) values[n][c] = 0.0f;
    }

    // Takes the largest scores of a page, of all warps; what is there is multiplied with `keep`.
    __device__ __forceinline__ void follow(const float (*largest_of)[SPLIT_HEADS],
                                           float (&keep)[2]) {
        const u32 quad = threadIdx.x % WARP / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float next = top[r];
#pragma unroll
            for (int w = 0; w < SPLIT_WARPS; w++) {
                next = fmaxf(next, largest_of[w][quad + 8 * r]);
            }
            keep[r] = exp2_fast(__fsub_rn(top[r], next));
            top[r] = next;
        }
    }

    // Adds the values of a page. weights: fragments [4 steps, 32 threads].
    __device__ __forceinline__ void add(const uint4* weights, u32 tile, const float (&keep)[2]) {
        if (first >= DIM) return;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sum[c] = __fmul_rn(sum[c], keep[c / 2]);
#pragma unroll
            for (int n = 0; n < S::TILES; n++) values[n][c] = __fmul_rn(values[n][c], keep[c / 2]);
        }
#pragma unroll
        for (int step = 0; step < 4; step++) {
            const uint4 v = weights[step * WARP + threadIdx.x % WARP];
            const u32 a[4] = {v.x, v.y, v.z, v.w};
            add_values<DIM>(values, sum, a, tile, step, first);
        }
    }

    // Puts the results of heads, or where the row has several runs, leaves those of one of them at
    // `partials`. What is here is used up.
    __device__ __forceinline__ void put(const Queries& in, const Share& share, const Heads& heads,
                                        u32 run, float* partials, u32 head_dim) {
        const u32 warp = threadIdx.x / WARP, two = threadIdx.x % 4 * 2;
#pragma unroll 1
        for (int r = 0; r < 2; r++) {
            const u32 of_chunk = threadIdx.x % WARP / 4 + 8 * r, head = heads.first + of_chunk;
            if (of_chunk < heads.count && first < DIM) {
                float* part = partials + (u64)head * RUNS_MAX * (head_dim + 2);
#pragma unroll
                for (int n = 0; n < S::TILES; n++) {
                    const u32 col = first + n * 8 + two;
                    if (col >= head_dim) continue;
                    const float a = values[n][0], b = values[n][1];
                    if (share.runs == 1) { // as it is joined to nothing
                        const u32 place = (heads.kv * heads.group + head) * head_dim + col;
                        put_two(in, share.row, place, in.heads * head_dim,
                                __fdiv_rn(__fadd_rn(a, 0.0f), sum[0]),
                                __fdiv_rn(__fadd_rn(b, 0.0f), sum[0]));
                    } else {
                        *(float2*)(part + run * head_dim + col) = make_float2(a, b);
                    }
                }
                if (share.runs > 1 && warp == 0 && two == 0) {
                    float2* pair = (float2*)(part + RUNS_MAX * head_dim) + run;
                    *pair = make_float2(top[0], sum[0]);
                }
            }
            // The other row of the fragment takes its place: this code, used once, stays short.
            top[0] = top[1], sum[0] = sum[2];
#pragma unroll
            for (int n = 0; n < S::TILES; n++) {
                values[n][0] = values[n][2], values[n][1] = values[n][3];
            }
        }
    }
};

// Scores of a warp's keys of a page; the largest of them, for all warps to see.
template <int DIM>
__device__ __forceinline__ void score_page(float (&score)[Split<DIM>::KEYS / 8][4],
                                           const u32 (&q)[DIM / 16][4], u32 tile, u32 page,
                                           u32 last, float (*largest_of)[SPLIT_HEADS]) {
    constexpr u32 KEYS = Split<DIM>::KEYS;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 quad = lane / 4, two = lane % 4 * 2; // row and column of a fragment
    clear(score);
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        add_scores<DIM>(score, q[step], tile, warp * KEYS, step);
    }
    float largest[2] = {MINUS_INFINITY, MINUS_INFINITY};
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const u32 key = page * PAGE + warp * KEYS + n * 8 + two + c % 2;
            if (key > last) score[n][c] = MINUS_INFINITY;
            largest[c / 2] = fmaxf(largest[c / 2], score[n][c]);
        }
    largest[0] = quad_max(largest[0]), largest[1] = quad_max(largest[1]);
    if (two == 0) {
        largest_of[warp][quad] = largest[0];
        largest_of[warp][quad + 8] = largest[1];
    }
}

// Weights of a warp's keys, for all warps: fragments [4 steps, 32 threads].
template <int DIM>
__device__ __forceinline__ void put_weights(uint4* weights, const float (&top)[2],
                                            const float (&score)[Split<DIM>::KEYS / 8][4]) {
    constexpr u32 KEYS = Split<DIM>::KEYS;
    float weight[KEYS / 8][4];
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            weight[n][c] = exp2_fast(__fsub_rn(score[n][c], top[c / 2]));
        }
#pragma unroll
    for (int n = 0; n < KEYS / 8; n += 2) {
        uint4 a;
        a.x = bf16_pair(weight[n][0], weight[n][1]);
        a.y = bf16_pair(weight[n][2], weight[n][3]);
        a.z = bf16_pair(weight[n + 1][0], weight[n + 1][1]);
        a.w = bf16_pair(weight[n + 1][2], weight[n + 1][3]);
        weights[(threadIdx.x / WARP * (KEYS / 16) + n / 2) * WARP + threadIdx.x % WARP] = a;
    }
}

// Left operands of the queries: made ready here, or read as they are.
template <int DIM>
__device__ __forceinline__ void load_queries(u32 (&q)[DIM / 16][4], const Queries& in,
                                             const Pool& pool, const Prepare& fresh,
                                             const Share& share, const Runs& runs,
                                             const Heads& heads, u8* tiles) {
    using S = Split<DIM>;
    const u32 head_dim = pool.head_dim, head = heads.kv * heads.group + heads.first;
    if (fresh.q == nullptr) {
        const u32 quad = threadIdx.x % WARP / 4;
        const float* q0 = in.q + ((u64)share.row * in.heads + head + quad) * head_dim;
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            query_step(q[step], q0, quad < heads.count, q0 + 8 * head_dim, quad + 8 < heads.count,
                       step, head_dim, in.scale);
        }
        return;
    }
    OwnSlot own = {nullptr, nullptr, 2 * (runs.last / PAGE - runs.from), runs.last % PAGE};
    if (runs.end_row()) {
        own.keys = (u16*)fresh.pool + (u64)runs.table[runs.last / PAGE] * pool.page_values
            + fresh.layer_at + ((u64)heads.kv * PAGE + own.row) * head_dim;
        own.values = own.keys + pool.values_at;
    }
    make_ready<DIM>(fresh, in.scale, tiles, share.row, head, heads.count, heads.kv, own);
    __syncthreads();
    // Rows that are no head's hold anything: they are never put.
    const u32 ready = shared_address(tiles) + S::QUERIES;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        load_matrices(q[step], Tile<DIM>::values_at(ready, 0, step * 16));
    }
}

// Runs of one row, for up to 16 heads of one KV head; the last CTA of the row and KV head joins.
// Grid: CTAs that share the runs of all rows, kv_heads * ceil(group / 16). Partials of a row and
// head: values [RUNS_MAX, head_dim], then largest and sum [RUNS_MAX, 2].
//
// Queries are ready and slots are written, or `fresh` has what makes them so. Then the round has no
// row but of decode, and the pages of a row, less its own slot, are of rounds before: copies begin
// while the kernel before still runs. So they leave that slot out, and what they bring meets it in
// shared memory. Copies that begin later find it in the pool.
template <int DIM>
__device__ __forceinline__ void attend_split(const Queries& in, const Pool& pool,
                                             const Prepare& fresh, const Cut& cut) {
    using S = Split<DIM>;
    extern __shared__ __align__(128) u8 tiles[];
    __shared__ float largest_of[SPLIT_WARPS][SPLIT_HEADS]; // of each warp's keys
    __shared__ Share share; // rather than in registers while pages are read

    depend_go();
    const bool is_fresh = fresh.q != nullptr;
    if (!is_fresh) depend_wait();
    const Share found(in, cut);
    if (found.is_none(cut)) return; // without a wait: those with runs do
    if (threadIdx.x == 0) share = found;
    const Runs runs(in, pool, found);
    const Heads heads(in, pool);
    Pages<DIM> pages(runs, pool, heads.kv, shared_address(tiles));
#pragma unroll 1
    for (u32 i = 0; i < S::FIRST; i++) {
        pages.copy(i, is_fresh && runs.from + i / 2 == runs.last / PAGE ? runs.last % PAGE : PAGE);
    }
    u32 q[DIM / 16][4];
    load_queries<DIM>(q, in, pool, fresh, found, runs, heads, tiles);

    const u64 wide = (u64)RUNS_MAX * (pool.head_dim + 2);
    const u32 first_head = heads.kv * heads.group;
    auto partials = [&] { return in.partials + ((u64)share.of * in.heads + first_head) * wide; };
    uint4* weights = (uint4*)(tiles + S::WEIGHTS);
    u32 page = runs.from;
#pragma unroll 1
    while (page < runs.to) {
        const u32 run = page / runs.length;
        Reduced<DIM> reduced;
#pragma unroll 1
        for (const u32 end = min(page + runs.length, runs.to); page < end; page++) {
            const u32 tile = (page - runs.from) * 2;
            // The values before these keys (at first, the queries) are done with, and so the keys
            // by the next barrier: their place in the ring is filled at once.
            copies_wait<S::FIRST - 1>();
            __syncthreads();
            pages.copy(tile + S::FIRST);
            float score[S::KEYS / 8][4], keep[2];
            score_page<DIM>(score, q, pages.at(tile), page, runs.last, largest_of);
            __syncthreads();
            pages.copy(tile + S::RING);
            reduced.follow(largest_of, keep);
            put_weights<DIM>(weights, reduced.top, score);
            copies_wait<S::RING - 1>();
            __syncthreads();
            reduced.add(weights, pages.at(tile + 1), keep);
        }
        reduced.put(in, share, heads, run, partials(), pool.head_dim);
    }
    if (share.runs > 1) {
        if (!is_last_run(in, pool, share, heads)) return;
        for (u32 head = 0; head < heads.group; head += SPLIT_HEADS) {
            join_runs<DIM>(in, partials() + head * wide, tiles, share.row, first_head + head,
                           min(heads.group - head, (u32)SPLIT_HEADS), share.runs, pool.head_dim);
        }
    }
    if (in.to.hi && heads.kv + 1 == pool.kv_heads) {
        pad_encoded(in.to, share.row, threadIdx.x, SPLIT_THREADS);
    }
}
