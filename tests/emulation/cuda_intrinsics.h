/* The words of CUDA that generated kernels use, for tests/emulation/cuda_emulation.h: qualifiers, vector types, intrinsics. */
#pragma once

#include "cuda_threads.h"

#include "cuda_math.h"

#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__
/* Left to the compiler: inlining every tile operation takes minutes. */
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

/* ---- Vector types ---- */

#define CUDA_EMULATION_VECTORS(scalar, name, align4)                                                                   \
    struct __attribute__((aligned(2 * sizeof(scalar)))) name##2 {                                                      \
        scalar x, y;                                                                                                   \
    };                                                                                                                 \
    struct __attribute__((aligned(align4))) name##4 {                                                                  \
        scalar x, y, z, w;                                                                                             \
    };                                                                                                                 \
    inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                                               \
    inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

CUDA_EMULATION_VECTORS(float, float, 16)
CUDA_EMULATION_VECTORS(double, double, 16)
CUDA_EMULATION_VECTORS(int, int, 16)
CUDA_EMULATION_VECTORS(unsigned, uint, 16)
CUDA_EMULATION_VECTORS(long long, longlong, 16)
CUDA_EMULATION_VECTORS(unsigned long long, ulonglong, 16)
#undef CUDA_EMULATION_VECTORS

/* ---- Barriers, shuffles and votes ---- */

inline void __syncthreads(int line = __builtin_LINE()) { cuda_emulation::synchronize_block(false, line); }
inline int __syncthreads_count(int predicate, int line = __builtin_LINE())
{
    return cuda_emulation::synchronize_block(predicate != 0, line);
}
inline int __syncthreads_or(int predicate, int line = __builtin_LINE()) { return __syncthreads_count(predicate, line) > 0; }
inline int __syncthreads_and(int predicate, int line = __builtin_LINE()) { return __syncthreads_count(!predicate, line) == 0; }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace cuda_emulation {

RUNTIME Thread &checked_exchange(unsigned mask, uint64_t offered, int line)
{
    if (mask >> lane_index() & 1)
        return exchange(mask, offered, line);
    fail("%s is not in the mask %#x of the warp's exchange in line %d", place(*machine.current).characters, mask, line);
    return wait(State::at_warp_barrier, line, offered, mask);
}

/* The value of another lane of the thread's segment; garbage if that lane does not take part. */
template <typename T> T shuffle(unsigned mask, T value, unsigned source, int line)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t offered = 0;
    memcpy(&offered, &value, sizeof value);
    const Thread &self = checked_exchange(mask, offered, line);
    memcpy(&value, &self.received[source], sizeof value);
    return value;
}

RUNTIME unsigned votes(unsigned mask, bool predicate, int line)
{
    const Thread &self = checked_exchange(mask, predicate, line);
    unsigned result = 0;
    for (unsigned lane = 0; lane < WARP; ++lane)
        if (self.participants >> lane & 1)
            result |= unsigned(self.received[lane]) << lane;
    return result;
}

} // namespace cuda_emulation

inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) { cuda_emulation::checked_exchange(mask, 0, line); }
inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return cuda_emulation::votes(mask, predicate != 0, line);
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return cuda_emulation::votes(mask, predicate != 0, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return cuda_emulation::votes(mask, predicate == 0, line) == 0;
}

template <typename T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE())
{
    const unsigned first = cuda_emulation::lane_index() & -unsigned(width);
    return cuda_emulation::shuffle(mask, value, first + (source & (width - 1)), line);
}

template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE())
{
    const unsigned lane = cuda_emulation::lane_index(), within = lane & (width - 1);
    return cuda_emulation::shuffle(mask, value, within < delta ? lane : lane - delta, line);
}

template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE())
{
    const unsigned lane = cuda_emulation::lane_index(), within = lane & (width - 1);
    return cuda_emulation::shuffle(mask, value, within + delta < unsigned(width) ? lane + delta : lane, line);
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int flipped, int width = 32, int line = __builtin_LINE())
{
    const unsigned lane = cuda_emulation::lane_index(), other = lane ^ unsigned(flipped);
    // As the hardware: lanes of earlier segments may be read, those of later ones not.
    return cuda_emulation::shuffle(mask, value, other < (lane | (width - 1)) + 1 ? other : lane, line);
}

/* ---- Memory ---- */

template <typename T> T __ldg(const T *from) { return *from; }
template <typename T> T __ldca(const T *from) { return *from; }
template <typename T> T __ldcg(const T *from) { return *from; }
template <typename T> T __ldcs(const T *from) { return *from; }
template <typename T> void __stcg(T *to, T value) { *to = value; }
template <typename T> void __stcs(T *to, T value) { *to = value; }
template <typename T> void __stwt(T *to, T value) { *to = value; }

/* One thread runs at a time. */
#define CUDA_EMULATION_ATOMIC(name, updated)                                                                           \
    template <typename T> T name(T *at, std::common_type_t<T> value)                                                   \
    {                                                                                                                  \
        const T old = *at;                                                                                             \
        *at = updated;                                                                                                 \
        return old;                                                                                                    \
    }

CUDA_EMULATION_ATOMIC(atomicAdd, old + value)
CUDA_EMULATION_ATOMIC(atomicMax, old > value ? old : value)
CUDA_EMULATION_ATOMIC(atomicMin, old < value ? old : value)
CUDA_EMULATION_ATOMIC(atomicOr, old | value)
CUDA_EMULATION_ATOMIC(atomicExch, value)
#undef CUDA_EMULATION_ATOMIC

/* ---- Numbers ---- */

namespace cuda_emulation {

template <typename To, typename From> To bits(From value)
{
    static_assert(sizeof(To) == sizeof(From));
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

/* A rounded result as such: no multiplication may become part of a fused one. */
template <typename T> T rounded(T value)
{
#if defined(__SSE2__)
    asm("" : "+x"(value));
#else
    asm("" : "+m"(value));
#endif
    return value;
}

/* A number that depends on every bit and repeats: which way an approximation errs. */
inline uint64_t scrambled(uint64_t value) { return (value * 0x9E3779B97F4A7C15ull) >> 32; }

/* CUDA promises 2 units in the last place: the nearest one, or a neighbour; of infinity exactly 0. */
inline float rsqrtf(float x)
{
    const float nearest = float(1 / sqrt(double(x)));
    if (!isfinite(nearest) || nearest == 0)
        return nearest;
    const int away = int(scrambled(bits<uint32_t>(x)) % 3) - 1;
    return away == 0 ? nearest : nextafterf(nearest, away < 0 ? 0 : INFINITY);
}

/* CUDA promises 2 units in the last place where y is from 2^-126 to 2^126. */
inline float __fdividef(float x, float y)
{
    const float nearest = x / y;
    if (!isfinite(nearest) || nearest == 0)
        return nearest;
    const int away = int(scrambled(bits<uint32_t>(x) ^ uint64_t(bits<uint32_t>(y)) << 32) % 3) - 1;
    return away == 0 ? nearest : nextafterf(nearest, away < 0 ? 0 : INFINITY);
}

/* CUDA promises 1 unit in the last place: the number below or the one above. */
inline double rsqrt(double x)
{
    const long double exact = 1 / sqrtl(x);
    const double nearest = double(exact);
    if (!isfinite(nearest) || nearest == exact)
        return nearest;
    const bool up = scrambled(bits<uint64_t>(x)) & 1;
    return up == (nearest > exact) ? nearest : nextafter(nearest, up ? INFINITY : 0);
}

} // namespace cuda_emulation

/* Macros, for C libraries have begun to have functions of these names. */
#define rsqrtf cuda_emulation::rsqrtf
#define rsqrt cuda_emulation::rsqrt
#define __fdividef cuda_emulation::__fdividef

inline float __fsqrt_rn(float x) { return cuda_emulation::rounded(sqrtf(x)); }
inline float __frcp_rn(float x) { return cuda_emulation::rounded(1 / x); }
inline float __fdiv_rn(float x, float y) { return cuda_emulation::rounded(x / y); }
inline float __frsqrt_rn(float x) { return float(1 / sqrt(double(x))); }
inline float __fadd_rn(float x, float y) { return cuda_emulation::rounded(x + y); }
inline float __fsub_rn(float x, float y) { return cuda_emulation::rounded(x - y); }
inline float __fmul_rn(float x, float y) { return cuda_emulation::rounded(x * y); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dsqrt_rn(double x) { return cuda_emulation::rounded(sqrt(x)); }
inline double __drcp_rn(double x) { return cuda_emulation::rounded(1 / x); }
inline double __ddiv_rn(double x, double y) { return cuda_emulation::rounded(x / y); }
inline double __dadd_rn(double x, double y) { return cuda_emulation::rounded(x + y); }
inline double __dsub_rn(double x, double y) { return cuda_emulation::rounded(x - y); }
inline double __dmul_rn(double x, double y) { return cuda_emulation::rounded(x * y); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

inline int __float_as_int(float x) { return cuda_emulation::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_emulation::bits<unsigned>(x); }
inline int __double2hiint(double x) { return int(cuda_emulation::bits<uint64_t>(x) >> 32); }
inline int __double2loint(double x) { return int(uint32_t(cuda_emulation::bits<uint64_t>(x))); }
inline double __hiloint2double(int high, int low) { return cuda_emulation::bits<double>(uint64_t(uint32_t(high)) << 32 | uint32_t(low)); }
inline float __int_as_float(int x) { return cuda_emulation::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_emulation::bits<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_emulation::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_emulation::bits<double>(x); }

inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((uint64_t)x * y >> 32); }
inline unsigned __dp4a(unsigned x, unsigned y, unsigned sum)
{
    for (int byte = 0; byte < 32; byte += 8)
        sum += (x >> byte & 255) * (y >> byte & 255);
    return sum;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

#define CUDA_EMULATION_EXTREMES(scalar)                                                                                \
    inline scalar min(scalar x, scalar y) { return y < x ? y : x; }                                                    \
    inline scalar max(scalar x, scalar y) { return x < y ? y : x; }

CUDA_EMULATION_EXTREMES(int)
CUDA_EMULATION_EXTREMES(unsigned)
CUDA_EMULATION_EXTREMES(long long)
CUDA_EMULATION_EXTREMES(unsigned long long)
#undef CUDA_EMULATION_EXTREMES
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
