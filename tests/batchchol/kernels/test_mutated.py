"""One line of a generated source dropped, doubled or spoiled: the residual check fails what the compiler built."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSource, KernelSpec, generate

from ...kernel_runs import build_kernel, make_spec, run_kernel
from ...matrices import DATA

# Three tile rows of nb = 3 and a corner: every microkernel is called, most of them in loops.
SPECS = {
    "cpu": make_spec(11, 3, looking="left", layout="interleaved", target="generic", prefetch=False),
    "cuda": make_spec(11, 3, looking="left", layout="interleaved", target="cuda"),
}
# A whole group: padding is identities, to which most mutants do no harm.
BATCH = 32
# The function that carries out the program, which each target has under its own name.
PROGRAM = "factor_(group|matrix)"

# What a line is, and the microkernel or function that it stands in; each occurs in the source.
LINES = {
    "a multiply-add of gemm": ("gemm_3x3x3", r"C\(1, 2\) -= a1 \* b2;"),
    "a multiply-add of syrk": ("syrk_3x3x3", r"C\(2, 1\) -= a2 \* a1;"),
    "a multiply-add on a diagonal": ("syrk_2x2x3", r"C\(1, 1\) -= a1 \* a1;"),
    "a multiply-add of trsm": ("trsm_3x3", r"C\(0, 2\) -= C\(0, 1\) \* t;"),
    "a scaling of trsm": ("trsm_2x3", r"C\(1, 2\) \*= RECIPROCAL\(2\);"),
    "a multiply-add of potrf": ("potrf_3x3", r"C\(2, 1\) -= C\(2, 0\) \* C\(1, 0\);"),
    "a scaling of potrf": ("potrf_2x2", r"C\(1, 0\) \*= RECIPROCAL\(0\);"),
    "a pivot": ("potrf_3x3", r"C\(1, 1\) = pivot\(C\(1, 1\), &RECIPROCAL\(1\)\);"),
    "a call of gemm": (PROGRAM, r"gemm_2x3x3\(.*\);"),
    "a call of syrk": (PROGRAM, r"syrk_3x3x3\(.*\);"),
    "a call of trsm": (PROGRAM, r"trsm_3x3\(.*\);"),
    "a call of potrf": (PROGRAM, r"potrf_2x2\(.*\);"),
}
DROPPED, DOUBLED, SIGN_CHANGED = "dropped", "doubled", "sign changed"
CHANGES: dict[str, Callable[[str], str]] = {
    DROPPED: lambda statement: "",
    DOUBLED: lambda statement: f"{statement} {statement}",
    SIGN_CHANGED: lambda statement: statement.replace("-=", "+="),
}
MUTANTS = [
    *((line, DROPPED) for line in LINES),
    ("a multiply-add of gemm", DOUBLED),
    ("a scaling of trsm", DOUBLED),
    ("a call of potrf", DOUBLED),
    ("a multiply-add of syrk", SIGN_CHANGED),
]


def function_body(text: str, name: str) -> tuple[int, int]:
    """Where the body of a function begins and ends."""
    opening = re.search(rf"^.*\b{name}\([^;]*?\)\n\{{\n", text, re.MULTILINE)
    assert opening, f"there is no function {name}"
    return opening.end(), text.index("\n}\n", opening.end())


def mutated(spec: KernelSpec, line: str, mutation: str) -> KernelSource:
    """The source of a spec with one of its lines changed."""
    source = generate(spec)
    function, pattern = LINES[line]
    begin, end = function_body(source.text, function)
    body, count = re.subn(pattern, lambda found: CHANGES[mutation](found[0]), source.text[begin:end], count=1)
    assert count == 1, f"{function} does not have {line}"
    return replace(source, text=source.text[:begin] + body + source.text[end:])


def worst_ratio(spec: KernelSpec, source: KernelSource, data: str) -> float:
    """The largest ratio of a kernel built from a source, infinite if it finds a matrix not positive definite."""
    a = DATA[data](BATCH, spec.problem.n).astype(spec.problem.dtype)
    run = run_kernel(spec, a, kernel=build_kernel(spec, source))
    return np.inf if run.info.any() else float(ratios(a, run.l).max())


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("backend", SPECS)
def test_the_source_as_it_is_passes(backend: str, data: str) -> None:
    assert worst_ratio(SPECS[backend], generate(SPECS[backend]), data) <= 0.5


@pytest.mark.parametrize(("line", "mutation"), MUTANTS)
@pytest.mark.parametrize("backend", SPECS)
def test_the_source_with_one_line_changed_fails(backend: str, line: str, mutation: str) -> None:
    spec = SPECS[backend]
    source = mutated(spec, line, mutation)
    for data in DATA:
        assert worst_ratio(spec, source, data) > RATIO_BOUND["fast"], data
