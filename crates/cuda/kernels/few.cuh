// Few rows: a warp has a slice of the columns of a tile of 16 weight rows, and a ring of blocks of
// its own in shared memory, so no warp waits for another before the tile ends. Read `few` first: a
// CTA takes one tile after the other; `Feed` has blocks on their way, `take_block` multiplies one,
// and `end_tile` sums the slices.

// Of a ring, about, where eight warps have one each. Plain weights need no work that other CTAs of
// a processor could do meanwhile: fewer CTAs with more on their way are faster.
#define RING_BYTES (FORMAT == BF16 ? 10240 : 5120)

// Loads 16 bytes where `is_there`, and else leaves what is in the registers: the compiler would
// load into others, and wait there to choose.
__device__ __forceinline__ void load_where(u32& a, u32& b, u32& c, u32& d, const u16* from,
                                           bool is_there) {
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "setp.ne.u32 there, %5, 0;\n"
                 "@there ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(a), "+r"(b), "+r"(c), "+r"(d)
                 : "l"(from), "r"((u32)is_there));
}

// Right operands of a block of few rows of x: 8 NT, of which row 8 n + lane / 4 has its columns for
// this lane `at`, in `hi`, and 512 n values behind. Rows that are not there leave `b` as it is: it
// goes into sums that nobody takes.
template <int NT, bool EXACT>
__device__ __forceinline__ void load_few(u32 (&b)[EXACT ? 2 : 1][4][NT][2], const Encoded& x,
                                         const u16* at, u32 lane) {
#pragma unroll
    for (int part = 0; part < (EXACT ? 2 : 1); part++) {
        const u16* from = part == 0 ? at : x.lo + (at - x.hi);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const bool is_there = n * 8 + lane / 4 < x.rows;
#pragma unroll
            for (int s = 0; s < 4; s += 2) {
                load_where(b[part][s][n][0], b[part][s][n][1], b[part][s + 1][n][0],
                           b[part][s + 1][n][1], from + n * 512 + s * 4, is_there);
            }
        }
    }
}

// A warp's own ring of blocks in shared memory, which it fills DEPTH blocks ahead.
template <int F, int MT, int S>
struct Ring {
    static constexpr u32 TILE = Record<F>::BLOCK + Record<F>::SHARED, STAGE = MT * TILE;
    static constexpr u32 FIT = RING_BYTES * SLICES / S / STAGE;
    // Blocks that share are fetched in a turn of the loop, which the ring holds at least.
    static constexpr u32 LEAST = Record<F>::SPAN > 2 ? Record<F>::SPAN : 2;
    static constexpr u32 DEPTH = FIT >= 8 ? 8 : FIT >= 4 ? 4 : LEAST;
    static constexpr u32 TURN = DEPTH > 4 ? 4 : DEPTH;
    static constexpr u32 BYTES = DEPTH * STAGE;
};

// Has the compiler keep a value in registers, where it would compute it again at each use.
__device__ __forceinline__ void keep(u32& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void keep(const u8*& pointer) { asm volatile("" : "+l"(pointer)); }

// Begins to copy BYTES bytes, the lanes of a warp together: `to` and `from` are a lane's first 16.
template <u32 BYTES>
__device__ __forceinline__ void begin_copy(u32 to, const u8* from, u32 lane) {
#pragma unroll
    for (u32 at = 0; at < BYTES; at += 512) {
        if (at + 512 <= BYTES || lane * 16 < BYTES - at) {
            copy_async(to + at, from + at);
        }
    }
}

// Tiles of 16 rows of all parts; of a gated product, of one part.
__device__ __forceinline__ u32 tiles_of(const Product& p, bool glu) {
    u32 tiles = (p.parts[0].w.rows + 15) / 16;
    if (!glu && p.count > 1) tiles += (p.parts[1].w.rows + 15) / 16;
    if (!glu && p.count > 2) tiles += (p.parts[2].w.rows + 15) / 16;
    return tiles;
}

// Blocks that a warp begins to copy: its slice of one tile after the other.
template <int F, bool GLU, int S>
struct Feed {
    using R = Record<F>;
    static constexpr int MT = GLU ? 2 : 1;
    using Blocks = Ring<F, MT, S>;
    static constexpr u32 SPAN_BYTES = 8 * (R::SPAN * R::BLOCK + R::SHARED);

    const Product& p;
    u32 tiles, first, count; // all tiles; first block of the slice, and how many
    u32 to;                  // a lane's place in the ring
    u32 tile, left = 0;      // blocks of this tile that are not on their way
    // A lane's share of the blocks of a turn, and of what is shared.
    const u8* from[MT];
    const u8* shared_from[MT];

    __device__ __forceinline__ void seek(u32 next, u32 lane) {
        tile = next;
        left = tile < tiles ? count : 0;
        if (left == 0) return;
        u32 at = tile;
        const Part part = GLU ? p.parts[0] : part_of(p, 16, at);
#pragma unroll
        for (int t = 0; t < MT; t++) {
            const Weight& w = t == 0 ? part.w : p.parts[1].w;
            from[t] = w.blocks + block_at<F>(w, at, first) + lane * 16;
            shared_from[t] = w.blocks + shared_at<F>(w, at, first) + lane * 16;
            keep(from[t]);
            keep(shared_from[t]);
        }
    }

    // Begins to copy block `i` of the turn into a stage.
    __device__ __forceinline__ void begin(u32 i, u32 stage, u32 lane) {
        if (i < left) {
            const u32 span = i / R::SPAN * SPAN_BYTES, at = to + stage;
#pragma unroll
            for (int t = 0; t < MT; t++) {
                begin_copy<R::BLOCK>(at + t * Blocks::TILE,
                                     from[t] + span + i % R::SPAN * 8 * R::BLOCK, lane);
                if (i % R::SPAN == 0) {
                    begin_copy<R::SHARED>(at + t * Blocks::TILE + R::BLOCK, shared_from[t] + span,
                                          lane);
                }
            }
        }
        copies_end_group();
    }

    // Goes on to the next turn.
    __device__ __forceinline__ void advance(u32 lane) {
        if (left <= Blocks::TURN) {
            seek(tile + gridDim.x, lane);
            return;
        }
        left -= Blocks::TURN;
#pragma unroll
        for (int t = 0; t < MT; t++) {
            from[t] += Blocks::TURN / R::SPAN * SPAN_BYTES;
            shared_from[t] += Blocks::TURN / R::SPAN * SPAN_BYTES;
        }
    }

    // Begins with as many blocks as the ring has stages.
    __device__ __forceinline__ void fill(u32 lane) {
        seek(blockIdx.x, lane);
#pragma unroll
        for (u32 i = 0; i < Blocks::DEPTH; i++) {
            begin(i % Blocks::TURN, i * Blocks::STAGE, lane);
            if (i % Blocks::TURN == Blocks::TURN - 1) advance(lane);
        }
    }
};

// Sums of a slice in shared memory: [part, row of x, weight row], one of these more than there are,
// against conflicts.
template <int NT, bool GLU>
using SliceSums = float[GLU ? 2 : 1][NT * 8][17];

// The scales of the norm of x, a row a warp in turn.
template <int S>
__device__ __forceinline__ void find_scales(float* scales, const Product& p, u32 warp) {
    const u32 squares = (p.norm.cols + 15) / 16;
    for (u32 i = warp; i < p.x.rows; i += S) {
        scales[i] = row_scale(p.norm.squares + i * squares, p.norm.cols, p.norm.eps);
    }
}

// The zeros behind each row of what is encoded, a thread a row.
template <bool EXACT>
__device__ __forceinline__ void pad_few(const Product& p) {
    const u32 end = encoded_cols(p.to);
#pragma unroll 1
    for (u32 col = p.to.cols; col < end; col++) {
        put_encoded_few<EXACT>(p.to, threadIdx.x, col, 0.0f);
    }
}

// Sums the slices of tile `at_tile` and puts the results: row `row` of the tile, of each row of x
// that a thread takes. `scales` are there from a CTA's first tile on.
template <int F, int NT, bool GLU, bool EXACT, int S>
__device__ __forceinline__ void end_tile(const Product& p, SliceSums<NT, GLU>* sums, float* scales,
                                         const float (&acc)[GLU ? 2 : 1][NT][4], u32 at_tile,
                                         u32 tiles) {
    constexpr int MT = GLU ? 2 : 1;
    constexpr u32 ITEMS = (NT * 128 + S * WARP - 1) / (S * WARP);
    const u32 slice = warp_of(), lane = threadIdx.x % WARP;
    u32 tile = at_tile;
    const Part part = GLU ? p.parts[0] : part_of(p, 16, tile);
    const u32 row = threadIdx.x % 16, first_x_row = threadIdx.x / 16, out_row = tile * 16 + row;
    const bool is_normed = p.norm.squares != nullptr;
    if (is_normed && at_tile == blockIdx.x) find_scales<S>(scales, p, slice);
    auto is_there = [&](u32 x_row) { return x_row < p.x.rows && out_row < part.w.rows; };
    const float gain = !GLU && p.gain && out_row < part.w.rows ? p.gain[out_row] : 0.0f;
    float before[ITEMS];
#pragma unroll
    for (u32 n = 0; n < ITEMS; n++) {
        const u32 x_row = first_x_row + n * (S * 2);
        const bool adds = !GLU && p.mode == ADD && is_there(x_row);
        before[n] = adds ? part.y[(u64)x_row * part.w.rows + out_row] : 0.0f;
    }
    __syncthreads(); // the sums of the tile before are read
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const u32 x_row = n * 8 + lane % 4 * 2 + c % 2;
                sums[slice][t][x_row][lane / 4 + c / 2 * 8] = acc[t][n][c];
            }
    __syncthreads();
#pragma unroll
    for (u32 n = 0; n < ITEMS; n++) {
        const u32 x_row = first_x_row + n * (S * 2);
        if (x_row >= NT * 8) break; // whole warps
        float sum[MT];
#pragma unroll
        for (int t = 0; t < MT; t++) {
            sum[t] = 0.0f;
#pragma unroll
            for (int s = 0; s < S; s++) sum[t] = __fadd_rn(sum[t], sums[s][t][x_row][row]);
            sum[t] = whole<F, EXACT>(sum[t]);
            if (is_normed) sum[t] = __fmul_rn(sum[t], scales[x_row]);
        }
        if (GLU) {
            const float y = gated(sum[0], sum[MT - 1]);
            if (is_there(x_row)) put_encoded_few<EXACT>(p.to, x_row, out_row, y);
            continue;
        }
        float y = 0.0f;
        if (is_there(x_row)) {
            y = part.bias ? __fadd_rn(sum[0], part.bias[out_row]) : sum[0];
            if (p.mode == ADD) y = __fadd_rn(before[n], y);
            part.y[(u64)x_row * part.w.rows + out_row] = y;
        }
        if (p.gain == nullptr) continue;
        const float squares = sixteen_sum(__fmul_rn(y, y));
        if (!is_there(x_row)) continue;
        put_encoded_few<EXACT>(p.to, x_row, out_row, __fmul_rn(y, gain));
        if (row == 0) p.squares[x_row * ((part.w.rows + 15) / 16) + tile] = squares;
    }
    if ((GLU || p.gain) && at_tile + 1 == tiles && threadIdx.x < p.x.rows) pad_few<EXACT>(p);
}

// Takes block `i` of a turn from its stage, `at` in the ring, and adds its products with `x`;
// `fetch_next` begins to load what the next one needs of x. The feed fills the stage again.
template <int F, int MT, int NT, bool EXACT, typename Blocks, typename Feed, typename Fetch>
__device__ __forceinline__ void take_block(float (&acc)[MT][NT][4], Shared (&shared)[MT],
                                           const u32 (&x)[EXACT ? 2 : 1][4][NT][2], Feed& feed,
                                           u32 ring, u32 i, u32 at, u32 lane, Fetch fetch_next) {
    const u32 stage = ring + at;
    copies_wait<Blocks::DEPTH - 1>();
    __syncwarp();
    Raw<F> raw[MT];
#pragma unroll
    for (int t = 0; t < MT; t++) {
        load_block<F, FromRing>(raw[t], stage, t * Blocks::TILE, lane);
        if (i % Record<F>::SPAN == 0) {
            load_shared<F, FromRing>(shared[t], stage, t * Blocks::TILE + Record<F>::BLOCK, lane);
        }
    }
    fetch_next();
    __syncwarp();
    feed.begin(i, at, lane);
    add_block<F, MT, NT, EXACT>(acc, raw, shared, x);
}

// Few rows: a CTA of a warp a slice does a tile of 16 weight rows after the other; GLU: one of gate
// and one of up. While it ends a tile, blocks of the next are on their way, and the first ones are
// before the input is there. Grid: as many CTAs as run at a time, or fewer.
template <int F, int NT, bool GLU, bool EXACT, int S>
__device__ __forceinline__ void few(const Product& p) {
    constexpr int MT = GLU ? 2 : 1;
    using Blocks = Ring<F, MT, S>;
    extern __shared__ __align__(16) u8 memory[];
    auto sums = (float (*)[MT][NT * 8][17])(memory + S * Blocks::BYTES);
    __shared__ float scales[NT * 8];
    depend_go();
    const u32 slice = warp_of(), lane = threadIdx.x % WARP;
    const u32 blocks = blocks_of(p.x.cols), tiles = tiles_of(p, GLU);
    const u32 first = slice_start<F>(blocks, slice, S);
    const u32 count = slice_start<F>(blocks, slice + 1, S) - first;
    const u32 ring = shared_address(memory) + slice * Blocks::BYTES;
    Feed<F, GLU, S> feed = {p, tiles, first, count, ring + lane * 16};
    keep(feed.to);
    feed.fill(lane);
    depend_wait();
    const u32 x_block = p.x.rows * 64; // values from one block of x to the next
    const u16* x_first = p.x.hi + (first * x_block + lane / 4 * 64 + lane % 4 * 16);
    // Of few rows, what the next block needs of x is fetched before this one is computed.
    constexpr bool EARLY = NT == 1 && !EXACT;
    u32 b[EARLY ? 2 : 1][EXACT ? 2 : 1][4][NT][2] = {};
    if (EARLY && count > 0) load_few<NT, EXACT>(b[0], p.x, x_first, lane);
    u32 turn = 0;
    for (u32 at_tile = blockIdx.x; at_tile < tiles; at_tile += gridDim.x) {
        float acc[MT][NT][4];
        clear(acc);
        Shared shared[MT];
        const u16* x = x_first;
        auto take = [&](u32 i, u32 at, auto& now, auto fetch_next) {
            take_block<F, MT, NT, EXACT, Blocks>(acc, shared, now, feed, ring, i, at, lane,
                                                 fetch_next);
        };
        u32 left = count;
        for (; left >= Blocks::TURN; left -= Blocks::TURN) {
            const u32 stages = turn;
            if (Blocks::TURN < Blocks::DEPTH) turn ^= Blocks::TURN * Blocks::STAGE;
#pragma unroll
            for (u32 i = 0; i < Blocks::TURN; i++) {
                take(i, stages + i * Blocks::STAGE, b[EARLY ? i % 2 : 0], [&] {
                    if (!EARLY) load_few<NT, EXACT>(b[0], p.x, x, lane);
                    if (i + 1 < Blocks::TURN || left > Blocks::TURN) x += x_block;
                    if (EARLY) load_few<NT, EXACT>(b[(i + 1) % 2], p.x, x, lane);
                });
            }
            feed.advance(lane);
        }
        if (left > 0) {
            const u32 stages = turn;
            if (Blocks::TURN < Blocks::DEPTH) turn ^= Blocks::TURN * Blocks::STAGE;
#pragma unroll 1
            for (u32 i = 0; i < Blocks::TURN; i++) {
                const u32 at = stages + i * Blocks::STAGE;
                if (i < left) {
                    take(i, at, b[0], [&] {
                        load_few<NT, EXACT>(b[0], p.x, x, lane);
                        x += x_block;
                    });
                } else {
                    feed.begin(i, at, lane);
                }
            }
            feed.advance(lane);
        }
        if (EARLY && count > 0) load_few<NT, EXACT>(b[0], p.x, x_first, lane);
        end_tile<F, NT, GLU, EXACT, S>(p, sums, scales, acc, at_tile, tiles);
    }
}

// Bytes of dynamic shared memory of `few`: rings, and the sums of the slices. The least that a CTA
// of any card can have is 99 KiB.
template <int NT, bool GLU, int S>
constexpr u32 few_shared() {
    return S * Ring<FORMAT, GLU ? 2 : 1, S>::BYTES + S * (GLU ? 2 : 1) * NT * 8 * 17 * 4;
}
