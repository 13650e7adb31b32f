// Attention in scalars of f32, over a pool of bf16 or f32.

// Rows of the tile of 64 keys or values in shared memory, padded against bank conflicts.
template <typename T>
__device__ __forceinline__ u32 row_values(u32 head_dim) {
    return head_dim + 16 / sizeof(T);
}

// Copies the first `keys` rows of a page's keys or values; the others become zeros.
template <typename T>
__device__ __forceinline__ void load_page(T* tile, const T* from, u32 head_dim, u32 keys) {
    constexpr u32 EACH = 16 / sizeof(T);
    const u32 pieces = head_dim / EACH, stride = row_values<T>(head_dim);
    for (u32 i = threadIdx.x; i < PAGE * pieces; i += CTA) {
        const u32 row = i / pieces, at = i % pieces * EACH;
        uint4 piece = {0, 0, 0, 0};
        if (row < keys) piece = *(const uint4*)(from + row * head_dim + at);
        *(uint4*)(tile + row * stride + at) = piece;
    }
}

// Adds q[i..i+8] . k[i..i+8] to each score.
template <typename T, int N>
__device__ __forceinline__ void dot_eight(float (&score)[N], const T* k, const float* q,
                                          u32 head_dim) {
    float key[8];
    if (sizeof(T) == 2) {
        const uint4 v = *(const uint4*)k;
        key[0] = low_value(v.x), key[1] = high_value(v.x);
        key[2] = low_value(v.y), key[3] = high_value(v.y);
        key[4] = low_value(v.z), key[5] = high_value(v.z);
        key[6] = low_value(v.w), key[7] = high_value(v.w);
    } else {
        const float4 a = *(const float4*)k, b = *((const float4*)k + 1);
        key[0] = a.x, key[1] = a.y, key[2] = a.z, key[3] = a.w;
        key[4] = b.x, key[5] = b.y, key[6] = b.z, key[7] = b.w;
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float4 a = *(const float4*)(q + n * head_dim);
        const float4 b = *(const float4*)(q + n * head_dim + 4);
        score[n] = __fmaf_rn(a.x, key[0], score[n]);
        score[n] = __fmaf_rn(a.y, key[1], score[n]);
        score[n] = __fmaf_rn(a.z, key[2], score[n]);
        score[n] = __fmaf_rn(a.w, key[3], score[n]);
        score[n] = __fmaf_rn(b.x, key[4], score[n]);
        score[n] = __fmaf_rn(b.y, key[5], score[n]);
        score[n] = __fmaf_rn(b.z, key[6], score[n]);
        score[n] = __fmaf_rn(b.w, key[7], score[n]);
    }
}

__device__ __forceinline__ float value_of(u16 bits) { return bf16_value(bits); }
__device__ __forceinline__ float value_of(float value) { return value; }

// A tile of QT queries of one KV head: what a CTA takes.
template <int QT, bool SPLIT>
struct ScalarTile {
    u32 head_dim, width;             // of a head, of a row
    u32 first_row, rows, kv_head;
    u32 first_head, heads, queries;  // heads: of a row, from first_head on
    u32 last, from, to;              // position of the last row; pages

    __device__ __forceinline__ ScalarTile(const Queries& in, const Pool& pool) {
        head_dim = pool.head_dim, width = in.heads * head_dim;
        const u32 group = in.heads / pool.kv_heads, chunks = (group + QT - 1) / QT;
        kv_head = blockIdx.y / chunks;
        const u32 of_group = blockIdx.y % chunks * QT;
        first_head = kv_head * group + of_group;
        first_row = in.tiles[2 * blockIdx.x], rows = in.tiles[2 * blockIdx.x + 1];
        heads = min(group - of_group, (u32)QT), queries = min(rows * heads, (u32)QT);
        last = in.positions[first_row + rows - 1];
        const u32 pages = last / PAGE + 1;
        from = 0, to = pages;
        if (SPLIT) {
            const u32 length = run_pages(pages);
            from = blockIdx.z * length, to = min(from + length, pages);
        }
    }

    // A split has one row.
    __device__ __forceinline__ u32 head_of(u32 query) const {
        return first_head + (SPLIT ? query : query % heads);
    }
    __device__ __forceinline__ u32 row_of(u32 query) const {
        return first_row + (SPLIT ? 0 : query / heads);
    }
};

// What the threads of a CTA tell each other of its queries. A split joins no runs.
template <int QT, bool SPLIT>
struct OfQueries {
    static constexpr int JOINED = SPLIT ? 1 : QT;
    float largest[QT], sum[QT];                     // of the run under way
    float scale[QT];                                // what it shrinks by for this page
    float total_largest[JOINED], total_sum[JOINED]; // of the runs joined before
    float keep[JOINED], take[JOINED];               // how this page's run is joined to them
    u32 ends[JOINED];                               // whether it is

    __device__ __forceinline__ void clear() {
        if (threadIdx.x < QT) largest[threadIdx.x] = MINUS_INFINITY, sum[threadIdx.x] = 0.0f;
        if (threadIdx.x >= JOINED) return;
        total_largest[threadIdx.x] = MINUS_INFINITY, total_sum[threadIdx.x] = 0.0f;
        ends[threadIdx.x] = 0;
    }

    // Joins the run of a query, whose weights have the sum `weights`.
    __device__ __forceinline__ void join(u32 query, float run_largest, float weights) {
        float joined, keep_by, take_by;
        join_weights(total_largest[query], run_largest, joined, keep_by, take_by);
        const float old = __fmul_rn(total_sum[query], keep_by);
        total_sum[query] = __fmaf_rn(weights, take_by, old);
        total_largest[query] = joined, keep[query] = keep_by, take[query] = take_by;
        largest[query] = MINUS_INFINITY, sum[query] = 0.0f;
    }
};

// Queries of a tile, scaled: q [QT, head_dim]; zeros where there is none.
template <int QT, bool SPLIT>
__device__ __forceinline__ void load_queries(float* q, const Queries& in,
                                             const ScalarTile<QT, SPLIT>& of) {
    for (u32 i = threadIdx.x; i < QT * of.head_dim; i += CTA) {
        const u32 query = i / of.head_dim, at = i % of.head_dim;
        const bool real = query < of.queries;
        const u64 place =
            real ? (u64)of.row_of(query) * of.width + of.head_of(query) * of.head_dim + at : 0;
        q[i] = real ? __fmul_rn(in.q[place], in.scale) : 0.0f;
    }
}

// Scores of a page: a thread has one key and half of the queries. scores [QT, 64].
template <typename T, int QT, bool SPLIT>
__device__ __forceinline__ void score_page(float* scores, const T* tile, const float* q,
                                           const Queries& in, const ScalarTile<QT, SPLIT>& of,
                                           u32 page) {
    const u32 key = threadIdx.x % PAGE, base = threadIdx.x / PAGE * (QT / 2);
    const u32 head_dim = of.head_dim, stride = row_values<T>(head_dim);
    float score[QT / 2];
#pragma unroll
    for (int n = 0; n < QT / 2; n++) score[n] = 0.0f;
    if (base < of.queries) {
        for (u32 i = 0; i < head_dim; i += 8) {
            dot_eight<T, QT / 2>(score, tile + key * stride + i, q + base * head_dim + i,
                                 head_dim);
        }
    }
#pragma unroll
    for (int n = 0; n < QT / 2; n++) {
        const u32 query = base + n;
        const bool seen = query < of.queries
            && page * PAGE + key <= in.positions[of.row_of(query)];
        scores[query * PAGE + key] = seen ? score[n] : MINUS_INFINITY;
    }
}

// Weights of a page in place of its scores: a warp has every fourth query.
template <int QT, bool SPLIT>
__device__ __forceinline__ void weigh_page(float* scores, OfQueries<QT, SPLIT>& all,
                                           const Queries& in, const ScalarTile<QT, SPLIT>& of,
                                           u32 page) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (u32 query = warp; query < of.queries; query += CTA / WARP) {
        float* row = scores + query * PAGE;
        const float a = row[lane], b = row[lane + WARP];
        const float before = all.largest[query];
        const float largest = fmaxf(before, warp_max(fmaxf(a, b)));
        const bool any = largest > MINUS_INFINITY;
        const float x = any ? exp2_fast(__fsub_rn(a, largest)) : 0.0f;
        const float y = any ? exp2_fast(__fsub_rn(b, largest)) : 0.0f;
        const float scale = any ? exp2_fast(__fsub_rn(before, largest)) : 1.0f;
        const float sum = warp_sum(__fadd_rn(x, y));
        row[lane] = x;
        row[lane + WARP] = y;
        __syncwarp();
        if (lane == 0) {
            const float weights = __fmaf_rn(all.sum[query], scale, sum);
            all.largest[query] = largest, all.sum[query] = weights, all.scale[query] = scale;
            if (SPLIT) continue;
            const u32 seen = in.positions[of.row_of(query)] / PAGE + 1;
            const bool ends = page + 1 == seen || (page + 1) % run_pages(seen) == 0;
            all.ends[query] = ends && page < seen;
            if (all.ends[query]) all.join(query, largest, weights);
        }
    }
}

// What a thread sums: COLS columns of MINE queries.
template <typename T, int DIM, int QT, bool SPLIT>
struct ScalarSums {
    static constexpr u32 COLS = DIM > CTA ? DIM / CTA : 1;   // columns of a thread
    static constexpr u32 PARTS = DIM > CTA ? 1 : CTA / DIM;  // threads that share a column
    static constexpr u32 MINE = QT > PARTS ? QT / PARTS : 1; // queries of a thread
    u32 col, mine;                                           // the first of each
    float run[MINE][COLS], total[MINE][COLS];

    __device__ __forceinline__ ScalarSums() {
        const u32 part = DIM > CTA ? 0 : threadIdx.x / DIM;
        col = DIM > CTA ? threadIdx.x : threadIdx.x % DIM;
        mine = part * MINE;
#pragma unroll
        for (int n = 0; n < MINE; n++)
#pragma unroll
            for (int c = 0; c < COLS; c++) run[n][c] = total[n][c] = 0.0f;
    }

    __device__ __forceinline__ void shrink(const OfQueries<QT, SPLIT>& all, u32 queries) {
#pragma unroll
        for (int n = 0; n < MINE; n++) {
            if (mine + n < queries) {
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    run[n][c] = __fmul_rn(run[n][c], all.scale[mine + n]);
                }
            }
        }
    }

    // Adds the first `held` values of a page.
    __device__ __forceinline__ void add(const T* tile, const float* weights, u32 head_dim,
                                        u32 stride, u32 held) {
        u32 at[COLS]; // columns, or some that there are where a thread lacks one
#pragma unroll
        for (int c = 0; c < COLS; c++) at[c] = col + c * CTA < head_dim ? col + c * CTA : col;
        for (u32 key = 0; key < held; key += 4) {
            float value[COLS][4];
#pragma unroll
            for (int c = 0; c < COLS; c++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    value[c][k] = value_of(tile[(key + k) * stride + at[c]]);
                }
#pragma unroll
            for (int n = 0; n < MINE; n++) {
                const float4 w = *(const float4*)(weights + (mine + n) * PAGE + key);
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    run[n][c] = __fmaf_rn(w.x, value[c][0], run[n][c]);
                    run[n][c] = __fmaf_rn(w.y, value[c][1], run[n][c]);
                    run[n][c] = __fmaf_rn(w.z, value[c][2], run[n][c]);
                    run[n][c] = __fmaf_rn(w.w, value[c][3], run[n][c]);
                }
            }
        }
    }

    // Joins the runs that this page ends.
    __device__ __forceinline__ void join(const OfQueries<QT, SPLIT>& all,
                                         const ScalarTile<QT, SPLIT>& of) {
#pragma unroll
        for (int n = 0; n < MINE; n++) {
            if (mine + n < of.queries && all.ends[mine + n]) {
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    const float old = __fmul_rn(total[n][c], all.keep[mine + n]);
                    total[n][c] = __fmaf_rn(run[n][c], all.take[mine + n], old);
                    run[n][c] = 0.0f;
                }
            }
        }
    }

    // The results, or of a split the run, as `attention_join` takes it.
    __device__ __forceinline__ void put(const OfQueries<QT, SPLIT>& all, const Queries& in,
                                        const ScalarTile<QT, SPLIT>& of, float* partials) const {
#pragma unroll
        for (int n = 0; n < MINE; n++) {
            const u32 query = mine + n;
            if (query >= of.queries) continue;
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                const u32 at = col + c * CTA;
                if (at >= of.head_dim) continue;
                if (SPLIT) {
                    const u64 head = (u64)blockIdx.x * in.heads + of.head_of(query);
                    float* to = partials + (head * RUNS_MAX + blockIdx.z) * (of.head_dim + 2);
                    to[2 + at] = run[n][c];
                    if (at == 0) to[0] = all.largest[query], to[1] = all.sum[query];
                } else {
                    put_result(in, of.row_of(query), of.head_of(query) * of.head_dim + at,
                               of.width, __fdiv_rn(total[n][c], all.total_sum[query]));
                }
            }
        }
    }
};

// A tile of QT queries of one KV head: over all its pages, or (SPLIT) one run of a row. DIM:
// head_dim, rounded up to a power of two. Grid: tiles, kv_heads * ceil(group / QT), and of a split
// as many runs as a row of the launch has at most, else 1. Shared: q [QT, head_dim], scores
// [QT, 64], tile of 64 rows.
template <typename T, int DIM, int QT, bool SPLIT>
__device__ __forceinline__ void attention(const Queries& in, const Pool& pool, float* partials) {
    extern __shared__ float shared[];
    __shared__ OfQueries<QT, SPLIT> all;

    depend_go();
    depend_wait();
    const ScalarTile<QT, SPLIT> of(in, pool);
    if (SPLIT && of.from >= of.to) return;
    const u32 head_dim = of.head_dim;
    float* q = shared;
    float* scores = q + QT * head_dim;
    T* tile = (T*)(scores + QT * PAGE);
    load_queries(q, in, of);
    all.clear();
    ScalarSums<T, DIM, QT, SPLIT> sums;

    const u32* table = pool.tables + (u64)in.lanes[of.first_row] * pool.stride;
    for (u32 page = of.from; page < of.to; page++) {
        const T* keys = (const T*)pool.keys + (u64)table[page] * pool.page_values
            + (u64)of.kv_head * PAGE * head_dim;
        const u32 held = min((u32)PAGE, of.last + 1 - page * PAGE);
        __syncthreads();
        load_page(tile, keys, head_dim, held);
        __syncthreads();
        score_page(scores, tile, q, in, of, page);
        __syncthreads();
        load_page(tile, keys + pool.values_at, head_dim, held);
        weigh_page(scores, all, in, of, page);
        __syncthreads();
        sums.shrink(all, of.queries);
        if (sums.col < head_dim && sums.mine < of.queries) {
            sums.add(tile, scores, head_dim, row_values<T>(head_dim), held);
        }
        if (!SPLIT) sums.join(all, of);
    }
    __syncthreads();
    sums.put(all, in, of, partials);
    if (!SPLIT && in.to.hi && of.head_of(0) + of.heads == in.heads) {
        for (u32 i = 0; i < of.rows; i++) pad_encoded(in.to, of.first_row + i, threadIdx.x, CTA);
    }
}

// Joins the runs of a row. Grid: tiles of one row, heads. partials [tiles, heads, RUNS_MAX,
// largest, sum, head_dim].
extern "C" __global__ void __launch_bounds__(CTA)
attention_join(Queries in, const float* partials, u32 head_dim) {
    depend_go();
    depend_wait();
    const u32 row = in.tiles[2 * blockIdx.x], head = blockIdx.y;
    const u32 pages = in.positions[row] / PAGE + 1, length = run_pages(pages);
    const u32 runs = (pages + length - 1) / length;
    const float* from = partials
        + ((u64)blockIdx.x * in.heads + head) * RUNS_MAX * (head_dim + 2);
    for (u32 at = threadIdx.x; at < head_dim; at += CTA) {
        float largest = MINUS_INFINITY, sum = 0.0f, total = 0.0f;
        for (u32 run = 0; run < runs; run++) {
            const float* part = from + run * (head_dim + 2);
            float joined, keep, take;
            join_weights(largest, part[0], joined, keep, take);
            sum = __fmaf_rn(part[1], take, __fmul_rn(sum, keep));
            total = __fmaf_rn(part[2 + at], take, __fmul_rn(total, keep));
            largest = joined;
        }
        put_result(in, row, head * head_dim + at, in.heads * head_dim, __fdiv_rn(total, sum));
    }
    if (in.to.hi && head + 1 == in.heads) pad_encoded(in.to, row, threadIdx.x, CTA);
}
