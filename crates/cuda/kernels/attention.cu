// Causal grouped-query attention over pages, read in place.
//
// A query (a row and a head) meets its keys page by page in position order. Runs of pages are
// reduced each on its own (largest score, sum of weights, weighted values) and joined in order; how
// many pages a run has depends on the position of the row alone. A CTA does all runs of a tile of
// queries in turn (prefill), or one run of one row (decode), and the runs are joined after: same
// bits. Two arithmetics, each with both routes:
//
// `attention_*`: scalar, f32, over a pool of bf16 or f32.
//
// `attend_*`: tensor cores over a pool of bf16. With `mma` for one m16n8k16, queries as its rows:
//     query = bf16(q * scale), head_dim padded with zeros to DIM
//     score = mma chain over DIM in steps of 16 columns, from 0; -inf where the key is ahead
//     top' = max(top, scores of the page); keep = 2^(top - top'); weight = bf16(2^(score - top'))
//     sum = sum * keep, values = values * keep; then for each step of 16 keys in order
//     sum = mma(weight, ones, sum), values = mma(weight, V, values)
// An element of an mma depends on its own row and column alone, a wgmma gives the same bits, and a
// largest score depends on no order. So prefill (a warp has 16 queries and whole pages) and decode
// (the warps of a CTA share a page's keys for the scores, then the columns of V for the values) do
// the same operations on a query. The sum, as a product with ones, has the order of the values and
// crosses no threads.

#define PAGE 64
#define CTA 128
#define RUNS_MAX 64
#define MINUS_INFINITY __int_as_float(0xff800000)

// Pages of a run of a row that sees `pages` pages: 2 up to 64 pages, then a multiple of 4.
__device__ __forceinline__ u32 run_pages(u32 pages) {
    return pages <= 64 ? 2 : (pages + 255) / 256 * 4;
}

struct Pool {
    const void* keys; // of the layer, first page
    u64 page_values;  // from one page to the next
    u64 values_at;    // from a head's keys to its values
    const u32* tables;
    u32 stride;
    u32 kv_heads;
    u32 head_dim;
};

struct Queries {
    const float* q; // [rows, heads * head_dim]
    float* o;
    const u32* positions;
    const u32* lanes;
    const u32* tiles; // first row and rows of each
    u32 heads;
    float scale;     // of scores, in powers of two
    Encoded to;      // [rows, heads * head_dim]; `o` is unused where it has an address
    u32* arrived;    // [lanes_max, kv_heads]: zero between launches
    float* partials; // [lanes_max, heads, RUNS_MAX * (head_dim + 2)]
};

// One value of the result.
__device__ __forceinline__ void put_result(const Queries& in, u32 row, u32 col, u32 width,
                                           float value) {
    if (in.to.hi) {
        put_encoded(in.to, row, col, value);
    } else {
        in.o[(u64)row * width + col] = value;
    }
}

// Joins a run to what is there: all in terms of the same operations in both routes.
__device__ __forceinline__ void join_weights(float before, float run, float& largest, float& keep,
                                             float& take) {
    largest = fmaxf(before, run);
    keep = exp2_fast(__fsub_rn(before, largest));
    take = exp2_fast(__fsub_rn(run, largest));
}

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

#define ATTENTION(NAME, T, DIM)                                                          \
    extern "C" __global__ void __launch_bounds__(CTA, DIM == 256 ? 2 : 3)                \
    NAME##_##DIM(Queries in, Pool pool, float* partials) {                               \
        attention<T, DIM, 16, false>(in, pool, partials);                                \
    }                                                                                    \
    extern "C" __global__ void __launch_bounds__(CTA, 4)                                 \
    NAME##_split_##DIM(Queries in, Pool pool, float* partials) {                         \
        attention<T, DIM, 8, true>(in, pool, partials);                                  \
    }
#define ATTENTIONS(NAME, T)                                                              \
    ATTENTION(NAME, T, 16) ATTENTION(NAME, T, 32) ATTENTION(NAME, T, 64)                 \
    ATTENTION(NAME, T, 128) ATTENTION(NAME, T, 256)

ATTENTIONS(attention_bf16, u16)
ATTENTIONS(attention_f32, float)

// ---- Tensor cores

// D += A B: A [16 queries, 16], B [16, 8].
__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 by 8 matrices of shared memory; thread i names row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(u32 (&b)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(u32 (&b)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at)
                 : "memory");
}

// 16 bytes to shared memory; zeros where `bytes` is 0.
__device__ __forceinline__ void copy_async(u32 to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copies_end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING groups of copies are under way.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

// A page's keys or values of one head in shared memory: [64, DIM] bf16 in pieces of 16 bytes. The
// place of a piece in its row is XORed with `twist` of the row, so that the same pieces of eight
// rows lie in all banks.
template <int DIM>
struct Tile {
    static constexpr u32 ROW = 2 * DIM, BYTES = PAGE * ROW, PIECES = DIM / 8;

    static __device__ __forceinline__ u32 twist(u32 row) {
        return DIM >= 64 ? row % 8 : DIM == 32 ? row / 2 % 4 : row / 4 % 2;
    }

    // Starts to copy the first `held` rows; zeros below and beside them.
    template <int THREADS>
    static __device__ __forceinline__ void copy(u32 to, const u16* from, u32 head_dim, u32 held) {
#pragma unroll
        for (int i = 0; i < (PAGE * PIECES + THREADS - 1) / THREADS; i++) {
            const u32 at = i * THREADS + threadIdx.x;
            if (PAGE * PIECES % THREADS != 0 && at >= PAGE * PIECES) break;
            const u32 row = at / PIECES, piece = at % PIECES;
            const bool real = row < held && piece * 8 < head_dim;
            copy_async(to + row * ROW + (piece ^ twist(row)) * 16,
                       real ? from + row * head_dim + piece * 8 : from, real ? 16 : 0);
        }
    }

    // Keys [first, first + 16) and columns [16 * step, + 16): right operands of two mma, keys side
    // by side, from load_matrices.
    static __device__ __forceinline__ u32 keys_at(u32 tile, u32 first, u32 step) {
        const u32 lane = threadIdx.x % WARP, row = lane / 16 * 8 + lane % 8;
        return tile + (first + row) * ROW + (step * 32 ^ (lane / 8 % 2 ^ twist(lane % 8)) * 16);
    }

    // Keys [16 * step, + 16) and columns [first, first + 16): right operands of two mma, columns
    // side by side, from load_transposed. `first` is a multiple of 16.
    static __device__ __forceinline__ u32 values_at(u32 tile, u32 step, u32 first) {
        const u32 lane = threadIdx.x % WARP, row = lane / 8 % 2 * 8 + lane % 8;
        return tile + (step * 16 + row) * ROW + (first * 2 ^ (lane / 16 ^ twist(lane % 8)) * 16);
    }
};

// Two neighbours of a query, scaled and rounded; zeros where there is none.
__device__ __forceinline__ u32 query_pair(const float* q, bool real, u32 col, u32 head_dim,
                                          float scale) {
    if (!real || col >= head_dim) return 0;
    const float2 pair = *(const float2*)(q + col);
    return bf16_pair(__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale));
}

// The left operand of step `step` of two queries: q0 for rows 0..8 of the fragment, q1 for 8..16.
__device__ __forceinline__ void query_step(u32 (&a)[4], const float* q0, bool real0,
                                           const float* q1, bool real1, u32 step, u32 head_dim,
                                           float scale) {
    const u32 col = step * 16 + threadIdx.x % 4 * 2;
    a[0] = query_pair(q0, real0, col, head_dim, scale);
    a[1] = query_pair(q1, real1, col, head_dim, scale);
    a[2] = query_pair(q0, real0, col + 8, head_dim, scale);
    a[3] = query_pair(q1, real1, col + 8, head_dim, scale);
}

__device__ __forceinline__ void put_two(const Queries& in, u32 row, u32 col, u32 width, float a,
                                        float b) {
    if (in.to.hi) {
        put_encoded_two(in.to, row, col, a, b);
    } else {
        *(float2*)(in.o + (u64)row * width + col) = make_float2(a, b);
    }
}

// The largest of four threads that have one row of a fragment.
__device__ __forceinline__ float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

#define ONES 0x3f803f80u // two bf16
#define SPLIT_HEADS 16
#define SPLIT_THREADS 128

template <int DIM>
struct Split {
    static constexpr u32 RING = 3;                             // tiles: keys, values, keys, ...
    static constexpr u32 KEYS = PAGE / 4;                      // of a warp, for scores
    static constexpr u32 TILES = DIM / 32 > 2 ? DIM / 32 : 2;  // of 8 columns of a warp, for values
    static constexpr u32 WEIGHTS = RING * Tile<DIM>::BYTES;    // where they start
    static constexpr u32 PAGES = WEIGHTS + PAGE * SPLIT_HEADS * 2; // bytes while pages are read
    static constexpr u32 JOIN = 3 * SPLIT_HEADS * RUNS_MAX * 4;    // and while runs are joined
    static constexpr u32 SHARED = PAGES > JOIN ? PAGES : JOIN;
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
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ float4 load_four(const float* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
    return v;
}

// Joins the runs of a row for `heads` heads from `head` on, by what `attend_split` left at `from`.
__device__ __forceinline__ void join_runs(const Queries& in, const float* from, float* shared,
                                          u32 row, u32 head, u32 heads, u32 runs, u32 head_dim) {
    constexpr u32 AHEAD = 16; // runs whose values are on their way together
    float* keep_by = shared;  // [SPLIT_HEADS, RUNS_MAX], and so the others
    float* take_by = keep_by + SPLIT_HEADS * RUNS_MAX;
    float* sums = take_by + SPLIT_HEADS * RUNS_MAX;
    const u32 lane = threadIdx.x % WARP, wide = RUNS_MAX * (head_dim + 2);
    const u32 pieces = head_dim / 4;
    float4 part[AHEAD];
    auto load = [&](u32 at, u32 first) {
        const float* values = from + (u64)(at / pieces) * wide + at % pieces * 4;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (first + n < runs) part[n] = load_four(values + (first + n) * head_dim);
        }
    };
    if (threadIdx.x < heads * pieces) load(threadIdx.x, 0);

    for (u32 i = threadIdx.x / WARP; i < heads; i += SPLIT_THREADS / WARP) {
        const float* pairs = from + (u64)i * wide + RUNS_MAX * head_dim + 2 * lane;
        float2 run[RUNS_MAX / WARP]; // largest and sum
#pragma unroll
        for (int h = 0; h < RUNS_MAX / WARP; h++) {
            run[h] = make_float2(MINUS_INFINITY, 0.0f);
            if (h * WARP + lane < runs) run[h] = load_two(pairs + 2 * h * WARP);
        }
        float before = MINUS_INFINITY;
#pragma unroll
        for (int h = 0; h < RUNS_MAX / WARP; h++) {
            float largest = fmaxf(run[h].x, before);
#pragma unroll
            for (int step = 1; step < WARP; step *= 2) {
                const float other = __shfl_up_sync(ALL_LANES, largest, step);
                if (lane >= step) largest = fmaxf(largest, other);
            }
            const float left = __shfl_up_sync(ALL_LANES, largest, 1);
            const u32 place = i * RUNS_MAX + h * WARP + lane;
            float joined, keep, take;
            join_weights(lane == 0 ? before : left, run[h].x, joined, keep, take);
            keep_by[place] = keep, take_by[place] = take, sums[place] = run[h].y;
            before = __shfl_sync(ALL_LANES, largest, WARP - 1);
        }
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < heads * pieces; at += SPLIT_THREADS) {
        const u32 i = at / pieces;
        float sum = 0.0f, total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (u32 first = 0; first < runs; first += AHEAD) {
            if (first > 0 || at != threadIdx.x) load(at, first);
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                if (first + n < runs) {
                    const u32 place = i * RUNS_MAX + first + n;
                    const float keep = keep_by[place], take = take_by[place];
                    sum = __fmaf_rn(sums[place], take, __fmul_rn(sum, keep));
                    total[0] = __fmaf_rn(part[n].x, take, __fmul_rn(total[0], keep));
                    total[1] = __fmaf_rn(part[n].y, take, __fmul_rn(total[1], keep));
                    total[2] = __fmaf_rn(part[n].z, take, __fmul_rn(total[2], keep));
                    total[3] = __fmaf_rn(part[n].w, take, __fmul_rn(total[3], keep));
                }
            }
        }
        const u32 place = head * head_dim + at * 4, width = in.heads * head_dim;
        put_two(in, row, place, width, __fdiv_rn(total[0], sum), __fdiv_rn(total[1], sum));
        put_two(in, row, place + 2, width, __fdiv_rn(total[2], sum), __fdiv_rn(total[3], sum));
    }
    __syncthreads();
}

// One run of one row and up to 16 heads of one KV head; the last CTA of the row and KV head joins.
// Grid: rows, kv_heads * ceil(group / 16), runs. Partials of a row and head: values
// [RUNS_MAX, head_dim], then largest and sum [RUNS_MAX, 2].
template <int DIM>
__device__ __forceinline__ void attend_split(const Queries& in, const Pool& pool) {
    using S = Split<DIM>;
    using T = Tile<DIM>;
    extern __shared__ __align__(128) u8 tiles[];
    __shared__ float largest_of[4][SPLIT_HEADS]; // of each warp's keys
    __shared__ u32 is_last;

    depend_go();
    depend_wait();
    // Where all rows are cut, as is usual, a row is its own tile: nothing waits for `tiles`.
    const u32 row = in.tiles[2 * blockIdx.x];
    u32 last = in.positions[blockIdx.x], sequence = in.lanes[blockIdx.x];
    if (row != blockIdx.x) last = in.positions[row], sequence = in.lanes[row];
    const u32* table = pool.tables + (u64)sequence * pool.stride;
    const u32 pages = last / PAGE + 1, length = run_pages(pages);
    const u32 from = blockIdx.z * length;
    if (from >= pages) return;
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
    auto copy = [&](u32 tile) {
        const u32 page = from + tile / 2;
        if (page < to) {
            if (tile > 0 && tile % (2 * WARP) == 0) ids = table[min(page + lane, to - 1)];
            const u32 id = __shfl_sync(ALL_LANES, ids, tile / 2 % WARP);
            const u16* head = (const u16*)pool.keys + (u64)id * pool.page_values
                + (u64)kv_head * PAGE * head_dim + tile % 2 * pool.values_at;
            T::template copy<SPLIT_THREADS>(tile_at(tile), head, head_dim,
                                            min((u32)PAGE, last + 1 - page * PAGE));
        }
        copies_end_group();
    };
#pragma unroll
    for (int i = 0; i < S::RING; i++) copy(i);

    u32 q[DIM / 16][4];
    const float* q0 = in.q + ((u64)row * in.heads + kv_head * group + first_head + quad) * head_dim;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        query_step(q[step], q0, quad < heads, q0 + 8 * head_dim, quad + 8 < heads, step, head_dim,
                   in.scale);
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
        // The values before these keys are done with, and so the keys by the next barrier: their
        // place in the ring is filled at once.
        if (tile == 0) {
            copies_wait<S::RING - 1>();
            __syncthreads();
        } else {
            copies_wait<S::RING - 2>();
            __syncthreads();
            copy(tile + S::RING - 1);
        }
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
        copy(tile + S::RING);

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
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 head = first_head + quad + 8 * r;
        if (head >= first_head + heads || first_col >= DIM) continue;
        float* part = partials + head * wide;
#pragma unroll
        for (int n = 0; n < S::TILES; n++) {
            const u32 col = first_col + n * 8 + two;
            if (col >= head_dim) continue;
            const float a = values[n][2 * r], b = values[n][2 * r + 1];
            if (runs == 1) { // as it is joined to nothing
                put_two(in, row, (kv_head * group + head) * head_dim + col, in.heads * head_dim,
                        __fdiv_rn(__fadd_rn(a, 0.0f), sum[2 * r]),
                        __fdiv_rn(__fadd_rn(b, 0.0f), sum[2 * r]));
            } else {
                *(float2*)(part + blockIdx.z * head_dim + col) = make_float2(a, b);
            }
        }
        if (runs > 1 && warp == 0 && two == 0) {
            *((float2*)(part + RUNS_MAX * head_dim) + blockIdx.z) = make_float2(top[r], sum[2 * r]);
        }
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
            join_runs(in, partials + head * wide, (float*)tiles, row, kv_head * group + head,
                      min(group - head, (u32)SPLIT_HEADS), runs, head_dim);
        }
    }
    if (in.to.hi && kv_head + 1 == pool.kv_heads) {
        pad_encoded(in.to, row, threadIdx.x, SPLIT_THREADS);
    }
}

// A tile of at most `most` queries of one KV head. Grid: tiles, kv_heads * ceil(group / most). The
// deepest tiles go first.
struct TileOf {
    u32 head_dim, first_row, rows, heads, queries; // heads of a row
    u32 kv_head, head;                             // head: the first one
    u32 last, pages;                               // position of the last row, pages that it sees
    const u32* table;
    bool ends_row; // has the last head

    __device__ __forceinline__ TileOf(const Queries& in, const Pool& pool, u32 most) {
        head_dim = pool.head_dim;
        const u32 group = in.heads / pool.kv_heads, chunks = (group + most - 1) / most;
        const u32 first_head = blockIdx.y % chunks * most, at = gridDim.x - 1 - blockIdx.x;
        kv_head = blockIdx.y / chunks, head = kv_head * group + first_head;
        first_row = in.tiles[2 * at], rows = in.tiles[2 * at + 1];
        heads = min(group - first_head, most), queries = min(rows * heads, most);
        last = in.positions[first_row + rows - 1], pages = last / PAGE + 1;
        table = pool.tables + (u64)in.lanes[first_row] * pool.stride;
        ends_row = head + heads == in.heads;
    }

    __device__ __forceinline__ u32 row_of(u32 query) const { return first_row + query / heads; }
    __device__ __forceinline__ u32 head_of(u32 query) const { return head + query % heads; }
    __device__ __forceinline__ const float* query_at(const Queries& in, u32 query) const {
        return in.q + ((u64)row_of(query) * in.heads + head_of(query)) * head_dim;
    }
};

// The two queries of a thread, rows lane / 4 and lane / 4 + 8 of its warp's fragment, and what of
// them is summed: N tiles of 8 columns.
template <int N>
struct Summed {
    u32 position[2], end[2], lowest; // end: of the run under way; lowest: position of the warp's
    float top[2], sum[4], values[N][4];
    float total_top[2], total_sum[2], total[N][4];

    __device__ __forceinline__ Summed(const Queries& in, const TileOf& tile, u32 first_query) {
        const u32 query = first_query + threadIdx.x % WARP / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool real = query + 8 * r < tile.queries;
            position[r] = real ? in.positions[tile.row_of(query + 8 * r)] : tile.last;
            const u32 seen = position[r] / PAGE + 1;
            end[r] = min(run_pages(seen), seen);
            top[r] = total_top[r] = MINUS_INFINITY, total_sum[r] = 0.0f;
        }
        lowest = __reduce_min_sync(ALL_LANES, min(position[0], position[1]));
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sum[c] = 0.0f;
#pragma unroll
            for (int n = 0; n < N; n++) values[n][c] = total[n][c] = 0.0f;
        }
    }

    // Follows the largest scores of a page; what was summed before shrinks to match.
    __device__ __forceinline__ void follow(float (&score)[8][4], u32 page, float (&against)[2]) {
        if (page * PAGE + PAGE - 1 > lowest) {
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const u32 key = page * PAGE + n * 8 + threadIdx.x % 4 * 2 + c % 2;
                    if (key > position[c / 2]) score[n][c] = MINUS_INFINITY;
                }
        }
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = MINUS_INFINITY;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                largest = fmaxf(largest, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
            }
            const float next = fmaxf(top[r], quad_max(largest));
            // A query that has seen its last page meets no key; nothing of it is joined any more.
            against[r] = next > MINUS_INFINITY ? next : 0.0f;
            keep[r] = exp2_fast(__fsub_rn(top[r], against[r]));
            top[r] = next;
        }
        if (__any_sync(ALL_LANES, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                sum[c] = __fmul_rn(sum[c], keep[c / 2]);
#pragma unroll
                for (int n = 0; n < N; n++) values[n][c] = __fmul_rn(values[n][c], keep[c / 2]);
            }
        }
    }

    // The weights of step `step` of 16 keys, as the left operand of an mma; adds them to the sum.
    __device__ __forceinline__ void weigh(u32 (&a)[4], const float (&score)[8][4], int step,
                                          const float (&against)[2]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* pair = score[2 * step + i / 2] + i % 2 * 2;
            a[i] = bf16_pair(exp2_fast(__fsub_rn(pair[0], against[i % 2])),
                             exp2_fast(__fsub_rn(pair[1], against[i % 2])));
        }
        mma(sum, a[0], a[1], a[2], a[3], ONES, ONES);
    }

    // Joins a run that ends after `pages` pages.
    __device__ __forceinline__ void join(u32 pages) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (pages != end[r]) continue;
            float joined, keep, take;
            join_weights(total_top[r], top[r], joined, keep, take);
            total_sum[r] = __fmaf_rn(sum[2 * r], take, __fmul_rn(total_sum[r], keep));
            sum[2 * r] = sum[2 * r + 1] = 0.0f;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int c = 2 * r; c < 2 * r + 2; c++) {
                    total[n][c] = __fmaf_rn(values[n][c], take, __fmul_rn(total[n][c], keep));
                    values[n][c] = 0.0f;
                }
            total_top[r] = joined, top[r] = MINUS_INFINITY;
            const u32 seen = position[r] / PAGE + 1;
            end[r] = min(end[r] + run_pages(seen), seen);
        }
    }

    __device__ __forceinline__ void put(const Queries& in, const TileOf& tile, u32 first_query,
                                        u32 first_col) const {
        const u32 query = first_query + threadIdx.x % WARP / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (query + 8 * r >= tile.queries) continue;
            const u32 row = tile.row_of(query + 8 * r);
            const u32 first = tile.head_of(query + 8 * r) * tile.head_dim;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const u32 col = first_col + n * 8 + threadIdx.x % 4 * 2;
                if (col < tile.head_dim) {
                    put_two(in, row, first + col, in.heads * tile.head_dim,
                            __fdiv_rn(total[n][2 * r], total_sum[r]),
                            __fdiv_rn(total[n][2 * r + 1], total_sum[r]));
                }
            }
        }
    }
};

template <int DIM>
struct Whole {
    static constexpr u32 THREADS = 256;
    static constexpr u32 SHARES = DIM > 128 ? 2 : 1; // warps that share the columns of a query
    static constexpr u32 GROUPS = THREADS / WARP / SHARES; // of 16 queries
    static constexpr u32 QUERIES = 16 * GROUPS;
    static constexpr u32 RING = DIM > 128 ? 1 : 2; // pages in shared memory
    static constexpr u32 TILES = DIM / 8 / SHARES; // of 8 columns of a warp
    static constexpr bool Q_SHARED = DIM > 128;    // else in registers
    static constexpr u32 Q_AT = RING * 2 * Tile<DIM>::BYTES;
    static constexpr u32 SHARED = Q_AT + (Q_SHARED ? QUERIES * DIM * 2 : 0);
};

// A tile of queries over all their pages.
template <int DIM>
__device__ __forceinline__ void attend_tiles(const Queries& in, const Pool& pool) {
    using S = Whole<DIM>;
    using T = Tile<DIM>;
    constexpr u32 STEPS = DIM / 16;
    extern __shared__ __align__(128) u8 tiles[];

    depend_go();
    depend_wait();
    const TileOf of(in, pool, S::QUERIES);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, pages = of.pages;
    const u32 share = warp / S::GROUPS, first_col = share * S::TILES * 8;
    const u32 ring = shared_address(tiles);
    Summed<S::TILES> summed(in, of, warp % S::GROUPS * 16);
    const u32 highest =
        __reduce_max_sync(ALL_LANES, max(summed.position[0], summed.position[1]));

    auto copy = [&](u32 page, u32 id, u64 part, u32 to) {
        const u16* from = (const u16*)pool.keys + (u64)id * pool.page_values
            + (u64)of.kv_head * PAGE * of.head_dim + part;
        const u32 held = min((u32)PAGE, of.last + 1 - page * PAGE);
        T::template copy<S::THREADS>(to, from, of.head_dim, held);
    };
    auto keys_tile = [&](u32 page) { return ring + page % S::RING * 2 * T::BYTES; };
    u32 id = of.table[0], next_id = of.table[min(1u, pages - 1)];
    copy(0, id, 0, keys_tile(0));
    if (S::RING > 1) copy(0, id, pool.values_at, keys_tile(0) + T::BYTES);
    copies_end_group();

    u32 q[S::Q_SHARED ? 1 : STEPS][4];
    uint4* q_shared = (uint4*)(tiles + S::Q_AT) + warp % S::GROUPS * STEPS * WARP + lane;
    const u32 query = warp % S::GROUPS * 16 + lane / 4;
    const bool real0 = query < of.queries, real1 = query + 8 < of.queries;
    const float *q0 = of.query_at(in, query), *q1 = of.query_at(in, query + 8);
    if (S::Q_SHARED) {
        for (u32 step = share; step < STEPS; step += S::SHARES) {
            query_step(q[0], q0, real0, q1, real1, step, of.head_dim, in.scale);
            q_shared[step * WARP] = make_uint4(q[0][0], q[0][1], q[0][2], q[0][3]);
        }
    } else {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            query_step(q[S::Q_SHARED ? 0 : step], q0, real0, q1, real1, step, of.head_dim,
                       in.scale);
        }
    }

    for (u32 page = 0; page < pages; page++) {
        const bool mine = page * PAGE <= highest;
        const u32 tile = keys_tile(page);
        copies_wait<0>();
        __syncthreads();
        if (S::RING > 1) {
            if (page + 1 < pages) {
                copy(page + 1, next_id, 0, keys_tile(page + 1));
                copy(page + 1, next_id, pool.values_at, keys_tile(page + 1) + T::BYTES);
            }
        } else {
            copy(page, id, pool.values_at, tile + T::BYTES);
            id = next_id;
        }
        copies_end_group();

        float score[8][4];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) score[n][c] = 0.0f;
        if (mine) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                u32 a[4];
                if (S::Q_SHARED) {
                    const uint4 v = q_shared[step * WARP];
                    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++) a[i] = q[S::Q_SHARED ? 0 : step][i];
                }
#pragma unroll
                for (int n = 0; n < 8; n += 2) {
                    u32 b[4];
                    load_matrices(b, T::keys_at(tile, n * 8, step));
                    mma(score[n], a[0], a[1], a[2], a[3], b[0], b[1]);
                    mma(score[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                }
            }
        }
        if (S::RING == 1) {
            copies_wait<0>();
            __syncthreads();
            if (page + 1 < pages) copy(page + 1, id, 0, tile);
            copies_end_group();
        }
        next_id = of.table[min(page + 2, pages - 1)];
        if (!mine) continue;

        float against[2];
        summed.follow(score, page, against);
#pragma unroll
        for (int step = 0; step < 4; step++) {
            u32 a[4];
            summed.weigh(a, score, step, against);
#pragma unroll
            for (int n = 0; n < S::TILES; n += 2) {
                u32 b[4];
                load_transposed(b, T::values_at(tile + T::BYTES, step, first_col + n * 8));
                mma(summed.values[n], a[0], a[1], a[2], a[3], b[0], b[1]);
                mma(summed.values[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
        }
        summed.join(page + 1);
    }

    summed.put(in, of, warp % S::GROUPS * 16, first_col);
    if (in.to.hi && of.ends_row) {
        for (u32 i = 0; i < of.rows; i++) {
            pad_encoded(in.to, of.first_row + i, threadIdx.x, S::THREADS);
        }
    }
}

// How tiles are met, by width.
template <int DIM>
struct Met : Whole<DIM> {
    static __device__ __forceinline__ void attend(const Queries& in, const Pool& pool) {
        attend_tiles<DIM>(in, pool);
    }
};

#if __CUDA_ARCH__ == 900

// Hopper, widths 64 and 128: groups of four warps, each with 64 queries, multiply by wgmma, which
// reads keys and values where four more warps have put them. A tile in shared memory: for each 64
// columns 64 rows of 128 bytes; the place of a piece of 16 bytes in its row is XORed with row % 8,
// which wgmma knows as the swizzle of 128 bytes. It sums along the rows of keys and across those of
// values.

template <int DIM>
struct Groups {
    static constexpr u32 COUNT = DIM > 64 ? 2 : 3; // that compute
    static constexpr u32 QUERIES = 64 * COUNT, THREADS = 128 * (COUNT + 1);
    static constexpr u32 BYTES = PAGE * DIM * 2, SLOTS = 8; // tiles: keys, values, keys, ...
    // Barriers, and tiles from the next multiple of 1,024 on, wherever the multiples of 128 begin.
    static constexpr u32 SHARED = 1024 + SLOTS * BYTES;
    static_assert(2 * SLOTS * 8 <= 128, "the barriers have room");
    // Registers of a thread: 64 K in all, of which every thread begins with the same share.
    static constexpr u32 REGISTERS = COUNT == 2 ? 240 : 160, COPY_REGISTERS = COUNT == 2 ? 24 : 32;
};

template <u32 COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <u32 COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// What this thread wrote to shared memory is there for wgmma.
__device__ __forceinline__ void show_wgmma() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The turn to multiply passes from group to group.
__device__ __forceinline__ void take_turn(u32 group) {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void give_turn(u32 group) {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory");
}

__device__ __forceinline__ void wgmma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_end_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Keeps what is done to registers of a wgmma on its side of a fence or a wait.
template <int N>
__device__ __forceinline__ void hold(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) asm volatile("" : "+f"(d[n][c])::"memory");
}

template <int N>
__device__ __forceinline__ void hold(u32 (&a)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) asm volatile("" : "+r"(a[n][c])::"memory");
}

// Where wgmma finds its right operand, in pieces of 64 columns: 8 rows lie 1,024 bytes apart. With
// rows along the sum, as values have them, pieces of columns lie `apart`.
__device__ __forceinline__ u64 tile_descriptor(u32 address, u32 apart) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(apart >> 4) << 16 | (u64)(1024 >> 4) << 32
        | (u64)1 << 62;
}

#define FOUR(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, i + 1), FOUR(d, i + 2), FOUR(d, i + 3)

// D = A B, or D += A B: A [64, 16] in registers, B [16, 64] or [16, 128] in shared memory, its rows
// one after the other (ACROSS) or its columns.
template <int ACROSS>
__device__ __forceinline__ void wgmma(float (&d)[8][4], const u32 (&a)[4], u64 b, u32 add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1, %38;\n"
        "}"
        : SIXTEEN(d, 0), SIXTEEN(d, 4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(ACROSS));
}

template <int ACROSS>
__device__ __forceinline__ void wgmma(float (&d)[16][4], const u32 (&a)[4], u64 b, u32 add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, add, 1, 1, %70;\n"
        "}"
        : SIXTEEN(d, 0), SIXTEEN(d, 4), SIXTEEN(d, 8), SIXTEEN(d, 12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(ACROSS));
}

// The four warps that copy: each every fourth tile.
template <int DIM>
__device__ __forceinline__ void copy_tiles(const Pool& pool, const TileOf& of, u32 ring, u64* full,
                                           u64* empty) {
    using S = Groups<DIM>;
    constexpr u32 PIECES = DIM / 8, ROWS = WARP / PIECES; // of a row; at a time
    const u32 lane = threadIdx.x % WARP, row = lane / PIECES, piece = lane % PIECES;
    const u32 first = threadIdx.x / WARP % 4;
    const bool real = piece * 8 < of.head_dim;
    const u16* pieces = (const u16*)pool.keys + first % 2 * pool.values_at
        + (u64)of.kv_head * PAGE * of.head_dim + (real ? row * of.head_dim + piece * 8 : 0);
    u32 id = of.table[min(first / 2, of.pages - 1)];
    for (u32 tile = first; tile < 2 * of.pages; tile += 4) {
        const u32 page = tile / 2, slot = tile % S::SLOTS;
        const u32 held = real ? min((u32)PAGE, of.last + 1 - page * PAGE) : 0;
        const u16* from = pieces + (u64)id * pool.page_values;
        id = of.table[min(page + 2, of.pages - 1)];
        barrier_wait(empty + slot, tile / S::SLOTS % 2 ^ 1);
        const u32 to = ring + slot * S::BYTES + piece / 8 * (PAGE * 128) + row * 128;
#pragma unroll
        for (int i = 0; i < PAGE / ROWS; i++) {
            copy_async(to + i * ROWS * 128 + (piece % 8 ^ (i * ROWS % 8 | row)) * 16, from,
                       i * ROWS + row < held ? 16 : 0);
            from += ROWS * of.head_dim;
        }
        copies_end_group();
        copies_wait<0>();
        show_wgmma();
        __syncwarp();
        if (lane == 0) barrier_arrive(full + slot);
    }
}

// A group's queries over all their pages. The product of a page's weights with its values is on its
// way while that of the next keys is asked for; meanwhile other groups have the turn.
template <int DIM>
__device__ __forceinline__ void meet_tiles(const Queries& in, const Pool& pool, u32 ring, u64* full,
                                           u64* empty) {
    using S = Groups<DIM>;
    const TileOf of(in, pool, S::QUERIES);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = warp / 4;
    const u32 next = group + 1 == S::COUNT ? 0 : group + 1;
    Summed<DIM / 8> summed(in, of, warp * 16);
    u32 mine = 0; // pages that the group sees
    if (group * 64 < of.queries) {
        mine = in.positions[of.row_of(min(group * 64 + 63, of.queries - 1))] / PAGE + 1;
    }
    u32 q[DIM / 16][4];
    const u32 query = warp * 16 + lane / 4;
    const bool real0 = query < of.queries, real1 = query + 8 < of.queries;
    const float *q0 = of.query_at(in, query), *q1 = of.query_at(in, query + 8);
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        query_step(q[step], q0, real0, q1, real1, step, of.head_dim, in.scale);
    }
    auto at = [&](u32 tile) { return ring + tile % S::SLOTS * S::BYTES; };
    auto arrive_full = [&](u32 tile) { barrier_wait(full + tile % S::SLOTS, tile / S::SLOTS % 2); };
    auto done_with = [&](u32 tile) {
        if (lane == 0) barrier_arrive(empty + tile % S::SLOTS);
    };

    // Each turn is for the values of one page and the keys of the next. The last group starts as if
    // it had had the one before; nobody waits for the one after the last.
    if (next == 0) give_turn(0);
    take_turn(group);
    for (u32 page = 0; page < mine; page++) {
        float score[8][4];
        arrive_full(2 * page);
        const u64 keys = tile_descriptor(at(2 * page), 16);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            const u64 columns = keys + step / 4 * (PAGE * 128 >> 4) + step % 4 * (32 >> 4);
            wgmma<0>(score, q[step], columns, step > 0);
        }
        wgmma_end_group();
        give_turn(next);
        wgmma_wait();
        hold(score);
        hold(summed.values);
        if (page > 0) done_with(2 * page - 1);
        done_with(2 * page);
        summed.join(page);

        float against[2];
        summed.follow(score, page, against);
        u32 weights[4][4];
#pragma unroll
        for (int step = 0; step < 4; step++) summed.weigh(weights[step], score, step, against);
        arrive_full(2 * page + 1);
        take_turn(group);
        const u64 values = tile_descriptor(at(2 * page + 1), PAGE * 128);
        hold(summed.values);
        hold(weights);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            wgmma<1>(summed.values, weights[step], values + step * (16 * 128 >> 4), 1);
        }
        wgmma_end_group();
    }
    if (next > 0 || mine < of.pages) give_turn(next);
    wgmma_wait();
    hold(summed.values);
    if (mine > 0) done_with(2 * mine - 1);
    summed.join(mine);
#pragma unroll 1
    for (u32 page = mine; page < of.pages; page++) {
#pragma unroll 1
        for (u32 tile = 2 * page; tile < 2 * page + 2; tile++) arrive_full(tile), done_with(tile);
        take_turn(group);
        if (next > 0 || page + 1 < of.pages) give_turn(next);
    }

    const TileOf again(in, pool, S::QUERIES); // rather than kept in registers
    summed.put(in, again, warp * 16, 0);
    if (in.to.hi && again.ends_row) {
        for (u32 i = 0; i < again.rows; i++) {
            pad_encoded(in.to, again.first_row + i, threadIdx.x, 128 * S::COUNT);
        }
    }
}

template <int DIM>
__device__ __forceinline__ void attend_groups(const Queries& in, const Pool& pool) {
    using S = Groups<DIM>;
    extern __shared__ __align__(128) u8 tiles[];
    u64 *full = (u64*)tiles, *empty = full + S::SLOTS;
    depend_go();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < S::SLOTS; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 4 * S::COUNT);
        }
        barriers_ready();
    }
    __syncthreads();
    depend_wait();
    const u32 ring = (shared_address(tiles) + 128 + 1023) / 1024 * 1024;
    if (threadIdx.x / 128 == S::COUNT) {
        fewer_registers<S::COPY_REGISTERS>();
        copy_tiles<DIM>(pool, TileOf(in, pool, S::QUERIES), ring, full, empty);
    } else {
        more_registers<S::REGISTERS>();
        meet_tiles<DIM>(in, pool, ring, full, empty);
    }
}

#define BY_GROUPS(DIM)                                                                   \
    template <>                                                                          \
    struct Met<DIM> : Groups<DIM> {                                                      \
        static __device__ __forceinline__ void attend(const Queries& in, const Pool& pool) { \
            attend_groups<DIM>(in, pool);                                                \
        }                                                                                \
    };

BY_GROUPS(64)
BY_GROUPS(128)

#endif

// Both routes for a width of head; CTAs of each that share a processor.
#define ATTEND(DIM, SPLITS, TILES)                                                       \
    extern "C" __global__ void __launch_bounds__(SPLIT_THREADS, SPLITS)                  \
    attend_split_##DIM(Queries in, Pool pool) { attend_split<DIM>(in, pool); }           \
    extern "C" __global__ void __launch_bounds__(Met<DIM>::THREADS, TILES)               \
    attend_tiles_##DIM(Queries in, Pool pool) { Met<DIM>::attend(in, pool); }

ATTEND(16, 4, 2)
ATTEND(32, 4, 2)
ATTEND(64, 4, 1)
ATTEND(128, 4, 1)
ATTEND(256, 2, 1)

// What a launch needs to know, by width: queries of a CTA (of the split: heads), threads, bytes of
// dynamic shared memory.
#define TILES_SHAPE(DIM) Met<DIM>::QUERIES, Met<DIM>::THREADS, Met<DIM>::SHARED
#define SPLIT_SHAPE(DIM) SPLIT_HEADS, SPLIT_THREADS, Split<DIM>::SHARED
extern "C" __constant__ u32 attend_shape[15] = {
    TILES_SHAPE(16), TILES_SHAPE(32), TILES_SHAPE(64), TILES_SHAPE(128), TILES_SHAPE(256),
};
extern "C" __constant__ u32 attend_split_shape[15] = {
    SPLIT_SHAPE(16), SPLIT_SHAPE(32), SPLIT_SHAPE(64), SPLIT_SHAPE(128), SPLIT_SHAPE(256),
};
