// Many rows without wgmma: 2 x 4 warps, each 64 weight rows by 32 rows of x, one CTA a processor.
// Weights become bf16 once, on their way into shared memory, and lie there as in memory: in the
// order of the left operand in registers, 16 rows and a block a *slot*.
//
// What decides the tile: sums have the slices of `few`, which take a second set of registers, so
// that 128 by 128 is what a CTA holds. It asks memory for a byte each 64 operations, or fewer where
// weights are quantised, and shared memory for 192 bytes each `mma`: 1.5 cycles of what it gives.
//
// Blocks are on their way two ahead, and what a warp multiplies next is in registers by then. No
// barrier makes all warps meet: each waits for a stage to be full, or free, and they drift apart.
// CTAs stay and take one tile after the other: the next tile's blocks come while results leave.

#define MANY_N 128
#define MANY_THREADS 256
#define MANY_MT 4 // tiles of 16 weight rows of a warp, and of 8 rows of x
#define MANY_NT 4
#define STAGES 3
#define SLOT_BYTES 2048
#define X_AT (8 * SLOT_BYTES) // rows of x lie behind the slots
#define STAGE_BYTES (X_AT + MANY_N * 128)
#define COPIED (MANY_THREADS * 16) // bytes, by all threads once: a quarter of a block

// Without the bytes that `load_block` joins with what else it loads: it would wait for both.
struct FromMemoryButBytes : FromMemory {
    static __device__ __forceinline__ u32 byte(const u8*) { return 0; }
};

// Tiles of a launch: rows of x first. GLU: a tile has 64 rows of gate and the same of up.
struct Turns {
    u32 x_tiles, count;
    u32 x_step, step; // of a CTA, from one of its tiles to the next

    __device__ __forceinline__ explicit Turns(const Product& p) {
        x_tiles = (p.x.rows + MANY_N - 1) / MANY_N;
        const u32 height = p.mode == GLU ? 64 : 128;
        count = (p.parts[0].w.rows + height - 1) / height;
        for (u32 i = 1; p.mode != GLU && i < p.count; i++) {
            count += (p.parts[i].w.rows + 127) / 128;
        }
        count *= x_tiles;
        x_step = gridDim.x % x_tiles, step = gridDim.x / x_tiles;
    }
};

// One of a CTA's tiles.
struct Turn {
    u32 x_tile, tile, nth;

    __device__ __forceinline__ explicit Turn(const Turns& turns)
        : x_tile(blockIdx.x % turns.x_tiles), tile(blockIdx.x / turns.x_tiles), nth(blockIdx.x) {}

    __device__ __forceinline__ void go_on(const Turns& turns) {
        x_tile += turns.x_step, tile += turns.step, nth += gridDim.x;
        if (x_tile >= turns.x_tiles) x_tile -= turns.x_tiles, tile++;
    }
};

// Where a thread's copies of x come from.
struct FeedX {
    const Product& p;
    const Turns& turns;
    u32 blocks; // of a tile
    Turn turn;
    u32 block;
    const u8* from;

    __device__ __forceinline__ void seek() {
        block = 0;
        from = (const u8*)(p.x.hi + (u64)turn.x_tile * blocks * 8192) + threadIdx.x * 16;
    }

    // Behind the last tile its blocks come again: to ask at each of them costs more.
    __device__ __forceinline__ void go_on() {
        if (block < blocks) return;
        if (turn.nth + gridDim.x < turns.count) turn.go_on(turns);
        seek();
    }

    // Begins to copy quarter `i` of the block to come.
    __device__ __forceinline__ void copy(u32 stage, u32 i) {
        copy_async(stage + X_AT + i * COPIED + threadIdx.x * 16, from + i * COPIED);
        if (i == 3) from += 4 * COPIED, block++;
    }
};

// Where weights come from. Of bf16 all threads copy the slots. Of other formats a warp loads the
// blocks of its slot, and makes them ready when the next are asked for.
template <int F>
struct FeedWeights {
    using R = Record<F>;
    static constexpr u32 SPAN = 8 * (R::SPAN * R::BLOCK + R::SHARED);

    const Product& p;
    const Turns& turns;
    u32 blocks; // of a tile
    u32 slot;   // of this warp
    Turn turn;
    u32 block;
    const u8 *from, *second; // bf16: the first four slots and the others
    u32 nth;                 // of the eight tiles that lie together the warp's
    Raw<F> raw;
    Shared shared;
    u32 late; // of Q4_K: the bytes that `load_block` leaves out, still to be joined

    __device__ __forceinline__ void seek() {
        block = 0;
        const bool glu = p.mode == GLU;
        u32 tile = turn.tile;
        const Part part = glu ? p.parts[0] : part_of(p, 128, tile);
        const u8* other = glu ? p.parts[1].w.blocks : part.w.blocks;
        const u32 tile0 = tile * (glu ? 4 : 8), tile1 = glu ? tile0 : tile0 + 4;
        if (F == BF16) {
            from = part.w.blocks + block_at<F>(part.w, tile0, 0) + threadIdx.x * 16;
            second = other + block_at<F>(part.w, tile1, 0) + threadIdx.x * 16;
        } else {
            const u32 at = (slot < 4 ? tile0 : tile1) + slot % 4;
            from = (slot < 4 ? part.w.blocks : other) + span_at<F>(part.w, at, 0);
            nth = at % 8;
        }
    }

    __device__ __forceinline__ void go_on() {
        if (block < blocks) return;
        if (turn.nth + gridDim.x < turns.count) turn.go_on(turns);
        seek();
    }

    // Begins to copy quarter `i` of the block to come.
    __device__ __forceinline__ void copy(u32 stage, u32 i) {
        copy_async(stage + i * COPIED + threadIdx.x * 16, (i < 2 ? from : second) + i % 2 * COPIED);
        if (i == 3) from += 8 * R::BLOCK, second += 8 * R::BLOCK, block++;
    }

    // Begins to load the warp's block to come.
    __device__ __forceinline__ void load() {
        const u32 lane = threadIdx.x % WARP;
        // What blocks share precedes the first of them; each block lies by the seven below it.
        const u8* span = from + block / R::SPAN * SPAN;
        const u32 at = 8 * R::SHARED + (block % R::SPAN * 8 + nth) * R::BLOCK;
        load_block<F, FromMemoryButBytes>(raw, span, at, lane);
        if (F == Q4_K) late = FromMemory::byte(span + at + R::BLOCK - 16 + lane / 2);
        load_shared<F, FromMemory>(shared, span, nth * R::SHARED, lane);
        block++;
    }

    // Makes what was loaded last ready in its slot.
    __device__ __forceinline__ void make(u32 stage) {
        if (F == Q4_K) raw.more[0] |= late << 16;
        const u32 to = stage + slot * SLOT_BYTES + threadIdx.x % WARP * 16;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            u32 a[4];
            fragment<F>(raw, shared, s, a);
            store_shared_four(to + s * 512, a);
        }
    }
};

// What a warp multiplies at a time: of a step its weights, and its rows of x.
struct Step {
    u32 a[MANY_MT][4], b[MANY_NT][2];
};

// A lane's places in a stage: of the first two tiles and of the others, and of its rows of x.
struct Places {
    u32 a[2], b;

    // GLU: the first two are of gate, and the others of up.
    __device__ __forceinline__ Places(u32 stages, bool glu) {
        const u32 warp = warp_of(), lane = threadIdx.x % WARP, m = warp % 2;
        a[0] = stages + m * (glu ? 2 : 4) * SLOT_BYTES + lane * 16;
        a[1] = a[0] + (glu ? 4 : 2) * SLOT_BYTES;
        b = stages + X_AT + warp / 2 * (MANY_NT * 1024) + lane / 16 * 1024 + lane % 16 * 16;
    }

    __device__ __forceinline__ void load(Step& to, u32 stage, int s) const {
#pragma unroll
        for (int t = 0; t < MANY_MT; t++) {
            const uint4 v = FromRing::four(a[t / 2] + stage + t % 2 * SLOT_BYTES + s * 512);
            to.a[t][0] = v.x, to.a[t][1] = v.y, to.a[t][2] = v.z, to.a[t][3] = v.w;
        }
#pragma unroll
        for (int n = 0; n < MANY_NT; n += 2) {
            load_matrices(to.b[n][0], to.b[n][1], to.b[n + 1][0], to.b[n + 1][1],
                          b + stage + n * 1024 + s * 256);
        }
    }
};

__device__ __forceinline__ void multiply(float (&acc)[MANY_MT][MANY_NT][4], const Step& with) {
#pragma unroll
    for (int t = 0; t < MANY_MT; t++)
#pragma unroll
        for (int n = 0; n < MANY_NT; n++) mma(acc[t][n], with.a[t], with.b[n][0], with.b[n][1]);
}

// Has what sums will be added to come into the cache while they are made.
__device__ __forceinline__ void prepare_sums(const Product& p, const Turn& turn) {
    if (p.mode != ADD) return;
    u32 tile = turn.tile;
    const Part part = part_of(p, 128, tile);
    const u32 row = tile * 128 + threadIdx.x % 4 * 32; // a line has 32
#pragma unroll
    for (u32 i = 0; i < MANY_N; i += MANY_THREADS / 4) {
        const u32 x_row = turn.x_tile * MANY_N + i + threadIdx.x / 4;
        if (x_row >= p.x.rows || row >= part.w.rows) continue;
        prefetch_line(part.y + (u64)x_row * part.w.rows + row);
    }
}

// Sums become results: of tile `t`, number `c` of `n` is weight row c / 2 * 8 + lane / 4 and row
// 8 n + lane % 4 * 2 + c % 2 of x.
__device__ __forceinline__ void put_sums(const Product& p, const Turn& turn,
                                         const float (&sums)[MANY_MT][MANY_NT][4]) {
    const u32 warp = warp_of(), lane = threadIdx.x % WARP;
    u32 tile = turn.tile;
    const Part part = part_of(p, 128, tile);
    const u32 first_x = turn.x_tile * MANY_N + warp / 2 * (MANY_NT * 8) + lane % 4 * 2;
    const u32 first = tile * 128 + warp % 2 * 64 + lane / 4;
    const u32 rows = part.w.rows;
    float bias[MANY_MT][2] = {};
    if (part.bias != nullptr) {
#pragma unroll
        for (u32 i = 0; i < 2 * MANY_MT; i++) {
            if (first + i * 8 < rows) bias[i / 2][i % 2] = part.bias[first + i * 8];
        }
    }
    const bool biased = part.bias != nullptr, adds = p.mode == ADD;
#pragma unroll
    for (u32 n = 0; n < MANY_NT; n++) {
        float before[2][2 * MANY_MT];
        float* y[2];
#pragma unroll
        for (u32 o = 0; o < 2; o++) {
            const u32 x_row = first_x + n * 8 + o;
            y[o] = part.y + (u64)x_row * rows + first;
#pragma unroll
            for (u32 i = 0; i < 2 * MANY_MT; i++) {
                const bool there = adds && x_row < p.x.rows && first + i * 8 < rows;
                before[o][i] = there ? y[o][i * 8] : 0.0f;
            }
        }
#pragma unroll
        for (u32 o = 0; o < 2; o++) {
            const u32 x_row = first_x + n * 8 + o;
#pragma unroll
            for (u32 i = 0; i < 2 * MANY_MT; i++) {
                float sum = scaled(p, x_row, sums[i / 2][n][i % 2 * 2 + o]);
                if (biased) sum = __fadd_rn(sum, bias[i / 2][i % 2]);
                if (adds) sum = __fadd_rn(before[o][i], sum);
                if (x_row < p.x.rows && first + i * 8 < rows) y[o][i * 8] = sum;
            }
        }
    }
}

// The same of a gated product: a warp has two tiles of gate, and the two of up that go with them,
// 32 of the 64 columns of a block of `to`.
__device__ __forceinline__ void put_gated(const Product& p, const Turn& turn,
                                          const float (&sums)[MANY_MT][MANY_NT][4]) {
    const u32 warp = warp_of(), lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const u32 tile = turn.tile, rows = p.parts[0].w.rows;
    const u32 first_x = turn.x_tile * MANY_N + warp / 2 * (MANY_NT * 8);
    const u32 first = tile * 64 + warp % 2 * 32 + g;
#pragma unroll
    for (u32 n = 0; n < MANY_NT; n++) {
        const u32 x_row = first_x + n * 8 + t * 2;
        const bool odd = g % 2 == 1;
        const u64 place = encoded_place(p.to, x_row + odd, tile * 64 + warp % 2 * 32);
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            uint2 out;
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const bool there = first + i * 16 + h * 8 < rows;
                float v[2];
#pragma unroll
                for (u32 o = 0; o < 2; o++) {
                    const float gate = scaled(p, x_row + o, sums[i][n][h * 2 + o]);
                    const float up = scaled(p, x_row + o, sums[i + 2][n][h * 2 + o]);
                    v[o] = there ? gated(gate, up) : 0.0f;
                }
                (i == 0 ? out.x : out.y) = two_columns(v, odd);
            }
            if (x_row + odd < p.x.rows) {
                *(uint2*)(p.to.hi + place + (g / 2 + 4 * h) * 64) = out;
            }
        }
    }
}

// How far a warp is in the ring of stages.
struct Place {
    u32 stage, phase;

    __device__ __forceinline__ u32 at() const { return stage * STAGE_BYTES; }
    __device__ __forceinline__ void go_on() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// Brings blocks into the stages: a quarter of one at each step of the block that is multiplied.
template <int F>
struct Filling {
    FeedX x;
    FeedWeights<F> weights;
    u32 stages;
    u64 *full, *empty;
    Place place;

    __device__ __forceinline__ void begin() {
        x.seek(), weights.seek();
        if (F != BF16) weights.load();
#pragma unroll 1
        for (u32 i = 0; i + 1 < STAGES; i++) {
            ready();
#pragma unroll
            for (int s = 0; s < 4; s++) bring(s);
        }
    }

    // Before quarter 0: until all warps are done with what was in the stage.
    __device__ __forceinline__ void ready() {
        x.go_on(), weights.go_on();
        barrier_wait(empty + place.stage, place.phase);
    }

    __device__ __forceinline__ void bring(int quarter) {
        const u32 stage = stages + place.at();
        x.copy(stage, quarter);
        if (F == BF16) {
            weights.copy(stage, quarter);
        } else if (quarter == 2) {
            weights.make(stage), weights.load();
            warp_arrive(full + place.stage, threadIdx.x % WARP);
        }
        if (quarter < 3) return;
        barrier_arrive_copied(full + place.stage);
        place.go_on();
    }
};

// A CTA's sums: of one tile after the other, in slices.
template <int F>
struct Multiplying {
    Places places;
    u64 *full, *empty;
    u32 blocks;
    Place place;
    Step even, odd; // steps take turns: one is multiplied while the other is loaded

    __device__ __forceinline__ void begin() {
        barrier_wait(full, 0);
        places.load(even, 0, 0);
    }

    __device__ __forceinline__ void block(Filling<F>& filling, float (&acc)[MANY_MT][MANY_NT][4]) {
        const u32 at = place.at();
        places.load(odd, at, 1);
        multiply(acc, even);
        filling.ready();
        places.load(even, at, 2);
        filling.bring(0);
        filling.bring(1);
        multiply(acc, odd);
        places.load(odd, at, 3);
        warp_arrive(empty + place.stage, threadIdx.x % WARP);
        filling.bring(2);
        multiply(acc, even);
        filling.bring(3);
        place.go_on();
        barrier_wait(full + place.stage, place.phase);
        places.load(even, place.at(), 0);
        multiply(acc, odd);
    }

    __device__ __forceinline__ void tile(Filling<F>& filling,
                                         float (&total)[MANY_MT][MANY_NT][4]) {
        clear(total);
        const u32 slices = slices_of(blocks);
        u32 at = 0;
#pragma unroll 1
        for (u32 slice = 0; slice < slices; slice++) {
            float acc[MANY_MT][MANY_NT][4];
            clear(acc);
#pragma unroll 1
            for (const u32 end = slice_start<F>(blocks, slice + 1, slices); at < end; at++) {
                block(filling, acc);
            }
            add_slice(total, acc);
        }
#pragma unroll
        for (int t = 0; t < MANY_MT; t++)
#pragma unroll
            for (int n = 0; n < MANY_NT; n++)
#pragma unroll
                for (int c = 0; c < 4; c++) total[t][n][c] = whole<F, false>(total[t][n][c]);
    }
};

template <int F>
__device__ __forceinline__ void many_rows(const Product& p) {
    constexpr u32 WARPS = MANY_THREADS / WARP;
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u64 full[STAGES], empty[STAGES];
    depend_go();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            // All threads copy; of formats that are made ready each warp says so, too.
            barrier_init(full + i, MANY_THREADS + (F == BF16 ? 0 : WARPS * WARP_ARRIVES));
            barrier_init(empty + i, WARPS * WARP_ARRIVES);
        }
    }
    __syncthreads();
    depend_wait();
    const u32 stages = shared_address(memory), blocks = blocks_of(p.x.cols);
    const Turns turns(p);
    const Turn first(turns);
    // The first time around stages are free: as if phase 1, before the first, were over.
    Filling<F> filling = {{p, turns, blocks, first}, {p, turns, blocks, warp_of(), first},
                          stages, full, empty, {0, 1}};
    filling.begin();
    Multiplying<F> multiplying = {Places(stages, p.mode == GLU), full, empty, blocks, {0, 0}};
    multiplying.begin();
#pragma unroll 1
    for (Turn turn(turns); turn.nth < turns.count; turn.go_on(turns)) {
        float total[MANY_MT][MANY_NT][4];
        prepare_sums(p, turn);
        multiplying.tile(filling, total);
        if (p.mode == GLU) put_gated(p, turn, total);
        else put_sums(p, turn, total);
    }
    copies_wait_all();
}

// Rows of x of a tile, threads of a CTA, its bytes of dynamic shared memory, and whether CTAs stay.
extern "C" {
__constant__ u32 many_shape[4] = {MANY_N, MANY_THREADS, STAGES * STAGE_BYTES, 1};
}
