// Choosing a token from a row of logits: the contract of ops::Sampling.
//
// Weights exp((l - largest) / temperature) are whole multiples of 2^-40, so that their sums are
// exact in any order. What `top_k`, `top_p`, `min_p` and the draw ask for are prefixes of the ids
// in falling order of logits; each is found by its count or mass, in 1,024 bins of the logits and
// then among the ids of one bin. A NaN counts as minus infinity.
//
// Three kernels share a lane's ids among CTAs: the first finds the largest logit, the second fills
// the bins. In the third every CTA reads off the bins where the prefixes may end and lists its ids
// in them; the last CTA of the lane sorts the list. The second ends lanes that take the largest
// logit and report no log-probability.

#include "common.cuh"

#define CTA 256                 // threads of the first two
#define EACH 8                  // ids of a thread
#define PART (CTA * EACH)       // ids of a CTA of the first two
#define LAST_CTA 1024           // threads of the third
#define BINS 1024
#define BINS_A_UNIT 32.0f       // a weight is zero 28 units below the largest
#define SORTED 4096             // ids that are sorted; longer lists are searched byte by byte
#define TOP_MAX 20
#define IN_PROMPT (1u << 31)
#define INFINITE __int_as_float(0x7f800000)
#define NO_KEY (~0ull)

// As `sampling.rs` writes it: 64 bytes.
struct Draw {
    u64 seed;
    float temperature, top_p, min_p, repetition, presence, frequency;
    u32 top_k, lane, logit_row, position, ids;
    int alternatives; // -1: no log-probability at all
    u32 bias_count;
    u32 unused;
};

struct Bias {
    u32 id;
    float bias;
};

struct Row {
    u32 token;
    float logprob;
    u32 top_len;
    u32 unused;
    u32 top_ids[TOP_MAX];
    float top_logprobs[TOP_MAX];
};

// What the kernels leave each other of a lane that draws: 16,416 bytes. Behind it lie the first key
// of each part [parts], and each part's sum for log-probabilities [parts].
struct State {
    u64 first;   // the lane's first key
    u64 floored; // mass of the weights that `min_p` keeps
    u32 listed;
    u32 arrived; // CTAs of the third kernel that have listed theirs
    u64 unused;
    u64 mass[BINS];
    u32 count[BINS]; // for `top_k` only
    u32 top[BINS];   // counts of bins without temperature, for alternatives only
};

static_assert(sizeof(Draw) == 64 && sizeof(Row) == 176 && sizeof(State) == 16416, "as planned");

// As `abi.rs` declares it. logits [rows, vocab]; counts, adjusted and keys [lanes_max, vocab];
// biases [lanes that draw, bias_max]; draws, states and rows [lanes that draw].
struct Samples {
    const Draw* draws;
    const Bias* biases;
    const float* logits;
    u32* counts;
    float* adjusted;
    u64* keys;
    u8* states;
    Row* rows;
    u32 bias_max, vocab;
};

__device__ __forceinline__ u32 parts_of(const Samples& s) { return (s.vocab + PART - 1) / PART; }

__device__ __forceinline__ State* state_of(const Samples& s, u32 draw) {
    return (State*)(s.states + draw * (sizeof(State) + 16ull * parts_of(s)));
}

__device__ __forceinline__ u64* part_keys(State* state) { return (u64*)(state + 1); }

__device__ __forceinline__ double* part_sums(State* state, u32 parts) {
    return (double*)(part_keys(state) + parts);
}

__device__ __forceinline__ u64 mix(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ double uniform(u64 seed, u32 position) {
    const u64 word = mix(mix(seed + 0x9e3779b97f4a7c15ull) ^ mix((u64)position + 1));
    return (double)(word >> 11) / 9007199254740992.0;
}

// Ascending keys: largest logit first, then lowest id.
__device__ __forceinline__ u64 key_of(float l, u32 id) {
    const u32 bits = __float_as_uint(__fadd_rn(l, 0.0f));
    const u32 ascending = bits >> 31 ? ~bits : bits | 1u << 31;
    return (u64)~ascending << 32 | id;
}

// The logit of a key; either zero gives the positive one.
__device__ __forceinline__ float logit_of(u64 key) {
    const u32 ascending = ~(u32)(key >> 32);
    return __uint_as_float(ascending >> 31 ? ascending & ~(1u << 31) : ~ascending);
}

// The least over a CTA of `threads`; `words` holds one for each warp.
template <u32 threads>
__device__ __forceinline__ u64 block_min(u64* words, u64 value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        const u64 other = __shfl_xor_sync(ALL_LANES, value, step);
        value = other < value ? other : value;
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) words[threadIdx.x / WARP] = value;
    __syncthreads();
    u64 least = words[0];
    for (u32 i = 1; i < threads / WARP; i++) least = words[i] < least ? words[i] : least;
    return least;
}

// The sum over a CTA of `threads`, in one order.
template <u32 threads>
__device__ __forceinline__ double block_sum(double* sums, double value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, step);
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = value;
    __syncthreads();
    double sum = sums[0];
    for (u32 i = 1; i < threads / WARP; i++) sum += sums[i];
    return sum;
}

__device__ __forceinline__ bool has_penalties(const Draw& draw) {
    return draw.repetition != 1.0f || draw.presence != 0.0f || draw.frequency != 0.0f;
}

// The logits of one lane, as they are drawn from.
struct Logits {
    const float* l;
    u32 ids;
    float largest;
    float scale;
    bool finite; // whether the largest is
    bool draws;  // or else the largest is taken

    __device__ __forceinline__ Logits(const Samples& s, const Draw& draw) {
        const bool adjusted = has_penalties(draw) || draw.bias_count > 0;
        const u64 row = adjusted ? draw.lane : draw.logit_row;
        l = (adjusted ? s.adjusted : s.logits) + row * s.vocab;
        ids = draw.ids < s.vocab ? draw.ids : s.vocab;
    }
    // Takes the lane's first key.
    __device__ __forceinline__ void lead(u64 first, float temperature) {
        largest = first == NO_KEY ? -INFINITE : logit_of(first);
        finite = fabsf(largest) < INFINITE;
        scale = temperature > 0.0f ? __fdiv_rn(1.0f, temperature) : 1.0f;
        draws = temperature > 0.0f && finite && scale < INFINITE;
    }
    // Minus infinity behind the end.
    __device__ __forceinline__ float at(u32 id) const { return id < ids ? l[id] : -INFINITE; }

    __device__ __forceinline__ u64 weight(float l) const {
        const float weight = expf(__fmul_rn(__fsub_rn(l, largest), scale));
        return (u64)__fmul_rn(fmaxf(weight, 0.0f), 1099511627776.0f);
    }
    __device__ __forceinline__ u32 bin(float l, float scale) const {
        const float units = __fmul_rn(__fmul_rn(__fsub_rn(largest, l), scale), BINS_A_UNIT);
        return units < BINS - 1 ? (u32)units : BINS - 1;
    }
};

__device__ __forceinline__ u32 wanted_of(const Draw& draw, u32 ids) {
    return draw.alternatives > 0 ? min((u32)draw.alternatives, min((u32)TOP_MAX, ids)) : 0;
}

__device__ __forceinline__ void put_token(const Samples& s, const Draw& draw, Row* row, u32 token) {
    row->token = token, row->logprob = 0.0f, row->top_len = 0;
    u32* count = s.counts + (u64)draw.lane * s.vocab + token;
    if ((*count & ~IN_PROMPT) != ~IN_PROMPT) *count += 1;
}

// Grid: parts, lanes that draw.
extern "C" __global__ void __launch_bounds__(CTA) sample_largest(Samples s) {
    __shared__ float staged[PART];
    __shared__ u64 words[CTA / WARP];
    depend_go();
    depend_wait();
    const Draw draw = s.draws[blockIdx.y];
    State* state = state_of(s, blockIdx.y);
    if (blockIdx.x == 0) {
        for (u32 i = threadIdx.x; i < sizeof(State) / 16; i += CTA) {
            ((uint4*)state)[i] = make_uint4(0, 0, 0, 0);
        }
    }
    const u32 start = blockIdx.x * PART;
    const u32 ids = draw.ids < s.vocab ? draw.ids : s.vocab;
    const float* from = s.logits + (u64)draw.logit_row * s.vocab;
    float l[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 id = start + i * CTA + threadIdx.x;
        l[i] = id < ids ? from[id] : -INFINITE;
    }
    if (draw.bias_count > 0) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) staged[i * CTA + threadIdx.x] = l[i];
        __syncthreads();
        for (u32 i = threadIdx.x; i < draw.bias_count; i += CTA) {
            const Bias one = s.biases[(u64)blockIdx.y * s.bias_max + i];
            if (one.id >= start && one.id - start < PART && one.id < ids) {
                atomicAdd(staged + (one.id - start), one.bias);
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) l[i] = staged[i * CTA + threadIdx.x];
    }
    if (has_penalties(draw) || draw.bias_count > 0) {
        const u32* counts = s.counts + (u64)draw.lane * s.vocab;
        float* adjusted = s.adjusted + (u64)draw.lane * s.vocab;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 id = start + i * CTA + threadIdx.x;
            if (id >= ids) continue;
            const u32 count = has_penalties(draw) ? counts[id] : 0, times = count & ~IN_PROMPT;
            if (count != 0) {
                l[i] = l[i] > 0.0f ? __fdiv_rn(l[i], draw.repetition)
                                   : __fmul_rn(l[i], draw.repetition);
            }
            if (times > 0) {
                l[i] = __fsub_rn(
                    l[i], __fadd_rn(__fmul_rn(draw.frequency, (float)times), draw.presence));
            }
            adjusted[id] = l[i];
        }
    }
    u64 first = NO_KEY;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (!(l[i] > -INFINITE)) continue;
        const u64 key = key_of(l[i], start + i * CTA + threadIdx.x);
        first = key < first ? key : first;
    }
    first = block_min<CTA>(words, first);
    if (threadIdx.x == 0) part_keys(state)[blockIdx.x] = first;
}

// A mass is kept as two words, which the 2,048 weights of a part, 2^40 at most, do not overflow:
// atomics on words are native in shared memory.
struct PartBins {
    u32 low[BINS], high[BINS], count[BINS], top[BINS];
    u64 words[CTA / WARP];
    double sums[CTA / WARP];
};

// Grid: parts, lanes that draw.
extern "C" __global__ void __launch_bounds__(CTA) sample_masses(Samples s) {
    __shared__ __align__(16) PartBins shared;
    depend_go();
    depend_wait();
    const Draw draw = s.draws[blockIdx.y];
    State* state = state_of(s, blockIdx.y);
    Logits from(s, draw);
    float l[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) l[i] = from.at(blockIdx.x * PART + i * CTA + threadIdx.x);
    u64 first = NO_KEY;
    for (u32 i = threadIdx.x; i < parts_of(s); i += CTA) {
        const u64 key = part_keys(state)[i];
        first = key < first ? key : first;
    }
    for (u32 i = threadIdx.x; i < BINS; i += CTA) ((uint4*)&shared)[i] = make_uint4(0, 0, 0, 0);
    first = block_min<CTA>(shared.words, first);
    from.lead(first, draw.temperature);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        state->first = first;
        if (!from.draws && draw.alternatives < 0) {
            put_token(s, draw, s.rows + blockIdx.y, first == NO_KEY ? 0 : (u32)first);
        }
    }
    if (!from.finite || (!from.draws && draw.alternatives < 0)) return;

    const u64 floor = draw.min_p > 0.0f ? (u64)((double)draw.min_p * 1099511627776.0) : NO_KEY;
    u64 floored = 0;
    double sum = 0.0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (!(l[i] > -INFINITE)) continue;
        if (draw.alternatives >= 0) sum += (double)expf(__fsub_rn(l[i], from.largest));
        if (draw.alternatives > 0) {
            const u32 bin = from.bin(l[i], 1.0f);
            if (bin < BINS - 1) atomicAdd(shared.top + bin, 1u);
        }
        if (!from.draws) continue;
        // Ids of the last bin weigh nothing: whether they belong to a prefix makes no difference.
        const u32 bin = from.bin(l[i], from.scale);
        if (bin == BINS - 1) continue;
        if (draw.top_k > 0) atomicAdd(shared.count + bin, 1u);
        const u64 weight = from.weight(l[i]);
        if (weight >= floor) floored += weight;
        const u32 low = (u32)weight & 0xfffff, high = (u32)(weight >> 20);
        if (low > 0) atomicAdd(shared.low + bin, low);
        if (high > 0) atomicAdd(shared.high + bin, high);
    }
    if (draw.min_p > 0.0f) {
#pragma unroll
        for (int step = WARP / 2; step > 0; step /= 2) {
            floored += __shfl_xor_sync(ALL_LANES, floored, step);
        }
        if (threadIdx.x % WARP == 0 && floored > 0) atomicAdd(&state->floored, floored);
    }
    if (draw.alternatives >= 0) {
        sum = block_sum<CTA>(shared.sums, sum);
        if (threadIdx.x == 0) part_sums(state, parts_of(s))[blockIdx.x] = sum;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < BINS; i += CTA) {
        const u64 mass = ((u64)shared.high[i] << 20) + shared.low[i];
        if (mass > 0) atomicAdd(state->mass + i, mass);
        if (shared.count[i] > 0) atomicAdd(state->count + i, shared.count[i]);
        if (shared.top[i] > 0) atomicAdd(state->top + i, shared.top[i]);
    }
}

// Bins whose ids are listed: from the first to the last of each kind.
struct Spans {
    u32 k, k_before; // the bin where `top_k` ends, and how many ids lie before it
    u32 top;         // the bin, without temperature, where the alternatives end
    u32 p_from, p_to, t_from, t_to;
};

struct Last {
    u64 mass[BINS]; // up to and with each
    u64 keys[SORTED];
    u64 words[LAST_CTA / WARP];
    u32 counts[LAST_CTA / WARP];
    Spans spans;
    u64 found_key, found_mass, before;
    u32 listed, place;
    bool is_last;
};

// Makes `mass` and `count` the sums up to and with those of the thread.
__device__ __forceinline__ void scan(Last& shared, u64& mass, u32& count) {
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        const u64 other = __shfl_up_sync(ALL_LANES, mass, step);
        const u32 others = __shfl_up_sync(ALL_LANES, count, step);
        if (lane >= step) mass += other, count += others;
    }
    __syncthreads();
    if (lane == WARP - 1) shared.words[warp] = mass, shared.counts[warp] = count;
    __syncthreads();
    if (warp == 0) {
        u64 sum = shared.words[lane];
        u32 sums = shared.counts[lane];
#pragma unroll
        for (u32 step = 1; step < WARP; step *= 2) {
            const u64 other = __shfl_up_sync(ALL_LANES, sum, step);
            const u32 others = __shfl_up_sync(ALL_LANES, sums, step);
            if (lane >= step) sum += other, sums += others;
        }
        shared.words[lane] = sum, shared.counts[lane] = sums;
    }
    __syncthreads();
    if (warp > 0) mass += shared.words[warp - 1], count += shared.counts[warp - 1];
}

// The first bin up to which there is at least `want` mass.
__device__ __forceinline__ u32 bin_of(const Last& shared, u64 want) {
    u32 from = 0;
#pragma unroll
    for (u32 step = BINS / 2; step > 0; step /= 2) {
        if (shared.mass[from + step - 1] < want) from += step;
    }
    return from;
}

__device__ __forceinline__ u64 mass_before(const Last& shared, u32 bin) {
    return bin > 0 ? shared.mass[bin - 1] : 0;
}

// The mass that `top_p` asks for, of what is kept so far; the mass that the draw asks for.
__device__ __forceinline__ u64 nucleus_of(const Draw& draw, u64 kept) {
    const u64 nucleus = (u64)((double)draw.top_p * (double)kept);
    return nucleus > 0 ? nucleus : 1;
}

__device__ __forceinline__ u64 target_of(double aim, u64 kept) {
    const u64 target = (u64)(aim * (double)kept);
    return (target < kept ? target : kept - 1) + 1;
}

// What `min_p` keeps. The likeliest id stays, whatever the floor.
__device__ __forceinline__ u64 above_floor(u64 floored, u64 one) {
    return floored > one ? floored : one;
}

// Where `top_p` and the draw may end, from what the bins say alone: all grows with what is kept.
__device__ void find_spans(Last& shared, const Draw& draw, const Logits& from, u64 floored) {
    Spans& spans = shared.spans;
    const u64 one = from.weight(from.largest);
    u64 least = shared.mass[BINS - 1], most = least;
    if (spans.k < BINS) {
        const u64 before = mass_before(shared, spans.k);
        least = before > one ? before : one, most = shared.mass[spans.k];
    }
    if (draw.top_p < 1.0f) {
        const u64 nucleus = nucleus_of(draw, least);
        spans.p_from = bin_of(shared, nucleus);
        spans.p_to = bin_of(shared, nucleus_of(draw, most));
        const u64 upto = shared.mass[spans.p_to];
        least = nucleus > one ? nucleus : one;
        most = upto < most ? upto : most;
    }
    if (draw.min_p > 0.0f) {
        const u64 above = above_floor(floored, one);
        least = above < least ? above : least, most = above < most ? above : most;
    }
    const double aim = uniform(draw.seed, draw.position);
    spans.t_from = bin_of(shared, target_of(aim, least));
    spans.t_to = bin_of(shared, target_of(aim, most));
}

// Sorts the first `count` keys of shared memory; those behind them are changed.
__device__ void sort(Last& shared, u32 count) {
    u32 size = 2;
    while (size < count) size *= 2;
    for (u32 i = count + threadIdx.x; i < size; i += LAST_CTA) shared.keys[i] = NO_KEY;
    u32 last = SORTED;
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 step = run / 2; step > 0; step /= 2) {
            // Up to 32, a warp's keys are its own.
            if (step > WARP || last > WARP) __syncthreads();
            else __syncwarp();
            last = step;
            for (u32 pair = threadIdx.x; pair < size / 2; pair += LAST_CTA) {
                const u32 i = 2 * pair - (pair & (step - 1));
                const u64 a = shared.keys[i], b = shared.keys[i + step];
                if ((a > b) == ((i & run) == 0)) shared.keys[i] = b, shared.keys[i + step] = a;
            }
        }
    }
    __syncthreads();
}

// What the last CTA has of its lane.
struct Listed {
    const u64* keys; // where they are too many to be sorted
    u32 count;
};

// The key that ends a prefix, and the mass up to it.
struct Found {
    u64 key, mass;
};

// What is asked of a bin whose ids are all listed: the first key up to which there are `want` ids,
// or is `want` mass. `before`: what the bins before have of it.
struct Ask {
    u32 bin;
    bool by_count;
    u64 before, want;
};

// Among sorted keys: each thread has some that lie side by side.
__device__ Found find_sorted(Last& shared, const Logits& from, u32 listed, const Ask& ask) {
    constexpr u32 N = SORTED / LAST_CTA;
    const u32 t = threadIdx.x;
    u64 weights[N], sum = 0;
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        weights[i] = NO_KEY;
        if (t * N + i >= listed) continue;
        const float l = logit_of(shared.keys[t * N + i]);
        if (from.bin(l, from.scale) != ask.bin) continue;
        weights[i] = from.weight(l);
        sum += weights[i], count += 1;
    }
    u64 upto = sum;
    u32 counted = count;
    scan(shared, upto, counted);
    upto = mass_before(shared, ask.bin) + upto - sum, counted -= count;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        if (weights[i] == NO_KEY) continue;
        const u64 less = ask.by_count ? ask.before + counted : upto;
        upto += weights[i], counted += 1;
        const u64 here = ask.by_count ? ask.before + counted : upto;
        if (here >= ask.want && less < ask.want) {
            shared.found_key = shared.keys[t * N + i], shared.found_mass = upto;
        }
    }
    __syncthreads();
    return {shared.found_key, shared.found_mass};
}

// Among keys that are too many to be sorted: byte by byte from the highest, each by the counts and
// masses of its 256 values.
__device__ Found find_by_bytes(Last& shared, const Logits& from, const Listed& listed,
                               const Ask& ask) {
    const u32 t = threadIdx.x;
    u64* masses = shared.keys;
    u32* counts = (u32*)(masses + 256);
    u64 prefix = 0, above = mass_before(shared, ask.bin), before = ask.before;
    for (int shift = 56; shift >= 0; shift -= 8) {
        __syncthreads();
        if (t < 256) masses[t] = 0, counts[t] = 0;
        __syncthreads();
        for (u32 i = t; i < listed.count; i += LAST_CTA) {
            const u64 one = listed.keys[i];
            if (shift < 56 && (one ^ prefix) >> (shift + 8) != 0) continue;
            const float l = logit_of(one);
            if (from.bin(l, from.scale) != ask.bin) continue;
            const u32 digit = (one >> shift) & 255;
            atomicAdd(masses + digit, from.weight(l));
            atomicAdd(counts + digit, 1u);
        }
        __syncthreads();
        const u64 own = t < 256 ? masses[t] : 0;
        const u32 ones = t < 256 ? counts[t] : 0;
        u64 upto = own;
        u32 counted = ones;
        scan(shared, upto, counted);
        const u64 here = before + (ask.by_count ? counted : upto);
        const u64 less = before + (ask.by_count ? counted - ones : upto - own);
        if (here >= ask.want && less < ask.want) {
            shared.found_key = prefix | (u64)t << shift;
            shared.found_mass = above + upto - own;
            shared.before = less;
        }
        __syncthreads();
        prefix = shared.found_key, above = shared.found_mass, before = shared.before;
    }
    return {prefix, above + from.weight(logit_of(prefix))};
}

__device__ Found find(Last& shared, const Logits& from, const Listed& listed, const Ask& ask) {
    if (listed.count <= SORTED) return find_sorted(shared, from, listed.count, ask);
    return find_by_bytes(shared, from, listed, ask);
}

__device__ u32 draw_token(Last& shared, const Draw& draw, const Logits& from, const Listed& listed,
                          u64 floored) {
    u64 kept = shared.mass[BINS - 1];
    auto by_mass = [&](u64 want) {
        const u32 bin = bin_of(shared, want);
        return find(shared, from, listed, {bin, false, mass_before(shared, bin), want});
    };
    if (shared.spans.k < BINS) {
        const Spans& spans = shared.spans;
        kept = find(shared, from, listed, {spans.k, true, spans.k_before, draw.top_k}).mass;
    }
    if (draw.top_p < 1.0f) {
        const u64 mass = by_mass(nucleus_of(draw, kept)).mass;
        kept = mass < kept ? mass : kept;
    }
    if (draw.min_p > 0.0f) {
        const u64 above = above_floor(floored, from.weight(from.largest));
        kept = above < kept ? above : kept;
    }
    return (u32)by_mass(target_of(uniform(draw.seed, draw.position), kept)).key;
}

// The log-probability of the token, and the likeliest ids.
__device__ void put_logprobs(Last& shared, const Draw& draw, const Logits& from,
                             const Listed& listed, const double* sums, u32 parts, u32 token,
                             Row* row) {
    const u32 t = threadIdx.x;
    double sum = 0.0;
    for (u32 i = t; from.finite && i < parts; i += LAST_CTA) sum += sums[i];
    sum = block_sum<LAST_CTA>((double*)shared.words, sum);
    if (t >= WARP && listed.count <= SORTED && shared.spans.top < BINS) return;
    const double log_sum = (double)from.largest + log(from.finite ? sum : 1.0);
    auto logprob = [&](float l) {
        const float value = (float)((double)l - log_sum);
        return value == value ? value : -INFINITE;
    };
    if (t == 0) row->logprob = logprob(from.l[token]);
    const u32 wanted = wanted_of(draw, from.ids);
    auto put = [&](u32 at, u64 key) {
        row->top_ids[at] = (u32)key;
        row->top_logprobs[at] = logprob(from.l[(u32)key]);
    };
    const bool in_bins = shared.spans.top < BINS;
    if (in_bins && listed.count <= SORTED) {
        if (t < wanted) put(t, shared.keys[t]);
        if (t == 0) row->top_len = wanted;
        return;
    }
    // One after the other, of a long list or of all ids: minus infinity is as good as others here.
    u64 floor = 0;
    for (u32 at = 0; at < wanted; at++) {
        u64 next = NO_KEY;
        const u32 count = in_bins ? listed.count : from.ids;
        for (u32 i = t; i < count; i += LAST_CTA) {
            u64 key = NO_KEY;
            if (in_bins) key = listed.keys[i];
            else if (from.l[i] == from.l[i]) key = key_of(from.l[i], i);
            if (key >= floor && key < next) next = key;
        }
        next = block_min<LAST_CTA>(shared.words, next);
        if (next == NO_KEY) break;
        if (t == 0) put(at, next), row->top_len = at + 1;
        floor = next + 1;
    }
}

// Reads the bins of a lane, and finds which ids are to be listed.
__device__ __forceinline__ void read_bins(Last& shared, const State* state, const Draw& draw,
                                          const Logits& from, u64 floored) {
    const u32 t = threadIdx.x, wanted = from.finite ? wanted_of(draw, from.ids) : 0;
    u64 mass = state->mass[t];
    u32 count = state->count[t], tops = state->top[t];
    if (t == 0) {
        shared.spans = {BINS, 0, BINS, BINS, 0, BINS, 0};
        shared.listed = 0;
    }
    const u32 own = count;
    scan(shared, mass, count);
    shared.mass[t] = mass;
    if (draw.top_k > 0 && count >= draw.top_k && count - own < draw.top_k) {
        shared.spans.k = t, shared.spans.k_before = count - own;
    }
    if (wanted > 0) {
        const u32 own = tops;
        u64 none = 0;
        scan(shared, none, tops);
        if (tops >= wanted && tops - own < wanted) shared.spans.top = t;
    }
    __syncthreads();
    if (t == 0 && from.draws) find_spans(shared, draw, from, floored);
    __syncthreads();
}

// Puts the ids of this CTA, the first of them `start`, that are in the bins to be listed at `keys`,
// in no order.
__device__ __forceinline__ void list_ids(Last& shared, State* state, const Logits& from,
                                         const float (&l)[EACH], u32 start, u64* keys) {
    const u32 t = threadIdx.x;
    const Spans spans = shared.spans;
    u32 hits = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (!(l[i] > -INFINITE)) continue;
        const u32 bin = from.bin(l[i], from.scale);
        const bool drawn = from.draws
            && (bin == spans.k || (bin >= spans.p_from && bin <= spans.p_to)
                || (bin >= spans.t_from && bin <= spans.t_to));
        const bool top = spans.top < BINS && from.bin(l[i], 1.0f) <= spans.top;
        if (drawn || top) hits |= 1u << i;
    }
    const u32 found = __popc(hits);
    u32 place = found > 0 ? atomicAdd(&shared.listed, found) : 0;
    __syncthreads();
    if (t == 0) shared.place = shared.listed > 0 ? atomicAdd(&state->listed, shared.listed) : 0;
    __syncthreads();
    place += shared.place;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (hits >> i & 1) keys[place++] = key_of(l[i], start + i * LAST_CTA + t);
    }
}

// Whether all other CTAs of the lane have listed theirs: true in all threads of the last one.
__device__ __forceinline__ bool is_last_part(Last& shared, State* state) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) shared.is_last = atomicAdd(&state->arrived, 1u) + 1 == gridDim.x;
    __syncthreads();
    if (!shared.is_last) return false;
    __threadfence();
    return true;
}

// Grid: groups of 8,192 ids, lanes that draw.
extern "C" __global__ void __launch_bounds__(LAST_CTA, 1) sample_draw(Samples s) {
    __shared__ Last shared;
    depend_go();
    depend_wait();
    const Draw draw = s.draws[blockIdx.y];
    State* state = state_of(s, blockIdx.y);
    const u64 first = state->first;
    Logits from(s, draw);
    from.lead(first, draw.temperature);
    if (!from.draws && draw.alternatives < 0) return;

    const u32 t = threadIdx.x, start = blockIdx.x * LAST_CTA * EACH;
    float l[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) l[i] = from.at(start + i * LAST_CTA + t);
    const u64 floored = state->floored;
    read_bins(shared, state, draw, from, floored);
    u64* keys = s.keys + (u64)draw.lane * s.vocab;
    list_ids(shared, state, from, l, start, keys);
    if (!is_last_part(shared, state)) return;

    const Listed listed = {keys, *(volatile u32*)&state->listed};
    if (listed.count > 0 && listed.count <= SORTED) {
        for (u32 i = t; i < listed.count; i += LAST_CTA) shared.keys[i] = keys[i];
        sort(shared, listed.count);
    }
    const u32 best = first == NO_KEY ? 0 : (u32)first;
    const u32 token = from.draws ? draw_token(shared, draw, from, listed, floored) : best;
    Row* row = s.rows + blockIdx.y;
    if (t == 0) put_token(s, draw, row, token);
    if (draw.alternatives >= 0) {
        __syncthreads();
        const u32 parts = parts_of(s);
        put_logprobs(shared, draw, from, listed, part_sums(state, parts), parts, token, row);
    }
}
