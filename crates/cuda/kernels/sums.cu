// CRC-64/NVME of bytes where they lie. The sum is linear: slices are summed apart, each is divided
// by x to the bits up to its end, and all are added, which is an exclusive or. So no slice needs to
// know what follows it. The host multiplies with x to all bits, and adds the start of the sum and
// its inversion at the end.

#include "common.cuh"

// A remainder modulo the polynomial. Bit 63 - n stands for x^n: so do the bits of a word of eight
// bytes, of which the first comes first.
#define POLYNOMIAL 0x9a6c9329ac4bc9b5ull

// a x.
constexpr __forceinline__ u64 next_power(u64 a) {
    return a >> 1 ^ (POLYNOMIAL & 0 - (a & 1));
}

// a / x.
constexpr u64 last_power(u64 a) {
    return a >> 63 ? (a ^ POLYNOMIAL) << 1 | 1 : a << 1;
}

// a b.
constexpr __forceinline__ u64 product(u64 a, u64 b) {
    u64 sum = 0;
    for (int n = 0; n < 64; n++, b <<= 1) {
        sum ^= a & 0 - (b >> 63);
        a = next_power(a);
    }
    return sum;
}

// a^n.
constexpr u64 power(u64 a, u32 n) {
    u64 result = 1ull << 63;
    for (; n > 0; n /= 2) {
        result = n % 2 ? product(result, a) : result;
        a = product(a, a);
    }
    return result;
}

// Threads that take words; one more warp finds what their sums are multiplied with.
#define SUM_THREADS 256
#define SUM_WARPS (SUM_THREADS / WARP)
// Words of eight bytes of a slice: those of a CTA at a time.
#define SLICE_WORDS (32 * SUM_THREADS)
// Words that a thread asks for at a time.
#define SUM_BATCH 8

// Products with one number: of each value of each four bits. A row lies in every bank of shared
// memory once, so that lanes never wait for each other.
struct Nibbles {
    u64 of[16][16];
};

constexpr Nibbles nibbles_of(u64 factor) {
    Nibbles table = {};
    u64 bit = factor;
    for (int n = 0; n < 64; n++, bit = next_power(bit)) {
        const int at = 63 - n;
        for (int value = 0; value < 16; value++) {
            table.of[at / 4][value] ^= value >> at % 4 & 1 ? bit : 0;
        }
    }
    return table;
}

struct SumTables {
    Nibbles strides[2]; // x to the bits of a word of each thread, and of each lane
    u64 lanes[WARP];    // x to the bits of the words of the lanes behind one
    u64 bytes[8][16];   // 1 / x to the bits of n bytes, by the digits of n to base 16
};

constexpr SumTables sum_tables() {
    SumTables tables = {};
    const u64 word = power(1ull << 62, 64);
    tables.strides[0] = nibbles_of(power(word, SUM_THREADS));
    tables.strides[1] = nibbles_of(power(word, WARP));
    tables.lanes[WARP - 1] = 1ull << 63;
    for (int lane = WARP - 1; lane > 0; lane--) {
        tables.lanes[lane - 1] = product(tables.lanes[lane], word);
    }
    u64 digit = 1ull << 63;
    for (int n = 0; n < 8; n++) {
        digit = last_power(digit);
    }
    for (int at = 0; at < 8; at++) {
        u64 value = 1ull << 63;
        for (int n = 0; n < 16; n++, value = product(value, digit)) {
            tables.bytes[at][n] = value;
        }
        digit = value;
    }
    return tables;
}

__device__ const SumTables sum_constants = sum_tables();

// Bytes that lie in one piece, and how many there are up to their end, pieces before this one
// included.
struct SumPart {
    const u8* at;
    u64 bytes;
    u64 end;
};

// Where sums of a window meet.
struct SumSlot {
    u64 sum;
    u32 done; // CTAs; zero between launches
    u32 unused;
};

#define SUM_PARTS 64
// A slice's sum is a word short of a remainder, so one that ends n bytes behind the start of all is
// divided by x to the bits of n - 8 bytes, and of this many more, so that the number is never
// negative: 8 are for that word, and 8 for the one in which a part may begin. Any more would do as
// well: the host multiplies by as many.
#define SUM_MORE 16

struct SumParts {
    SumPart parts[SUM_PARTS];
    SumSlot* slot;
    u64* out; // of the host
    u32 slices;
    u32 unused;
};

// What a launch needs to know: threads of a CTA, words of a slice, parts at most, and bytes more by
// which sums are divided.
extern "C" __constant__ u32 sums_shape[4] = {SUM_THREADS + WARP, SLICE_WORDS, SUM_PARTS, SUM_MORE};

// Words of a part, the first and the last of which may be other bytes too.
__device__ __forceinline__ const u64* first_word(const SumPart& part) {
    return (const u64*)((u64)part.at & ~7ull);
}

__device__ __forceinline__ u32 words_of(const SumPart& part) {
    return (u32)(((u64)part.at + part.bytes + 7) / 8 - (u64)part.at / 8);
}

__device__ __forceinline__ u32 bytes_after(const SumPart& part) {
    return (u32)(0 - ((u64)part.at + part.bytes)) % 8;
}

// Word `at` of a part, zero where bytes are not the part's.
__device__ __forceinline__ u64 edge_word(const SumPart& part, u32 at) {
    u64 word = first_word(part)[at];
    if (at == 0) {
        const u32 shift = 8 * ((u32)(u64)part.at % 8);
        word = word >> shift << shift;
    }
    if (at + 1 == words_of(part)) {
        const u32 shift = 8 * bytes_after(part);
        word = word << shift >> shift;
    }
    return word;
}

// The product of `a` and a table's number.
__device__ __forceinline__ u64 table_product(const Nibbles& table, u64 a) {
    const u8* rows = (const u8*)table.of;
    u64 sum = 0;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 word = (u32)(a >> 32 * half);
        // Even and odd nibbles, each times the bytes of an entry, in a byte.
        const u32 pairs[2] = {word << 3 & 0x78787878u, word >> 1 & 0x78787878u};
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            const u32 offset = __byte_perm(pairs[n % 2], 0, 0x4440 + n / 2);
            sum ^= *(const u64*)(rows + 128 * (8 * half + n) + offset);
        }
    }
    return sum;
}

// The sum of words `first..first + count` of a part that a thread takes: one of each SUM_THREADS,
// counted from the last.
__device__ __forceinline__ u64 thread_sum(const Nibbles& stride, const SumPart& part, u32 first,
                                          u32 count) {
    const u32 rounds = (count + SUM_THREADS - 1) / SUM_THREADS;
    const u32 missing = rounds * SUM_THREADS - count;
    const u32 at = first + threadIdx.x - missing; // of round 0, if there is one
    u64 sum = threadIdx.x >= missing ? edge_word(part, at) : 0;
    const u64* from = first_word(part) + (int)at;
    const u32 inner = rounds - 1; // edges are those of a part: of the first round and of the last
    u64 next[SUM_BATCH];
#pragma unroll
    for (u32 i = 0; i < SUM_BATCH; i++) {
        next[i] = 1 + i < inner ? from[(1 + i) * SUM_THREADS] : 0;
    }
    for (u32 round = 1; round < inner; round += SUM_BATCH) {
        u64 now[SUM_BATCH];
#pragma unroll
        for (u32 i = 0; i < SUM_BATCH; i++) {
            const u32 ahead = round + SUM_BATCH + i;
            now[i] = next[i];
            next[i] = ahead < inner ? from[ahead * SUM_THREADS] : 0;
        }
#pragma unroll
        for (u32 i = 0; i < SUM_BATCH; i++) {
            if (round + i < inner) {
                sum = table_product(stride, sum) ^ now[i];
            }
        }
    }
    return inner > 0 ? table_product(stride, sum) ^ edge_word(part, at + inner * SUM_THREADS) : sum;
}

// The sum of a word of each thread, where words of a lane are multiplied with its factor. Of one
// warp; every lane has it.
__device__ __forceinline__ u64 words_sum(const Nibbles& stride, const u64* words,
                                         const u64* factors) {
    const u32 lane = threadIdx.x % WARP;
    u64 sum = words[lane];
#pragma unroll
    for (u32 i = 1; i < SUM_WARPS; i++) {
        sum = table_product(stride, sum) ^ words[i * WARP + lane];
    }
    sum = product(sum, factors[lane]);
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        sum ^= __shfl_xor_sync(ALL_LANES, sum, step);
    }
    return sum;
}

// 1 / x to the bits of n bytes. Of one warp; every lane has it.
__device__ __forceinline__ u64 bytes_power(u32 n) {
    const u32 digit = threadIdx.x % 8;
    u64 result = sum_constants.bytes[digit][n >> 4 * digit & 15];
#pragma unroll 1
    for (int step = 4; step > 0; step /= 2) {
        result = product(result, __shfl_xor_sync(ALL_LANES, result, step));
    }
    return result;
}

// Adds the sums of all parts to a slot, divided by x to the bits of `sums_shape[3]` bytes more, and
// leaves what the slot then has with the host. Slices are cut from the end of a part. Grid: at most
// one CTA for each slice, or one.
extern "C" __global__ void __launch_bounds__(SUM_THREADS + WARP)
sum_parts(const __grid_constant__ SumParts p) {
    __shared__ Nibbles strides[2];
    __shared__ u64 words[SUM_THREADS];
    __shared__ u64 factors[WARP];
    u64* rows = (u64*)strides;
    for (u32 i = threadIdx.x; i < sizeof strides / 8; i += SUM_THREADS + WARP) {
        rows[i] = ((const u64*)sum_constants.strides)[i];
    }
    __syncthreads();
    for (u32 slice = blockIdx.x; slice < p.slices; slice += gridDim.x) {
        u32 at = 0, from_end = slice;
        while (from_end * SLICE_WORDS >= words_of(p.parts[at])) {
            from_end -= (words_of(p.parts[at++]) + SLICE_WORDS - 1) / SLICE_WORDS;
        }
        const SumPart& part = p.parts[at];
        if (threadIdx.x < SUM_THREADS) {
            const u32 end = words_of(part) - from_end * SLICE_WORDS;
            const u32 first = end > SLICE_WORDS ? end - SLICE_WORDS : 0;
            words[threadIdx.x] = thread_sum(strides[0], part, first, end - first);
        } else {
            // What was summed is a word short of a remainder, and ends with its last word.
            const u32 end = (u32)part.end + bytes_after(part) - 8 * SLICE_WORDS * from_end;
            const u32 lane = threadIdx.x % WARP;
            factors[lane] = product(sum_constants.lanes[lane], bytes_power(end + SUM_MORE - 8));
        }
        __syncthreads();
        if (threadIdx.x < WARP) {
            const u64 sum = words_sum(strides[1], words, factors);
            if (threadIdx.x == 0) {
                atomicXor(&p.slot->sum, sum);
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(&p.slot->done, 1u) == gridDim.x - 1) {
            __threadfence();
            p.slot->done = 0;
            *(volatile u64*)p.out = atomicXor(&p.slot->sum, 0ull);
        }
    }
}
