// Prefill without wgmma, width 128. Two groups of four warps take turns, so that each scheduler has
// a warp that multiplies and one that does the rest: in one phase a group multiplies the weights of
// a page with its values, and then queries with the keys of the next page; in the next phase it
// makes weights of these scores, while the other group multiplies. The second group is a phase
// behind.
//
// A warp that multiplies alone has to load ahead of its products. Queries wait in shared memory, so
// that there are registers for it.

template <int DIM>
struct Pair {
    static constexpr u32 THREADS = 256, QUERIES = 128;
    static constexpr u32 PAGES = 2; // of keys, and of values, in shared memory
    static constexpr u32 Q_AT = 2 * PAGES * Tile<DIM>::BYTES; // queries, as left operands
    static constexpr u32 SHARED = Q_AT + QUERIES * DIM * 2;
    static_assert(SHARED + 1024 <= 99 * 1024, "more than a CTA has");
};

// What one group brings: the first keys, the second values, page after page.
template <int DIM>
struct Bring {
    using T = Tile<DIM>;
    static constexpr u32 ROWS = 128 / T::PIECES; // of all threads at once
    const u16* from;   // a thread's piece of page 0 of the pool
    u64 page_values;
    const u32* table;
    u32 to, row, held; // its place, and row; rows that there are from page 0 on, 0 beside them
    u32 stride, last;  // of rows at once; the last page
    u32 id;            // of the next page

    __device__ __forceinline__ Bring(const Pool& pool, const QueryTile& of, u32 tiles, u32 group) {
        const u32 thread = threadIdx.x % 128, piece = thread % T::PIECES;
        row = thread / T::PIECES;
        const bool real = piece * 8 < of.head_dim;
        from = (const u16*)pool.keys + group * pool.values_at
            + (u64)of.kv_head * PAGE * of.head_dim + (real ? row * of.head_dim + piece * 8 : 0);
        page_values = pool.page_values, table = of.table;
        to = tiles + group * Pair<DIM>::PAGES * T::BYTES + T::piece_at(row, piece);
        held = real ? of.last + 1 : 0, last = of.pages - 1;
        stride = ROWS * of.head_dim;
        id = table[0];
    }

    __device__ __forceinline__ void page(u32 page) {
        if (page > last) return;
        const u16* at = from + (u64)id * page_values;
        const u32 place = to + page % Pair<DIM>::PAGES * T::BYTES;
#pragma unroll
        for (u32 i = 0; i < PAGE / ROWS; i++) {
            copy_async(place + i * ROWS * T::ROW, at, page * PAGE + i * ROWS + row < held ? 16 : 0);
            at += stride;
        }
        copies_end_group();
        id = table[min(page + 1, last)];
    }
};

// Takes operands 0 to COUNT - 1, each loaded AHEAD places before it is taken.
template <int COUNT, typename Load, typename Take>
__device__ __forceinline__ void in_turn(Load load, Take take) {
    constexpr int AHEAD = 4;
    u32 b[AHEAD + 1][4];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(b[i], i);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        if (i + AHEAD < COUNT) load(b[(i + AHEAD) % (AHEAD + 1)], i + AHEAD);
        take(b[i % (AHEAD + 1)], i);
    }
}

// Of a warp: 16 queries, and what is between the two phases.
template <int DIM>
struct Phases {
    using T = Tile<DIM>;
    static constexpr u32 STEPS = DIM / 16;
    u32 tiles, q; // the pages, and a lane's part of its warp's queries
    u32 mine;     // pages that the warp sees
    u32 weights[4][4];
    float score[8][4];

    __device__ __forceinline__ void queries(const Queries& in, const QueryTile& of) {
        const QueryRows rows(in, of, threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 a[4];
            rows.load(a, step);
            store_shared_four(q + step * 512, a);
        }
    }

    __device__ __forceinline__ void load_query(u32 (&a)[4], int step) const {
        const uint4 v = load_shared_four(q + step * 512);
        a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
    }

    // Values of the page before, and keys of this one.
    __device__ __forceinline__ void multiply(Summed<DIM / 8>& summed, u32 page) {
        if (page > 0 && page <= mine) {
            const u32 values = tiles + (2 + (page - 1) % 2) * T::BYTES;
            in_turn<4 * (DIM / 16)>(
                [&](u32 (&b)[4], int i) {
                    load_transposed(b, T::values_at(values, i / (DIM / 16), i % (DIM / 16) * 16));
                },
                [&](const u32 (&b)[4], int i) {
                    const int n = i % (DIM / 16) * 2;
                    const u32(&a)[4] = weights[i / (DIM / 16)];
                    if (n == 0) mma_in_place(summed.sum, a, ONES, ONES);
                    mma_in_place(summed.values[n], a, b[0], b[1]);
                    mma_in_place(summed.values[n + 1], a, b[2], b[3]);
                });
        }
        if (page >= mine) return;
        const u32 keys = tiles + page % 2 * T::BYTES;
        clear(score);
        u32 a[2][4];
        load_query(a[0], 0);
        in_turn<4 * STEPS>(
            [&](u32 (&b)[4], int i) { load_matrices(b, T::keys_at(keys, i % 4 * 16, i / 4)); },
            [&](const u32 (&b)[4], int i) {
                if (i % 4 == 0 && i / 4 + 1 < STEPS) load_query(a[(i / 4 + 1) % 2], i / 4 + 1);
                mma_in_place(score[i % 4 * 2], a[i / 4 % 2], b[0], b[1]);
                mma_in_place(score[i % 4 * 2 + 1], a[i / 4 % 2], b[2], b[3]);
            });
    }

    // Joins the run that the page before has ended, and makes weights of the scores of this one.
    __device__ __forceinline__ void weigh(Summed<DIM / 8>& summed, u32 page) {
        if (page > 0 && page <= mine) summed.leave(page), summed.join(page);
        if (page >= mine) return;
        float against[2], keep[2];
        summed.follow(score, page, against, keep);
#pragma unroll
        for (int step = 0; step < 4; step++) summed.weigh(weights[step], score, step, against);
        summed.shrink(keep);
    }
};

template <int DIM>
__device__ __forceinline__ void attend_pair(const Queries& in, const Pool& pool) {
    extern __shared__ __align__(128) u8 tiles[];
    depend_go();
    depend_wait();
    const QueryTile of(in, pool, Pair<DIM>::QUERIES);
    const u32 second = threadIdx.x / 128;
    Bring<DIM> bring(pool, of, shared_address(tiles), second);
    bring.page(0);
    Summed<DIM / 8> summed(in, of, threadIdx.x / WARP * 16);
    const u32 highest =
        __reduce_max_sync(ALL_LANES, max(summed.position[0], summed.position[1]));
    Phases<DIM> phases = {shared_address(tiles)};
    phases.q = shared_address(tiles) + Pair<DIM>::Q_AT
        + threadIdx.x / WARP * (DIM * 32) + threadIdx.x % WARP * 16;
    phases.mine = highest / PAGE + 1;
    phases.queries(in, of);
    const u32 pages = of.pages;
    // What the phases with an even number meet has been on its way for one phase, or for two.
    auto enter = [&](u32 phase) {
        if (phase % 2 == 0) copies_wait<0>();
        meet_at<Pair<DIM>::THREADS>(1);
    };
    if (second) enter(0);
#pragma unroll 1
    for (u32 page = 0; page <= pages; page++) {
        enter(2 * page + second);
        phases.multiply(summed, page);
        if (!second || page < pages) enter(2 * page + second + 1);
        bring.page(page + 1);
        phases.weigh(summed, page);
    }

    const QueryTile again(in, pool, Pair<DIM>::QUERIES); // rather than kept in registers
    summed.put(in, again, threadIdx.x / WARP * 16, 0);
    if (in.to.hi && again.ends_row) pad_tile(in, again, Pair<DIM>::THREADS);
}

template <>
struct TileRoute<128> : Pair<128> {
    static __device__ __forceinline__ void attend(const Queries& in, const Pool& pool) {
        attend_pair<128>(in, pool);
    }
};
