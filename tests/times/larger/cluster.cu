/* A cluster of blocks to a matrix in rows, whose lower triangle is in their shared memory from the first read to the last write: the
 * alternative to tiles as tasks, which is measured by tests.times.larger_clusters, and not chosen.
 *
 * Row blocks of SIDE rows are dealt out to the blocks in turn. Left looking: when a panel of SIDE columns has its turn, warps take from
 * its blocks the products of all columns before, by tensor cores; the one that has the diagonal one, which lacks the last panel's
 * part alone, factors it beside the others, and tells all blocks. Then a thread solves for each row, and the next panel's row block
 * goes to all.
 *
 * SCALAR, SINGLE, N, CLUSTER, THREADS, RESIDENT and ENTRY are defined by who compiles it. */
typedef SCALAR scalar;

#define INLINE __device__ __forceinline__

enum { SIDE = 16, BLOCKS = N / SIDE, OWN = (BLOCKS + CLUSTER - 1) / CLUSTER, WARPS = THREADS / 32, WIDTH = 16 / sizeof(scalar), PAD = 4, PITCH = N + PAD, LINE = SIDE + PAD };

struct alignas(16) Piece {
    scalar at[WIDTH];
};

/* Elements of the row blocks before the one that a rank has as its q-th, and between rows of that one. */
INLINE constexpr int before(const int rank, const int q) { return SIDE * (SIDE * (CLUSTER * (q * (q - 1) / 2) + q * (rank + 1)) + PAD * q); }
INLINE constexpr int pitch_of(const int g) { return SIDE * (g + 1) + PAD; }

extern __shared__ __align__(16) scalar shared[];
enum { ROWS = SIDE * (SIDE * (CLUSTER * (OWN * (OWN - 1) / 2) + OWN * CLUSTER) + PAD * OWN) };

INLINE scalar *row_block(const int rank, const int q) { return shared + before(rank, q); }
INLINE scalar *next_block() { return shared + ROWS; }                                /* SIDE by PITCH */
INLINE scalar *tile_columns() { return next_block() + SIDE * PITCH; }                /* SIDE by LINE */
INLINE scalar *reciprocals() { return tile_columns() + SIDE * LINE; }

INLINE unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

/* The same place in another block of the cluster. */
INLINE unsigned place_in(const int rank, const void *p)
{
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
    return address;
}

INLINE void tell(const unsigned to, const scalar x)
{
#if SINGLE
    asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(to), "f"(x) : "memory");
#else
    asm volatile("st.shared::cluster.f64 [%0], %1;" : : "r"(to), "d"(x) : "memory");
#endif
}

INLINE void tell(const unsigned to, const Piece &x)
{
#if SINGLE
    asm volatile("st.shared::cluster.v4.f32 [%0], { %1, %2, %3, %4 };" : : "r"(to), "f"(x.at[0]), "f"(x.at[1]), "f"(x.at[2]), "f"(x.at[3]) : "memory");
#else
    asm volatile("st.shared::cluster.v2.f64 [%0], { %1, %2 };" : : "r"(to), "d"(x.at[0]), "d"(x.at[1]) : "memory");
#endif
}

INLINE Piece ask(const unsigned from)
{
    Piece x;
#if SINGLE
    asm volatile("ld.shared::cluster.v4.f32 { %0, %1, %2, %3 }, [%4];" : "=f"(x.at[0]), "=f"(x.at[1]), "=f"(x.at[2]), "=f"(x.at[3]) : "r"(from) : "memory");
#else
    asm volatile("ld.shared::cluster.v2.f64 { %0, %1 }, [%2];" : "=d"(x.at[0]), "=d"(x.at[1]) : "r"(from) : "memory");
#endif
    return x;
}

/* All threads of the cluster. */
INLINE void meet()
{
    __syncwarp();
#if CLUSTER == 1
    __syncthreads();
#else
    asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
#endif
}

#if SINGLE
INLINE scalar head(const scalar x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u); }

INLINE void multiply_add(scalar c[4], const scalar a[4], const scalar b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 { %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

INLINE void read_blocks(scalar f[4], const scalar *const row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3 }, [%4];" : "=f"(f[0]), "=f"(f[1]), "=f"(f[2]), "=f"(f[3]) : "r"(shared_address(row)) : "memory");
}
#else
INLINE void multiply_add(scalar c[4], const scalar a[4], const scalar b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 { %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}
#endif

/* A square less the product of `length` columns of two row blocks, by a warp. */
INLINE void update(scalar *const c, const int c_pitch, const scalar *const a, const int a_pitch, const scalar *const b, const int b_pitch, const int length)
{
    const int lane = threadIdx.x % 32, group = lane / 4, third = lane % 4;
    scalar near[2][4] = {}, far[2][4] = {};
#if SINGLE
    const scalar *const down = a + lane % 16 * a_pitch + lane / 16 * 4;
    const scalar *const across = b + (lane / 16 * 8 + lane % 8) * b_pitch + lane / 8 % 2 * 4;
#pragma unroll 2
    for (int k = 0; k < length; k += 8) {
        scalar f[4], g[4], heads[4], tails[4], other_heads[4], other_tails[4];
        read_blocks(f, down + k);
        read_blocks(g, across + k);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            heads[e] = head(f[e]), tails[e] = f[e] - heads[e];
            other_heads[e] = head(g[e]), other_tails[e] = g[e] - other_heads[e];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            multiply_add(far[h], tails, other_heads + 2 * h);
            multiply_add(near[h], heads, other_heads + 2 * h);
            multiply_add(far[h], heads, other_tails + 2 * h);
        }
    }
#else
    const scalar *const down = a + group * a_pitch + third, *const across = b + group * b_pitch + third;
#pragma unroll 2
    for (int k = 0; k < length; k += 8) {
        scalar own[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            own[e] = down[e % 2 * 8 * a_pitch + k + e / 2 * 4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const scalar other[2] = {across[h * 8 * b_pitch + k], across[h * 8 * b_pitch + k + 4]};
            multiply_add(near[h], own, other);
        }
    }
#endif
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            c[(group + e / 2 * 8) * c_pitch + 8 * h + 2 * third + e % 2] -= near[h][e] + far[h][e];
}

/* The root of a pivot and its reciprocal, if it is ordinary. */
INLINE scalar pivot(const scalar d, scalar *reciprocal)
{
    scalar r;
#if SINGLE
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = fmaf(0.5f * r, fmaf(-(d * r), r, 1), r);
    const scalar s = d * r, root = fmaf(fmaf(-s, s, d), 0.5f * r, s);
#else
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(d));
    const scalar e = fma(-(r * r), d, 1.0);
    r = fma(fma(0.375, e, 0.5), e * r, r);
    const scalar s = d * r, root = fma(fma(-s, s, d), 0.5 * r, s);
#endif
    *reciprocal = r;
    return root;
}

INLINE void load_row(scalar x[SIDE], const scalar *const from)
{
#pragma unroll
    for (int c = 0; c < SIDE; c += WIDTH) {
        const Piece got = *(const Piece *)(from + c);
#pragma unroll
        for (int v = 0; v < WIDTH; ++v)
            x[c + v] = got.at[v];
    }
}

INLINE Piece piece_of(const scalar x[SIDE], const int c)
{
    Piece given;
#pragma unroll
    for (int v = 0; v < WIDTH; ++v)
        given.at[v] = x[c + v];
    return given;
}

/* The factor of a diagonal tile, by a warp, in place and in all blocks; its first column that fails, or -1. */
INLINE int factor(scalar *const tile, const int pitch)
{
    const int lane = threadIdx.x % 32, row = lane % SIDE;
    int failed = -1;
    scalar x[SIDE];
    load_row(x, tile + row * pitch);
    scalar d = __shfl_sync(~0u, x[0], 0), scale = 0;
#pragma unroll
    for (int c = 0; c < SIDE; ++c) {
        if (failed < 0 && !(d > 0))
            failed = c;
        scalar reciprocal;
        const scalar root = pivot(d, &reciprocal), own = x[c] * reciprocal;
        if (c + 1 < SIDE)
            d = __shfl_sync(~0u, x[c + 1 < SIDE ? c + 1 : c] - own * own, c + 1);
        scale = row == c ? reciprocal : scale;
#pragma unroll
        for (int k = c + 1; k < SIDE; ++k)
            x[k] -= own * __shfl_sync(~0u, own, k);
        x[c] = row == c ? root : own;
    }
    if (lane < SIDE)
#pragma unroll
        for (int c = 0; c < SIDE; c += WIDTH)
            *(Piece *)(tile + row * pitch + c) = piece_of(x, c);
    for (int rank = lane / SIDE; rank < CLUSTER; rank += 2) {
        const unsigned columns = place_in(rank, tile_columns()), scales = place_in(rank, reciprocals());
#pragma unroll
        for (int c = 0; c < SIDE; ++c)
            tell(columns + (c * LINE + row) * (unsigned)sizeof(scalar), x[c]);
        tell(scales + row * (unsigned)sizeof(scalar), scale);
    }
    return failed;
}

/* The solution for a row of panel k; of the next row block it goes to all. */
INLINE void solve(scalar *const at, const int k, const bool next, const int row)
{
    scalar x[SIDE];
    load_row(x, at);
#pragma unroll
    for (int c = 0; c < SIDE; ++c) {
        scalar column[SIDE];
        x[c] *= reciprocals()[c];
#pragma unroll
        for (int v = c / WIDTH * WIDTH; v < SIDE; v += WIDTH) {
            const Piece got = *(const Piece *)(tile_columns() + c * LINE + v);
#pragma unroll
            for (int e = 0; e < WIDTH; ++e)
                column[v + e] = got.at[e];
        }
#pragma unroll
        for (int j = c + 1; j < SIDE; ++j)
            x[j] -= x[c] * column[j];
    }
#pragma unroll
    for (int c = 0; c < SIDE; c += WIDTH)
        *(Piece *)(at + c) = piece_of(x, c);
    if (next)
        for (int rank = 0; rank < CLUSTER; ++rank) {
            const unsigned to = place_in(rank, next_block() + row * PITCH + SIDE * k);
#pragma unroll
            for (int c = 0; c < SIDE; c += WIDTH)
                tell(to + c * (unsigned)sizeof(scalar), piece_of(x, c));
        }
}

/* Matrices of order N one behind the other, in place, zeros above the diagonals of their factors. */
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT) ENTRY(scalar *a, int *info)
{
    const int rank = blockIdx.x % CLUSTER, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long m = blockIdx.x / CLUSTER;
    a += m * N * N;
    for (int q = 0, g = rank; g < BLOCKS; ++q, g += CLUSTER)
        for (int row = warp; row < SIDE; row += WARPS)
            for (int c = lane * WIDTH; c < SIDE * (g + 1); c += 32 * WIDTH)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared_address(row_block(rank, q) + row * pitch_of(g) + c)), "l"(a + (long long)(SIDE * g + row) * N + c) : "memory");
    asm volatile("cp.async.wait_all;" : : : "memory");
    if (rank == 0 && threadIdx.x == 0)
        info[m] = 0;
    meet();
    for (int k = 0; k < BLOCKS; ++k) {
        const int first = k + 1 > rank ? (k + 1 - rank + CLUSTER - 1) / CLUSTER : 0, count = OWN - first;
        const bool diagonal = k % CLUSTER == rank, next = k + 1 < BLOCKS && (k + 1) % CLUSTER == rank;
        if (diagonal && warp == 0) {
            scalar *const block = row_block(rank, k / CLUSTER);
            if (k > 0)
                update(block + SIDE * k, pitch_of(k), block + SIDE * (k - 1), pitch_of(k), block + SIDE * (k - 1), pitch_of(k), SIDE);
            __syncwarp();
            const int failed = factor(block + SIDE * k, pitch_of(k));
            if (failed >= 0 && lane == 0 && *(volatile int *)(info + m) == 0)
                *(volatile int *)(info + m) = SIDE * k + failed + 1;
            __threadfence();
        } else if (k > 0) {
            const int begin = warp - diagonal, step = WARPS - diagonal;
            for (int t = begin; t < count + next; t += step) {
                const int q = t < next ? (k + 1) / CLUSTER : first + t - next, g = q * CLUSTER + rank;
                scalar *const block = row_block(rank, q);
                if (g >= BLOCKS)
                    continue;
                if (t < next)
                    update(block + SIDE * g, pitch_of(g), block, pitch_of(g), block, pitch_of(g), SIDE * k);
                else
                    update(block + SIDE * k, pitch_of(g), block, pitch_of(g), next_block(), PITCH, SIDE * k);
            }
            __syncwarp();
        }
        meet();
        for (int i = threadIdx.x; i < SIDE * count; i += THREADS) {
            const int q = first + i / SIDE, g = q * CLUSTER + rank;
            if (g < BLOCKS)
                solve(row_block(rank, q) + i % SIDE * pitch_of(g) + SIDE * k, k, g == k + 1, i % SIDE);
        }
        if (k + 1 < BLOCKS) {
            const int whose = (k + 1) % CLUSTER;
            const unsigned from = place_in(whose, row_block(whose, (k + 1) / CLUSTER));
            for (int row = warp; row < SIDE; row += WARPS)
                for (int c = lane * WIDTH; c < SIDE * k; c += 32 * WIDTH)
                    *(Piece *)(next_block() + row * PITCH + c) = ask(from + (row * pitch_of(k + 1) + c) * (unsigned)sizeof(scalar));
        }
        meet();
    }
    for (int q = 0, g = rank; g < BLOCKS; ++q, g += CLUSTER)
        for (int row = warp; row < SIDE; row += WARPS)
            for (int c = lane * WIDTH; c < N; c += 32 * WIDTH) {
                Piece x = {};
                if (c < SIDE * (g + 1))
                    x = *(const Piece *)(row_block(rank, q) + row * pitch_of(g) + c);
#pragma unroll
                for (int v = 0; v < WIDTH; ++v)
                    x.at[v] = c + v <= SIDE * g + row ? x.at[v] : 0;
                *(Piece *)(a + (long long)(SIDE * g + row) * N + c) = x;
            }
}
