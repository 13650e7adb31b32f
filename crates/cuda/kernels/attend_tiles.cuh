// Attention on tensor cores, prefill: what a CTA takes, and how a warp sums its queries. Who loads
// pages and multiplies, and when, is one of `attend_whole.cuh`, `attend_pair.cuh` and
// `attend_hopper.cuh`, by card and width.

// A tile of at most `most` queries of one KV head. Grid: tiles, kv_heads * ceil(group / most). The
// deepest tiles of all heads go first, so that the last CTAs are short ones.
struct QueryTile {
    u32 head_dim, first_row, rows, heads, queries; // heads of a row
    u32 kv_head, head;                             // head: the first one
    u32 last, pages;                               // position of the last row, pages that it sees
    const u32* table;
    bool ends_row; // has the last head

    __device__ __forceinline__ QueryTile(const Queries& in, const Pool& pool, u32 most) {
        head_dim = pool.head_dim;
        const u32 group = in.heads / pool.kv_heads, chunks = (group + most - 1) / most;
        const u32 nth = blockIdx.y * gridDim.x + blockIdx.x, chunk = nth % gridDim.y;
        const u32 first_head = chunk % chunks * most, at = gridDim.x - 1 - nth / gridDim.y;
        kv_head = chunk / chunks, head = kv_head * group + first_head;
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

// Zeros behind the rows of a tile.
__device__ __forceinline__ void pad_tile(const Queries& in, const QueryTile& tile, u32 threads) {
    for (u32 i = 0; i < tile.rows; i++) {
        pad_encoded(in.to, tile.first_row + i, threadIdx.x, threads);
    }
}

// Where the two queries of a thread are, `query` and 8 more: rows lane / 4 and lane / 4 + 8 of its
// warp's fragment.
struct QueryRows {
    const float *q0, *q1;
    bool real0, real1;
    u32 head_dim;
    float scale;

    __device__ __forceinline__ QueryRows(const Queries& in, const QueryTile& tile, u32 query) {
        real0 = query < tile.queries, real1 = query + 8 < tile.queries;
        q0 = tile.query_at(in, query), q1 = tile.query_at(in, query + 8);
        head_dim = tile.head_dim, scale = in.scale;
    }

    __device__ __forceinline__ void load(u32 (&a)[4], u32 step) const {
        query_step(a, q0, real0, q1, real1, step, head_dim, scale);
    }
};

// The two queries of a thread, rows lane / 4 and lane / 4 + 8 of its warp's fragment, and what of
// them is summed: N tiles of 8 columns.
template <int N>
struct Summed {
    u32 position[2], end[2], lowest; // end: of the run under way; lowest: position of the warp's
    float top[2], run_top[2], sum[4], values[N][4]; // run_top: of the run that ends
    float total_top[2], total_sum[2], total[N][4];

    __device__ __forceinline__ Summed(const Queries& in, const QueryTile& tile, u32 first_query) {
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

    // Follows the largest scores of a page. What was summed before is to shrink by `keep`; at the
    // start of a run nothing was, and 1 says so.
    __device__ __forceinline__ void follow(float (&score)[8][4], u32 page, float (&against)[2],
                                           float (&keep)[2]) {
        if (page * PAGE + PAGE - 1 > lowest) {
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const u32 key = page * PAGE + n * 8 + threadIdx.x % 4 * 2 + c % 2;
                    if (key > position[c / 2]) score[n][c] = MINUS_INFINITY;
                }
        }
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
            keep[r] = top[r] > MINUS_INFINITY ? exp2_fast(__fsub_rn(top[r], against[r])) : 1.0f;
            top[r] = next;
        }
    }

    __device__ __forceinline__ void shrink(const float (&keep)[2]) {
        if (!__any_sync(ALL_LANES, keep[0] != 1.0f || keep[1] != 1.0f)) return;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sum[c] = __fmul_rn(sum[c], keep[c / 2]);
#pragma unroll
            for (int n = 0; n < N; n++) values[n][c] = __fmul_rn(values[n][c], keep[c / 2]);
        }
    }

    // The weights of step `step` of 16 keys, as the left operand of an mma.
    static __device__ __forceinline__ void weigh(u32 (&a)[4], const float (&score)[8][4], int step,
                                                 const float (&against)[2]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* pair = score[2 * step + i / 2] + i % 2 * 2;
            a[i] = bf16_pair(exp2_fast(__fsub_rn(pair[0], against[i % 2])),
                             exp2_fast(__fsub_rn(pair[1], against[i % 2])));
        }
    }

    // Where a run ends after `pages` pages, what is followed from here on belongs to the next.
    __device__ __forceinline__ void leave(u32 pages) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (pages != end[r]) continue;
            run_top[r] = top[r], top[r] = MINUS_INFINITY;
        }
    }

    // Joins the run that was left after `pages` pages, once all of them are summed.
    __device__ __forceinline__ void join(u32 pages) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (pages != end[r]) continue;
            float joined, keep, take;
            join_weights(total_top[r], run_top[r], joined, keep, take);
            total_sum[r] = __fmaf_rn(sum[2 * r], take, __fmul_rn(total_sum[r], keep));
            sum[2 * r] = sum[2 * r + 1] = 0.0f;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int c = 2 * r; c < 2 * r + 2; c++) {
                    total[n][c] = __fmaf_rn(values[n][c], take, __fmul_rn(total[n][c], keep));
                    values[n][c] = 0.0f;
                }
            total_top[r] = joined;
            const u32 seen = position[r] / PAGE + 1;
            end[r] = min(end[r] + run_pages(seen), seen);
        }
    }

    // Divides and stores the results.
    __device__ __forceinline__ void put(const Queries& in, const QueryTile& tile, u32 first_query,
                                        u32 first_col) {
        const u32 query = first_query + threadIdx.x % WARP / 4;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) total[n][c] = __fdiv_rn(total[n][c], total_sum[c / 2]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (query + 8 * r >= tile.queries) continue;
            const u32 row = tile.row_of(query + 8 * r);
            const u32 head_at = tile.head_of(query + 8 * r) * tile.head_dim;
            if (N % 8 == 0 && in.to.hi && tile.head_dim % 64 == 0) {
                put_blocks(in, row, head_at + first_col, tile.head_dim - first_col, r);
            } else {
                put_pairs(in, tile, row, head_at, first_col, r);
            }
        }
    }

private:
    // A head of whole blocks of 64 columns: of each block a thread has two pairs of every sixteen,
    // which lie together. `col` and `cols`: the first, and how many the head has from there.
    __device__ __forceinline__ void put_blocks(const Queries& in, u32 row, u32 col, u32 cols,
                                               int r) const {
#pragma unroll
        for (int block = 0; block < N / 8; block++) {
            if (block * 64 >= cols) break;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                float x[8];
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = total[block * 8 + i / 2 * 2 + p][2 * r + i % 2];
                put_encoded_eight(in.to, row, col + block * 64, 4 * p + threadIdx.x % 4, x);
            }
        }
    }

    __device__ __forceinline__ void put_pairs(const Queries& in, const QueryTile& tile, u32 row,
                                              u32 head_at, u32 first_col, int r) const {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const u32 col = first_col + n * 8 + threadIdx.x % 4 * 2;
            if (col >= tile.head_dim) break;
            put_two(in, row, head_at + col, in.heads * tile.head_dim, total[n][2 * r],
                    total[n][2 * r + 1]);
        }
    }
};
