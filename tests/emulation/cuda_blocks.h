/* Blocks of fibers one after another, each with its shared memory: see tests/emulation/cuda_emulation.h. */
#pragma once

#include "cuda_threads.h"

namespace cuda_emulation {

/* Static shared variables lie in a section of their own, whose ends the linker knows; null if there are none. */
#define __shared__ static __attribute__((section("cuda_shared")))
extern "C" unsigned char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));

/* Outside the bytes that the launch asked for, a block writes nothing: near them that is checked after every block. */
RUNTIME void poison_shared()
{
    if (__start_cuda_shared)
        memset(__start_cuda_shared, POISON, __stop_cuda_shared - __start_cuda_shared);
    memset(dynamic_shared + SHARED_GUARD, POISON, machine.geometry->shared_bytes);
}

RUNTIME void check_guard(const char *side, const unsigned char *guard, size_t bytes)
{
    if (guard[0] != GUARD || memcmp(guard, guard + 1, bytes - 1) != 0)
        fail("block (%u, %u, %u) wrote %s its %llu bytes of dynamic shared memory", blockIdx.x, blockIdx.y, blockIdx.z,
             side, (unsigned long long)machine.geometry->shared_bytes);
}

RUNTIME void check_shared(size_t after = SHARED_GUARD)
{
    check_guard("before", dynamic_shared, SHARED_GUARD);
    check_guard("after", dynamic_shared + SHARED_GUARD + machine.geometry->shared_bytes, after);
}

RUNTIME void start_threads()
{
    machine.threads = 0;
    for (unsigned z = 0; z < blockDim.z; ++z)
        for (unsigned y = 0; y < blockDim.y; ++y)
            for (unsigned x = 0; x < blockDim.x; ++x) {
                Thread &thread = threads[machine.threads++];
                thread.index = {x, y, z};
                thread.state = State::ready;
                thread.fiber = nullptr;
                thread.copies.count = 0;
            }
}

/* Across warps, the thread whose turn it is: those that come first in theirs go first. */
RUNTIME Thread &in_turn(unsigned turn)
{
    const unsigned whole = machine.threads / WARP, rest = machine.threads % WARP, begun = whole + (rest != 0);
    if (turn < begun * rest)
        return threads[turn % begun * WARP + turn / begun];
    turn -= begun * rest;
    return threads[turn % whole * WARP + turn / whole + rest];
}

RUNTIME_INLINE void run_if_ready(Thread &thread)
{
    if (thread.state == State::ready)
        resume(thread);
}

/* A warp as far as it comes alone: further than the others, if nothing but chance keeps them together. */
RUNTIME void run_warp(unsigned first)
{
    const unsigned lanes = machine.threads - first < WARP ? machine.threads - first : WARP;
    do
        for (unsigned turn = 0; turn < lanes; ++turn)
            run_if_ready(threads[first + (machine.geometry->descending ? lanes - 1 - turn : turn)]);
    while (!machine.error[0] && release_warp(first));
}

RUNTIME bool run_ready_threads()
{
    const unsigned warps = (machine.threads + WARP - 1) / WARP;
    if (machine.geometry->across_warps)
        for (unsigned turn = 0; turn < machine.threads; ++turn)
            run_if_ready(in_turn(turn));
    else
        for (unsigned turn = 0; turn < warps; ++turn)
            run_warp((machine.geometry->descending ? warps - 1 - turn : turn) * WARP);
    bool unfinished = false;
    for (unsigned t = 0; t < machine.threads; ++t)
        unfinished |= threads[t].state != State::finished;
    return unfinished;
}

RUNTIME void run_block(uint64_t block)
{
    blockIdx = {unsigned(block % gridDim.x), unsigned(block / gridDim.x % gridDim.y),
                unsigned(block / gridDim.x / gridDim.y)};
    poison_shared();
    start_threads();
    while (run_ready_threads() && !machine.error[0])
        if (!(release_warps() | release_waiting()) && !release_block())
            fail_divergent();
    check_shared();
}

} // namespace cuda_emulation
