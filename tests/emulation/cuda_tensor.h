/* What the lanes of a warp do together with tensor cores and blocks in shared memory, for tests/emulation/cuda_emulation.h.
 *
 * Lane 4 g + t has element (g, t) of a block of 8 rows of four 32-bit words; lanes 8 b to 8 b + 7 say where the rows of
 * block b are. A row is read when its lane arrives; one to be written is NaN from then on until its lane goes on: what
 * relies on such a call to order other accesses of the lanes depends on the order in which threads run. A lane that is
 * missing, or does something else, ends the launch with a message, as does a row that is misaligned or not in shared
 * memory.
 *
 * As accurate as the hardware, and no better: factors lose all but 11 significant bits, and sums are cut off.
 */
#pragma once

#include "cuda_threads.h"

#include "cuda_async.h"

#include "cuda_math.h"

namespace cuda_emulation {

enum class Collective : uint64_t { read_blocks = 0x7E4501, write_blocks, multiply_add, multiply_add_double };

/* What each thread brings to a collective, or takes there: the next one is begun before all have taken theirs. */
RUNTIME_VARIABLE float brought[2][MAX_THREADS][6];
RUNTIME_VARIABLE unsigned collectives[MAX_THREADS];

/* Where a thread puts what it brings. */
RUNTIME float *to_bring()
{
    const long self = machine.current - threads;
    return brought[++collectives[self] % 2][self];
}

/* What the threads of the warp have brought, once all of its lanes are here. */
RUNTIME const float (*together(Collective collective, int line))[6]
{
    const Thread &self = exchange(~0u, uint64_t(collective), line);
    for (unsigned lane = 0; lane < WARP; ++lane)
        if (!(self.participants >> lane & 1) || self.received[lane] != uint64_t(collective))
            fail("lane %u of the warp of %s is missing from what its lanes do together", lane,
                 place(*machine.current).characters);
    const long thread = machine.current - threads;
    return &brought[collectives[thread] % 2][thread / WARP * WARP];
}

RUNTIME bool is_row(const float *row)
{
    if (reinterpret_cast<uintptr_t>(row) % 16 == 0 && in_shared_memory(row, 16))
        return true;
    fail("%s has a row of a block that is misaligned or outside shared memory", place(*machine.current).characters);
    return false;
}

RUNTIME double factor_of_tensor_cores(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffffe000u;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* The nearest float that is not further from zero. */
RUNTIME float cut_off(double sum)
{
    const float nearest = float(sum);
    return fabs(double(nearest)) > fabs(sum) && isfinite(sum) ? nextafterf(nearest, 0) : nearest;
}

} // namespace cuda_emulation

RUNTIME void __read_blocks(float f[4], const float *row, int line = __builtin_LINE())
{
    using namespace cuda_emulation;
    float *const mine = to_bring();
    if (is_row(row))
        memcpy(mine, row, 16);
    const float(*const rows)[6] = together(Collective::read_blocks, line);
    const unsigned lane = lane_index();
    for (unsigned b = 0; b < 4; ++b)
        f[b] = rows[8 * b + lane / 4][lane % 4];
}

RUNTIME void __write_blocks(float *row, const float f[4], int line = __builtin_LINE())
{
    using namespace cuda_emulation;
    memcpy(to_bring(), f, 16);
    const bool writes = is_row(row);
    if (writes)
        memset(row, POISON, 16);
    const float(*const elements)[6] = together(Collective::write_blocks, line);
    const unsigned block = lane_index() / 8, first = lane_index() % 8 * 4;
    if (writes)
        for (unsigned t = 0; t < 4; ++t)
            row[t] = elements[first + t][block];
}

/* c += a b, 16 by 8 by 8, as mma.m16n8k8 does it with tf32. */
RUNTIME void __multiply_add(float c[4], const float a[4], float b0, float b1, int line = __builtin_LINE())
{
    using namespace cuda_emulation;
    float *const mine = to_bring();
    memcpy(mine, a, 16);
    mine[4] = b0;
    mine[5] = b1;
    const float(*const lanes)[6] = together(Collective::multiply_add, line);
    const unsigned g = lane_index() / 4, t = lane_index() % 4;
    for (unsigned e = 0; e < 4; ++e) {
        const unsigned column = 2 * t + e % 2;
        double sum = c[e];
        for (unsigned k = 0; k < 8; ++k)
            sum += factor_of_tensor_cores(lanes[4 * g + k % 4][e / 2 + k / 4 * 2])
                   * factor_of_tensor_cores(lanes[4 * column + k % 4][4 + k / 4]);
        c[e] = cut_off(sum);
    }
}

/* c += a b, 8 by 8 by 4, as mma.m8n8k4 does it with f64. */
RUNTIME void __multiply_add_double(double &c0, double &c1, double a, double b, int line = __builtin_LINE())
{
    using namespace cuda_emulation;
    float *const mine = to_bring();
    memcpy(mine, &a, sizeof a);
    memcpy(mine + 2, &b, sizeof b);
    const float(*const lanes)[6] = together(Collective::multiply_add_double, line);
    const unsigned g = lane_index() / 4, t = lane_index() % 4;
    for (unsigned k = 0; k < 4; ++k) {
        double left, right[2];
        memcpy(&left, lanes[4 * g + k], sizeof left);
        memcpy(&right[0], lanes[4 * (2 * t) + k] + 2, sizeof right[0]);
        memcpy(&right[1], lanes[4 * (2 * t + 1) + k] + 2, sizeof right[1]);
        c0 = fma(left, right[0], c0);
        c1 = fma(left, right[1], c1);
    }
}
