// What goes between host and card beside the kernels of a sequence: one launch puts everything that was uploaded into its places,
// and one brings numbers to the host's memory and says that the stream has come this far.
#include "prelude.cuh"

// As many as `PIECES` in staging.rs.
constexpr int PIECES = 8;

struct Delivery {
    struct {
        u64 to, from, bytes;
    } pieces[PIECES];
};

template <typename T> __device__ void copy(u64 to, u64 from, u64 bytes) {
    const u64 count = bytes / sizeof(T), step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
}

// Blocks along x share a piece, blocks along y have one each. Pieces do not overlap.
extern "C" __global__ void deliver(Delivery delivery) {
    const u64 to = delivery.pieces[blockIdx.y].to, from = delivery.pieces[blockIdx.y].from;
    const u64 bytes = delivery.pieces[blockIdx.y].bytes;
    const u64 all = to | from | bytes;
    if (all % sizeof(uint4) == 0)
        copy<uint4>(to, from, bytes);
    else if (all % sizeof(u32) == 0)
        copy<u32>(to, from, bytes);
    else
        copy<char>(to, from, bytes);
}

struct Report {
    // Where the numbers go, one behind the other, and where the milestone is written when they are there.
    u64 to, passed, milestone;
    struct {
        u64 from, words;
    } pieces[PIECES];
};

// One block. The host watches `passed` in its own memory, so the numbers must be seen there before it is.
extern "C" __global__ void report(Report report) {
    u32* to = reinterpret_cast<u32*>(report.to);
    for (int piece = 0; piece < PIECES; ++piece) {
        const u32* from = reinterpret_cast<const u32*>(report.pieces[piece].from);
        const u64 words = report.pieces[piece].words;
        for (u64 i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
        to += words;
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *reinterpret_cast<volatile u32*>(report.passed) = (u32)report.milestone;
}
