// Attention in scalars, for one type that a pool stores and one width of heads: a unit has STORED,
// bf16 or f32, and WIDTH, the width of a head rounded up to a power of two.

#include "common.cuh"
#include "encoded.cuh"
#include "attention.cuh"
#include "attention_scalar.cuh"

typedef u16 value_bf16;
typedef float value_f32;
typedef NAMED(value, STORED) Value;

extern "C" __global__ void __launch_bounds__(CTA, WIDTH == 256 ? 2 : 3)
NAMED(NAMED(attention, STORED), WIDTH)(Queries in, Pool pool, float* partials) {
    attention<Value, WIDTH, 16, false>(in, pool, partials);
}

extern "C" __global__ void __launch_bounds__(CTA, 4)
NAMED(NAMED(NAMED(attention, STORED), split), WIDTH)(Queries in, Pool pool, float* partials) {
    attention<Value, WIDTH, 8, true>(in, pool, partials);
}
