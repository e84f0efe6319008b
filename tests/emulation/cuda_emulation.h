/* CUDA on the CPU: compiles the text of generated kernels as C++ and runs it, for tests on machines without a GPU.
 *
 * Every thread of a block is a fiber with a stack of its own. They run one at a time, each as far as the next barrier,
 * in ascending or in descending order: where a barrier is missing, one of the two orders reads what is not there yet.
 * Barriers in shared memory and copies that nobody waits for: see tests/emulation/cuda_async.h. Tensor cores: tests/emulation/cuda_tensor.h.
 * The blocks of a grid follow one another. Before each block its shared memory is filled with NaN.
 *
 * Stricter than the hardware: a barrier that part of a block does not reach, and a warp's exchange that a thread of
 * its mask does not join, end the launch with a message; so do a memory fault and whatever the compiler's own checks
 * trap (an index outside an array, an integer overflow). As accurate as CUDA promises, and no better: rsqrtf and rsqrt.
 */
#pragma once

/* Of kernels whose text has other words for the hardware. */
#define CUDA_EMULATION 1

#include "cuda_threads.h"

#include "cuda_async.h"
#include "cuda_blocks.h"
#include "cuda_intrinsics.h"
#include "cuda_launch.h"
#include "cuda_tensor.h"
