/* CUDA threads as fibers: see tests/emulation/cuda_emulation.h. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

/* What programs have in common is compiled once, and linked to each of them (tests/emulation/programs.py): where that is
 * not what is compiled, a function is there to be inlined or called, and a variable is elsewhere. */
#ifdef CUDA_EMULATION_RUNTIME
#define RUNTIME
#define RUNTIME_VARIABLE
#else
#define RUNTIME extern inline __attribute__((gnu_inline, visibility("hidden")))
#define RUNTIME_VARIABLE extern __attribute__((visibility("hidden")))
#endif

/* Inlined into its callers, whatever the level of optimization. */
#define RUNTIME_INLINE __attribute__((always_inline)) inline

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

RUNTIME_VARIABLE uint3 threadIdx, blockIdx;
RUNTIME_VARIABLE dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace cuda_emulation {

constexpr unsigned WARP = 32, MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 1 << 20, STACK_GUARD = (1 << 20) + (1 << 12);
/* Stacks begin in different sets of the processor's caches, as they lie on different pages: a fiber runs for few
 * instructions at a time, and 32 of them would push each other's lines out of one set. */
constexpr size_t CACHE_LINE = 64, CACHE_SETS = 64, SETS_APART = 5;
/* What a block of the largest machines can have, and room around it where nothing may be written. */
constexpr size_t SHARED_BYTES = 227 << 10, SHARED_GUARD = 4096;
constexpr unsigned char POISON = 0xFF, GUARD = 0xA5;

/* What the caller asks for; `tests/emulation/programs.py` has the same fields. */
struct Geometry {
    unsigned grid[3], block[3];
    uint64_t first_block, last_block, shared_bytes;
    int descending, across_warps, flush_denormals;
};

#if defined(__x86_64__)
/* Where a fiber goes on. What else it needs is on its stack: change_stacks() keeps nothing in registers. */
struct Place {
    void *stack, *frame, *code;
};
#else
struct Place {
    ucontext_t beginning;
    jmp_buf later;
    bool begun;
};
#endif

enum class State { ready, at_block_barrier, at_warp_barrier, at_shared_barrier, finished };

/* What a barrier in shared memory is made of: see tests/emulation/cuda_async.h. */
struct Phase {
    uint16_t mark, arrivals, missing;
    uint8_t parity, unseen;
};
constexpr uint16_t PHASE_MARK = 0xBA22;
static_assert(sizeof(Phase) == 8);

struct Fiber {
    Place place;                     // where it waits
    bool begun;                      // in this launch: it goes on with one thread after another
    unsigned char *stack;            // mapped when the fiber is first used
};

/* To shared memory, under way, and how often its thread has committed since: see tests/emulation/cuda_async.h. */
struct Copy {
    void *to;
    const void *from;
    size_t bytes;
    unsigned commits;
    unsigned char data[16];
};

/* Those of a thread. No std::vector: reading C++'s own headers takes as long as compiling a small kernel. */
struct Copies {
    Copy *first;
    size_t count, room;
};

RUNTIME void add(Copies &copies, const Copy &copy)
{
    if (copies.count == copies.room) {
        copies.room = copies.room ? 2 * copies.room : 16;
        copies.first = static_cast<Copy *>(realloc(copies.first, copies.room * sizeof copy));
    }
    copies.first[copies.count++] = copy;
}

struct Thread {
    uint3 index;
    State state;
    Fiber *fiber;
    int line;                        // of the barrier that it waits at
    unsigned mask, participants;     // of the warp's exchange: wanted, and present
    uint64_t offered, received[WARP];
    const uint64_t *barrier;         // in shared memory, that it waits at for the end of a phase of this parity
    bool parity;
    Copies copies;
};

struct Machine {
    const Geometry *geometry;
    void (*run)(const void *);       // calls the kernel with its arguments
    const void *kernel;
    Place scheduler;
    unsigned threads;                // of a block
    Thread *current;
    char error[600];                 // empty while all is well
};

/* One launch at a time, by one thread of the process at a time. */
RUNTIME_VARIABLE Machine machine;
RUNTIME_VARIABLE Thread threads[MAX_THREADS];
RUNTIME_VARIABLE Fiber fibers[MAX_THREADS], *idle[MAX_THREADS];
RUNTIME_VARIABLE unsigned idle_fibers;
alignas(1024) RUNTIME_VARIABLE unsigned char dynamic_shared[SHARED_GUARD + SHARED_BYTES + SHARED_GUARD];

/* The first message counts: others may follow from it. */
__attribute__((format(printf, 1, 2))) RUNTIME void fail(const char *format, ...)
{
    if (machine.error[0])
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(machine.error, sizeof machine.error, format, arguments);
    va_end(arguments);
}

struct Text {
    char characters[200];
};

RUNTIME Text place(const Thread &thread)
{
    Text text;
    snprintf(text.characters, sizeof text.characters, "thread (%u, %u, %u) of block (%u, %u, %u)", thread.index.x,
             thread.index.y, thread.index.z, blockIdx.x, blockIdx.y, blockIdx.z);
    return text;
}

/* ---- Threads as fibers ---- */

RUNTIME void flush_denormals(bool on)
{
#if defined(__SSE__)
    const unsigned control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(on ? control | 0x8040 : control & ~0x8040u);
#elif defined(__aarch64__)
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    control = on ? control | 1u << 24 : control & ~(1ull << 24);
    asm volatile("msr fpcr, %0" : : "r"(control));
#endif
}

#if defined(__x86_64__)
/* Inline, and without a call: the processor then predicts where the fiber that goes on returns to, since the others of
 * its warp called the same functions. After a longjmp it predicts none of these returns, which took most of the time. */
RUNTIME_INLINE void change_stacks(Place &from, Place &to)
{
    Place *leave = &from, *enter = &to;
    asm volatile("movq %%rsp, (%0)\n\t"
                 "movq %%rbp, 8(%0)\n\t"
                 "leaq 1f(%%rip), %%rax\n\t"
                 "movq %%rax, 16(%0)\n\t"
                 "movq (%1), %%rsp\n\t"
                 "movq 8(%1), %%rbp\n\t"
                 "jmp *16(%1)\n"
                 "1:"
                 : "+D"(leave), "+S"(enter)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1",
                   "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
                   "xmm14", "xmm15", "cc", "memory");
}

/* As if its function had just been called. */
RUNTIME void begin_at(Place &place, unsigned char *stack, size_t bytes, void (*function)())
{
    place = {stack + bytes - sizeof(void *), nullptr, reinterpret_cast<void *>(function)};
}
#else
/* Not swapcontext, which asks the system for the mask of signals: that would take longer than all else of a barrier. */
RUNTIME void change_stacks(Place &from, Place &to)
{
    from.begun = true;
    if (_setjmp(from.later))
        return;
    if (to.begun)
        _longjmp(to.later, 1);
    to.begun = true;
    setcontext(&to.beginning);
}

RUNTIME void begin_at(Place &place, unsigned char *stack, size_t bytes, void (*function)())
{
    getcontext(&place.beginning);
    place.beginning.uc_stack.ss_sp = stack;
    place.beginning.uc_stack.ss_size = bytes;
    place.beginning.uc_link = nullptr;
    makecontext(&place.beginning, function, 0);
    place.begun = false;
}
#endif

RUNTIME void fiber_main()
{
    for (;;) {
        machine.run(machine.kernel);
        machine.current->state = State::finished;
        change_stacks(machine.current->fiber->place, machine.scheduler);
    }
}

RUNTIME void start_fiber(Fiber &fiber)
{
    if (!fiber.stack) {
        void *const memory = mmap(nullptr, STACK_GUARD + STACK_BYTES, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        fiber.stack = static_cast<unsigned char *>(memory);
        mprotect(fiber.stack, STACK_GUARD, PROT_NONE);
    }
    const size_t apart = CACHE_LINE * (SETS_APART * (&fiber - fibers) % CACHE_SETS);
    begin_at(fiber.place, fiber.stack + STACK_GUARD, STACK_BYTES - apart, fiber_main);
    fiber.begun = true;
}

RUNTIME void unmap_stacks()
{
    for (Fiber &fiber : fibers) {
        if (fiber.stack)
            munmap(fiber.stack, STACK_GUARD + STACK_BYTES);
        fiber.stack = nullptr;
    }
}

RUNTIME void all_fibers_idle()
{
    for (idle_fibers = 0; idle_fibers < MAX_THREADS; ++idle_fibers) {
        idle[idle_fibers] = &fibers[MAX_THREADS - 1 - idle_fibers];
        idle[idle_fibers]->begun = false;
    }
}

RUNTIME_INLINE void resume(Thread &thread)
{
    if (!thread.fiber)
        thread.fiber = idle[--idle_fibers];
    machine.current = &thread;
    threadIdx = thread.index;
    if (!thread.fiber->begun)
        start_fiber(*thread.fiber);
    change_stacks(machine.scheduler, thread.fiber->place);
    if (thread.state == State::finished) {
        idle[idle_fibers++] = thread.fiber;
        thread.fiber = nullptr;
        if (thread.copies.count)
            fail("%s has ended while copies of its own were under way", place(thread).characters);
    }
}

} // namespace cuda_emulation
