"""A commit's side of a gate: its cases, what it says of their kernels, its calls and numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from kernelgen import KernelSpec

KERNELS = r"Tiles.device_factor\(backend=cpu, n=4, nb=3"
CALL = "WholeCall.time_cholesky(backend=cpu, n=8, batch=16384, dtype=float32)"
Make = Callable[..., Any]


@pytest.fixture
def side(part: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Make:
    """side(bench, arch, profile): a side on the CPU, or without a GPU for an architecture."""
    module = part("harness.side")
    # It chooses them for its process, and this is none of its own.
    monkeypatch.setattr(os, "environ", os.environ.copy())

    def make(bench: str = "", arch: str | None = None, profile: str = "quick") -> Any:
        return module.Side(profile, "cuda" if arch else "cpu", arch, bench)

    return make


def test_every_case_has_a_key_and_a_kind(side: Make) -> None:
    said = side().describe()
    kinds = {key.partition("(")[0]: about["kind"] for key, about in said.items()}
    assert kinds["Tiles.device_factor"] == kinds["Threads.device_factor"] == "kernel"
    assert kinds["WholeCall.time_cholesky"] == "call"
    assert kinds["Compiling.track_code_size"] == "track"
    assert not any("cuda" in key for key in said)


def test_a_kernel_is_described_by_what_it_runs_on(side: Make) -> None:
    right, left = side(KERNELS).describe().values()
    assert KernelSpec.from_dict(right["spec"]).schedule.looking == "right"  # type: ignore[union-attr]
    assert (right["batch"], right["threads"], right["nrhs"], right["launch"]) == (16_384, 1, 1, None)
    assert right["text_sha256"] != left["text_sha256"]
    assert right["entry"] != left["entry"]


def test_the_baseline_is_skipped(side: Make) -> None:
    said = side("Numpy").describe()
    assert said
    assert {about["skipped"] for about in said.values()} == {"the baseline: nothing of the library is in it"}


def test_the_largest_batch_that_fits_is_skipped(side: Make) -> None:
    said = side(r"Ladder.*batch=(1024|limit)", "sm_90", "ci").describe()
    assert {
        key.partition("batch=")[2].split(",")[0].rstrip(")"): "skipped" in about for key, about in said.items()
    } == {
        "1024": False,
        "limit": True,
    }


@pytest.mark.parametrize(
    ("question", "op"),
    [("Solves", "potrs"), ("FusedSolves", "posv"), ("GeneralSolves", "gesv"), ("LeastSquares", "gels")],
)
def test_a_solve_is_a_kernel_of_its_own(question: str, op: str, side: Make) -> None:
    said = side(rf"^{question}\b.*n=8,", profile="ci").describe()
    assert {about["nrhs"] for about in said.values()} == {1, 8}
    for about in said.values():
        assert about["kind"] == "kernel"
        assert KernelSpec.from_dict(about["spec"]).problem.op == op


@pytest.mark.parametrize(
    ("question", "op"),
    [
        ("Inversions", "poinv"),
        ("InversionsByFactors", "potri"),
        ("Determinants", "logdet"),
        ("GeneralFactors", "getrf"),
        ("QrFactorizations", "geqrf"),
    ],
)
def test_an_inversion_is_a_kernel_of_its_own(question: str, op: str, side: Make) -> None:
    (about,) = side(rf"^{question}\b.*n=8\b", profile="ci").describe().values()
    assert (about["kind"], KernelSpec.from_dict(about["spec"]).problem.op) == ("kernel", op)


def test_gpu_kernels_are_described_without_a_gpu(side: Make) -> None:
    said = side(r"Defaults.*n=4, batch=16384", "sm_90").describe()
    assert [about["launch"]["threads"] > 0 for about in said.values()] == [True]


def test_a_kernel_that_cannot_be_generated_fails_alone(
    side: Make, part: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = part("harness.library")
    generated = library.generate_source

    def generate(spec: KernelSpec) -> Any:
        if "right" in spec.name:
            raise KeyError("nb")
        return generated(spec)

    monkeypatch.setattr(library, "generate_source", generate)
    right, left = side(KERNELS).describe().values()
    assert right == {"kind": "kernel", "failed": "KeyError: 'nb'"}
    assert "spec" in left


def test_what_does_not_compile_says_why(
    side: Make, part: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = side(KERNELS)
    right, left = made.describe()
    assert made.build([right, left]) == {}
    outcome = type("Outcome", (), {"status": "timeout", "message": "took longer than 3 s"})
    monkeypatch.setattr(type(made._backend), "build", lambda _, specs: [outcome] * len(specs))
    assert made.build([right]) == {right: "timeout: took longer than 3 s"}


def test_a_call_is_prepared_and_timed(side: Make) -> None:
    made = side("WholeCall.*n=8,")
    assert list(made.describe()) == [CALL]
    assert made.prepare(CALL) == ""
    taken = made.time(CALL, 0.0)
    assert taken["calls"] == 1
    assert taken["wall"] > 0 < taken["cpu"]
    assert made.time(CALL, 0.05)["calls"] >= 1


def test_a_call_that_is_wrong_cannot_be_prepared(
    side: Make, part: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = part("harness.library")
    cholesky = library.cholesky
    monkeypatch.setattr(library, "cholesky", lambda a, **options: -2 * cholesky(a, **options))
    with pytest.raises(library.ResidualError):
        side("WholeCall.*n=8,").prepare(CALL)


def test_a_number_is_tracked_with_its_unit_and_changes_nothing(side: Make) -> None:
    made = side("Compiling.track_code_size")
    (key,) = made.describe()
    before = dict(os.environ)
    found = made.track(key)
    assert found["value"] > 100
    assert found["unit"] == "bytes"
    assert dict(os.environ) == before


def test_what_is_skipped_when_it_is_prepared_says_why(side: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from asv_runner.benchmarks.mark import SkipNotImplemented

    made = side("Compiling.track_code_size")
    (key,) = made.describe()

    def setup(*_: Any) -> None:
        raise SkipNotImplemented("no such unroll")

    monkeypatch.setattr(type(made._cases[key].question), "setup", setup)
    assert made.prepare(key) == "no such unroll"
    assert made.track(key) == {"skipped": "no such unroll"}
