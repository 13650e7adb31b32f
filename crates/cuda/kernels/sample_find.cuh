// Where prefixes of a lane's ids end, for the third kernel that samples: first in which bin, then
// at which of its ids.

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
