// Many rows on Hopper: two groups of four warps, each 64 weight rows by N rows of x, fed by a
// thread of a third group, which keeps COUNT blocks on their way and leaves its registers to the
// others. A weight goes through registers, where it becomes bf16 while the tensor cores have the
// block before; x is read by them where it lies.
//
// SLICED: sums have the slices of `few`, which take a second set of registers, so N is 128. Else
// one chain goes through all columns, and N is 256. What that decides is the way through shared
// memory, 128 bytes a cycle: a block of 64 columns in bf16 and N = 128 keeps the tensor cores busy
// for 512 cycles. It fills 32 KiB; of them each group reads its 8 KiB of weights, and the 16 KiB of
// x: 640 cycles. With N = 256 it is 1,024 for 1,024.
//
// CTAs stay and take one tile after the other: the next tile's blocks come while results leave.

#define MANY_THREADS 384

// How a CTA's shared memory is divided: stages, each a block's columns of N rows of x and of 128
// weight rows, and then the place through which results leave, those of PIECE rows of x at once.
template <int F, u32 N>
struct Stage {
    static constexpr u32 X = N * 128, SHARED = X + 8 * Record<F>::BLOCK;
    static constexpr u32 FILLED = SHARED + 8 * Record<F>::SHARED;
    static constexpr u32 BYTES = (FILLED + 127) / 128 * 128;
    static constexpr u32 PIECE = 128;
    static constexpr u32 STRIDE = 128 + 4; // of a row of results: more than 128, against conflicts
    static constexpr u32 RESULTS = PIECE * STRIDE * 4;
    static constexpr u32 FIT = (226 * 1024 - RESULTS) / BYTES;
    static constexpr u32 COUNT = FIT > 6 ? 6 : FIT;
    static_assert(COUNT >= 2, "one block is multiplied while the next is made ready");
    static constexpr u32 ALL = COUNT * BYTES + RESULTS;
};

// The threads of one group meet, or of both.
enum Meeting { FIRST = 1, SECOND = 2, BOTH = 3 };

template <Meeting WHO>
__device__ __forceinline__ void meet() {
    meet_at<WHO == BOTH ? 256 : 128>(WHO);
}

__device__ __forceinline__ float4 added(float4 a, float4 b) {
    return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}

// A tile: N rows of x, and 128 weight rows of a part; GLU: 64 rows of gate and the same of up.
struct Turn {
    u32 part;
    u32 x_tile;
    u32 tile;
};

// The tiles of a launch, in the order of CTAs: rows of x first.
template <u32 N>
struct Turns {
    u32 x_tiles, tiles[3], count;

    __device__ __forceinline__ explicit Turns(const Product& p) {
        const u32 height = p.mode == GLU ? 64 : 128, parts = p.mode == GLU ? 1 : p.count;
        x_tiles = (p.x.rows + N - 1) / N;
#pragma unroll
        for (u32 i = 0; i < 3; i++) {
            tiles[i] = i < parts ? (p.parts[i].w.rows + height - 1) / height : 0;
        }
        count = x_tiles * (tiles[0] + tiles[1] + tiles[2]);
    }

    __device__ __forceinline__ Turn at(u32 i) const {
        Turn turn = {0, i % x_tiles, i / x_tiles};
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            if (turn.part < part || turn.tile < tiles[part]) break;
            turn.tile -= tiles[part], turn.part++;
        }
        return turn;
    }
};

// The feeding thread's work: every block of every tile into the next stage, once it is free.
template <int F, u32 N>
__device__ __forceinline__ void feed(const Product& p, u8* stages, u64* full, u64* empty) {
    using S = Stage<F, N>;
    using R = Record<F>;
    const bool glu = p.mode == GLU;
    const Turns<N> turns(p);
    const u32 blocks = blocks_of(p.parts[0].w.cols), x_last = (p.x.rows - 1) / 128;
    u32 stage = 0, phase = 1;
    for (u32 i = blockIdx.x; i < turns.count; i += gridDim.x) {
        const Turn turn = turns.at(i);
        // Eight tiles of one matrix, or four of each.
        const u32 tile0 = turn.tile * (glu ? 4 : 8), tile1 = glu ? tile0 : tile0 + 4;
        const Weight &w = p.parts[turn.part].w, &other = p.parts[glu ? 1 : turn.part].w;
        const u8 *from0 = w.blocks + span_at<F>(w, tile0, 0), *x[N / 128];
        const u8* from1 = other.blocks + span_at<F>(other, tile1, 0);
#pragma unroll
        for (u32 k = 0; k < N / 128; k++) {
            // Behind the last rows of x those are fetched again: nobody takes their sums.
            const u64 x_tile = min(turn.x_tile * (N / 128) + k, x_last);
            x[k] = (const u8*)(p.x.hi + x_tile * blocks * 8192);
        }
#pragma unroll 1
        for (u32 block = 0; block < blocks; block++) {
            barrier_wait(&empty[stage], phase);
            u8* to = stages + stage * S::BYTES;
            u64* landed = &full[stage];
            barrier_expect(landed, S::FILLED);
#pragma unroll
            for (u32 k = 0; k < N / 128; k++) {
                copy_in(to + k * 16384, x[k], 16384, landed);
                x[k] += 16384;
            }
            // What blocks share precedes the first of them; each block lies by the seven below it.
            const u32 span = block / R::SPAN * (8 * (R::SPAN * R::BLOCK + R::SHARED));
            const u32 at = span + 8 * R::SHARED + block % R::SPAN * 8 * R::BLOCK;
            copy_in(to + S::X, from0 + at + tile0 % 8 * R::BLOCK, 4 * R::BLOCK, landed);
            copy_in(to + S::X + 4 * R::BLOCK, from1 + at + tile1 % 8 * R::BLOCK, 4 * R::BLOCK,
                    landed);
            if (R::SHARED > 0) {
                copy_in(to + S::SHARED, from0 + span + tile0 % 8 * R::SHARED, 4 * R::SHARED,
                        landed);
                copy_in(to + S::SHARED + 4 * R::SHARED, from1 + span + tile1 % 8 * R::SHARED,
                        4 * R::SHARED, landed);
            }
            if (++stage == S::COUNT) stage = 0, phase ^= 1;
        }
    }
}

// A block's operands: weights in registers, and where the rows of x are.
struct Operands {
    u32 a[4][4];
    u64 b;
    u32 stage;
};

// What a warp sums of its tiles. Two sets of operands take turns: while the tensor cores have one
// block, the next becomes bf16.
template <int F, u32 N, bool SLICED>
struct Summing {
    using S = Stage<F, N>;
    const u8* stages;
    u64 *full, *empty;
    u32 warp, lane;
    u32 stage, phase; // of the block to come
    float acc[N / 2];

    // Waits for the next block and makes it ready.
    __device__ __forceinline__ void load(Operands& to) {
        const u8* from = stages + stage * S::BYTES;
        barrier_wait(&full[stage], phase);
        Raw<F> raw;
        Shared shared;
        load_block<F, FromShared>(raw, from, S::X + warp * Record<F>::BLOCK, lane);
        load_shared<F, FromShared>(shared, from, S::SHARED + warp * Record<F>::SHARED, lane);
#pragma unroll
        for (int s = 0; s < 4; s++) fragment<F>(raw, shared, s, to.a[s]);
        to.b = rows_descriptor(from);
        to.stage = stage;
        if (++stage == S::COUNT) stage = 0, phase ^= 1;
    }

    // Begins to multiply.
    __device__ __forceinline__ void multiply(const Operands& with, u32& add) {
        wgmma_begin();
#pragma unroll
        for (int s = 0; s < 4; s++) {
            wgmma_rows(acc, with.a[s], with.b + s * (256 >> 4), add);
            add = 1;
        }
        wgmma_end_group();
    }

    // Gives a stage back to those who fill it.
    __device__ __forceinline__ void release(u32 which) {
        warp_arrive(&empty[which], lane);
    }

    __device__ __forceinline__ void tile(u32 blocks, float (&total)[N / 2]) {
        // No sum of the last tile has to be kept.
#pragma unroll
        for (u32 i = 0; i < N / 2; i++) acc[i] = total[i] = 0.0f;
        const u32 slices = slices_of(blocks);
        u32 slice = 0, end = 0, add = 0;
        auto next_slice = [&] {
            for (const u32 from = end; end == from && slice < slices;) {
                end = slice_start<F>(blocks, ++slice, slices);
            }
        };
        if (SLICED) next_slice();
        auto step = [&](u32 block, Operands& now, Operands& other) {
            multiply(now, add);
            if (block > 0) {
                wgmma_wait<1>();
                release(other.stage);
            }
            if (block + 1 < blocks) load(other);
            if (SLICED && block + 1 == end) {
                wgmma_wait<0>();
                hold(acc);
#pragma unroll
                for (u32 i = 0; i < N / 2; i++) total[i] = __fadd_rn(total[i], acc[i]);
                add = 0;
                next_slice();
            }
        };
        Operands even, odd;
        load(even);
        for (u32 block = 0; block < blocks; block += 2) {
            step(block, even, odd);
            if (block + 1 < blocks) step(block + 1, odd, even);
        }
        wgmma_wait<0>();
        release(stage == 0 ? S::COUNT - 1 : stage - 1);
        if (!SLICED) {
            hold(acc);
#pragma unroll
            for (u32 i = 0; i < N / 2; i++) total[i] = acc[i];
        }
    }
};

// Of a group's sums, number `i` is of row i / 4 * 8 + lane % 4 * 2 + i % 2 of x, weight row
// warp % 4 * 16 + lane / 4 + i % 4 / 2 * 8.
template <int F, u32 N>
struct Leaving {
    using S = Stage<F, N>;
    u8* place;
    u32 warp, lane;

    __device__ __forceinline__ u32 group() const { return warp / 4; }
    __device__ __forceinline__ u32 thread() const { return warp % 4 * WARP + lane; }

    // The scale of a row of x; 1 where there is no norm, which changes no bit.
    __device__ __forceinline__ float scale(const Product& p, u32 x_row) const {
        return p.norm.squares != nullptr && x_row < p.x.rows ? p.norm.scales[x_row] : 1.0f;
    }

    // Has what sums will be added to come into the cache while they are made, a thread a row of x.
    __device__ __forceinline__ void prepare(const Product& p, const Turn& turn) const {
        const u32 rows = p.parts[turn.part].w.rows, first = turn.tile * 128;
        const u32 x_row = turn.x_tile * N + threadIdx.x;
        if (p.mode != ADD || rows % 4 > 0 || threadIdx.x >= N || x_row >= p.x.rows) return;
        prefetch(p.parts[turn.part].y + (u64)x_row * rows + first, min(128, rows - first) * 4);
    }

    // Sums become results in the place, a warp a row of x, and leave while the next tile begins.
    __device__ __forceinline__ void put_sums(const Product& p, const Turn& turn,
                                             const float (&sums)[N / 2]) const {
        constexpr u32 ROWS = S::PIECE / 8; // of x for a warp
        const Part& part = p.parts[turn.part];
        const u32 rows = part.w.rows, first = turn.tile * 128, row = first + lane * 4;
        const bool whole_fours = rows % 4 == 0, mine = whole_fours && row < rows;
        const bool biased = part.bias != nullptr, adds = p.mode == ADD;
        float* results = (float*)place;
        float4 bias = {};
        if (mine && biased) {
            const float* from = part.bias + row;
            bias = {from[0], from[1], from[2], from[3]};
        }
#pragma unroll
        for (u32 piece = 0; piece < N / S::PIECE; piece++) {
            const u32 first_x = turn.x_tile * N + piece * S::PIECE;
            if (first_x >= p.x.rows) break;
            copies_out_read();
            meet<BOTH>();
#pragma unroll
            for (u32 i = 0; i < S::PIECE / 2; i++) {
                const u32 x_row = i / 4 * 8 + lane % 4 * 2 + i % 2;
                results[x_row * S::STRIDE + warp * 16 + lane / 4 + i % 4 / 2 * 8] =
                    whole<F, false>(sums[piece * S::PIECE / 2 + i]);
            }
            float4 old[ROWS] = {};
            if (mine && adds) {
#pragma unroll
                for (u32 i = 0; i < ROWS; i++) {
                    const u32 x_row = min(first_x + i * 8 + warp, p.x.rows - 1);
                    old[i] = *(const float4*)(part.y + (u64)x_row * rows + row);
                }
            }
            meet<BOTH>();
            if (!whole_fours) {
                for (u32 i = threadIdx.x; i < S::PIECE * 128; i += 256) {
                    const u32 x_row = first_x + i / 128;
                    const float sum = results[i / 128 * S::STRIDE + i % 128];
                    put(part, p.mode, p.x.rows, first + i % 128, x_row,
                        __fmul_rn(sum, scale(p, x_row)));
                }
                continue;
            }
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                const float by = scale(p, first_x + i * 8 + warp);
                float4* at = (float4*)(results + (i * 8 + warp) * S::STRIDE) + lane;
                float4 sum = *at;
                sum.x = __fmul_rn(sum.x, by), sum.y = __fmul_rn(sum.y, by);
                sum.z = __fmul_rn(sum.z, by), sum.w = __fmul_rn(sum.w, by);
                if (mine && biased) sum = added(sum, bias);
                if (mine && adds) sum = added(old[i], sum);
                *at = sum;
            }
            show_async();
            meet<BOTH>();
            const u32 i = threadIdx.x, x_row = first_x + i;
            if (i < S::PIECE && x_row < p.x.rows) {
                copy_out(part.y + (u64)x_row * rows + first, results + i * S::STRIDE,
                         min(128, rows - first) * 4);
            }
        }
    }

    // One group has the sums of gate and the other those of up: of each piece the first takes the
    // first half of the rows of x, and the second the others. Half a block of 64 columns lies in
    // one run of `to`.
    __device__ __forceinline__ void put_gated(const Product& p, const Turn& turn,
                                              const float (&sums)[N / 2]) const {
        constexpr u32 HALF = S::PIECE / 2, COUNT = S::PIECE / 4;
        static_assert(COUNT * 128 * 4 + HALF * 128 <= S::RESULTS / 2, "sums, and results");
        const bool second = group() == 1;
        float* mine = (float*)(place + group() * (S::RESULTS / 2));
        const float* others = (const float*)(place + (1 - group()) * (S::RESULTS / 2));
        u16* out = (u16*)(mine + COUNT * 128);
        const u32 rows = p.parts[0].w.rows;
        const u32 g = lane / 4, t = lane % 4, w = warp % 4;
#pragma unroll
        for (u32 piece = 0; piece < N / S::PIECE; piece++) {
            const u32 base = piece * S::PIECE / 2;
            const u32 first_x = turn.x_tile * N + piece * S::PIECE + group() * HALF;
            if (first_x - group() * HALF >= p.x.rows) break;
            meet<BOTH>(); // the last results are gone
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) {
                mine[i * 128 + thread()] = second ? sums[base + i] : sums[base + COUNT + i];
            }
            meet<BOTH>();
#pragma unroll
            for (u32 n = 0; n < COUNT / 4; n++) {
                const float by[2] = {scale(p, first_x + n * 8 + t * 2),
                                     scale(p, first_x + n * 8 + t * 2 + 1)};
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    const bool there = turn.tile * 64 + w * 16 + h * 8 + g < rows;
                    float v[2];
#pragma unroll
                    for (u32 o = 0; o < 2; o++) {
                        const u32 i = n * 4 + h * 2 + o;
                        const float own = second ? sums[base + COUNT + i] : sums[base + i];
                        const float other = others[i * 128 + thread()];
                        const float gate = __fmul_rn(whole<F, false>(second ? other : own), by[o]);
                        const float up = __fmul_rn(whole<F, false>(second ? own : other), by[o]);
                        v[o] = there ? gated(gate, up) : 0.0f;
                    }
                    *(u32*)(out + n * 512 + (g / 2 + 4 * h) * 64 + (2 * t + g % 2) * 8 + w * 2) =
                        two_columns(v, g % 2 == 1);
                }
            }
            if (second) meet<SECOND>();
            else meet<FIRST>();
            u16* to = p.to.hi + encoded_place(p.to, first_x, turn.tile * 64);
#pragma unroll
            for (u32 i = thread(); i < HALF * 8; i += 128) {
                if (first_x + i / 64 * 8 + i % 8 < p.x.rows) {
                    *(uint4*)(to + i * 8) = *(const uint4*)(out + i * 8);
                }
            }
        }
    }
};

template <int F, u32 N, bool SLICED>
__device__ __forceinline__ void many_rows(const Product& p) {
    using S = Stage<F, N>;
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u64 full[S::COUNT], empty[S::COUNT];
    const u32 warp = warp_of(), lane = threadIdx.x % WARP;
    depend_go();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < S::COUNT; i++) {
            barrier_init(&full[i], 1), barrier_init(&empty[i], 8 * WARP_ARRIVES);
        }
        barriers_ready();
    }
    __syncthreads();
    depend_wait();
    if (warp >= 8) {
        fewer_registers<40>();
        if (threadIdx.x == 8 * WARP) feed<F, N>(p, memory, full, empty);
    } else {
        more_registers<232>();
        const u32 blocks = blocks_of(p.parts[0].w.cols);
        const Turns<N> turns(p);
        Summing<F, N, SLICED> summing = {memory, full, empty, warp, lane, 0, 0};
        const Leaving<F, N> leaving = {memory + S::COUNT * S::BYTES, warp, lane};
        for (u32 i = blockIdx.x; i < turns.count; i += gridDim.x) {
            float sums[N / 2];
            const Turn turn = turns.at(i);
            leaving.prepare(p, turn);
            summing.tile(blocks, sums);
            if (p.mode == GLU) leaving.put_gated(p, turn, sums);
            else leaving.put_sums(p, turn, sums);
        }
    }
    copies_out_read();
}

// Rows of x of a tile, threads of a CTA, its bytes of dynamic shared memory, and whether CTAs stay.
extern "C" {
__constant__ u32 many_shape[4] = {128, MANY_THREADS, Stage<FORMAT, 128>::ALL, 1};
__constant__ u32 many_fast_shape[4] = {256, MANY_THREADS, Stage<FORMAT, 256>::ALL, 1};
}
