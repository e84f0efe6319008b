"""The text of the kernels around cuSOLVERDx's functions; what it leaves open are macros."""

_COPIES = """\
union __align__(16) piece {
    unsigned int words[4];
    SCALAR elements[16 / sizeof(SCALAR)];
};

// Whether both begin with a piece, and this many bytes are whole pieces.
static __device__ __forceinline__ bool pieces(const void *from, const void *to, int bytes)
{
    return bytes % 16 == 0 && (((size_t)from | (size_t)to) & 15) == 0;
}

// Copies count elements, and fills up to `room` with zeros.
static __device__ __forceinline__ void copy(const SCALAR *from, SCALAR *to, int count, int room)
{
    const int thread = (int)threadIdx.x, each = 16 / (int)sizeof(SCALAR);
    if (count == room && pieces(from, to, room * (int)sizeof(SCALAR))) {
        for (int i = thread; i < room / each; i += THREADS)
            ((piece *)to)[i] = ((const piece *)from)[i];
        return;
    }
    for (int i = thread; i < room; i += THREADS)
        to[i] = i < count ? from[i] : (SCALAR)0;
}

// Copies `count` matrices to shared memory, rows LDA elements apart; those that are missing are identities.
static __device__ __forceinline__ void load(const SCALAR *from, SCALAR *own, int count)
{
    const int thread = (int)threadIdx.x, each = 16 / (int)sizeof(SCALAR), room = MATRICES * N * N;
    if (LDA == N && count == MATRICES) {
        copy(from, own, room, room);
    } else if (count == MATRICES && pieces(from, from, N * (int)sizeof(SCALAR))) {
        for (int i = thread; i < room / each; i += THREADS) {
            const piece taken = ((const piece *)from)[i];
            for (int k = 0; k < each; ++k)
                own[i * each / N * LDA + i * each % N + k] = taken.elements[k];
        }
    } else {
        for (int i = thread; i < room; i += THREADS)
            own[i / N * LDA + i % N] = i < count * N * N ? from[i] : (SCALAR)(i % (N * N) % (N + 1) == 0);
    }
}

// Copies `count` matrices from shared memory.
static __device__ __forceinline__ void store(const SCALAR *own, SCALAR *to, int count)
{
    const int thread = (int)threadIdx.x, each = 16 / (int)sizeof(SCALAR), room = MATRICES * N * N;
    if (LDA == N && count == MATRICES) {
        copy(own, to, room, room);
    } else if (count == MATRICES && pieces(to, to, N * (int)sizeof(SCALAR))) {
        for (int i = thread; i < room / each; i += THREADS) {
            piece given;
            for (int k = 0; k < each; ++k)
                given.elements[k] = own[i * each / N * LDA + i * each % N + k];
            ((piece *)to)[i] = given;
        }
    } else {
        for (int i = thread; i < count * N * N; i += THREADS)
            to[i] = own[i / N * LDA + i % N];
    }
}

// As kernelgen's own kernels do that are launched before their predecessors have ended.
static __device__ __forceinline__ void follow()
{
#if PDL
    asm volatile("griddepcontrol.wait;" : : : "memory");
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}
"""

SOURCE = (
    """\
extern "C" __device__ void SYMBOL(SCALAR *matrices, int *info);

"""
    + _COPIES
    + """
// Canonical matrices to canonical factors, whole: MATRICES of them to a block.
extern "C" __global__ void __launch_bounds__(THREADS)
ENTRY(const SCALAR *a, SCALAR *l, int *info, long long batch)
{
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ int status[MATRICES];
    SCALAR *own = (SCALAR *)memory;
    const long long first = (long long)blockIdx.x * MATRICES;
    const int count = batch - first < MATRICES ? (int)(batch - first) : MATRICES;
    follow();
    load(a + first * (N * N), own, count);
    __syncthreads();
    SYMBOL(own, status);
    __syncthreads();
    store(own, l + first * (N * N), count);
    for (int i = (int)threadIdx.x; i < count; i += THREADS)
        info[first + i] = status[i];
}
"""
)

LU = (
    """\
extern "C" __device__ void SYMBOL(SCALAR *matrices, int *pivots, int *info);

"""
    + _COPIES
    + """
// Canonical matrices to canonical LU factors and their pivots: MATRICES of them to a block.
extern "C" __global__ void __launch_bounds__(THREADS)
ENTRY(const SCALAR *a, SCALAR *lu, int *to, int *info, long long batch)
{
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ int status[MATRICES], pivots[MATRICES * N];
    SCALAR *own = (SCALAR *)memory;
    const long long first = (long long)blockIdx.x * MATRICES;
    const int count = batch - first < MATRICES ? (int)(batch - first) : MATRICES;
    follow();
    load(a + first * (N * N), own, count);
    __syncthreads();
    SYMBOL(own, pivots, status);
    __syncthreads();
    store(own, lu + first * (N * N), count);
    for (int i = (int)threadIdx.x; i < count * N; i += THREADS)
        to[first * N + i] = pivots[i];
    for (int i = (int)threadIdx.x; i < count; i += THREADS)
        info[first + i] = status[i];
}
"""
)

QR = (
    """\
extern "C" __device__ void SYMBOL(SCALAR *matrices, SCALAR *tau);

"""
    + _COPIES
    + """
// Canonical matrices to canonical factors and their tau: MATRICES of them to a block.
extern "C" __global__ void __launch_bounds__(THREADS)
ENTRY(const SCALAR *a, SCALAR *qr, SCALAR *tau, long long batch)
{
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ SCALAR scalars[MATRICES * N];
    SCALAR *own = (SCALAR *)memory;
    const long long first = (long long)blockIdx.x * MATRICES;
    const int count = batch - first < MATRICES ? (int)(batch - first) : MATRICES;
    follow();
    load(a + first * (N * N), own, count);
    __syncthreads();
    SYMBOL(own, scalars);
    __syncthreads();
    store(own, qr + first * (N * N), count);
    for (int i = (int)threadIdx.x; i < count * N; i += THREADS)
        tau[first * N + i] = scalars[i];
}
"""
)

SOLVER = (
    """\
#if REFLECTS
extern "C" __device__ void SYMBOL(SCALAR *matrices, SCALAR *tau, SCALAR *columns);
#elif GENERAL
extern "C" __device__ void SYMBOL(SCALAR *matrices, int *pivots, SCALAR *columns, int *info);
#else
extern "C" __device__ void SYMBOL(SCALAR *matrices, SCALAR *columns, int *info);
#endif

"""
    + _COPIES
    + """
// Canonical matrices and right-hand sides to canonical solutions: MATRICES of them to a block.
extern "C" __global__ void __launch_bounds__(THREADS)
ENTRY(const SCALAR *a, const SCALAR *b, SCALAR *x, int *info, long long batch)
{
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ int status[MATRICES];
    // Where the right-hand sides begin with a piece if matrices do not.
    SCALAR *own = (SCALAR *)memory, *columns = own + (MATRICES * N * LDA + 3) / 4 * 4;
    const long long first = (long long)blockIdx.x * MATRICES;
    const int count = batch - first < MATRICES ? (int)(batch - first) : MATRICES;
    follow();
    load(a + first * (N * N), own, count);
    copy(b + first * (N * NRHS), columns, count * N * NRHS, MATRICES * N * NRHS);
    __syncthreads();
#if REFLECTS
    // It says nothing of zeros on the diagonal.
    __shared__ SCALAR tau[MATRICES * N];
    SYMBOL(own, tau, columns);
    for (int i = (int)threadIdx.x; i < MATRICES; i += THREADS)
        status[i] = 0;
#elif GENERAL
    __shared__ int pivots[MATRICES * N];
    SYMBOL(own, pivots, columns, status);
#else
    SYMBOL(own, columns, status);
#endif
    __syncthreads();
    copy(columns, x + first * (N * NRHS), count * N * NRHS, count * N * NRHS);
    for (int i = (int)threadIdx.x; i < count; i += THREADS)
        info[first + i] = status[i];
}
"""
)
