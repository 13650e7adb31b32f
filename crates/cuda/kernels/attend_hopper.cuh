// Hopper, widths 64 and 128: groups of four warps, each with 64 queries, multiply by wgmma, which
// reads keys and values where four more warps have put them. A tile in shared memory: for each 64
// columns 64 rows of 128 bytes; the place of a piece of 16 bytes in its row is XORed with row % 8,
// which wgmma knows as the swizzle of 128 bytes. It sums along the rows of keys and across those of
// values. Behind the values of a page lie ones, as if they were more of its columns: so the product
// of weights and values gives the sum of the weights too.

template <int DIM>
struct Groups {
    static constexpr u32 COUNT = DIM > 64 ? 2 : 3; // that compute
    static constexpr u32 QUERIES = 64 * COUNT, THREADS = 128 * (COUNT + 1);
    static constexpr bool TURNS = COUNT == 2; // three fill each other's gaps without
    // A page in the ring: a tile of keys, one of values, and ones. A slot is a tile.
    static constexpr u32 BYTES = PAGE * DIM * 2, ONES_BYTES = PAGE * 128, PAGES = 4;
    static constexpr u32 SLOTS = 2 * PAGES, PAGE_BYTES = 2 * BYTES + ONES_BYTES;
    // Barriers, and pages from the next multiple of 1,024 on, wherever the multiples of 128 begin.
    static constexpr u32 SHARED = 1024 + PAGES * PAGE_BYTES;
    static_assert(2 * SLOTS * 8 <= 128, "the barriers have room");
    // Registers of a thread. In all no more than the threads begin with, an equal multiple of 8
    // each: who asks for more than the others have left over waits for ever.
    static constexpr u32 REGISTERS = COUNT == 2 ? 240 : 160, COPY_REGISTERS = COUNT == 2 ? 24 : 32;
};

// The turn to multiply passes from group to group.
__device__ __forceinline__ void take_turn(u32 group) {
    meet_at<256>(1 + group);
}

__device__ __forceinline__ void give_turn(u32 group) {
    pass_at<256>(1 + group);
}

// The four warps that copy: each every fourth tile.
template <int DIM>
__device__ __forceinline__ void copy_tiles(const Pool& pool, const QueryTile& of, u32 ring,
                                           u64* full, u64* empty) {
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
        const u32 to = ring + slot / 2 * S::PAGE_BYTES + slot % 2 * S::BYTES
            + piece / 8 * (PAGE * 128) + row * 128;
#pragma unroll
        for (int i = 0; i < PAGE / ROWS; i++) {
            copy_async(to + i * ROWS * 128 + (piece % 8 ^ (i * ROWS % 8 | row)) * 16, from,
                       i * ROWS + row < held ? 16 : 0);
            from += ROWS * of.head_dim;
        }
        copies_end_group();
        copies_wait<0>();
        show_async();
        warp_arrive(full + slot, lane);
    }
}

// What a warp of a group has of its queries, and what it does with a page of keys and values.
template <int DIM>
struct Grouped {
    using S = Groups<DIM>;
    Summed<DIM / 8>& summed;
    u32 ring, lane;
    u64 *full, *empty;
    u32 q[DIM / 16][4];
    float score[8][4], against[2], keep[2];
    u32 weights[4][4]; // of a page, as wgmma takes them

    __device__ __forceinline__ Grouped(Summed<DIM / 8>& summed, u32 ring, u32 lane, u64* full,
                                       u64* empty)
        : summed(summed), ring(ring), lane(lane), full(full), empty(empty) {}

    __device__ __forceinline__ void load_queries(const Queries& in, const QueryTile& of, u32 warp) {
        const QueryRows rows(in, of, warp * 16 + lane / 4);
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) rows.load(q[step], step);
    }

    __device__ __forceinline__ u32 keys_at(u32 page) const {
        return ring + page % S::PAGES * S::PAGE_BYTES;
    }

    __device__ __forceinline__ void arrive_full(u32 tile) const {
        barrier_wait(full + tile % S::SLOTS, tile / S::SLOTS % 2);
    }

    __device__ __forceinline__ void done_with(u32 tile) const {
        warp_arrive_in_step(empty + tile % S::SLOTS, lane);
    }

    // What products change or read, as they are waited for or begun.
    __device__ __forceinline__ void hold_sums() {
        hold(summed.values), hold(summed.sum), hold(weights);
    }

    __device__ __forceinline__ void begin_scores(u32 page) {
        arrive_full(2 * page);
        const u64 keys = tile_descriptor(keys_at(page), 16);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            const u64 columns = keys + step / 4 * (PAGE * 128 >> 4) + step % 4 * (32 >> 4);
            wgmma_keys(score, q[step], columns, step > 0);
        }
        wgmma_end_group();
    }

    // Once the values of the page before are summed.
    __device__ __forceinline__ void join(u32 page) {
        hold_sums();
        if (page > 0) done_with(2 * page - 1);
        summed.join(page);
    }

    __device__ __forceinline__ void begin_values(u32 page) {
        join(page);
        summed.shrink(keep);
        const u64 values = tile_descriptor(keys_at(page) + S::BYTES, PAGE * 128);
        hold_sums();
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < 4; step++) {
            wgmma_values(summed.values, summed.sum, weights[step], values + step * (16 * 128 >> 4));
        }
        wgmma_end_group();
    }

    // From the scores of a page.
    __device__ __forceinline__ void find_weights(u32 page, u32 (&found)[4][4]) {
        hold(score);
        done_with(2 * page);
        summed.leave(page);
        summed.follow(score, page, against, keep);
#pragma unroll
        for (int step = 0; step < 4; step++) summed.weigh(found[step], score, step, against);
    }

    // Waits for the values of a page. Its weights take part (no power of two has a sign): else the
    // compiler would find them behind this wait and the one for products that they go on beside.
    __device__ __forceinline__ void arrive_values(u32 page, const u32 (&found)[4][4]) const {
        u32 any = 0;
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int i = 0; i < 4; i++) any |= found[step][i];
        const u32 tile = 2 * page + 1;
        barrier_wait(full + tile % S::SLOTS, tile / S::SLOTS % 2 + (any >> 31));
    }

    // The scores of page + 1 are on their way while the sums shrink, and the product of weights and
    // values while the next weights are found. `give` lets the next group multiply.
    template <typename Give>
    __device__ __forceinline__ void step(u32 page, Give give) {
        begin_scores(page + 1);
        begin_values(page);
        give();
        wgmma_wait<1>();
        u32 found[4][4];
        find_weights(page + 1, found);
        arrive_values(page + 1, found);
        wgmma_wait<0>();
        hold_sums();
        move(weights, found);
    }
};

// A group's queries over all their pages. What a page begins ends in the same round of the loop:
// the compiler lets no product run on from one into another.
template <int DIM>
__device__ __forceinline__ void attend_group(const Queries& in, const Pool& pool, u32 ring,
                                             u64* full, u64* empty) {
    using S = Groups<DIM>;
    const QueryTile of(in, pool, S::QUERIES);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = warp / 4;
    const u32 next = group + 1 == S::COUNT ? 0 : group + 1;
    Summed<DIM / 8> summed(in, of, warp * 16);
    Grouped<DIM> own(summed, ring, lane, full, empty);
    u32 mine = 0; // pages that the group sees
    if (group * 64 < of.queries) {
        mine = in.positions[of.row_of(min(group * 64 + 63, of.queries - 1))] / PAGE + 1;
    }
    own.load_queries(in, of, warp);
    const u32 pages = of.pages;

    // Each turn is for the values of one page and the keys of the next. The last group starts as if
    // it had had the one before; nobody waits for the one after the last.
    auto give = [&](bool is_waited_for) {
        if (S::TURNS && is_waited_for) give_turn(next);
    };
    if (S::TURNS && next == 0) give_turn(0);
    if (mine > 0) {
        own.begin_scores(0);
        wgmma_wait<0>();
        own.find_weights(0, own.weights);
        own.arrive_full(1);
#pragma unroll 1
        for (u32 page = 0; page + 1 < mine; page++) {
            if (S::TURNS) take_turn(group);
            own.step(page, [&] { give(true); });
        }
        if (S::TURNS) take_turn(group);
        own.begin_values(mine - 1);
        give(next > 0 || mine < pages);
        wgmma_wait<0>();
        summed.leave(mine);
        own.join(mine);
    }
    // Pages that only other groups see.
#pragma unroll 1
    for (u32 page = mine; page < pages; page++) {
#pragma unroll 1
        for (u32 tile = 2 * page; tile < 2 * page + 2; tile++) {
            own.arrive_full(tile), own.done_with(tile);
        }
        if (S::TURNS) take_turn(group);
        give(next > 0 || page + 1 < pages);
    }

    const QueryTile again(in, pool, S::QUERIES); // rather than kept in registers
    summed.put(in, again, warp * 16, 0);
    if (in.to.hi && again.ends_row) pad_tile(in, again, 128 * S::COUNT);
}

template <int DIM>
__device__ __forceinline__ void attend_groups(const Queries& in, const Pool& pool) {
    using S = Groups<DIM>;
    extern __shared__ __align__(128) u8 tiles[];
    u64 *full = (u64*)tiles, *empty = full + S::SLOTS;
    depend_go();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < S::SLOTS; i++) {
            barrier_init(full + i, WARP_ARRIVES);
            barrier_init(empty + i, 4 * S::COUNT * WARP_ARRIVES);
        }
        barriers_ready();
    }
    const u32 ring = (shared_address(tiles) + 128 + 1023) / 1024 * 1024;
    constexpr u32 PIECES = S::ONES_BYTES / 16;
    uint4* ones = (uint4*)(tiles + (ring - shared_address(tiles)) + 2 * S::BYTES);
    for (u32 i = threadIdx.x; i < S::PAGES * PIECES; i += S::THREADS) {
        ones[i / PIECES * (S::PAGE_BYTES / 16) + i % PIECES] = make_uint4(ONES, ONES, ONES, ONES);
    }
    show_async();
    __syncthreads();
    depend_wait();
    if (threadIdx.x / 128 == S::COUNT) {
        fewer_registers<S::COPY_REGISTERS>();
        copy_tiles<DIM>(pool, QueryTile(in, pool, S::QUERIES), ring, full, empty);
    } else {
        more_registers<S::REGISTERS>();
        attend_group<DIM>(in, pool, ring, full, empty);
    }
}

#define BY_GROUPS(DIM)                                                                       \
    template <>                                                                              \
    struct TileRoute<DIM> : Groups<DIM> {                                                    \
        static __device__ __forceinline__ void attend(const Queries& in, const Pool& pool) { \
            attend_groups<DIM>(in, pool);                                                    \
        }                                                                                    \
    };

BY_GROUPS(64)
BY_GROUPS(128)
