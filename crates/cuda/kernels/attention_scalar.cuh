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

// A tile of QT queries of one KV head. DIM: head_dim, rounded up to a power of two.
// Shared: q [QT, head_dim], scores [QT, 64], tile of 64 rows.
template <typename T, int DIM, int QT, bool SPLIT>
__device__ __forceinline__ void attention(const Queries& in, const Pool& pool, float* partials) {
    constexpr u32 COLS = DIM > CTA ? DIM / CTA : 1;         // columns of a thread
    constexpr u32 PARTS = DIM > CTA ? 1 : CTA / DIM;        // threads that share a column
    constexpr u32 MINE = QT > PARTS ? QT / PARTS : 1;       // queries of a thread
    extern __shared__ float shared[];
    __shared__ float largest_of[QT], sum_of[QT], scale_by[QT], total_largest[QT], total_sum[QT];
    __shared__ float keep_by[QT], take_by[QT];
    __shared__ u32 fold[QT];

    depend_go();
    depend_wait();
    const u32 head_dim = pool.head_dim, group = in.heads / pool.kv_heads;
    const u32 chunks = (group + QT - 1) / QT;
    const u32 kv_head = blockIdx.y / chunks, first_head = blockIdx.y % chunks * QT;
    const u32 first_row = in.tiles[2 * blockIdx.x], rows = in.tiles[2 * blockIdx.x + 1];
    const u32 heads = min(group - first_head, (u32)QT);  // of a row, in this CTA
    const u32 queries = min(rows * heads, (u32)QT);
    const u32 last = in.positions[first_row + rows - 1];
    const u32 pages = last / PAGE + 1;
    u32 from = 0, to = pages;
    if (SPLIT) {
        const u32 length = run_pages(pages);
        from = blockIdx.z * length;
        if (from >= pages) return;
        to = min(from + length, pages);
    }

    float* q = shared;
    float* scores = q + QT * head_dim;
    T* tile = (T*)(scores + QT * PAGE);
    const u32 stride = row_values<T>(head_dim);
    const u32 width = in.heads * head_dim;
    auto head_of = [&](u32 query) { return kv_head * group + first_head + query % heads; };
    auto row_of = [&](u32 query) { return first_row + query / heads; };

    for (u32 i = threadIdx.x; i < QT * head_dim; i += CTA) {
        const u32 query = i / head_dim, at = i % head_dim;
        const bool real = query < queries;
        const u64 place = real ? (u64)row_of(query) * width + head_of(query) * head_dim + at : 0;
        q[i] = real ? __fmul_rn(in.q[place], in.scale) : 0.0f;
    }
    if (threadIdx.x < QT) {
        largest_of[threadIdx.x] = total_largest[threadIdx.x] = MINUS_INFINITY;
        sum_of[threadIdx.x] = total_sum[threadIdx.x] = 0.0f;
        fold[threadIdx.x] = 0;
    }
    const u32 part = DIM > CTA ? 0 : threadIdx.x / DIM;
    const u32 col = DIM > CTA ? threadIdx.x : threadIdx.x % DIM;
    const u32 mine = part * MINE; // first query of this thread
    float run[MINE][COLS], total[MINE][COLS];
#pragma unroll
    for (int n = 0; n < MINE; n++)
#pragma unroll
        for (int c = 0; c < COLS; c++) run[n][c] = total[n][c] = 0.0f;

    const u32* table = pool.tables + (u64)in.lanes[first_row] * pool.stride;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (u32 page = from; page < to; page++) {
        const T* keys = (const T*)pool.keys + (u64)table[page] * pool.page_values
            + (u64)kv_head * PAGE * head_dim;
        const u32 held = min((u32)PAGE, last + 1 - page * PAGE);
        __syncthreads();
        load_page(tile, keys, head_dim, held);
        __syncthreads();

        // Scores: a thread has one key and half of the queries.
        {
            const u32 key = threadIdx.x % PAGE, base = threadIdx.x / PAGE * (QT / 2);
            float score[QT / 2];
#pragma unroll
            for (int n = 0; n < QT / 2; n++) score[n] = 0.0f;
            if (base < queries) {
                for (u32 i = 0; i < head_dim; i += 8) {
                    dot_eight<T, QT / 2>(score, tile + key * stride + i, q + base * head_dim + i,
                                         head_dim);
                }
            }
#pragma unroll
            for (int n = 0; n < QT / 2; n++) {
                const u32 query = base + n;
                const bool seen = query < queries
                    && page * PAGE + key <= in.positions[row_of(query)];
                scores[query * PAGE + key] = seen ? score[n] : MINUS_INFINITY;
            }
        }
        __syncthreads();
        load_page(tile, keys + pool.values_at, head_dim, held);

        // Weights: a warp has every fourth query.
        for (u32 query = warp; query < queries; query += CTA / WARP) {
            float* row = scores + query * PAGE;
            const float a = row[lane], b = row[lane + WARP];
            const float before = largest_of[query];
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
                const float weights = __fmaf_rn(sum_of[query], scale, sum);
                largest_of[query] = largest, sum_of[query] = weights, scale_by[query] = scale;
                const u32 seen = in.positions[row_of(query)] / PAGE + 1;
                const bool ends = page + 1 == seen || (page + 1) % run_pages(seen) == 0;
                fold[query] = !SPLIT && ends && page < seen;
                if (fold[query]) {
                    float joined, keep, take;
                    join_weights(total_largest[query], largest, joined, keep, take);
                    const float old = __fmul_rn(total_sum[query], keep);
                    total_sum[query] = __fmaf_rn(weights, take, old);
                    total_largest[query] = joined, keep_by[query] = keep, take_by[query] = take;
                    largest_of[query] = MINUS_INFINITY, sum_of[query] = 0.0f;
                }
            }
        }
        __syncthreads();

        // Values: a thread has COLS columns of MINE queries.
#pragma unroll
        for (int n = 0; n < MINE; n++) {
            if (mine + n < queries) {
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    run[n][c] = __fmul_rn(run[n][c], scale_by[mine + n]);
                }
            }
        }
        if (col < head_dim && mine < queries) {
            for (u32 key = 0; key < held; key += 4) {
                float value[COLS][4];
#pragma unroll
                for (int c = 0; c < COLS; c++)
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const u32 at = col + c * CTA;
                        value[c][k] = at < head_dim ? value_of(tile[(key + k) * stride + at]) : 0;
                    }
#pragma unroll
                for (int n = 0; n < MINE; n++) {
                    const float4 w = *(const float4*)(scores + (mine + n) * PAGE + key);
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
        if (!SPLIT) {
#pragma unroll
            for (int n = 0; n < MINE; n++) {
                if (mine + n < queries && fold[mine + n]) {
#pragma unroll
                    for (int c = 0; c < COLS; c++) {
                        const float old = __fmul_rn(total[n][c], keep_by[mine + n]);
                        total[n][c] = __fmaf_rn(run[n][c], take_by[mine + n], old);
                        run[n][c] = 0.0f;
                    }
                }
            }
        }
    }
    __syncthreads();

#pragma unroll
    for (int n = 0; n < MINE; n++) {
        const u32 query = mine + n;
        if (query >= queries) continue;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const u32 at = col + c * CTA;
            if (at >= head_dim) continue;
            if (SPLIT) {
                const u64 place = ((u64)blockIdx.x * in.heads + head_of(query)) * RUNS_MAX
                    + blockIdx.z;
                float* to_run = partials + place * (head_dim + 2);
                to_run[2 + at] = run[n][c];
                if (at == 0) to_run[0] = largest_of[query], to_run[1] = sum_of[query];
            } else {
                put_result(in, row_of(query), head_of(query) * head_dim + at, width,
                           __fdiv_rn(total[n][c], total_sum[query]));
            }
        }
    }
    if (!SPLIT && in.to.hi && head_of(0) + heads == in.heads) {
        for (u32 i = 0; i < rows; i++) pad_encoded(in.to, first_row + i, threadIdx.x, CTA);
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
