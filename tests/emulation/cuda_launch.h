/* Launches of emulated kernels from outside: faults end them, arguments come by address. See tests/emulation/cuda_emulation.h. */
#pragma once

#include "cuda_blocks.h"

#include <setjmp.h>
#include <signal.h>

#include <type_traits>
#include <utility>

namespace cuda_emulation {

/* ---- Faults ---- */

RUNTIME_VARIABLE sigjmp_buf fault_exit;
constexpr int FAULTS[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT};
constexpr int FAULT_COUNT = sizeof FAULTS / sizeof *FAULTS;

RUNTIME void on_fault(int number, siginfo_t *details, void *)
{
    const char *const what = number == SIGILL || number == SIGTRAP || number == SIGABRT
                                 ? "did what a check of the compiler forbids (an index outside an array, an integer "
                                   "overflow, a misaligned access)"
                                 : number == SIGFPE ? "divided by zero" : "read or wrote where it may not";
    fail("%s %s (signal %d at address %p)", place(*machine.current).characters, what, number, details->si_addr);
    siglongjmp(fault_exit, 1);
}

/* Faults end the launch and not the process, on a stack of their own: the fiber's may be what overflowed. */
class FaultHandler {
  public:
    FaultHandler()
    {
        stack_t stack = {};
        stack.ss_sp = memory;
        stack.ss_size = sizeof memory;
        sigaltstack(&stack, &old_stack);
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (int i = 0; i < FAULT_COUNT; ++i)
            sigaction(FAULTS[i], &action, &old_actions[i]);
    }

    ~FaultHandler()
    {
        for (int i = 0; i < FAULT_COUNT; ++i)
            sigaction(FAULTS[i], &old_actions[i], nullptr);
        sigaltstack(&old_stack, nullptr);
    }

  private:
    unsigned char memory[1 << 16];
    stack_t old_stack = {};
    struct sigaction old_actions[FAULT_COUNT] = {};
};

RUNTIME void run_grid(const Geometry &geometry)
{
    gridDim = dim3(geometry.grid[0], geometry.grid[1], geometry.grid[2]);
    blockDim = dim3(geometry.block[0], geometry.block[1], geometry.block[2]);
    memset(dynamic_shared, GUARD, sizeof dynamic_shared);
    const uint64_t count = geometry.last_block - geometry.first_block;
    for (uint64_t turn = 0; turn < count && !machine.error[0]; ++turn)
        run_block(geometry.descending ? geometry.last_block - 1 - turn : geometry.first_block + turn);
    check_shared(SHARED_GUARD + SHARED_BYTES - geometry.shared_bytes);
}

/* Returns nothing, or what went wrong; the text lives until the next launch. */
RUNTIME const char *run_guarded(const Geometry &geometry)
{
    const uint64_t block_threads = (uint64_t)geometry.block[0] * geometry.block[1] * geometry.block[2];
    machine.geometry = &geometry;
    machine.error[0] = 0;
    // Those of an earlier launch that failed are given up where they stood.
    all_fibers_idle();
    if (geometry.shared_bytes > SHARED_BYTES || block_threads > MAX_THREADS || block_threads == 0) {
        fail("a block of %llu threads and %llu bytes of dynamic shared memory does not exist",
             (unsigned long long)block_threads, (unsigned long long)geometry.shared_bytes);
    } else {
        FaultHandler handler;
        flush_denormals(geometry.flush_denormals);
        if (!sigsetjmp(fault_exit, 1))
            run_grid(geometry);
        flush_denormals(false);
    }
    return machine.error[0] ? machine.error : nullptr;
}

/* ---- Arguments ---- */

/* A parameter's type as NumPy writes it, f4, i8 or u8, and v with the size for a structure, v0 for void; before it *
 * for a pointer and *c for one to constants. */
struct Parameter {
    char code[16];
};

template <typename T> constexpr unsigned size_of()
{
    if constexpr (std::is_void_v<T>)
        return 0;
    else
        return sizeof(T);
}

template <typename T> Parameter parameter()
{
    using Target = std::remove_pointer_t<T>;
    const char *const pointer = !std::is_pointer_v<T> ? "" : std::is_const_v<Target> ? "*c" : "*";
    const char kind = std::is_floating_point_v<Target> ? 'f'
                      : !std::is_integral_v<Target>    ? 'v'
                      : std::is_signed_v<Target>       ? 'i'
                                                       : 'u';
    Parameter result;
    snprintf(result.code, sizeof result.code, "%s%c%u", pointer, kind, size_of<Target>());
    return result;
}

/* All of them, spaces between; the text lives until the next call. */
template <typename... P> const char *parameters(void (*)(P...))
{
    static char text[1024];
    int end = 0;
    text[0] = 0;
    ((end += snprintf(text + end, sizeof text - end, "%s ", parameter<P>().code)), ...);
    return text;
}

template <typename... P, size_t... I>
const char *launch(void (*kernel)(P...), const Geometry &geometry, void *const *arguments, std::index_sequence<I...>)
{
    const auto call = [&] { kernel(*static_cast<P *>(arguments[I])...); };
    machine.run = [](const void *closure) { (*static_cast<const decltype(call) *>(closure))(); };
    machine.kernel = &call;
    return run_guarded(geometry);
}

template <typename... P>
const char *launch(void (*kernel)(P...), const Geometry &geometry, void *const *arguments)
{
    return launch(kernel, geometry, arguments, std::index_sequence_for<P...>());
}

} // namespace cuda_emulation

/* Exports a kernel: parameters_of_ENTRY() and launch_ENTRY(geometry, arguments), the arguments by their addresses. */
#define CUDA_EMULATION_EXPORT(entry)                                                                                   \
    extern "C" __attribute__((visibility("default"))) const char *parameters_of_##entry()                              \
    {                                                                                                                  \
        return cuda_emulation::parameters(entry);                                                                      \
    }                                                                                                                  \
    extern "C" __attribute__((visibility("default"))) const char *launch_##entry(                                      \
        const cuda_emulation::Geometry *geometry, void *const *arguments)                                              \
    {                                                                                                                  \
        return cuda_emulation::launch(entry, *geometry, arguments);                                                    \
    }

#ifdef CUDA_EMULATION_RUNTIME
/* Until the next launch: the stacks of a program that is not running are so many mappings, of which a process has few. */
extern "C" __attribute__((visibility("default"))) void give_back_stacks() { cuda_emulation::unmap_stacks(); }
#endif
