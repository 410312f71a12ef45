// One step of decoding, from ids to logits, for very few rows: the phases of decode_step.cu, with the same sums in the same order, but no
// block waits for all others.
//
// What a block works out it sends: two elements and the number of the run go out as one word of eight bytes, a packet, which is
// seen as a whole or not at all. Whoever needs an element looks at its packet until it is of this run. So a message costs the way there and
// the way back, where a counter costs them twice, and a lock on top. No fence is needed, since nothing but the packet itself is read on its word.
//
// Every value of a step has packets of its own, which the next run alone writes again: another launch, so all of this run have been read by
// then. What caches hold was written by earlier launches; the newest key and value come in packets, and the block that attends writes them down
// for later ones. Packets begin as zeroes, and runs count from one.
//
// Some blocks attend, all others multiply. Those that attend have the keys of the next layer on their way while the others work. Each of the others
// makes every norm itself and keeps the sums that the next one adds to. A product is cut along its outputs alone: a block has all of K for its
// tiles, and adds the parts up as decode_step.cu does. All that does not depend on the step, weights and gains, is brought into shared memory by a
// warp of its own, as far ahead as there is room; another adds up and sends, while those that multiply get ready for the next phase.
//
// What is waited for is instructions as much as numbers: most run once a phase or once a layer. So there is one way to multiply, be it any
// number of tiles or parts of K, and nothing is compiled that the model at hand does not need.
#include "decode.cuh"

// Hopper alone moves registers between warpgroups; f32 has no matrix units.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && REAL != 0

// Rows of the step.
#ifndef ROWS
#define ROWS 1
#endif
// Slots of the ring of weights.
#ifndef SLOTS
#define SLOTS 8
#endif
// Whether all parts of all products have PART_STEPS steps.
#ifndef WHOLE
#define WHOLE 0
#endif
// Whether products take a gate and what it gates.
#ifndef GATES
#define GATES 1
#endif

// A unit is a part of K of a tile of outputs, whose weights take a slot. A block multiplies up to so many at a time: tiles of one
// part, or parts of one tile where their sums are wanted apart.
constexpr u32 UNITS = 4, SLOT = TILE_BYTES;

// A product's result is plain memory, for later launches. The first operand of a norm is what the block kept; the second comes in packets.
constexpr u32 PLAIN = 64, KEPT = 128, SENT = 256;

// ---- Packets -----------------------------------------------------------------------------------------------------

// An element's packet begins so many bytes from that of the one before, on average: sixteen bytes are two packets, or four elements.
constexpr u32 ELEMENT = 4;
// Looks at packets that do not come, before a thread gives up: several seconds, since others may use the card, too. What it looked for is
// lost, and the run a fault.
constexpr u32 PATIENCE = 1 << 24, LOST = 2;

struct Post {
    u32 run, patience;
    u32* fault;

    __device__ __forceinline__ bool looks_again() {
        if (patience == 0) return false;
        patience -= 1;
        if (patience == 0) atomicCAS(fault, 0u, LOST);
        return true;
    }

    // Two packets from each place, all on their way at once; nothing from nowhere.
    template <int N> __device__ __forceinline__ void take(const char* const (&from)[N], uint4 (&to)[N]) {
        u32 old;
        do {
#pragma unroll
            for (int i = 0; i < N; i++) {
                u64 first = 0, second = 0;
                if (from[i]) {
                    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(from[i]) : "memory");
                }
                to[i] = make_uint4((u32)first, (u32)(first >> 32), (u32)second, (u32)(second >> 32));
            }
            old = 0;
#pragma unroll
            for (int i = 0; i < N; i++) old |= from[i] ? to[i].y ^ run | to[i].w ^ run : 0;
        } while (old && looks_again());
    }

    __device__ __forceinline__ void send(char* to, u32 pair) const {
        asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"((u64)run << 32 | pair) : "memory");
    }
};

// The four elements of two packets.
__device__ __forceinline__ uint2 content(uint4 packets) { return make_uint2(packets.x, packets.z); }

// ---- What does not depend on the step ----------------------------------------------------------------------------

// Places of a ring that are used one after the other, and the parity of their barriers. Each has a barrier that says that it is filled, and one
// that says that what was in it has been taken.
template <u32 PLACES> struct Ring {
    u32 place, parity;
    __device__ __forceinline__ void advance(u32 by = 1) {
        place += by;
        if (place >= PLACES) {
            place -= PLACES;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ Ring further(u32 by) const {
        Ring ring = *this;
        ring.advance(by);
        return ring;
    }
    __device__ __forceinline__ u32 filled(u32 barriers) const { return barriers + 8 * place; }
    __device__ __forceinline__ u32 taken(u32 barriers) const { return barriers + 8 * (PLACES + place); }
};

// The step of K at which a part begins: `first_step` without a division.
__device__ __forceinline__ u32 begin_of(const Product& product, u32 part) {
    if (WHOLE) return PART_STEPS * part;
    if (INT8) return min(PART_STEPS * part, product.depth / 32);
    const u32 steps = product.depth / 32 * part;
    return product.parts == 1 ? steps : __umulhi(steps, product.inverse);
}

// What a block multiplies of a product, some units after the other.
struct Pieces {
    u32 tile, end, part, parts;
    bool is_apart;
    __device__ __forceinline__ explicit Pieces(const Phase& phase)
        : tile(phase.first), end(phase.end), part(0), parts(phase.product.parts), is_apart(phase.flags & APART) {}
    __device__ __forceinline__ bool is_there() const { return tile < end; }
    __device__ __forceinline__ u32 count() const { return is_there() ? min(is_apart ? parts - part : end - tile, UNITS) : 0; }
    __device__ __forceinline__ u32 tile_of(u32 unit) const { return is_apart ? tile : tile + unit; }
    __device__ __forceinline__ u32 part_of(u32 unit) const { return is_apart ? part + unit : part; }
    __device__ __forceinline__ bool is_last() const { return part + (is_apart ? UNITS : 1) >= parts; }
    __device__ __forceinline__ bool is_added_up() const { return is_apart || is_last(); }
    __device__ __forceinline__ void advance() {
        if (is_last()) {
            tile += is_apart ? 1 : count();
            part = 0;
        } else {
            part += is_apart ? UNITS : 1;
        }
    }
};

struct Memory {
    // Rows that are multiplied; what norms keep of rows, each thread its own elements; gains and shifts; sums of warps; two places for
    // each warp.
    real *rows, *kept, *gains;
    float* sums;
    float2* places;
    u32 slots, slot_barriers, gain_barriers, sum_barriers;
};

// Gains and shifts of the norm in use and of the next; sums of two pieces.
constexpr u32 GAINS = 2, SUMS = 2;

// A warp of its own fetches in the order in which the others will need it.
__device__ __forceinline__ void fetch(const Step& step, const Memory& memory, u32 columns) {
    const u32 lane = threadIdx.x % 32;
    const u64 policy = policy_of_weights();
    // Nobody has to take anything before places are filled for the first time.
    Ring<SLOTS> slots = {0, 1};
    Ring<GAINS> gains = {0, 1};
    for (u32 index = 0; index < step.count; index++) {
        const Phase& phase = step.phases[index];
        if (phase.kind != PRODUCT) continue;
        if (phase.flags & OWN_NORM) {
            const u32 filled = gains.filled(memory.gain_barriers), bytes = phase.norm.columns * sizeof(real);
            const u32 to = shared_address(memory.gains + gains.place * 2 * columns);
            const u64 from = lane == 0 ? phase.norm.gain : phase.norm.shift;
            wait_for_stage(gains.taken(memory.gain_barriers), gains.parity);
            if (lane == 0) begin_stage(filled, phase.norm.shift ? 2 * bytes : bytes);
            __syncwarp();
            if (lane < 2 && from) copy_row(to + lane * columns * sizeof(real), reinterpret_cast<const void*>(from), bytes, filled);
            gains.advance();
        }
        const Product product = phase.product;
        for (Pieces pieces(phase); pieces.is_there(); pieces.advance()) {
            for (u32 unit = 0; unit < pieces.count(); unit++) {
                const u32 filled = slots.filled(memory.slot_barriers), part = pieces.part_of(unit), begin = begin_of(product, part);
                const u32 steps = begin_of(product, part + 1) - begin, to = memory.slots + slots.place * SLOT;
                wait_for_stage(slots.taken(memory.slot_barriers), slots.parity);
#if INT8
                const u32 bytes = int8_bytes(steps);
                if (lane == 0) {
                    begin_stage(filled, bytes);
                    copy_int8_tile(to, product, pieces.tile_of(unit), begin, bytes, filled, policy);
                }
#else
                const u32 bytes = steps * 64;
                const u32 output = pieces.tile_of(unit) * TILE, rows = min(TILE, product.outputs - output);
                if (lane == 0) begin_stage(filled, rows * bytes);
                __syncwarp();
                if (lane < rows) {
                    copy_weights(to + lane * STAGE_ROW,
                                 reinterpret_cast<const real*>(product.w) + (u64)(output + lane) * product.depth + begin * 32, bytes,
                                 filled, policy);
                }
#endif
                slots.advance();
            }
        }
    }
}

// ---- Norms -------------------------------------------------------------------------------------------------------

// Takes gains and shifts out of their ring.
__device__ __forceinline__ void take_gains(const Norm& norm, const Memory& memory, u32 columns, Ring<GAINS>& ring, NormWeights& weights) {
    wait_for_stage(ring.filled(memory.gain_barriers), ring.parity);
    const real* from = memory.gains + ring.place * 2 * columns;
    weights.share = norm.share;
#pragma unroll
    for (int i = 0; i < FOURS; i++) {
        const u32 column = (i * THREADS + threadIdx.x) * 4;
        if (column >= norm.columns) continue;
        weights.gain[i] = *reinterpret_cast<const Four*>(from + column);
        if (norm.shift) weights.shift[i] = *reinterpret_cast<const Four*>(from + columns + column);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) leave_stage(ring.taken(memory.gain_barriers));
    ring.advance();
}

// The norms of all rows, by a whole block.
__device__ __forceinline__ void make_norms(const Step& step, const Norm& norm, const NormWeights& weights, u32 flags, const Memory& memory,
                                           Post& post) {
    const u32 columns = norm.columns;
    const char* from[ROWS * FOURS];
    Four a[ROWS * FOURS], b[ROWS * FOURS];
#pragma unroll
    for (int k = 0; k < ROWS * FOURS; k++) {
        const u32 row = k / FOURS, column = (k % FOURS * THREADS + threadIdx.x) * 4;
        from[k] = nullptr;
        a[k] = b[k] = Four();
        if (column >= columns) continue;
        if (flags & KEPT) {
            a[k] = *reinterpret_cast<const Four*>(memory.kept + row * columns + column);
        } else {
            a[k] = load_if_there(place_in_row(step, norm.a, norm.a_ids, norm.a_rows, row, columns, column));
        }
        if (flags & SENT) {
            from[k] = reinterpret_cast<const char*>(norm.b) + (row * columns + column) * ELEMENT;
        } else if (norm.b) {
            b[k] = load_if_there(place_in_row(step, norm.b, norm.b_ids, norm.b_rows, row, columns, column));
        }
    }
    uint4 packets[ROWS * FOURS];
    post.take(from, packets);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        float x[FOURS][4];
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            const u32 column = (i * THREADS + threadIdx.x) * 4, k = row * FOURS + i;
            widen_four(a[k], x[i]);
            if (norm.b) {
                float other[4];
                widen_four(flags & SENT ? content(packets[k]) : b[k], other);
#pragma unroll
                for (int e = 0; e < 4; e++) x[i][e] = rounded(x[i][e] + other[e]);
            }
            if (norm.sum && column < columns) store_four(memory.kept + row * columns + column, x[i]);
        }
        finish_norm(norm, weights, flags & CENTRED, x, memory.rows + row * columns, memory.places + row % 2 * WARPS);
    }
    wait_for_block();
}

// ---- Products ----------------------------------------------------------------------------------------------------

// What a warp multiplies of a part of K: `count` steps, the first of them in K and in the part.
struct Slice {
    u32 begin, offset, count;
};
__device__ __forceinline__ Slice slice_of(const Product& product, u32 part) {
    const u32 warp = threadIdx.x / 32, first = begin_of(product, part), steps = begin_of(product, part + 1) - first;
    if (WHOLE) return {first + WARP_STEPS * warp, WARP_STEPS * warp, WARP_STEPS};
    if (INT8) return {first + WARP_STEPS * warp, WARP_STEPS * warp, int8_count(steps)};
    const u32 offset = steps * warp / WARPS;
    return {first + offset, offset, steps * (warp + 1) / WARPS - offset};
}

// The rows of a product that come in packets, of which a warp takes what it multiplies itself. `OPERANDS` is two for a gate and
// what it gates.
template <int OPERANDS>
__device__ __forceinline__ void take_rows(const Product& product, const Memory& memory, Post& post) {
    constexpr int AHEAD = 4;
    const u32 lane = threadIdx.x % 32, width = OPERANDS * product.depth;
    const char* sent = reinterpret_cast<const char*>(product.x);
    for (u32 first = 0; first < product.parts; first += AHEAD) {
        const char* from[AHEAD * ROWS * OPERANDS];
        uint4 packets[AHEAD * ROWS * OPERANDS];
        u32 columns[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            // Eight lanes have a step of 32 elements.
            const Slice slice = slice_of(product, min(first + i, product.parts - 1));
            const bool is_there = first + i < product.parts && lane / 8 < slice.count;
            columns[i] = (slice.begin + lane / 8) * 32 + lane % 8 * 4;
#pragma unroll
            for (int k = 0; k < ROWS * OPERANDS; k++) {
                const u32 place = k / OPERANDS * width + k % OPERANDS * product.depth + columns[i];
                from[i * ROWS * OPERANDS + k] = is_there ? sent + place * ELEMENT : nullptr;
            }
        }
        post.take(from, packets);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                const int k = (i * ROWS + row) * OPERANDS;
                if (!from[k]) continue;
                uint2 four = content(packets[k]);
                if (OPERANDS == 2) {
                    const uint2 up = content(packets[k + OPERANDS - 1]);
                    const uint4 both = gated(make_uint4(four.x, four.y, 0, 0), make_uint4(up.x, up.y, 0, 0));
                    four = make_uint2(both.x, both.y);
                }
                *reinterpret_cast<uint2*>(memory.rows + row * product.depth + columns[i]) = four;
            }
        }
    }
    __syncwarp();
}

// Two units are multiplied by one instruction.
constexpr u32 PAIRS = UNITS / 2;
typedef float Sums[PAIRS][4];

#if INT8

// The weights of some units of eight bits in registers, as halves that hold their whole numbers, and what these are counted in. A warp has the same
// steps of every part, so that nothing but their number depends on the unit. Of a unit or a step that is not there the weights may be anything, which
// as whole numbers does no harm to others; a step that is not there counts for nothing.
struct Units {
    uint4 weights[UNITS][WARP_STEPS];
    float scales[UNITS][WARP_STEPS];
    // The warp's steps of the first unit's part and all behind it, and how many of them lie between units.
    int left, apart;

    __device__ __forceinline__ void take(const Product& product, const Pieces& pieces, const Memory& memory, Ring<SLOTS>& ring) {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = pieces.count();
        left = (int)(product.depth / 32) - (int)(PART_STEPS * pieces.part + WARP_STEPS * warp);
        apart = pieces.is_apart ? PART_STEPS : 0;
        // A lane waits for a unit.
        const Ring<SLOTS> mine = ring.further(lane % UNITS);
        if (lane < count) wait_for_stage(mine.filled(memory.slot_barriers), mine.parity);
        __syncwarp();
        uint2 bytes[UNITS][WARP_STEPS];
#pragma unroll
        for (u32 unit = 0; unit < UNITS; unit++) {
            const u32 slot = memory.slots + ring.further(unit).place * SLOT;
#pragma unroll
            for (u32 s = 0; s < WARP_STEPS; s++) {
                bytes[unit][s] = load_int8_weights(slot + int8_step(lane / 4, WARP_STEPS * warp + s) + lane % 4 * 8);
                scales[unit][s] = load_scale(slot + int8_scale(lane / 4, WARP_STEPS * warp + s));
            }
        }
#pragma unroll
        for (u32 unit = 0; unit < UNITS; unit++) {
#pragma unroll
            for (u32 s = 0; s < WARP_STEPS; s++) {
                weights[unit][s] = halves_of_bytes(bytes[unit][s]);
                if (!WHOLE && (int)s >= left - (int)unit * apart) scales[unit][s] = 0.0f;
            }
        }
        __syncwarp();
        if (lane < count) leave_stage(mine.taken(memory.slot_barriers));
        ring.advance(count);
    }

    // As below, but for what steps add: sums of whole numbers, times what these are counted in.
    __device__ __forceinline__ void multiply_with(const Product& product, const Pieces& pieces, const real* rows, Sums& sums) const {
        const u32 lane = threadIdx.x % 32, unit = lane / 4 % 2, first = PART_STEPS * pieces.part + WARP_STEPS * (threadIdx.x / 32);
        // Columns of rows that there are not give what nobody takes.
        const real* own = rows + min(lane / 8, ROWS - 1u) * product.depth + lane % 4 * 8;
        float parts[WARP_STEPS][PAIRS][4] = {};
        uint4 x[PAIRS][WARP_STEPS];
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; pair++) {
            const int between = (int)(2 * pair + unit) * apart;
#pragma unroll
            for (u32 s = 0; s < WARP_STEPS; s++) {
                x[pair][s] = make_uint4(0, 0, 0, 0);
                if ((int)s < left - between) x[pair][s] = *reinterpret_cast<const uint4*>(own + (first + between + s) * 32);
            }
        }
#pragma unroll
        for (u32 s = 0; s < WARP_STEPS; s++) {
#pragma unroll
            for (u32 pair = 0; pair < PAIRS; pair++) {
                const uint4 low = weights[2 * pair][s], high = weights[2 * pair + 1][s];
                const u32 even[4] = {low.x, high.x, low.y, high.y};
                multiply(parts[s][pair], even, x[pair][s].x, x[pair][s].y);
            }
        }
#pragma unroll
        for (u32 s = 0; s < WARP_STEPS; s++) {
#pragma unroll
            for (u32 pair = 0; pair < PAIRS; pair++) {
                const uint4 low = weights[2 * pair][s], high = weights[2 * pair + 1][s];
                const u32 odd[4] = {low.z, high.z, low.w, high.w};
                multiply(parts[s][pair], odd, x[pair][s].z, x[pair][s].w);
            }
        }
#pragma unroll
        for (u32 s = 0; s < WARP_STEPS; s++) {
#pragma unroll
            for (u32 pair = 0; pair < PAIRS; pair++) {
                sums[pair][0] = fmaf(parts[s][pair][0], scales[2 * pair][s], sums[pair][0]);
                sums[pair][3] = fmaf(parts[s][pair][3], scales[2 * pair + 1][s], sums[pair][3]);
            }
        }
    }
};

#else

// The weights of some units in registers, and the warp's slices of them.
struct Units {
    uint4 weights[UNITS][WARP_STEPS];
    Slice slices[UNITS];

    // Takes them out of the ring, whose slots are free again. Of a unit that is not there nobody wants anything, so it may be anything; steps that
    // are not there must add nothing.
    __device__ __forceinline__ void take(const Product& product, const Pieces& pieces, const Memory& memory, Ring<SLOTS>& ring) {
        const u32 lane = threadIdx.x % 32, count = pieces.count();
        // A lane waits for a unit.
        const Ring<SLOTS> mine = ring.further(lane % UNITS);
        if (lane < count) wait_for_stage(mine.filled(memory.slot_barriers), mine.parity);
        __syncwarp();
#pragma unroll
        for (u32 unit = 0; unit < UNITS; unit++) {
            slices[unit] = slice_of(product, pieces.part_of(unit));
            const u32 slot = memory.slots + ring.further(unit).place * SLOT;
            const u32 from = slot + lane / 4 * STAGE_ROW + slices[unit].offset * 64 + lane % 4 * 16;
#pragma unroll
            for (u32 s = 0; s < WARP_STEPS; s++) {
                const bool is_there = WHOLE || (unit < count && s < slices[unit].count);
                weights[unit][s] = is_there ? load_weights(from + s * 64) : make_uint4(0, 0, 0, 0);
            }
        }
        __syncwarp();
        if (lane < count) leave_stage(mine.taken(memory.slot_barriers));
        ring.advance(count);
    }

    // The first factor of the matrix units are the weights of two units, one below the other. The second has a column for every row and
    // either unit, so that both may be of other parts of K; what the first unit gives with the second's column is of no use, nor the reverse.
    // A lane takes eight neighbours of K at a time of both factors; which of them meet in which instruction does not matter.
    __device__ __forceinline__ void multiply_with(const Product& product, const Pieces& pieces, const real* rows, Sums& sums) const {
        const u32 lane = threadIdx.x % 32, row = lane / 8, depth = product.depth, count = pieces.count();
        const bool is_second = lane / 4 % 2;
        const real* own = rows + row * depth + lane % 4 * 8;
        uint4 x[PAIRS][WARP_STEPS];
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; pair++) {
            const Slice first = slices[2 * pair], second = slices[2 * pair + 1];
            const u32 begin = is_second ? second.begin : first.begin, steps = is_second ? second.count : first.count;
            const bool is_there = row < ROWS && 2 * pair + is_second < count;
#pragma unroll
            for (u32 s = 0; s < WARP_STEPS; s++) {
                x[pair][s] = make_uint4(0, 0, 0, 0);
                if (is_there && s < steps) x[pair][s] = *reinterpret_cast<const uint4*>(own + (begin + s) * 32);
            }
        }
        // One after the other for a pair, side by side for both.
#pragma unroll
        for (u32 s = 0; s < WARP_STEPS; s++) {
#pragma unroll
            for (u32 pair = 0; pair < PAIRS; pair++) {
                const uint4 first = weights[2 * pair][s], second = weights[2 * pair + 1][s];
                const u32 even[4] = {first.x, second.x, first.y, second.y};
                multiply(sums[pair], even, x[pair][s].x, x[pair][s].y);
            }
#pragma unroll
            for (u32 pair = 0; pair < PAIRS; pair++) {
                const uint4 first = weights[2 * pair][s], second = weights[2 * pair + 1][s];
                const u32 odd[4] = {first.z, second.z, first.w, second.w};
                multiply(sums[pair], odd, x[pair][s].z, x[pair][s].w);
            }
        }
    }
};
#endif
static_assert(2 * ROWS <= TILE, "a column for every row and either unit of a pair");

__device__ __forceinline__ real finished(const Product& product, u32 flags, float bias, float sum) {
    if (product.bias) sum += bias;
    const real stored = from_float<real>(sum);
    return flags & ACTIVATED ? from_float<real>(gelu_of(to_float(stored))) : stored;
}

// Gives two outputs of a row away.
__device__ __forceinline__ void give(const Product& product, u32 flags, const Post& post, u32 row, u32 output, u32 biases, float2 sum) {
    float bias[2];
    widen_pair(biases, bias, real());
    const real low = finished(product, flags, bias[0], sum.x), high = finished(product, flags, bias[1], sum.y);
    const u64 place = (u64)row * product.outputs + output;
    if (flags & PLAIN) {
        real* to = reinterpret_cast<real*>(product.out) + place;
        to[0] = low;
        if (output + 1 < product.outputs) to[1] = high;
    } else {
        post.send(reinterpret_cast<char*>(product.out) + place * ELEMENT, (u32)low.bits | (u32)high.bits << 16);
    }
}

// Where the sums of a warp lie that are of a unit, a row and an output.
__device__ __forceinline__ float* sums_of(const Memory& memory, const Ring<SUMS>& ring, u32 unit, u32 warp, u32 row, u32 column) {
    return memory.sums + (((ring.place * UNITS + unit) * WARPS + warp) * ROWS + row) * TILE + column;
}

// How far the warps that multiply have come with what is fetched for them, and with what they leave.
struct Progress {
    Ring<SLOTS> slots;
    Ring<GAINS> gains;
    Ring<SUMS> sums;
};

__device__ __forceinline__ void multiply_rows(const Step& step, const Phase& phase, const Memory& memory, u32 columns, Post& post,
                                              Progress& progress) {
    const Product product = phase.product;
    const u32 flags = phase.flags, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool has_rows = false;
    Sums sums;
    Pieces pieces(phase);
    // What norms keep is wanted later, even where there is nothing to multiply.
    for (bool goes_on = pieces.is_there() || flags & OWN_NORM; goes_on; pieces.advance(), goes_on = pieces.is_there()) {
        // What does not depend on other blocks is in registers before their packets come.
        const u32 count = pieces.count();
        Units units;
        units.take(product, pieces, memory, progress.slots);
        wait_for_stage(progress.sums.taken(memory.sum_barriers), progress.sums.parity ^ 1);
        if (!has_rows) {
            if (flags & OWN_NORM) {
                const Norm norm = phase.norm;
                NormWeights weights;
                take_gains(norm, memory, columns, progress.gains, weights);
                make_norms(step, norm, weights, flags, memory, post);
            } else if (GATES && flags & GATED) {
                take_rows<2>(product, memory, post);
            } else {
                take_rows<1>(product, memory, post);
            }
        }
        has_rows = true;
        if (count == 0) break;
        if (pieces.is_apart || pieces.part == 0) {
#pragma unroll
            for (u32 pair = 0; pair < PAIRS; pair++) {
#pragma unroll
                for (int e = 0; e < 4; e++) sums[pair][e] = 0.0f;
            }
        }
        units.multiply_with(product, pieces, memory.rows, sums);
        if (!pieces.is_added_up()) continue;
        if (lane % 4 < ROWS) {
#pragma unroll
            for (u32 pair = 0; pair < PAIRS; pair++) {
                *sums_of(memory, progress.sums, 2 * pair, warp, lane % 4, lane / 4) = sums[pair][0];
                *sums_of(memory, progress.sums, 2 * pair + 1, warp, lane % 4, lane / 4) = sums[pair][3];
            }
        }
        __syncwarp();
        if (lane == 0) leave_stage(progress.sums.filled(memory.sum_barriers));
        progress.sums.advance();
    }
    // Rows are overwritten only when all warps have multiplied them. Warps that go their way from here, where their slices are their own, are slower by an
    // eighth than those that stay together: a likely reason is that then each of them fetches its instructions for itself.
    wait_for_block();
}

// Two neighbouring numbers that no block writes.
__device__ __forceinline__ u32 load_pair(u64 from) {
    u32 pair;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(pair) : "l"(from));
    return pair;
}

// A warp of its own adds up what the others leave, and gives results away. A lane has two neighbouring outputs of a row and a unit, whose
// tile has four such pairs.
__device__ __forceinline__ void give_results(const Step& step, const Memory& memory, const Post& post) {
    const u32 lane = threadIdx.x % 32, row = lane / (4 * UNITS), unit = lane / 4 % UNITS, column = lane % 4 * 2;
    Ring<SUMS> ring = {0, 0};
    for (u32 index = 0; index < step.count; index++) {
        const Phase& phase = step.phases[index];
        if (phase.kind != PRODUCT) continue;
        const Product product = phase.product;
        const u32 flags = phase.flags;
        float2 total = make_float2(0.0f, 0.0f);
        for (Pieces pieces(phase); pieces.is_there(); pieces.advance()) {
            if (!pieces.is_added_up()) continue;
            const u32 count = pieces.count(), output = pieces.tile_of(unit) * TILE + column;
            const bool is_mine = row < ROWS && output < product.outputs && unit < (pieces.is_apart ? 1 : count);
            const u32 biases = product.bias && is_mine ? load_pair(product.bias + output * sizeof(real)) : 0;
            wait_for_stage(ring.filled(memory.sum_barriers), ring.parity);
            float2 sum = make_float2(0.0f, 0.0f);
            if (row < ROWS) {
#pragma unroll
                for (u32 warp = 0; warp < WARPS; warp++) {
                    const float2 own = *reinterpret_cast<const float2*>(sums_of(memory, ring, unit, warp, row, column));
                    sum.x += own.x;
                    sum.y += own.y;
                }
            }
            if (pieces.is_apart) {
                if (pieces.part == 0) total = make_float2(0.0f, 0.0f);
#pragma unroll
                for (u32 part = 0; part < UNITS; part++) {
                    const u32 whose = row * (4 * UNITS) + part * 4 + lane % 4;
                    const float2 own = make_float2(__shfl_sync(0xffffffffu, sum.x, whose), __shfl_sync(0xffffffffu, sum.y, whose));
                    if (part < count) {
                        total.x += own.x;
                        total.y += own.y;
                    }
                }
                sum = total;
            }
            if (is_mine && pieces.is_last()) give(product, flags, post, row, output, biases, sum);
            __syncwarp();
            if (lane == 0) leave_stage(ring.taken(memory.sum_barriers));
            ring.advance();
        }
    }
}
static_assert(ROWS * 4 * UNITS <= 32, "a lane for every pair");

// ---- Attention ---------------------------------------------------------------------------------------------------

// The shares of a lane in packets: N of them, from these elements; none from NOWHERE.
constexpr u32 NOWHERE = 0xffffffffu;
template <int N> __device__ __forceinline__ void take_shares(const char* sent, const u32 (&elements)[N], Share (&to)[N], Post& post) {
    const char* from[2 * N];
    uint4 packets[2 * N];
#pragma unroll
    for (int i = 0; i < 2 * N; i++) from[i] = elements[i / 2] == NOWHERE ? nullptr : sent + (elements[i / 2] + i % 2 * 4) * ELEMENT;
    post.take(from, packets);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint2 low = content(packets[2 * i]), high = content(packets[2 * i + 1]);
        to[i].packs[0] = make_uint4(low.x, low.y, high.x, high.y);
    }
}

// The lane's shares of a query, a key and a value.
struct Newest { Share query[KEY_SHARES], key[KEY_SHARES], value[VALUE_SHARES]; };

__device__ __forceinline__ Newest take_newest(const Step& step, const Attention& of, u32 row, u32 head, u32 kv_head, bool is_keeper, Post& post) {
    constexpr int BOTH = 2 * KEY_SHARES, ALL = BOTH + VALUE_SHARES;
    const char* sent = reinterpret_cast<const char*>(of.qkv) + row * (of.heads + 2 * of.kv_heads) * SIZE * ELEMENT;
    const u32 query = head * SIZE, key = (of.heads + kv_head) * SIZE, value = key + of.kv_heads * SIZE, half = SIZE / 2;
    u32 elements[ALL];
    Share shares[ALL];
#pragma unroll
    for (int s = 0; s < KEY_SHARES; s++) {
        const u32 column = key_column(s);
        elements[s] = column < SIZE ? query + column : NOWHERE;
        elements[KEY_SHARES + s] = is_keeper && column < SIZE ? key + column : NOWHERE;
    }
#pragma unroll
    for (int s = 0; s < VALUE_SHARES; s++) elements[BOTH + s] = is_keeper && value_column(s) < SIZE ? value + value_column(s) : NOWHERE;
    take_shares(sent, elements, shares, post);
    if (TURNS && of.angles) {
        u32 partners[BOTH];
        Share others[BOTH];
#pragma unroll
        for (int s = 0; s < BOTH; s++) {
            const bool is_first = key_column(s % KEY_SHARES) < half;
            partners[s] = elements[s] == NOWHERE ? NOWHERE : is_first ? elements[s] + half : elements[s] - half;
        }
        take_shares(sent, partners, others, post);
#pragma unroll
        for (int s = 0; s < BOTH; s++) {
            if (elements[s] != NOWHERE) shares[s] = turned(step, of, shares[s], others[s], row, key_column(s % KEY_SHARES));
        }
    }
    Newest newest;
#pragma unroll
    for (int s = 0; s < KEY_SHARES; s++) {
        newest.query[s] = shares[s];
        newest.key[s] = shares[KEY_SHARES + s];
    }
#pragma unroll
    for (int s = 0; s < VALUE_SHARES; s++) newest.value[s] = shares[BOTH + s];
    return newest;
}

// A query head of a row is an item, and `warps` warps have one: each takes some of its chains. The first keys and values are on their
// way before the query comes. `block` is one of `blocks` that attend; `all_chains` is for what the block's chains gather.
__device__ __forceinline__ void attend(const Step& step, const Attention& of, float* all_chains, u32 block, u32 blocks, Post& post) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 slot = warp / of.warps, slots = WARPS / of.warps, warp_of_slot = warp % of.warps;
    const u32 items = ROWS * of.heads, group = of.heads / of.kv_heads, kv_stride = of.kv_heads * SIZE;
    const u32* places = reinterpret_cast<const u32*>(of.places);
    float* chains = all_chains + slot * CHAINS * CHAIN;
    for (u32 item = block + blocks * slot; item < items; item += blocks * slots) {
        const u32 b = item / of.heads, head = item % of.heads, kv_head = head / group;
        const Range seen = seen_by(sight_of(b, 1, of.keys, of.window, 1, places, nullptr, nullptr), 0);
        const u64 row = key_row(b, places, of.rows);
        const u32 start = places[2 * b + 1];
        const int newest = start < of.keys ? (int)start : -1;
        real* k = reinterpret_cast<real*>(of.k) + row * of.keys * kv_stride + kv_head * SIZE;
        real* v = reinterpret_cast<real*>(of.v) + row * of.keys * kv_stride + kv_head * SIZE;
        // The warp that has the newest key among its own.
        const bool is_keeper = newest >= 0 && (u32)(newest - seen.first) / STRIP % CHAINS % of.warps == warp_of_slot;
        Course course = {k, v, chains, warp_of_slot, of.warps, kv_stride, seen.first, seen.first, seen.end, newest, of.scale * UNIT_OF_SCORES};
        Keys keys;
        Values values;
        course.load(keys, values);
        const Newest taken = take_newest(step, of, b, head, kv_head, is_keeper, post);
#pragma unroll
        for (int s = 0; s < KEY_SHARES; s++) course.new_key[s] = taken.key[s];
#pragma unroll
        for (int s = 0; s < VALUE_SHARES; s++) course.new_value[s] = taken.value[s];
        Query query(taken.query);
        while (course.go_on(keys, values, query)) {}
        wait_for_warps(1 + slot, of.warps);
        for (u32 place = (warp_of_slot * 32 + lane) * 2; place < SIZE; place += 64 * of.warps) {
            const Joint joint(chains);
            post.send(reinterpret_cast<char*>(of.out) + (item * SIZE + place) * ELEMENT,
                      (u32)joint.element(place).bits | (u32)joint.element(place + 1).bits << 16);
        }
        if (is_keeper && places[2 * b] < of.rows && head % group == 0) course.keep_newest(k, v);
        wait_for_warps(1 + slot, of.warps);
    }
}

// ---- The step ----------------------------------------------------------------------------------------------------

// Notes in a phase what does not change: addresses, the tiles of this block among `blocks`, and quotients.
__device__ __forceinline__ void prepare(Phase& phase, const Step& step, u32 blocks) {
    const auto resolve = [&](u64& address) { address = reinterpret_cast<u64>(at<char>(step, address)); };
    if (phase.kind == ATTENTION) {
        resolve(phase.attention.qkv);
        resolve(phase.attention.out);
        return;
    }
    resolve(phase.product.x);
    resolve(phase.product.out);
    resolve(phase.norm.b);
    const u32 tiles = (phase.product.outputs + TILE - 1) / TILE, block = min(blockIdx.x, blocks);
    phase.first = tiles * block / blocks;
    phase.end = tiles * min(block + 1, blocks) / blocks;
    phase.product.inverse = 0xffffffffu / phase.product.parts + 1;
    phase.norm.share = 1.0f / (float)phase.norm.columns;
}

// Barriers of a ring whose places so many threads fill and take.
__device__ __forceinline__ void begin_barriers(u64* barriers, u32 places, u32 filling, u32 taking) {
    if (threadIdx.x >= 2 * places) return;
    const u32 arrivals = threadIdx.x < places ? filling : taking;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barriers + threadIdx.x)), "r"(arrivals) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// `runs` says how many runs there have been, and how many blocks have ended this one. The first `makers` blocks multiply, the others attend.
// `columns` are those of the widest norm, `row_bytes` those of rows that are multiplied.
extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
decode_few(const Phase* table, char* scratch, volatile u32* runs, u32* fault, u32 count, u32 makers, u32 columns, u32 row_bytes) {
    extern __shared__ __align__(128) char shared_memory[];
    __shared__ float2 places[2 * WARPS];
    __shared__ float sums[SUMS * UNITS * WARPS * ROWS * TILE];
    __shared__ u64 slot_barriers[2 * SLOTS], gain_barriers[2 * GAINS], sum_barriers[2 * SUMS];
    __shared__ u32 run;
    Memory memory;
    memory.slots = shared_address(shared_memory);
    memory.rows = reinterpret_cast<real*>(shared_memory + SLOTS * SLOT);
    memory.kept = reinterpret_cast<real*>(shared_memory + SLOTS * SLOT + row_bytes);
    memory.gains = memory.kept + ROWS * columns;
    memory.sums = sums;
    memory.places = places;
    memory.slot_barriers = shared_address(slot_barriers);
    memory.gain_barriers = shared_address(gain_barriers);
    memory.sum_barriers = shared_address(sum_barriers);
    // Each kind of warps has these to itself: what all of them hold takes a register of those that have few.
    const auto own_step = [&] {
        u32 behind = SLOTS * SLOT + row_bytes + (ROWS + 2 * GAINS) * columns * sizeof(real);
        asm volatile("" : "+r"(behind));
        return Step{reinterpret_cast<Phase*>(shared_memory + behind), scratch, fault, count, ROWS};
    };
    const auto own_post = [&] { return Post{*const_cast<volatile u32*>(&run), PATIENCE, fault}; };
    {
        const Step step = own_step();
        Phase* phases = const_cast<Phase*>(step.phases);
        const u32 words = count * (sizeof(Phase) / 16);
        for (u32 i = threadIdx.x; i < words; i += ALL_THREADS) {
            reinterpret_cast<uint4*>(phases)[i] = reinterpret_cast<const uint4*>(table)[i];
        }
        begin_barriers(slot_barriers, SLOTS, 1, WARPS);
        begin_barriers(gain_barriers, GAINS, 1, WARPS);
        begin_barriers(sum_barriers, SUMS, WARPS, 1);
        if (threadIdx.x == 0) run = runs[0] + 1;
        __syncthreads();
        for (u32 index = threadIdx.x; index < count; index += ALL_THREADS) prepare(phases[index], step, makers);
        __syncthreads();
    }
    if (threadIdx.x >= THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (blockIdx.x >= makers) return;
        if (threadIdx.x < THREADS + 32) {
            fetch(own_step(), memory, columns);
        } else if (threadIdx.x < THREADS + 64) {
            give_results(own_step(), memory, own_post());
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    const Step step = own_step();
    Post post = own_post();
    if (blockIdx.x < makers) {
        Progress progress = {{0, 0}, {0, 0}, {0, 0}};
        for (u32 index = 0; index < count; index++) {
            const Phase& phase = step.phases[index];
            if (phase.kind == PRODUCT) multiply_rows(step, phase, memory, columns, post, progress);
        }
    } else {
        for (u32 index = 0; index < count; index++) {
            if (step.phases[index].kind != ATTENTION) continue;
            const Attention of = step.phases[index].attention;
            attend(step, of, reinterpret_cast<float*>(shared_memory), blockIdx.x - makers, gridDim.x - makers, post);
        }
    }
    // The last block to end counts the run: all have read its number by then.
    if (threadIdx.x == 0 && atomicAdd(const_cast<u32*>(&runs[1]), 1u) == gridDim.x - 1) {
        runs[1] = 0;
        runs[0] = runs[0] + 1;
    }
}

#endif
