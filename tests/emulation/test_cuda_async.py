"""The emulation's barriers in shared memory and copies in the background: what hangs or races on a GPU is found."""

from __future__ import annotations

import numpy as np
import pytest

from kernelgen import KernelSource, Launch

from ..fenced_memory import Array
from .programs import ACROSS_WARPS, ORDERS, EmulationError, compile_program

TURNS = 5

# The first warp hands numbers to the second through one place in shared memory, again and again.
RELAY = """extern "C" __global__ void relay(const float *from, float *to)
{
    extern __shared__ unsigned long long barriers[];
    unsigned long long *const full = barriers, *const empty = barriers + 1;
    float *const place = (float *)(barriers + 2);
    const int lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        __mbarrier_init(full, 1);
        __mbarrier_init(empty, 32);
    }
    __syncthreads();
    for (int turn = 0; turn < 5; ++turn) {
        if (threadIdx.x < 32) {
            while (!__mbarrier_try_wait_parity(empty, turn % 2 == 0));
            place[lane] = from[turn * 32 + lane];
            __syncwarp();
            if (lane == 0) __mbarrier_arrive(full);
        } else {
            while (!__mbarrier_try_wait_parity(full, turn % 2));
            to[turn * 32 + lane] = place[31 - lane];
            __mbarrier_arrive(empty);
        }
    }
}
"""
WAIT_FOR_EMPTY = "while (!__mbarrier_try_wait_parity(empty, turn % 2 == 0));"
WAIT_FOR_FULL = "while (!__mbarrier_try_wait_parity(full, turn % 2));"
RACE = "depends on the order|waits at a barrier|that nobody waits at"
# What is changed, and what is said of it.
MISTAKES = {
    "no wait for full": (WAIT_FOR_FULL, "", RACE),
    "no wait for empty": (WAIT_FOR_EMPTY, "", RACE),
    "the other phase": ("(full, turn % 2)", "(full, 0)", RACE),
    "no arrival at full": ("if (lane == 0) __mbarrier_arrive(full);", "", "waits at a barrier in shared memory"),
    "an arrival too few": ("__mbarrier_arrive(empty)", "if (lane) __mbarrier_arrive(empty)", "waits at a barrier in"),
    "an arrival more asked for": (
        "__mbarrier_init(full, 1)",
        "__mbarrier_init(full, 2)",
        "waits at a barrier in shared",
    ),
    "not set up": ("__mbarrier_init(full, 1);", "", "a barrier that was not set up"),
    "set up twice": ("(empty, 32)", "(full, 32)", "sets up a barrier a second time"),
    "set up for nobody": ("(full, 1)", "(full, 0)", "nobody or too many"),
    "elsewhere": ("(full, 1)", "((unsigned long long *)to, 1)", "outside shared memory"),
    "no exchange of the warp": ("__syncwarp();", "", RACE),
}


def relayed(text: str) -> Array:
    """What the second warp has got."""
    source = KernelSource(text, "relay", 1, (), Launch(64, 1, 16 + 4 * 32))
    result = np.zeros(32 * TURNS, np.float32)
    compile_program((source,)).launch(source, 1, numbers(), result, orders=(*ORDERS, ACROSS_WARPS))
    return result


def numbers() -> Array:
    return np.arange(32 * TURNS, dtype=np.float32) + 1


def test_warps_hand_numbers_over_through_barriers_in_shared_memory() -> None:
    assert np.array_equal(relayed(RELAY).reshape(TURNS, 32)[:, ::-1], numbers().reshape(TURNS, 32))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_at_a_barrier_is_found(mistake: str) -> None:
    old, new, message = MISTAKES[mistake]
    assert RELAY.count(old) == 1
    text = RELAY.replace(old, new)
    with pytest.raises(EmulationError, match=message):
        relayed(text)


# Each thread has the number after next fetched while it works on the last one.
FETCH = """extern "C" __global__ void fetching(float *numbers)
{
    extern __shared__ float fetched[];
    float *const mine = fetched + threadIdx.x;
    __pipeline_memcpy_async(mine, numbers + threadIdx.x, sizeof(float));
    __pipeline_commit();
    for (int turn = 0; turn < 5; ++turn) {
        __pipeline_wait_prior(0);
        const float number = *mine;
        if (turn < 4) {
            __pipeline_memcpy_async(mine, numbers + (turn + 1) * 32 + threadIdx.x, sizeof(float));
            __pipeline_commit();
        }
        numbers[turn * 32 + threadIdx.x] = 2 * number;
    }
}
"""
COMMIT_LAST = "            __pipeline_commit();\n"


def doubled(text: str) -> Array:
    source = KernelSource(text, "fetching", 1, (), Launch(32, 1, 4 * 32))
    result = numbers()
    compile_program((source,)).launch(source, 1, result)
    return result


def test_numbers_are_fetched_while_others_are_worked_on() -> None:
    assert np.array_equal(doubled(FETCH), 2 * numbers())


def test_what_was_not_waited_for_is_not_there() -> None:
    waiting = "        __pipeline_wait_prior(0);\n"
    assert np.isnan(doubled(FETCH.replace(waiting, "        if (turn) __pipeline_wait_prior(0);\n"))[:32]).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("turn < 4", "turn < 5", "may not|copies of its own were under way"),
        (COMMIT_LAST, "", "copies of its own were under way"),
        ("(mine, numbers + threadIdx", "(numbers, numbers + threadIdx", "that no GPU can do"),
        ("threadIdx.x, sizeof(float));\n    __", "threadIdx.x, 3);\n    __", "a copy of 3 bytes that no GPU can do"),
        ("        numbers[turn *", "        numbers[(turn + 1) % 5 *", "depends on the order"),
    ],
    ids=["past the end", "not committed", "to global memory", "of 3 bytes", "of what is overwritten meanwhile"],
)
def test_a_mistake_with_copies_is_found(old: str, new: str, message: str) -> None:
    assert FETCH.count(old) == 1
    with pytest.raises(EmulationError, match=message):
        doubled(FETCH.replace(old, new))
