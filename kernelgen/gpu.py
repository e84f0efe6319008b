"""Properties of GPUs that kernels' shapes depend on."""

from __future__ import annotations

# Threads of a warp, schedulers of a multiprocessor.
WARP, SCHEDULERS = 32, 4
# What one instruction moves between registers and shared memory, and what its banks serve at a time.
PIECE_BYTES = 16
BANKS_BYTES = 128
# The least that an H200's memory hands out; the caches keep sectors of half that size.
MEMORY_BYTES = 64
# A line of the caches.
LINE_BYTES = 128
# What a block of threads can have on every GPU of compute capability 9.0, and what a kernel can declare of the shared
# memory by itself: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MAX_BLOCK_THREADS = 1024
MAX_SHARED_BYTES = 227 << 10
MAX_DECLARED_BYTES = 48 << 10
# Of a multiprocessor: registers, threads and blocks at once, and shared memory of each block that is not its own.
REGISTERS, MAX_THREADS, MAX_BLOCKS = 64 << 10, 2048, 32
RESERVED_BYTES = 1 << 10
# The first compute capability of programmatic dependent launches.
PDL_CAPABILITY = (9, 0)
