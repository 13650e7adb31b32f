// What the three kernels that sample have in common: what they are given and leave each other, keys
// and weights of logits, the least and the sum over a CTA.

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
