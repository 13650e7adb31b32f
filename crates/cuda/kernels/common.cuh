// What every kernel file starts with: types, conversions, sums of a fixed shape. No header of the
// toolkit is needed. Every sum has one order, whatever the launch: results are functions of a row.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32
#define ALL_LANES 0xffffffffu

// Whether there is what was made for this generation of cards alone; PORTABLE leaves it out.
#if __CUDA_ARCH__ == 900 && !defined(PORTABLE)
#define HOPPER
#endif

// A name and a number of the unit, as one name.
#define JOINED(NAME, NUMBER) NAME##_##NUMBER
#define NAMED(NAME, NUMBER) JOINED(NAME, NUMBER)

__device__ __forceinline__ float bf16_value(u16 bits) {
    return __uint_as_float((u32)bits << 16);
}

__device__ __forceinline__ float f16_value(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Two values as bf16, rounded to nearest even; the first in the low half.
__device__ __forceinline__ u32 bf16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ u16 bf16_bits(float value) {
    return (u16)bf16_pair(value, 0.0f);
}

__device__ __forceinline__ float low_value(u32 pair) {
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float high_value(u32 pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

// 2^x; results below the normal range are zero.
__device__ __forceinline__ float exp2_fast(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// Near 1 / x and 1 / sqrt(x), within two units in the last place.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float value;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

__device__ __forceinline__ float reciprocal_root_fast(float x) {
    float value;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}

// The sum over a warp in one tree; every lane has it.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        value = __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    return value;
}

__device__ __forceinline__ u32 shared_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}

// Barriers in shared memory: of `count` arrivals.
__device__ __forceinline__ void barrier_init(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Arrives once what this thread has begun to copy (`cp.async`) is there.
__device__ __forceinline__ void barrier_arrive_copied(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the barrier has left phase `phase`.
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
#if __CUDA_ARCH__ >= 900
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

#ifdef HOPPER

// Lets every thread, once it has met this one, see barriers that this one has set up.
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What this thread wrote to shared memory is there for wgmma and for bulk copies, once threads have
// met.
__device__ __forceinline__ void show_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void wgmma_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_end_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most PENDING groups are under way.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#endif

// Where the launch lets kernels overlap (9.0 on): the next kernel of the stream may begin, and what
// the ones before wrote may be read. Every thread of every kernel calls `depend_go`, and
// `depend_wait` before it touches anything but weights, the round's inputs, and pages of earlier
// rounds: the first launch of a round does not overlap. A thread may end without waiting,
// but some of each launch wait. So to wait for the launch before is to wait for all before it: that
// one ended after what it waited for.
__device__ __forceinline__ void depend_go() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void depend_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Rows of activations as products read them: bf16, columns padded to 64 with zeros. `lo` holds what
// rounding took off, where products are exact, and is null elsewhere.
//
// A tensor core takes sixteen columns at a time, a *step*; in it, lane `4 g + t` of a warp has
// places 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. In a block of 64 columns the lanes with `t` take
// columns 16 t .. 16 t + 15, four a step: so what a lane has of a weight's row shares one scale in
// every format. Column 16 t + 4 s + 2 h + o is place 8 h + 2 t + o of step s.
//
// Up to FEW_ROWS rows lie as lanes read them: block after block the rows, each its 64 columns in
// their order. More lie as wgmma reads them: in tiles of 128 rows and 64 columns, along the columns
// first; in a tile matrices of 8 rows and 8 places, 128 bytes each, in the order of the places.
struct Encoded {
    u16* hi;
    u16* lo;
    u32 rows;
    u32 cols;
};

#define FEW_ROWS 32

__device__ __forceinline__ bool is_few(const Encoded& e) { return e.rows <= FEW_ROWS; }

// Where a value lies; an even column and the next one lie side by side.
__device__ __forceinline__ u64 encoded_place(const Encoded& e, u32 row, u32 col) {
    const u32 block = col / 64;
    if (is_few(e)) return ((u64)block * e.rows + row) * 64 + col % 64;
    const u64 tile = (u64)(row / 128) * ((e.cols + 63) / 64) + block;
    return tile * 8192 + row % 128 / 8 * 512 + col % 16 / 2 * 64 + row % 8 * 8 + col % 64 / 16 * 2
        + col % 2;
}

__device__ __forceinline__ void put_encoded(const Encoded& e, u32 row, u32 col, float value) {
    const u64 place = encoded_place(e, row, col);
    const u16 hi = bf16_bits(value);
    e.hi[place] = hi;
    if (e.lo != nullptr) e.lo[place] = bf16_bits(__fsub_rn(value, bf16_value(hi)));
}

__device__ __forceinline__ u32 encoded_cols(const Encoded& to) { return (to.cols + 63) / 64 * 64; }

// `put_encoded` for kernels of few rows, where nothing is left to ask at run time: not which way
// rows lie, nor (EXACT) whether what rounding takes off is kept.
template <bool EXACT>
__device__ __forceinline__ void put_encoded_few(const Encoded& to, u32 row, u32 col, float value) {
    const u32 place = (col / 64 * to.rows + row) * 64 + col % 64;
    const u16 hi = bf16_bits(value);
    to.hi[place] = hi;
    if (EXACT) to.lo[place] = bf16_bits(__fsub_rn(value, bf16_value(hi)));
}

// What rounding to `hi` took off.
__device__ __forceinline__ u32 rest_pair(u32 hi, float a, float b) {
    return bf16_pair(__fsub_rn(a, low_value(hi)), __fsub_rn(b, high_value(hi)));
}

// Two neighbours; `col` is even.
__device__ __forceinline__ void put_encoded_two(const Encoded& to, u32 row, u32 col, float a,
                                                float b) {
    const u64 place = encoded_place(to, row, col);
    const u32 hi = bf16_pair(a, b);
    *(u32*)(to.hi + place) = hi;
    if (to.lo != nullptr) *(u32*)(to.lo + place) = rest_pair(hi, a, b);
}

// Eight values of a block of 64 columns that lie side by side where rows are many: pair `j`, below
// 8, of each sixteen columns, x[2 t + o] of column 16 t + 2 j + o. `col` is the block's first.
__device__ __forceinline__ void put_encoded_eight(const Encoded& to, u32 row, u32 col, u32 j,
                                                  const float (&x)[8]) {
    if (is_few(to)) {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            put_encoded_two(to, row, col + 16 * t + 2 * j, x[2 * t], x[2 * t + 1]);
        }
        return;
    }
    const u64 place = encoded_place(to, row, col + 2 * j);
    uint4 hi;
    hi.x = bf16_pair(x[0], x[1]), hi.y = bf16_pair(x[2], x[3]);
    hi.z = bf16_pair(x[4], x[5]), hi.w = bf16_pair(x[6], x[7]);
    *(uint4*)(to.hi + place) = hi;
    if (to.lo == nullptr) return;
    uint4 lo;
    lo.x = rest_pair(hi.x, x[0], x[1]), lo.y = rest_pair(hi.y, x[2], x[3]);
    lo.z = rest_pair(hi.z, x[4], x[5]), lo.w = rest_pair(hi.w, x[6], x[7]);
    *(uint4*)(to.lo + place) = lo;
}

// The zeros behind a row, by `threads` threads.
__device__ __forceinline__ void pad_encoded(const Encoded& to, u32 row, u32 thread, u32 threads) {
    for (u32 col = to.cols + thread; col < encoded_cols(to); col += threads) {
        put_encoded(to, row, col, 0.0f);
    }
}

// An RMS norm that products finish: a row was encoded times the norm's gain, and its products are
// multiplied with its scale, 1 / sqrt(mean square + eps). Of few rows there are the squares of each
// sixteen columns, summed, [rows, ceil(cols / 16)]; of more their scales, [rows].
struct Norm {
    float* squares; // null: no norm, and no scales
    float* scales;
    float eps;
    u32 cols; // that the mean is over
};

// The sum over the sixteen lanes of half a warp, of neighbours first; every lane has it.
__device__ __forceinline__ float sixteen_sum(float value) {
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
        value = __fadd_rn(value, __shfl_xor_sync(ALL_LANES, value, step));
    }
    return value;
}

// The scale of a row from its squares, [ceil(cols / 16)], by a warp; every lane has it.
__device__ __forceinline__ float row_scale(const float* squares, u32 cols, float eps) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x % WARP; i < (cols + 15) / 16; i += WARP) {
        sum = __fadd_rn(sum, squares[i]);
    }
    const float mean = __fmul_rn(warp_sum(sum), reciprocal_fast((float)cols));
    return reciprocal_root_fast(__fadd_rn(mean, eps));
}

// How a weight is stored. See `blocks.rs`, which writes it.
enum Format { BF16 = 0, F16 = 1, F32 = 2, Q8_0 = 3, Q4_0 = 4, Q4_1 = 5, Q4_K = 6, Q6_K = 7 };

// A matrix [rows, cols] in blocks of 16 rows and 64 columns: eight blocks, 128 rows, one under the
// other; then the next 64 columns.
struct Weight {
    const u8* blocks;
    u32 rows;
    u32 cols;
};

// Bytes of a block, and of what its rows share over four blocks: it precedes the first of them.
template <int F>
struct Record {
    static constexpr u32 BLOCK = F == BF16 || F == F16 ? 2048
        : F == F32  ? 4096
        : F == Q8_0 ? 1088
        : F == Q4_0 ? 576
        : F == Q4_1 ? 640
        : F == Q4_K ? 560
                    : 832;
    static constexpr u32 SHARED = F == Q4_K ? 64 : F == Q6_K ? 32 : 0;
    static constexpr u32 SPAN = SHARED > 0 ? 4 : 1; // blocks that share
};

__device__ __forceinline__ u32 blocks_of(u32 cols) { return (cols + 63) / 64; }

// Offset of tile `tile` (of 16 rows), block `block`, and of what it shares.
template <int F>
__device__ __forceinline__ u64 span_at(const Weight& w, u32 tile, u32 block) {
    using R = Record<F>;
    constexpr u32 BYTES = 8 * (R::SPAN * R::BLOCK + R::SHARED);
    return ((u64)(tile / 8) * (blocks_of(w.cols) / R::SPAN) + block / R::SPAN) * BYTES;
}

template <int F>
__device__ __forceinline__ u64 shared_at(const Weight& w, u32 tile, u32 block) {
    return span_at<F>(w, tile, block) + tile % 8 * Record<F>::SHARED;
}

template <int F>
__device__ __forceinline__ u64 block_at(const Weight& w, u32 tile, u32 block) {
    using R = Record<F>;
    return span_at<F>(w, tile, block) + 8 * R::SHARED
        + (block % R::SPAN * 8 + tile % 8) * R::BLOCK;
}

// Scale (low half) and minimum (high half) of row g (`half` 0) or g + 8 of a lane's part of a Q4_K
// block, of the 24 bits that `blocks.rs` describes.
__device__ __forceinline__ u32 q4k_scales(u32 bits, u32 half) {
    if (half == 0) return bits & 0x003f003fu;
    return ((bits >> 6) & 0x0003003fu) | ((bits << 6) & 0x003c0000u);
}
