// What Hopper alone has: products that a group of four warps begins together and that read shared
// memory, copies in bulk, and registers that warps hand to each other. First what both kernels of
// Hopper use; then descriptors of operands, and products by what they read: rows of x
// (`many_hopper.cuh`), keys and values (`attend_hopper.cuh`).

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

// Keeps what is done to registers of a wgmma on its side of a fence or a wait: without it, sums
// might be read before the wait, and operands be written after the fence.
template <int N>
__device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int N>
__device__ __forceinline__ void hold(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) hold(d[n]);
}

template <int N>
__device__ __forceinline__ void hold(u32 (&a)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) asm volatile("" : "+r"(a[n][c])::"memory");
}

// Gives the left operands of the next product their registers, once the last one is done with them.
// A plain copy would be left out and the operands be found where they are to go; NVRTC 13.0 then
// has every product wait for the one before (C7513).
template <int N>
__device__ __forceinline__ void move(u32 (&to)[N][4], const u32 (&from)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            asm volatile("mov.b32 %0, %1;" : "=r"(to[n][c]) : "r"(from[n][c]) : "memory");
        }
}

template <u32 COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <u32 COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Arrives for the one thread that copies in bulk; the phase lasts until `bytes` have landed, too.
__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Copies `bytes` from memory; the barrier counts them as they land.
__device__ __forceinline__ void copy_in(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Has `bytes` of memory come into the cache.
__device__ __forceinline__ void prefetch(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Begins to copy `bytes` to memory; they lie in shared memory until `copies_out_read`.
__device__ __forceinline__ void copy_out(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;"
                 ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}

// This thread's copies no longer need what they were made from.
__device__ __forceinline__ void copies_out_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Where wgmma finds 16 columns of rows of x: matrices of 128 bytes, 128 bytes apart along the
// columns and 1,024 along the rows.
__device__ __forceinline__ u64 rows_descriptor(const void* x) {
    const u64 address = (shared_address(x) & 0x3ffff) >> 4;
    return address | (u64)(128 >> 4) << 16 | (u64)(1024 >> 4) << 32;
}

// Where wgmma finds its right operand, in pieces of 64 columns: 8 rows lie 1,024 bytes apart. With
// rows along the sum, as values have them, pieces of columns lie `apart`.
__device__ __forceinline__ u64 tile_descriptor(u32 address, u32 apart) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(apart >> 4) << 16 | (u64)(1024 >> 4) << 32
        | (u64)1 << 62;
}

// A [64, 16] and D lie in registers, 16 rows a warp: each of them, and of D each eight columns, as
// `mma` has them. B lies in shared memory, where its descriptor says.

#define EIGHT(d, i)                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),          \
        "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

// D = A B, or D += A B (`add`): B [16, 128 or 256], of rows of x. Where only one chain is summed, B
// has 256.
__device__ __forceinline__ void wgmma_rows(float (&d)[64], const u32* a, u64 b, u32 add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63}, "
        "{%64, %65, %66, %67}, %68, add, 1, 1, 0;\n"
        "}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40),
          EIGHT(d, 48), EIGHT(d, 56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ __forceinline__ void wgmma_rows(float (&d)[128], const u32* a, u64 b, u32 add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
        "%119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, add, 1, 1, 0;\n"
        "}"
        : EIGHT(d, 0), EIGHT(d, 8), EIGHT(d, 16), EIGHT(d, 24), EIGHT(d, 32), EIGHT(d, 40),
          EIGHT(d, 48), EIGHT(d, 56), EIGHT(d, 64), EIGHT(d, 72), EIGHT(d, 80), EIGHT(d, 88),
          EIGHT(d, 96), EIGHT(d, 104), EIGHT(d, 112), EIGHT(d, 120)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#define FOUR(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define SIXTEEN(d, i) FOUR(d[i]), FOUR(d[i + 1]), FOUR(d[i + 2]), FOUR(d[i + 3])

// D = A B, or D += A B: A [64, 16] in registers, B [16, 64] in shared memory, its columns one after
// the other.
__device__ __forceinline__ void wgmma_keys(float (&d)[8][4], const u32 (&a)[4], u64 b, u32 add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1, 0;\n"
        "}"
        : SIXTEEN(d, 0), SIXTEEN(d, 4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// D += A B: B [16, 64] or [16, 128], its rows one after the other. The eight columns behind B are
// ones: sum += A ones.
__device__ __forceinline__ void wgmma_values(float (&d)[8][4], float (&sum)[4], const u32 (&a)[4],
                                             u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35}, "
        "{%36, %37, %38, %39}, %40, 1, 1, 1, 1;"
        : SIXTEEN(d, 0), SIXTEEN(d, 4), FOUR(sum)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_values(float (&d)[16][4], float (&sum)[4], const u32 (&a)[4],
                                             u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n136k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67}, "
        "{%68, %69, %70, %71}, %72, 1, 1, 1, 1;"
        : SIXTEEN(d, 0), SIXTEEN(d, 4), SIXTEEN(d, 8), SIXTEEN(d, 12), FOUR(sum)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
