/* Barriers in shared memory and copies that a thread does not wait for, for tests/emulation/cuda_emulation.h.
 *
 * A barrier that is used before it is set up, or set up twice, ends the launch with a message, as does a wait that no
 * thread of the block can end, and a phase that ends before anybody has waited for the one before it. What a copy is to write is NaN until the thread has waited for it; what it copies is
 * what was there when it was begun or, if threads run in descending order, when it was waited for.
 */
#pragma once

#include "cuda_blocks.h"

namespace cuda_emulation {

RUNTIME bool in_shared_memory(const void *at, size_t bytes)
{
    const unsigned char *const first = static_cast<const unsigned char *>(at), *const end = first + bytes;
    const unsigned char *const dynamic = dynamic_shared + SHARED_GUARD;
    const bool is_static = __start_cuda_shared && first >= __start_cuda_shared && end <= __stop_cuda_shared;
    return is_static || (first >= dynamic && end <= dynamic + machine.geometry->shared_bytes);
}

/* The phase of a barrier, which a thread must not look into. */
RUNTIME Phase phase_of(const uint64_t *barrier, const char *doing)
{
    Phase phase = {};
    if (in_shared_memory(barrier, sizeof phase))
        memcpy(&phase, barrier, sizeof phase);
    if (phase.mark != PHASE_MARK)
        fail("%s %s a barrier that was not set up", place(*machine.current).characters, doing);
    return phase;
}

} // namespace cuda_emulation

RUNTIME void __mbarrier_init(unsigned long long *barrier, unsigned count)
{
    using namespace cuda_emulation;
    Phase phase = {};
    if (!in_shared_memory(barrier, sizeof phase))
        return fail("%s sets up a barrier outside shared memory", place(*machine.current).characters);
    memcpy(&phase, barrier, sizeof phase);
    if (phase.mark == PHASE_MARK || count < 1 || count > MAX_THREADS)
        return fail("%s sets up a barrier %s", place(*machine.current).characters,
                    phase.mark == PHASE_MARK ? "a second time" : "that nobody or too many are to arrive at");
    phase = {PHASE_MARK, uint16_t(count), uint16_t(count), 0, 0};
    memcpy(barrier, &phase, sizeof phase);
}

RUNTIME void __mbarrier_arrive(unsigned long long *barrier)
{
    using namespace cuda_emulation;
    Phase phase = phase_of(reinterpret_cast<uint64_t *>(barrier), "arrives at");
    if (phase.mark != PHASE_MARK)
        return;
    if (--phase.missing == 0) {
        if (phase.unseen)
            return fail("%s arrives at a barrier that nobody waits at", place(*machine.current).characters);
        phase.unseen = 1;
        phase.missing = phase.arrivals;
        phase.parity ^= 1;
    }
    memcpy(barrier, &phase, sizeof phase);
}

/* Comes back when it is true: while a thread waits, others run. */
RUNTIME bool __mbarrier_try_wait_parity(unsigned long long *barrier, bool parity, int line = __builtin_LINE())
{
    using namespace cuda_emulation;
    const uint64_t *const words = reinterpret_cast<const uint64_t *>(barrier);
    if (phase_of(words, "waits at").mark != PHASE_MARK || phase_of(words, "waits at").parity == parity) {
        machine.current->barrier = words;
        machine.current->parity = parity;
        wait(State::at_shared_barrier, line, 0);
    }
    if (Phase phase = phase_of(words, "waits at"); phase.mark == PHASE_MARK) {
        phase.unseen = 0;
        memcpy(barrier, &phase, sizeof phase);
    }
    return true;
}

RUNTIME void __pipeline_memcpy_async(void *to, const void *from, size_t bytes)
{
    using namespace cuda_emulation;
    const uintptr_t both = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
    if ((bytes != 4 && bytes != 8 && bytes != 16) || both % bytes || !in_shared_memory(to, bytes))
        return fail("%s begins a copy of %zu bytes that no GPU can do", place(*machine.current).characters, bytes);
    Copy copy = {to, from, bytes, 0, {}};
    memcpy(copy.data, from, bytes);
    memset(to, POISON, bytes);
    add(machine.current->copies, copy);
}

RUNTIME void __pipeline_commit()
{
    const cuda_emulation::Copies &copies = cuda_emulation::machine.current->copies;
    for (size_t c = 0; c < copies.count; ++c)
        ++copies.first[c].commits;
}

/* For all that was committed but with the last commits, whatever else may be under way. */
RUNTIME void __pipeline_wait_prior(size_t last)
{
    using namespace cuda_emulation;
    Copies &copies = machine.current->copies;
    const size_t under_way = copies.count;
    copies.count = 0;
    for (size_t c = 0; c < under_way; ++c)
        if (const Copy &copy = copies.first[c]; copy.commits > last)
            memcpy(copy.to, machine.geometry->descending ? copy.from : copy.data, copy.bytes);
        else
            copies.first[copies.count++] = copy;
}
