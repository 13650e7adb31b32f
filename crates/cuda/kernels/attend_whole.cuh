// Prefill on any card, and any width that has nothing of its own: eight warps, each with sixteen
// queries, go through the pages together. While they multiply with one, the next is on its way; of
// heads wider than 128, for which shared memory has one page, its values while they multiply with
// its keys. Two warps then share sixteen queries, half of the columns each.

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

// A CTA's pages on their way to its ring: of each its keys and then its values.
template <int DIM>
struct WholePages {
    using S = Whole<DIM>;
    using T = Tile<DIM>;
    const Pool& pool;
    const QueryTile& of;
    u32 ring;
    u32 id, next_id; // of the page that is copied next, and of the one after it

    __device__ __forceinline__ u32 keys(u32 page) const {
        return ring + page % S::RING * 2 * T::BYTES;
    }
    __device__ __forceinline__ u32 values(u32 page) const { return keys(page) + T::BYTES; }

    __device__ __forceinline__ void copy(u32 page, u32 id, u64 part, u32 to) const {
        const u16* from = (const u16*)pool.keys + (u64)id * pool.page_values
            + (u64)of.kv_head * PAGE * of.head_dim + part;
        const u32 held = min((u32)PAGE, of.last + 1 - page * PAGE);
        T::template copy<S::THREADS>(to, from, of.head_dim, held);
    }
    __device__ __forceinline__ void copy_keys(u32 page, u32 id) const {
        copy(page, id, 0, keys(page));
    }
    __device__ __forceinline__ void copy_values(u32 page, u32 id) const {
        copy(page, id, pool.values_at, values(page));
    }

    __device__ __forceinline__ void begin() {
        id = of.table[0], next_id = of.table[min(1u, of.pages - 1)];
        copy_keys(0, id);
        if (S::RING > 1) copy_values(0, id);
        copies_end_group();
    }

    // Once the keys of a page are there: with room for two pages all of the next one, else its own
    // values.
    __device__ __forceinline__ void at_keys(u32 page) {
        if (S::RING > 1) {
            if (page + 1 < of.pages) copy_keys(page + 1, next_id), copy_values(page + 1, next_id);
        } else {
            copy_values(page, id);
            id = next_id;
        }
        copies_end_group();
    }

    // Once its scores are found: without that room the next keys take the place of these.
    __device__ __forceinline__ void at_scores(u32 page) {
        if (S::RING == 1) {
            copies_wait<0>();
            __syncthreads();
            if (page + 1 < of.pages) copy_keys(page + 1, id);
            copies_end_group();
        }
        next_id = of.table[min(page + 2, of.pages - 1)];
    }
};

// A warp's queries as left operands: in registers, or where heads are wide in shared memory, for
// the warps that share them.
template <int DIM>
struct WholeQueries {
    using S = Whole<DIM>;
    static constexpr u32 STEPS = DIM / 16;
    u32 q[S::Q_SHARED ? 1 : STEPS][4];
    uint4* shared;

    __device__ __forceinline__ void load(const QueryRows& rows, u32 share) {
        if (S::Q_SHARED) {
            for (u32 step = share; step < STEPS; step += S::SHARES) {
                rows.load(q[0], step);
                shared[step * WARP] = make_uint4(q[0][0], q[0][1], q[0][2], q[0][3]);
            }
        } else {
#pragma unroll
            for (int step = 0; step < STEPS; step++) rows.load(q[S::Q_SHARED ? 0 : step], step);
        }
    }

    __device__ __forceinline__ void take(u32 (&a)[4], int step) const {
        if (S::Q_SHARED) {
            const uint4 v = shared[step * WARP];
            a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = q[S::Q_SHARED ? 0 : step][i];
        }
    }
};

// A tile of queries over all their pages.
template <int DIM>
__device__ __forceinline__ void attend_tiles(const Queries& in, const Pool& pool) {
    using S = Whole<DIM>;
    extern __shared__ __align__(128) u8 tiles[];

    depend_go();
    depend_wait();
    const QueryTile of(in, pool, S::QUERIES);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const u32 share = warp / S::GROUPS, first_col = share * S::TILES * 8;
    const u32 first_query = warp % S::GROUPS * 16;
    Summed<S::TILES> summed(in, of, first_query);
    const u32 highest =
        __reduce_max_sync(ALL_LANES, max(summed.position[0], summed.position[1]));
    WholePages<DIM> pages = {pool, of, shared_address(tiles)};
    pages.begin();
    WholeQueries<DIM> queries;
    queries.shared = (uint4*)(tiles + S::Q_AT) + warp % S::GROUPS * (DIM / 16) * WARP + lane;
    queries.load(QueryRows(in, of, first_query + lane / 4), share);

    for (u32 page = 0; page < of.pages; page++) {
        const bool mine = page * PAGE <= highest;
        const u32 keys = pages.keys(page), values = pages.values(page);
        copies_wait<0>();
        __syncthreads();
        pages.at_keys(page);
        float score[8][4];
        clear(score);
        if (mine) {
#pragma unroll
            for (int step = 0; step < DIM / 16; step++) {
                u32 a[4];
                queries.take(a, step);
                add_scores<DIM>(score, a, keys, 0, step);
            }
        }
        pages.at_scores(page);
        if (!mine) continue;

        float against[2], keep[2];
        summed.follow(score, page, against, keep);
        summed.shrink(keep);
#pragma unroll
        for (int step = 0; step < 4; step++) {
            u32 a[4];
            summed.weigh(a, score, step, against);
            add_values<DIM>(summed.values, summed.sum, a, values, step, first_col);
        }
        summed.leave(page + 1);
        summed.join(page + 1);
    }

    summed.put(in, of, first_query, first_col);
    if (in.to.hi && of.ends_row) pad_tile(in, of, S::THREADS);
}

// How a tile is attended with, by width: this, unless a file for a kind of card says otherwise.
template <int DIM>
struct TileRoute : Whole<DIM> {
    static __device__ __forceinline__ void attend(const Queries& in, const Pool& pool) {
        attend_tiles<DIM>(in, pool);
    }
};
