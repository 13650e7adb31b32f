// Instructions that C++ has no words for, each under one name: products of tensor cores, copies to
// shared memory, barriers. What Hopper alone has is in `wgmma.cuh`.

__device__ __forceinline__ u32 shared_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}

// Products on tensor cores

// D += A B in f32: A [16, 16], B [16, 8], both pairs of bf16. Lane 4 g + t has
//     of A: columns 2 t, 2 t + 1 of row g (a[0]) and of row g + 8 (a[1]); eight columns on the same
//           of both (a[2], a[3])
//     of B: rows 2 t, 2 t + 1 of column g (b0); eight rows on the same (b1)
//     of D: columns 2 t, 2 t + 1 of row g (d[0], d[1]) and of row g + 8 (d[2], d[3])
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int N>
__device__ __forceinline__ void clear(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) d[n][c] = 0.0f;
}

// `mma`, which the compiler leaves where it is among loads and its like.
__device__ __forceinline__ void mma_in_place(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 by 8 matrices of shared memory, one to a register: lane i names row i % 8 of matrix i / 8,
// and has two neighbours of row i / 4 of each.
__device__ __forceinline__ void load_matrices(u32& b0, u32& b1, u32& b2, u32& b3, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b0), "=r"(b1), "=r"(b2), "=r"(b3)
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrices(u32 (&b)[4], u32 at) {
    load_matrices(b[0], b[1], b[2], b[3], at);
}

// The same of each matrix turned: rows are columns.
__device__ __forceinline__ void load_transposed(u32 (&b)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at)
                 : "memory");
}

// Sixteen bytes of shared memory

__device__ __forceinline__ uint4 load_shared_four(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared_four(u32 at, const u32 (&v)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};"
                 ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// Copies from memory to shared memory, in groups of each thread

// Begins to copy 16 bytes.
__device__ __forceinline__ void copy_async(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
}

// The same; zeros where `bytes` is 0 and not 16.
__device__ __forceinline__ void copy_async(u32 to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copies_end_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING groups of this thread's copies are under way.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Waits for all of them, in groups or not.
__device__ __forceinline__ void copies_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Has a line of memory, 128 bytes, come into the cache.
__device__ __forceinline__ void prefetch_line(const void* at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Barriers of a CTA by number, 1 to 15: 0 is that of `__syncthreads`. THREADS threads, whole warps,
// come to one; some meet there, and others pass without waiting.

template <u32 THREADS>
__device__ __forceinline__ void meet_at(u32 number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

template <u32 THREADS>
__device__ __forceinline__ void pass_at(u32 number) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

// Barriers in shared memory: one goes on to its next phase when it has had `count` arrivals, and,
// on Hopper, the bytes that it was told to expect.

__device__ __forceinline__ void barrier_init(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Arrivals of a warp at a barrier: 1, lane 0 for all once they are here, or WARP, each lane for
// itself. Bits are the same. compute-sanitizer's racecheck takes an arrival to order what its own
// lane did and nothing else, and so reports reads of a stage against the copies that refill it. For
// a run under it set WARP here: then no lane's reads rest on another's arrival.
#define WARP_ARRIVES 1

// Arrives for a warp that did its last to what it gives away in step: by a wait for products.
__device__ __forceinline__ void warp_arrive_in_step(u64* barrier, u32 lane) {
    static_assert(WARP_ARRIVES == 1 || WARP_ARRIVES == WARP, "one lane or each");
    if (WARP_ARRIVES == WARP || lane == 0) barrier_arrive(barrier);
}

// Arrives for a warp, once all its lanes are here.
__device__ __forceinline__ void warp_arrive(u64* barrier, u32 lane) {
    if (WARP_ARRIVES == 1) __syncwarp();
    warp_arrive_in_step(barrier, lane);
}

// Arrives once what this thread has begun to copy (`cp.async`) is there.
__device__ __forceinline__ void barrier_arrive_copied(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the barrier has left its phase `phase`, of which it has 0 and 1 in turn; before the
// first it counts as having left 1.
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
