// Attention on tensor cores, for one width of heads: a unit has WIDTH, the width of a head rounded
// up to a power of two.

#include "common.cuh"
#include "ptx.cuh"
#include "encoded.cuh"
#include "prepare.cuh"
#include "attention.cuh"
#include "attend.cuh"
#include "attend_runs.cuh"
#include "attend_join.cuh"
#include "attend_split.cuh"
#include "attend_tiles.cuh"
#include "attend_whole.cuh"

#ifdef HOPPER
#include "wgmma.cuh"
#include "attend_hopper.cuh"
#else
#include "attend_pair.cuh"
#endif

// CTAs of each route that share a processor.
#define SPLITS (WIDTH > 128 ? 2 : Split<WIDTH>::RING == 4 ? 3 : 4)
#define TILES (WIDTH > 32 ? 1 : 2)

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS, SPLITS)
NAMED(attend_split, WIDTH)(Queries in, Pool pool, const __grid_constant__ Prepare fresh, Cut cut) {
    attend_split<WIDTH>(in, pool, fresh, cut);
}

extern "C" __global__ void __launch_bounds__(TileRoute<WIDTH>::THREADS, TILES)
NAMED(attend_tiles, WIDTH)(Queries in, Pool pool) {
    TileRoute<WIDTH>::attend(in, pool);
}

// What a launch needs to know: queries of a CTA (of the split: heads), its threads, bytes of
// dynamic shared memory.
extern "C" __constant__ u32 attend_tiles_shape[3] = {
    TileRoute<WIDTH>::QUERIES, TileRoute<WIDTH>::THREADS, TileRoute<WIDTH>::SHARED,
};
extern "C" __constant__ u32 attend_split_shape[3] = {
    SPLIT_HEADS, SPLIT_THREADS, Split<WIDTH>::SHARED,
};
