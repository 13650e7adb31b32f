// Products of rows of activations with matrices, on tensor cores, in one arithmetic for any number
// of rows.
//
//   value of a weight:  bf16(w), or code * bf16(scale) + bf16(minimum), rounded once
//   value of an input:  bf16(x)
//   slice  = sum of value * value over its columns, sixteen after sixteen (mma, f32)
//   sum    = slice 0 + slice 1 + ... + slice 7; from 8,192 columns on, but for pairs, ... 15
//   y      = sum * scale of the input's norm + bias, and what was there where it is added
//
// Exact loads take both as pairs, hi = bf16(v) and lo = bf16(v - hi), and sum all four products.
// Which columns a slice has depends on their number alone. A warp does one slice (few rows) or all
// in turn (many). `mma.sync` and `wgmma` add sixteen products with the same bits, in any order of
// the sixteen and with either operand first: so few rows and many agree to the last bit.
//
// A unit has one FORMAT of weights and one PART of what there is for it. Read `products.cuh` first,
// then `few.cuh`; `weights.cuh` has what becomes of a block.

#include "common.cuh"
#include "ptx.cuh"
#include "blocks.cuh"
#include "encoded.cuh"
#include "weights.cuh"
#include "products.cuh"
#include "few.cuh"
#include "many_exact.cuh"

#ifdef HOPPER
#include "wgmma.cuh"
#include "many_hopper.cuh"
#else
#include "many.cuh"
#endif

// What PART may be.
#define OF_FEW 1
#define OF_MANY 2
#define OF_MANY_FAST 3
#define OF_PAIRS 4

#define FEW(NAME, NT, GLU, EXACT, S, CTAS)                                               \
    extern "C" __global__ void __launch_bounds__(S * WARP, CTAS)                         \
    NAME(const __grid_constant__ Product p) { few<FORMAT, NT, GLU, EXACT, S>(p); }       \
    static_assert(few_shared<NT, GLU, S>() + 1024 <= 99 * 1024, "more than a CTA has");  \
    extern "C" __constant__ u32 NAME##_shape[2] = {S * WARP, few_shared<NT, GLU, S>()};

#if PART == OF_FEW
FEW(few_8, 1, false, false, SLICES, 3)
FEW(few_16, 2, false, false, SLICES, 3)
FEW(few_32, 4, false, false, SLICES, 2)
FEW(few_long_8, 1, false, false, SLICES_LONG, 2)
FEW(few_long_16, 2, false, false, SLICES_LONG, 1)
FEW(few_long_32, 4, false, false, SLICES_LONG, 1)
FEW(few_glu_8, 1, true, false, SLICES, 3)
FEW(few_glu_16, 2, true, false, SLICES, 2)
FEW(few_glu_32, 4, true, false, SLICES, 1)

#elif PART == OF_MANY && defined(HOPPER)
extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1)
many(const __grid_constant__ Product p) { many_rows<FORMAT, 128, true>(p); }

#elif PART == OF_MANY
extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1)
many(const __grid_constant__ Product p) { many_rows<FORMAT>(p); }

#elif PART == OF_MANY_FAST && defined(HOPPER)
extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1)
many_fast(const __grid_constant__ Product p) { many_rows<FORMAT, 256, false>(p); }

#elif PART == OF_PAIRS
FEW(exact_8, 1, false, true, SLICES, 2)
FEW(exact_32, 4, false, true, SLICES, 1)

extern "C" __global__ void __launch_bounds__(256)
exact_many(const __grid_constant__ Product p) { many_exact<FORMAT>(p); }

#else
#error "no such PART for this card"
#endif
