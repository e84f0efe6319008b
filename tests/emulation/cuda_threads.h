/* Barriers of CUDA threads, which are fibers: see tests/emulation/cuda_emulation.h. */
#pragma once

#include "cuda_fibers.h"

namespace cuda_emulation {

RUNTIME_INLINE Thread &wait(State state, int line, uint64_t offered, unsigned mask = 0)
{
    Thread &self = *machine.current;
    self.state = state;
    self.line = line;
    self.offered = offered;
    self.mask = mask;
    change_stacks(self.fiber->place, machine.scheduler);
    return self;
}

/* The number of threads of the block whose predicate holds. */
RUNTIME int synchronize_block(bool predicate, int line)
{
    return (int)wait(State::at_block_barrier, line, predicate).received[0];
}

/* What every thread of the mask offered, by lane. */
RUNTIME Thread &exchange(unsigned mask, uint64_t offered, int line)
{
    return wait(State::at_warp_barrier, line, offered, mask);
}

RUNTIME unsigned linear_index(const uint3 &index)
{
    return index.x + blockDim.x * (index.y + blockDim.y * index.z);
}

RUNTIME unsigned lane_index() { return linear_index(threadIdx) % WARP; }

/* The threads of a warp's mask that still run, if all of them wait for each other; 0 if they do not. */
RUNTIME unsigned gathered(const Thread *warp, unsigned lanes, unsigned mask)
{
    unsigned present = 0;
    for (unsigned lane = 0; lane < lanes; ++lane) {
        if (!(mask >> lane & 1) || warp[lane].state == State::finished)
            continue;
        if (warp[lane].state != State::at_warp_barrier || warp[lane].mask != mask)
            return 0;
        present |= 1u << lane;
    }
    return present;
}

RUNTIME void hand_over(Thread *warp, unsigned present)
{
    uint64_t offered[WARP];
    memset(offered, POISON, sizeof offered);
    for (unsigned lane = 0; lane < WARP; ++lane)
        if (present >> lane & 1)
            offered[lane] = warp[lane].offered;
    for (unsigned lane = 0; lane < WARP; ++lane)
        if (present >> lane & 1) {
            memcpy(warp[lane].received, offered, sizeof offered);
            warp[lane].participants = present;
            warp[lane].state = State::ready;
        }
}

/* Whether some lanes of a warp have met. */
RUNTIME bool release_warp(unsigned first)
{
    bool released = false;
    Thread *const warp = threads + first;
    const unsigned lanes = machine.threads - first < WARP ? machine.threads - first : WARP;
    for (unsigned lane = 0; lane < lanes; ++lane) {
        if (warp[lane].state != State::at_warp_barrier)
            continue;
        if (const unsigned present = gathered(warp, lanes, warp[lane].mask); present >> lane & 1) {
            hand_over(warp, present);
            released = true;
        }
    }
    return released;
}

RUNTIME bool release_warps()
{
    bool released = false;
    for (unsigned first = 0; first < machine.threads; first += WARP)
        released |= release_warp(first);
    return released;
}

RUNTIME bool release_block()
{
    uint64_t count = 0;
    for (unsigned t = 0; t < machine.threads; ++t) {
        if (threads[t].state != State::at_block_barrier || threads[t].line != threads[0].line)
            return false;
        count += threads[t].offered;
    }
    for (unsigned t = 0; t < machine.threads; ++t) {
        threads[t].received[0] = count;
        threads[t].state = State::ready;
    }
    return true;
}

/* Of threads that wait at barriers in shared memory, those for which their phase has ended. */
RUNTIME bool release_waiting()
{
    bool released = false;
    for (Thread *thread = threads; thread < threads + machine.threads; ++thread) {
        if (thread->state != State::at_shared_barrier)
            continue;
        Phase phase;
        memcpy(&phase, thread->barrier, sizeof phase);
        if (phase.parity != thread->parity) {
            thread->state = State::ready;
            released = true;
        }
    }
    return released;
}

RUNTIME Text doing(const Thread *thread)
{
    Text text;
    const char *const where = thread->state == State::finished            ? "has ended"
                              : thread->state == State::at_block_barrier  ? "waits at the block's barrier"
                              : thread->state == State::at_shared_barrier ? "waits at a barrier in shared memory"
                                                                          : "waits at the warp's exchange";
    const int end = snprintf(text.characters, sizeof text.characters, "%.100s %s", place(*thread).characters, where);
    if (thread->state != State::finished)
        snprintf(text.characters + end, sizeof text.characters - end, " in line %d", thread->line);
    return text;
}

/* Names one thread that waits and one that does something else. */
RUNTIME void fail_divergent()
{
    const Thread *waiting = threads;
    while (waiting->state == State::finished)
        ++waiting;
    for (const Thread *other = threads; other < threads + machine.threads; ++other)
        if (other->state != waiting->state || other->line != waiting->line)
            return fail("not all threads reach a barrier: %s, but %s", doing(waiting).characters, doing(other).characters);
    const char *const why = waiting->state == State::at_shared_barrier ? "and so do all" : "with another mask than others";
    fail("not all threads reach a barrier: %s, %s", doing(waiting).characters, why);
}

} // namespace cuda_emulation
