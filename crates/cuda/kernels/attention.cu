// Attention: what its headers have, and the entries on tensor cores.

#include "common.cuh"
#include "prepare.cuh"
#include "attention.cuh"
#include "attention_scalar.cuh"
#include "attend.cuh"
#include "attend_split.cuh"
#include "attend_tiles.cuh"

#if __CUDA_ARCH__ == 900
#include "attend_hopper.cuh"
#endif

// Both routes for a width of head; CTAs of each that share a processor.
#define ATTEND(DIM, SPLITS, TILES)                                                       \
    extern "C" __global__ void __launch_bounds__(SPLIT_THREADS, SPLITS)                  \
    attend_split_##DIM(Queries in, Pool pool, const __grid_constant__ Prepare fresh) {   \
        attend_split<DIM>(in, pool, fresh);                                              \
    }                                                                                    \
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
