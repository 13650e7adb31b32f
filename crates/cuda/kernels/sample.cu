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
#include "sample.cuh"
#include "sample_find.cuh"

// Biases and penalties are added, and the first key of each part is found. Grid: parts, lanes that
// draw.
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

// Fills the bins, and ends lanes that do not draw and report nothing. Grid: parts, lanes that draw.
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

// Lists ids of the bins where prefixes may end; the last CTA of a lane chooses the token. Grid:
// groups of 8,192 ids, lanes that draw.
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
