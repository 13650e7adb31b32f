// Choosing a token from a row of logits, one CTA a lane: the contract of ops::Sampling.
//
// Weights exp((l - largest) / temperature) are whole multiples of 2^-40, so that their sums are
// exact in any order. What `top_k`, `top_p`, `min_p` and the draw ask for are prefixes of the ids
// in falling order of logits. A prefix is found by its count or mass, in 1,024 bins of the logits
// and then byte by byte among the keys of one bin; nothing is sorted. A NaN counts as minus
// infinity.

#define CTA 1024
#define BINS 1024
#define BINS_A_UNIT 32.0f // a weight is zero 28 units below the largest
#define TOP_MAX 20
#define IN_PROMPT (1u << 31)
#define MINUS_INFINITY __int_as_float(0xff800000)

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

struct Shared {
    u64 mass[BINS];
    u32 count[BINS];
    u64 words[CTA / WARP];
    double sums[CTA / WARP];
    u64 found_key, found_mass, before;
    u32 found_bin, listed;
};

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

__device__ __forceinline__ u64 block_min(Shared& shared, u64 value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        const u64 other = __shfl_xor_sync(ALL_LANES, value, step);
        value = other < value ? other : value;
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared.words[threadIdx.x / WARP] = value;
    __syncthreads();
    u64 least = shared.words[0];
    for (int i = 1; i < CTA / WARP; i++) least = shared.words[i] < least ? shared.words[i] : least;
    return least;
}

__device__ __forceinline__ double block_sum(Shared& shared, double value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, step);
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared.sums[threadIdx.x / WARP] = value;
    __syncthreads();
    double sum = shared.sums[0];
    for (int i = 1; i < CTA / WARP; i++) sum += shared.sums[i];
    return sum;
}

__device__ __forceinline__ u64 block_total(Shared& shared, u64 value) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, step);
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared.words[threadIdx.x / WARP] = value;
    __syncthreads();
    u64 sum = 0;
    for (int i = 0; i < CTA / WARP; i++) sum += shared.words[i];
    return sum;
}

// Makes each of the first `bins` counts and masses the sum up to and with itself.
__device__ void accumulate(Shared& shared, u32 bins) {
    for (u32 step = 1; step < bins; step *= 2) {
        __syncthreads();
        u32 count = 0;
        u64 mass = 0;
        if (threadIdx.x < bins && threadIdx.x >= step) {
            count = shared.count[threadIdx.x - step];
            mass = shared.mass[threadIdx.x - step];
        }
        __syncthreads();
        if (threadIdx.x < bins) {
            shared.count[threadIdx.x] += count;
            shared.mass[threadIdx.x] += mass;
        }
    }
    __syncthreads();
}

// The logits of one lane, as they are drawn from.
struct Logits {
    const float* l;
    u32 ids;
    float largest;
    float scale;

    __device__ u64 weight(float l) const {
        return (u64)((double)expf(__fmul_rn(__fsub_rn(l, largest), scale)) * 1099511627776.0);
    }
    __device__ u32 bin(float l) const {
        const float units = __fmul_rn(__fsub_rn(largest, l), scale) * BINS_A_UNIT;
        return units < BINS - 1 ? (u32)units : BINS - 1;
    }
};

__device__ void fill_bins(Shared& shared, const Logits& from) {
    shared.mass[threadIdx.x] = 0;
    shared.count[threadIdx.x] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < from.ids; i += CTA) {
        const float l = from.l[i];
        if (!(l > MINUS_INFINITY)) continue;
        const u32 bin = from.bin(l);
        atomicAdd(&shared.mass[bin], from.weight(l));
        atomicAdd(&shared.count[bin], 1u);
    }
    accumulate(shared, BINS);
}

// The shortest prefix of at least `want` ids, or of at least `want` mass: its last key and its
// mass. All ids with a weight, if they are fewer. `keys` holds [ids].
__device__ void select(Shared& shared, const Logits& from, bool by_count, u64 want, u64* keys,
                       u64& key, u64& mass) {
    fill_bins(shared, from);
    const u64 total = shared.mass[BINS - 1];
    const u32 t = threadIdx.x;
    if (t == 0) shared.found_bin = BINS, shared.listed = 0;
    __syncthreads();
    const u64 here = by_count ? shared.count[t] : shared.mass[t];
    const u64 above = t == 0 ? 0 : by_count ? shared.count[t - 1] : shared.mass[t - 1];
    if (here >= want && above < want) {
        shared.found_bin = t;
        shared.before = above;
        shared.found_mass = t == 0 ? 0 : shared.mass[t - 1];
    }
    __syncthreads();
    const u32 bin = shared.found_bin;
    // Ids of the last bin weigh nothing: whether they belong to the prefix makes no difference.
    if (bin >= BINS - 1) {
        key = ~0ull, mass = total;
        return;
    }
    u64 before = shared.before, mass_before = shared.found_mass, prefix = 0;
    for (u32 i = t; i < from.ids; i += CTA) {
        const float l = from.l[i];
        if (l > MINUS_INFINITY && from.bin(l) == bin) {
            keys[atomicAdd(&shared.listed, 1u)] = key_of(l, i);
        }
    }
    __syncthreads();
    const u32 listed = shared.listed;
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (t < 256) shared.mass[t] = 0, shared.count[t] = 0;
        __syncthreads();
        for (u32 i = t; i < listed; i += CTA) {
            const u64 one = keys[i];
            if (shift < 56 && (one ^ prefix) >> (shift + 8) != 0) continue;
            const u32 digit = (one >> shift) & 255;
            atomicAdd(&shared.mass[digit], from.weight(from.l[(u32)one]));
            atomicAdd(&shared.count[digit], 1u);
        }
        accumulate(shared, 256);
        if (t < 256) {
            const u64 upto = before + (by_count ? shared.count[t] : shared.mass[t]);
            const u64 less = before
                + (t == 0 ? 0 : by_count ? shared.count[t - 1] : shared.mass[t - 1]);
            if (upto >= want && less < want) {
                shared.found_key = prefix | (u64)t << shift;
                shared.before = less;
                shared.found_mass = mass_before + (t == 0 ? 0 : shared.mass[t - 1]);
            }
        }
        __syncthreads();
        prefix = shared.found_key, before = shared.before, mass_before = shared.found_mass;
        __syncthreads();
    }
    key = prefix;
    mass = mass_before + from.weight(from.l[(u32)prefix]);
}

// Steps 5 and 6 of the contract. The largest logit is finite.
__device__ u32 draw_token(Shared& shared, const Logits& from, const Draw& draw, u64* keys) {
    u64 key, mass;
    u64 sum = 0, floored = 0;
    const u64 floor = (u64)((double)draw.min_p * 1099511627776.0);
    for (u32 i = threadIdx.x; i < from.ids; i += CTA) {
        const float l = from.l[i];
        if (!(l > MINUS_INFINITY)) continue;
        const u64 weight = from.weight(l);
        sum += weight;
        if (weight >= floor) floored += weight;
    }
    u64 kept = block_total(shared, sum);
    if (draw.top_k > 0) {
        select(shared, from, true, draw.top_k, keys, key, mass);
        kept = mass;
    }
    if (draw.top_p < 1.0f) {
        const u64 nucleus = (u64)((double)draw.top_p * (double)kept);
        select(shared, from, false, nucleus > 0 ? nucleus : 1, keys, key, mass);
        kept = mass < kept ? mass : kept;
    }
    if (draw.min_p > 0.0f) {
        // The likeliest id stays, whatever the floor.
        const u64 one = from.weight(from.largest);
        u64 above = block_total(shared, floored);
        above = above > one ? above : one;
        kept = above < kept ? above : kept;
    }
    u64 target = (u64)(uniform(draw.seed, draw.position) * (double)kept);
    target = target < kept ? target : kept - 1;
    select(shared, from, false, target + 1, keys, key, mass);
    return (u32)key;
}

// Grid: lanes that draw. logits [rows, vocab]; counts [lanes_max, vocab]; adjusted and keys as
// counts; biases [lanes_max, bias_max]; draws and rows [lanes that draw].
extern "C" __global__ void __launch_bounds__(CTA)
sample(const Draw* draws, const Bias* biases, u32 bias_max, const float* logits, u32 vocab,
       u32* counts, float* adjusted, u64* keys, Row* rows) {
    __shared__ Shared shared;
    depend_go();
    depend_wait();
    const Draw draw = draws[blockIdx.x];
    const u64 seat = (u64)draw.lane * vocab;
    const u32 ids = draw.ids < vocab ? draw.ids : vocab;
    Logits from = {logits + (u64)draw.logit_row * vocab, ids, MINUS_INFINITY, 1.0f};
    counts += seat, adjusted += seat, keys += seat;

    const bool penalties =
        draw.repetition != 1.0f || draw.presence != 0.0f || draw.frequency != 0.0f;
    if (penalties || draw.bias_count > 0) {
        for (u32 i = threadIdx.x; i < ids; i += CTA) adjusted[i] = from.l[i];
        __syncthreads();
        for (u32 i = threadIdx.x; i < draw.bias_count; i += CTA) {
            const Bias one = biases[(u64)blockIdx.x * bias_max + i];
            if (one.id < ids) atomicAdd(adjusted + one.id, one.bias);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; penalties && i < ids; i += CTA) {
            const u32 count = counts[i], times = count & ~IN_PROMPT;
            if (count == 0) continue;
            float l = adjusted[i];
            l = l > 0.0f ? __fdiv_rn(l, draw.repetition) : __fmul_rn(l, draw.repetition);
            if (times > 0) {
                l = __fsub_rn(l, __fadd_rn(__fmul_rn(draw.frequency, (float)times), draw.presence));
            }
            adjusted[i] = l;
        }
        __syncthreads();
        from.l = adjusted;
    }

    u64 first = ~0ull;
    for (u32 i = threadIdx.x; i < ids; i += CTA) {
        const float l = from.l[i];
        if (!(l > MINUS_INFINITY)) continue;
        const u64 key = key_of(l, i);
        first = key < first ? key : first;
    }
    first = block_min(shared, first);
    const u32 best = first == ~0ull ? 0 : (u32)first;
    from.largest = first == ~0ull ? MINUS_INFINITY : from.l[best];
    const bool finite = fabsf(from.largest) < __int_as_float(0x7f800000);

    u32 token = best;
    if (draw.temperature > 0.0f && finite) {
        from.scale = __fdiv_rn(1.0f, draw.temperature);
        token = draw_token(shared, from, draw, keys);
    }
    Row* row = rows + blockIdx.x;
    if (threadIdx.x == 0) {
        row->token = token, row->logprob = 0.0f, row->top_len = 0;
    }
    if (draw.alternatives >= 0) {
        double sum = 0.0;
        for (u32 i = threadIdx.x; finite && i < ids; i += CTA) {
            const float l = from.l[i];
            if (l > MINUS_INFINITY) sum += (double)expf(__fsub_rn(l, from.largest));
        }
        const double total = finite ? block_sum(shared, sum) : 1.0;
        const double log_sum = (double)from.largest + log(total);
        auto logprob = [&](float l) {
            const float value = (float)((double)l - log_sum);
            return value == value ? value : MINUS_INFINITY;
        };
        if (threadIdx.x == 0) row->logprob = logprob(from.l[token]);
        const u32 wanted = min((u32)draw.alternatives, min((u32)TOP_MAX, ids));
        u64 floor = 0;
        for (u32 at = 0; at < wanted; at++) {
            u64 next = ~0ull;
            for (u32 i = threadIdx.x; i < ids; i += CTA) {
                const float l = from.l[i];
                if (l != l) continue;
                const u64 key = key_of(l, i);
                if (key >= floor && key < next) next = key;
            }
            next = block_min(shared, next);
            if (next == ~0ull) break;
            if (threadIdx.x == 0) {
                row->top_ids[at] = (u32)next;
                row->top_logprobs[at] = logprob(from.l[(u32)next]);
                row->top_len = at + 1;
            }
            floor = next + 1;
        }
    }
    if (threadIdx.x == 0 && (counts[token] & ~IN_PROMPT) != ~IN_PROMPT) counts[token] += 1;
}
