"""The default spec of every problem can be built."""

from __future__ import annotations

import pytest

from batchchol import SpecError, default_spec
from kernelgen import MAX_N, TARGETS, generate


@pytest.mark.parametrize("layout", ["canonical", "interleaved", "chunked"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_every_order_has_a_default_that_can_be_generated(target: str, dtype: str, layout: str) -> None:
    for n in range(1, MAX_N + 1):
        spec = default_spec(n, target=target, dtype=dtype, layout=layout)
        assert (spec.problem.n, spec.problem.dtype, spec.target, spec.layout) == (n, dtype, target, layout)
        source = generate(spec)
        assert spec.name in source.text
        assert (source.entry, source.lanes) == (spec.name, TARGETS[target].lanes(dtype))


def test_what_is_asked_for_is_in_the_spec() -> None:
    spec = default_spec(7, target="generic", order="row", math="fast", uplo="upper", in_place=True)
    assert (spec.order, spec.schedule.math, spec.problem.uplo, spec.in_place) == ("row", "fast", "upper", True)
    plain = default_spec(7, target="generic")
    assert (plain.order, plain.schedule.math, plain.problem.uplo, plain.in_place) == ("col", "ieee", "lower", False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target", "sse"),
        ("dtype", "half"),
        ("layout", "blocked"),
        ("order", "C"),
        ("math", "exact"),
        ("uplo", "L"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(field: str, value: str) -> None:
    with pytest.raises(SpecError, match=f"{value!r} cannot be built: use one of"):
        default_spec(7, **{"target": "generic", field: value})


@pytest.mark.parametrize("n", [0, 129, -1, 2.0, "7", True])
def test_orders_that_cannot_be_built_are_refused(n: int) -> None:
    with pytest.raises(SpecError, match=r"n=.* use an integer from 1 to 128"):
        default_spec(n, target="generic")


@pytest.mark.parametrize("chunk", [None, 8, 32])
def test_a_constant_stride_is_chosen_for_its_own_chunk_alone(chunk: int | None) -> None:
    strides = {default_spec(n, target="cuda", chunk=chunk).schedule.stride for n in range(1, MAX_N + 1)}
    assert strides == ({32, None} if chunk == 32 else {None})
    assert default_spec(8, target="cuda", layout="interleaved", chunk=32).schedule.stride is None
