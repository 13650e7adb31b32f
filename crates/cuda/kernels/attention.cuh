// Causal grouped-query attention over pages, read in place.
//
// A query (a row and a head) meets its keys page by page in position order. Runs of pages are
// reduced each on its own (largest score, sum of weights, weighted values) and joined in order; how
// many pages a run has depends on the position of the row alone. A CTA does all runs of a tile of
// queries in turn (prefill), or some runs of one row (decode), which are joined after: same bits.
// Two arithmetics, each with both routes:
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
#define CTA 128 // threads, of attention in scalars
#define RUNS_MAX 64
#define MINUS_INFINITY __int_as_float(0xff800000)

// Pages of a run of a row that sees `pages` pages: 2 up to 64 pages, then a multiple of 4.
__device__ __forceinline__ u32 run_pages(u32 pages) {
    return pages <= 64 ? 2 : (pages + 255) / 256 * 4;
}

// A layer's part of the pool. Pages: [layers, 2 (keys, values), kv_heads, PAGE, head_dim]; all
// distances are in stored values.
struct Pool {
    const void* keys;  // of the layer, in page 0
    u64 page_values;   // from one page to the next
    u64 values_at;     // from a head's keys to its values
    const u32* tables; // block tables [lanes_max, stride]: page ids in order
    u32 stride;
    u32 kv_heads;
    u32 head_dim;
};

struct Queries {
    const float* q; // [rows, heads * head_dim]
    float* o;       // as q
    const u32* positions; // [rows]
    const u32* lanes;     // [rows]
    const u32* tiles;     // of this launch: first row and rows of each
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
