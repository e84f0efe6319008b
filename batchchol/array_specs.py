"""The kernel for arrays (..., n, n), and the layout that it works in."""

from __future__ import annotations

from batchchol.backends import Backend
from batchchol.checks import check_choice
from batchchol.defaults import default_spec
from kernelgen import MAX_N, KernelSpec, Layout
from kernelgen.schedule_checks import MATHS


def array_choice(
    device: Backend,
    n: int,
    batch: int,
    dtype: str,
    upper: bool,
    given: KernelSpec | None,
    math: str | None,
    *,
    host: bool,
) -> tuple[KernelSpec, Layout]:
    """The kernel for arrays (batch, n, n) of the host or the GPU and the layout it works in: given, or the best.

    What is given has passed `check_array_spec`.
    """
    if given is not None:
        if reason := device.unsupported(given):
            raise ValueError(f"spec: backend {device.name!r} cannot run {given.name}: {reason}")
        return given, _layout_of(device, given, batch)
    math = math or MATHS[0]
    layout = device.array_layout(n, batch, dtype, math)
    # What is packed is a copy, and so is what goes to a GPU: it may be overwritten.
    copied = layout.kind != "canonical" or (host and device.name == "cuda")
    spec = default_spec(
        n,
        target=device.target,
        dtype=dtype,
        layout=layout.kind,
        chunk=layout.chunk,
        order=layout.order,
        math=math,
        uplo="upper" if upper else "lower",
        in_place=copied,
        batch=batch,
        arch=device.architecture,
        device=device.model,
    )
    return spec, layout


def check_array_spec(n: int, dtype: str, upper: bool, given: KernelSpec | None, math: str | None) -> None:
    """Refuse a spec that does not fit the arrays, or the math that is asked for."""
    check_choice(given, math)
    if given is None:
        return
    if n > MAX_N:
        raise ValueError(
            f"spec: got a kernel for matrices of order {given.problem.n}, expected None for those of order {n}: "
            f"kernels are for orders up to {MAX_N}, and LAPACK factors larger ones"
        )
    if upper != (given.problem.uplo == "upper"):
        raise ValueError(f"spec: got the {given.problem.uplo} triangle, expected the one that upper={upper} asks for")
    if given.in_place:
        raise ValueError("spec: got in_place=True, expected False: the input is left as it was; use factor(out=)")
    if (given.problem.n, given.problem.dtype) != (n, dtype):
        raise ValueError(
            f"spec: got a kernel for {given.problem.dtype} matrices of order {given.problem.n}, expected {dtype} "
            f"and {n}"
        )


def _layout_of(device: Backend, spec: KernelSpec, batch: int) -> Layout:
    """The layout that a spec works in; where it leaves the chunk open, the fastest: on a CPU that is the smallest."""
    if spec.layout != "chunked":
        return Layout(spec.layout, None, spec.order)
    if device.name == "cpu":
        fastest: int | None = spec.lanes
    else:
        fastest = device.default_layout(spec.problem.n, spec.problem.dtype, batch, spec.schedule.math).chunk
    return Layout(spec.layout, spec.schedule.stride or fastest, spec.order)
