// Attention on tensor cores, decode: how a CTA's shared memory is divided, and which runs of which
// row it has.

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

// The row of a CTA, and its part in it: the `nth` of `ctas` that share the row's runs.
struct Share {
    u32 of;   // which of the launch's rows
    u32 row;  // of the round
    u32 last; // the row's position, which is its last key's
    u32 nth, ctas, runs;

    Share() = default;

    __device__ __forceinline__ Share(const Queries& in, const Cut& cut) {
        if (cut.rows == 1) {
            of = 0, nth = blockIdx.x, ctas = gridDim.x;
        } else {
            seek(in, cut);
        }
        if (is_none(cut)) return;
        last = last_of(in, of, row);
        runs = Seen(last).runs, ctas = min(ctas, runs);
    }

    // Whether there is nothing to do.
    __device__ __forceinline__ bool is_none(const Cut& cut) const {
        return of == cut.rows || nth >= ctas;
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

// The pages of a CTA: [from, to) of those that its row sees, in runs of `length`. How runs are
// reduced and joined does not depend on who does them.
struct Runs {
    u32 last, from, to, length;
    const u32* table;

    __device__ __forceinline__ Runs(const Queries& in, const Pool& pool, const Share& share) {
        const Seen seen(share.last);
        last = share.last, length = seen.length;
        from = share.nth * seen.runs / share.ctas * length;
        to = min((share.nth + 1) * seen.runs / share.ctas * length, seen.pages);
        table = pool.tables + (u64)in.lanes[share.row] * pool.stride;
    }

    // Whether the row's own slot is in the last of these pages.
    __device__ __forceinline__ bool end_row() const { return to == last / PAGE + 1; }
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
