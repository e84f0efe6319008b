"""The default kernels of logdet, potri and poinv: of CPUs for every order, of GPUs while there is room."""

from __future__ import annotations

import pytest

from batchchol import default_spec
from batchchol.defaults.rules.on_chip import IN_MEMORY, IN_REGISTERS
from kernelgen import MAX_N, SpecError
from kernelgen.operations import OPERATIONS

LAYOUTS = (("chunked", 32), ("interleaved", None), ("canonical", None))


@pytest.mark.parametrize(("op", "dtype"), IN_REGISTERS)
def test_gpus_have_them_as_far_as_registers_and_shared_memory_suffice(op: str, dtype: str) -> None:
    for layout, chunk in LAYOUTS[:2] if OPERATIONS[op].packs else LAYOUTS:
        straight = IN_REGISTERS[op, dtype][layout == "canonical"]
        most = straight if op == "logdet" else IN_MEMORY[dtype]
        where = {"target": "cuda", "op": op, "dtype": dtype, "layout": layout, "chunk": chunk, "arch": "sm_90"}
        for n in (1, straight, most):
            schedule = default_spec(n, **where).schedule
            unroll = "full" if n <= straight else "tiles"
            assert (schedule.unroll, schedule.staged, schedule.stride, schedule.pdl) == (unroll, True, chunk, True)
        for n in (most + 1, MAX_N):
            with pytest.raises(SpecError):
                default_spec(n, **where)


@pytest.mark.parametrize("op", ["logdet", "potri", "poinv"])
@pytest.mark.parametrize("target", ["avx512", "avx2", "generic"])
def test_cpus_have_them_for_every_order(op: str, target: str) -> None:
    for n in range(1, MAX_N + 1):
        for layout, chunk in LAYOUTS:
            spec = default_spec(n, target=target, op=op, layout=layout, chunk=chunk)
            assert (spec.problem.op, spec.problem.n, spec.target) == (op, n, target)
