// Attention on tensor cores, decode: some runs of one row a CTA; the last of a row joins.

#define SPLIT_HEADS 16
#define SPLIT_THREADS 128
#define SPLIT_WARPS (SPLIT_THREADS / WARP)

// Whether a processor has more shared memory than a CTA of this file can use.
#define HAS_ROOM (__CUDA_ARCH__ == 900 || __CUDA_ARCH__ / 100 == 10)

template <int DIM>
struct Split {
    // Tiles: keys, values, keys, ... Those of a run's start are copied before its queries are
    // ready, and that takes about as long as three tiles of 128 columns do.
    static constexpr u32 RING = HAS_ROOM && DIM <= 128 ? 4 : 3;
    static constexpr u32 FIRST = RING - 1;                     // that are copied before queries are
    static constexpr u32 KEYS = PAGE / SPLIT_WARPS;            // of a warp, for scores
    static constexpr u32 TILES = DIM / 32 > 2 ? DIM / 32 : 2;  // of 8 columns of a warp, for values
    static constexpr u32 WEIGHTS = RING * Tile<DIM>::BYTES;    // where they start
    static constexpr u32 PAGES = WEIGHTS + PAGE * SPLIT_HEADS * 2; // bytes while pages are read

    // Fresh queries are made ready where the last tile of the ring will lie: as rows of a tile, and
    // behind them what each warp rotates.
    static constexpr u32 COLUMNS = DIM > WARP ? DIM / WARP : 1; // of a head, each lane
    static constexpr u32 QUERIES = FIRST * Tile<DIM>::BYTES;
    static constexpr u32 HELD = QUERIES + SPLIT_HEADS * Tile<DIM>::ROW;
    static_assert(HELD + SPLIT_THREADS * COLUMNS * 4 <= WEIGHTS, "they are smaller than a tile");

    // While runs are joined: how each is weighed, and behind that as many parts of runs as fit.
    static constexpr u32 WEIGHED = SPLIT_HEADS * RUNS_MAX * 16, PART = SPLIT_THREADS * 16;
    static constexpr u32 STEP = 4; // runs that are copied together
    static constexpr u32 FIT = PAGES > WEIGHED ? (PAGES - WEIGHED) / (STEP * PART) : 0;
    static constexpr u32 SLOTS = (FIT > 2 ? FIT : 2) * STEP;
    static constexpr u32 JOIN = WEIGHED + SLOTS * PART;
    static constexpr u32 SHARED = PAGES > JOIN ? PAGES : JOIN;
};

// A launch: so many rows, whose runs about `ctas` CTAs share for each part of the heads: as many as
// run at a time.
struct Cut {
    u32 rows, ctas;
};

// What a row sees: keys up to position `last`, in runs of `length` pages.
struct Seen {
    u32 pages, length, runs;

    __device__ __forceinline__ explicit Seen(u32 last) {
        pages = last / PAGE + 1;
        length = run_pages(pages), runs = (pages + length - 1) / length;
    }
};

// The runs of a CTA: some of one row, whose pages are [from, to) of those that the row sees. How
// runs are reduced and joined does not depend on who does them.
struct Runs {
    u32 of;                 // which of the launch's rows
    u32 row, last;          // of the round; the row's position, which is its last key's
    u32 nth, ctas;          // which of so many CTAs that share the row
    u32 count;              // of the row
    u32 pages, length;      // of the row, and of a run
    u32 first, from, to;    // first run, pages
    const u32* table;

    __device__ __forceinline__ Runs(const Queries& in, const Pool& pool, const Cut& cut) {
        if (cut.rows == 1) {
            of = 0, nth = blockIdx.x, ctas = gridDim.x;
        } else {
            seek(in, cut);
        }
        if (of == cut.rows) {
            from = to = pages = 0;
            return;
        }
        last = last_of(in, of, row);
        table = pool.tables + (u64)in.lanes[row] * pool.stride;
        const Seen seen(last);
        pages = seen.pages, length = seen.length, count = seen.runs, ctas = min(ctas, count);
        first = nth * count / ctas;
        from = first * length, to = min((nth + 1) * count / ctas * length, pages);
    }

    // Where all rows are cut, as is usual, a row is its own tile: nothing waits for `tiles`.
    static __device__ __forceinline__ u32 last_of(const Queries& in, u32 of, u32& row) {
        row = in.tiles[2 * of];
        const u32 last = in.positions[of];
        return row == of ? last : in.positions[row];
    }

    // Shares CTAs out by the runs of rows, one to each at least; `of` is past the last row where
    // this CTA is left over.
    __device__ __forceinline__ void seek(const Queries& in, const Cut& cut) {
        const u32 lane = threadIdx.x % WARP;
        auto runs_of = [&](u32 i) {
            u32 row;
            return i < cut.rows ? Seen(last_of(in, i, row)).runs : 0;
        };
        u32 all = 0;
#pragma unroll 1
        for (u32 i = lane; i - lane < cut.rows; i += WARP) all += runs_of(i);
        all = __reduce_add_sync(ALL_LANES, all);
        u32 before = 0;
#pragma unroll 1
        for (u32 i = lane; i - lane < cut.rows; i += WARP) {
            const u32 runs = runs_of(i), share = min(max(cut.ctas * runs / all, 1u), runs);
            u32 end = before + share;
#pragma unroll
            for (int step = 1; step < WARP; step *= 2) {
                const u32 other = __shfl_up_sync(ALL_LANES, end - before, step);
                if (lane >= step) end += other;
            }
            const u32 found = __ballot_sync(ALL_LANES, blockIdx.x < end);
            if (found) {
                const u32 at = __ffs(found) - 1;
                of = i - lane + at;
                ctas = __shfl_sync(ALL_LANES, share, at);
                nth = blockIdx.x - (__shfl_sync(ALL_LANES, end, at) - ctas);
                return;
            }
            before = __shfl_sync(ALL_LANES, end, WARP - 1);
        }
        of = cut.rows;
    }
};

// The heads of a CTA: `count` of the `group` that share a KV head, from `first` of them on.
struct Heads {
    u32 group, chunks, kv, first, count;

    __device__ __forceinline__ Heads(const Queries& in, const Pool& pool) {
        group = in.heads / pool.kv_heads;
        chunks = (group + SPLIT_HEADS - 1) / SPLIT_HEADS;
        kv = blockIdx.y / chunks, first = blockIdx.y % chunks * SPLIT_HEADS;
        count = min(group - first, (u32)SPLIT_HEADS);
    }
};

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
    __device__ __forceinline__ void put(const Queries& in, const Runs& runs, const Heads& heads,
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
                    if (runs.count == 1) { // as it is joined to nothing
                        const u32 place = (heads.kv * heads.group + head) * head_dim + col;
                        put_two(in, runs.row, place, in.heads * head_dim,
                                __fdiv_rn(__fadd_rn(a, 0.0f), sum[0]),
                                __fdiv_rn(__fadd_rn(b, 0.0f), sum[0]));
                    } else {
                        *(float2*)(part + run * head_dim + col) = make_float2(a, b);
                    }
                }
                if (runs.count > 1 && warp == 0 && two == 0) {
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
                                             const Runs& runs, const Heads& heads, u8* tiles) {
    using S = Split<DIM>;
    const u32 head_dim = pool.head_dim, head = heads.kv * heads.group + heads.first;
    if (fresh.q == nullptr) {
        const u32 quad = threadIdx.x % WARP / 4;
        const float* q0 = in.q + ((u64)runs.row * in.heads + head + quad) * head_dim;
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            query_step(q[step], q0, quad < heads.count, q0 + 8 * head_dim, quad + 8 < heads.count,
                       step, head_dim, in.scale);
        }
        return;
    }
    OwnSlot own = {nullptr, nullptr, 2 * (runs.pages - 1 - runs.from), runs.last % PAGE};
    if (runs.to == runs.pages) {
        own.keys = (u16*)fresh.pool + (u64)runs.table[runs.pages - 1] * pool.page_values
            + fresh.layer_at + ((u64)heads.kv * PAGE + own.row) * head_dim;
        own.values = own.keys + pool.values_at;
    }
    make_ready<DIM>(fresh, in.scale, tiles, runs.row, head, heads.count, heads.kv, own);
    __syncthreads();
    // Rows that are no head's hold anything: they are never put.
    const u32 ready = shared_address(tiles) + S::QUERIES;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        load_matrices(q[step], Tile<DIM>::values_at(ready, 0, step * 16));
    }
}

// Counts a CTA of runs; true for the last one of a row and KV head, in all of its threads.
__device__ __forceinline__ bool is_last_run(const Queries& in, const Pool& pool, const Runs& runs,
                                            const Heads& heads) {
    __shared__ u32 is_last;
    __syncthreads();
    if (threadIdx.x == 0) {
        u32* arrived = in.arrived + runs.of * pool.kv_heads + heads.kv;
        is_last = count_arrival(arrived) + 1 == runs.ctas * heads.chunks;
        if (is_last) *arrived = 0;
    }
    __syncthreads();
    return is_last;
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

    depend_go();
    const bool is_fresh = fresh.q != nullptr;
    if (!is_fresh) depend_wait();
    const Runs runs(in, pool, cut);
    if (runs.from >= runs.pages) return; // without a wait: those with runs do
    const Heads heads(in, pool);
    Pages<DIM> pages(runs, pool, heads.kv, shared_address(tiles));
#pragma unroll 1
    for (u32 i = 0; i < S::FIRST; i++) {
        pages.copy(i, is_fresh && runs.from + i / 2 + 1 == runs.pages ? runs.last % PAGE : PAGE);
    }
    u32 q[DIM / 16][4];
    load_queries<DIM>(q, in, pool, fresh, runs, heads, tiles);

    const u64 wide = (u64)RUNS_MAX * (pool.head_dim + 2);
    const u32 first_head = heads.kv * heads.group;
    float* partials = in.partials + ((u64)runs.of * in.heads + first_head) * wide;
    uint4* weights = (uint4*)(tiles + S::WEIGHTS);
    u32 page = runs.from;
#pragma unroll 1
    for (u32 run = runs.first; page < runs.to; run++) {
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
        reduced.put(in, runs, heads, run, partials, pool.head_dim);
    }
    if (runs.count > 1) {
        if (!is_last_run(in, pool, runs, heads)) return;
        for (u32 head = 0; head < heads.group; head += SPLIT_HEADS) {
            join_runs<DIM>(in, partials + head * wide, tiles, runs.row, first_head + head,
                           min(heads.group - head, (u32)SPLIT_HEADS), runs.count, pool.head_dim);
        }
    }
    if (in.to.hi && heads.kv + 1 == pool.kv_heads) {
        pad_encoded(in.to, runs.row, threadIdx.x, SPLIT_THREADS);
    }
}
