"""`python -m batchchol run`: the main job, end to end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isnan, nan
from pathlib import Path
from typing import Any

from batchchol.api import factor
from batchchol.asv_plugin import suite
from batchchol.asv_plugin.results import ResultRow, load_results
from batchchol.backends import Backend, fastest_backend
from batchchol.batches.batch import Batch
from batchchol.cli import interrupts
from batchchol.cli.options import declare, option
from batchchol.datasets import generation
from batchchol.defaults.lookup import Choice, default_choice, default_spec
from batchchol.defaults.request import Request
from batchchol.errors import BatchcholError, ResidualError
from batchchol.files import check_writable, make_folder, replace_file
from batchchol.measure import machine
from batchchol.measure.timing import sample_factor, spread
from batchchol.operations import residual
from batchchol.operations.roofline import Ceilings, flops, roofline_fraction
from batchchol.report.gflops_plot import Point, draw, require_matplotlib
from kernelgen import Problem

SHOWN_N, SHOWN_BATCH = 32, 16384
CHECKED_RECIPES = ("diagonally_dominant", "wishart")
# What the table compares: one thread on each side, the batch that speeds are stated for.
TABLE_BATCH = 16384
KERNEL_QUESTIONS = ("Tiles", "Defaults")
# Medians of one kernel that differ by this factor, or samples whose middle half does, are those of a busy machine.
BUSY = 1.25
TIMES_NUMPY = "× NumPy", "`cholesky()` × NumPy"
CAPTION = (
    "`factor` of packed data is timed on one core or on the GPU, NumPy and `cholesky()` (from array to array) on all "
    "cores. Spread: the interquartile range of the samples over their median. Blank: not measured."
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class BestRow:
    """The fastest measured schedule of one order, on one thread; `spread` as in `batchchol.measure.timing.Sample`."""

    n: int
    schedule: str
    seconds_per_matrix: float
    spread: float
    gflops: float
    roofline_fraction: float
    times_numpy: float
    call_times_numpy: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the output folder and the profile."""
    declare(
        parser,
        option("--out", type=Path, default=Path("results"), help="folder of the table and the plot"),
        option("--backend", choices=("cuda", "cpu"), help="default: BATCHCHOL_BACKEND, else cuda, else cpu"),
        option("--profile", default="quick", choices=("quick", "ci", "full"), help="what asv measures"),
    )


def run(arguments: argparse.Namespace) -> int:
    """Run every step; the first that fails ends it and says why."""
    require_matplotlib()
    make_folder(arguments.out)
    check_writable(arguments.out / "table.md")
    subject = suite.find_subject(Path.cwd())
    backend, why_no_gpu = fastest_backend(arguments.backend)
    described = machine.describe(backend.device())
    _say(f"machine   {described['cpu']}, {described['simd']}, {described['num_cpu']} cores, {described['ram']}")
    if backend.name == "cuda":
        _say(f"GPU       {described['gpu']}, driver {described['driver']}, {described['toolkit']}")
    elif why_no_gpu:
        # The device files of the driver on Linux, and on Windows' subsystem for it.
        gpu_present = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
        _say(f"backend   cpu, since {why_no_gpu if gpu_present else 'there is no NVIDIA GPU'}")
    demonstrate(backend, _say)
    machine.save(described, machine.machine_file())
    environment = os.environ | {"BATCHCHOL_PROFILE": arguments.profile, "BATCHCHOL_BACKEND": backend.name}
    timed = [time_shown(backend)]
    _say(f"suite     asv, profile {arguments.profile!r}, on {subject.described}")
    with interrupts.advice("compiled kernels are kept, run the same command again to measure all of the suite"):
        suite.run_suite(subject, described["machine"], environment, arguments.out / "asv.log", _say)
    timed.append(time_shown(backend))
    _say(summary(subject.results, described["machine"], subject.commit, backend, arguments.out, timed))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def demonstrate(backend: Backend, say: Say) -> None:
    """Generate data and a kernel, compile it, and check what it computes.

    Raises
    ------
    ResidualError
        If a factor is wrong.
    """
    batch = backend.empty(SHOWN_N, SHOWN_BATCH)
    choice = _shown(backend, batch)
    spec = choice.spec
    say(f"choice    {choice.origin}")
    for recipe in CHECKED_RECIPES:
        backend.fill(batch, recipe)
        say(f"data      {SHOWN_BATCH:,} {recipe} matrices of order {SHOWN_N}, {batch.layout}, float32")
        stats = backend.kernel(spec).stats
        registers = "" if stats.registers is None else f", {stats.registers} registers, {stats.spill_bytes} spilled"
        say(
            f"kernel    {spec.name}: compiled in {stats.compile_seconds:.2f} s, {stats.code_bytes:,} bytes of "
            f"code{registers}"
        )
        factors, info = factor(batch, spec)
        ratio = backend.check(batch, factors, info, spec.problem.math)
        say(f"check     residual ratio {ratio:.3f}, at most {residual.RATIO_BOUND[spec.problem.math]} is right")
    _demonstrate_failures(backend, say)


def _shown(backend: Backend, batch: Batch) -> Choice:
    chunk, arch = batch.layout.chunk, backend.architecture
    return default_choice(Request(Problem(SHOWN_N), backend.target, chunk=chunk, batch=SHOWN_BATCH, arch=arch))


def _demonstrate_failures(backend: Backend, say: Say) -> None:
    failing = backend.empty(SHOWN_N, 1000)
    backend.fill(failing, "failing")
    expected = generation.expected_info("failing", n=SHOWN_N, stop=1000)
    info = backend.host(factor(failing).info)
    if (info != expected).any():
        raise ResidualError("the info of failing matrices is not what it should be")
    say(f"check     info is right for all 1,000 members of a batch of which {int((info > 0).sum())} are not SPD")


def time_shown(backend: Backend) -> float:
    """Seconds per matrix of the kernel that `demonstrate` shows, on one thread."""
    batch = backend.empty(SHOWN_N, SHOWN_BATCH)
    backend.fill(batch, CHECKED_RECIPES[0])
    sample = sample_factor(backend, _shown(backend, batch).spec, batch, threads=1)
    return sample.median / SHOWN_BATCH


def summary(
    results: Path, machine: str, commit: str, backend: Backend, out: Path, timed: Sequence[float] = ()
) -> str:
    """The table of a commit's results; the table and the plot are saved to the folder `out` as well.

    `timed` are seconds of the same kernel at several times: whether they agree is part of the caption.
    """
    ceilings = backend.ceilings(threads=1)
    rows = [row for row in load_results(results, machine) if row.commit == commit]
    best = best_rows(rows, backend, ceilings)
    if not best:
        raise BatchcholError(f"no kernel of commit {commit[:8]} was measured: see the log beside {out}")
    subtitle = (
        f"{_place(backend)}, float32, batch {TABLE_BATCH:,}, cold data, medians; "
        f"copy {ceilings.copy_bytes_per_second / 1e9:,.1f} GB/s, "
        f"peak {ceilings.peak_flops_per_second / 1e9:,.0f} GFLOP/s"
    )
    made = f"{subtitle}, commit {commit[:8]}, {date.today().isoformat()}"
    text = "\n\n".join([table(best), made, CAPTION, *doubts(best, timed)]) + "\n"
    replace_file(out / "table.md", text.encode())
    points = [
        Point(name, row.n, row.gflops / slower, row.gflops / row.roofline_fraction)
        for row in best
        for name, slower in (("batchchol factor", 1), ("numpy.linalg.cholesky", row.times_numpy))
    ]
    pictures = draw(points, out / "performance", title="Batched Cholesky, n³/3 flops", subtitle=subtitle)
    return "\n".join(["", text, *(f"saved     {path}" for path in (out / "table.md", *pictures))])


def doubts(rows: Sequence[BestRow], timed: Sequence[float]) -> list[str]:
    """Signs that something else used the machine during the measurements."""
    found = []
    if timed and max(timed) > BUSY * min(timed):
        times = " and ".join(f"{seconds * 1e9:,.0f}" for seconds in timed)
        found.append(
            f"This machine is busy: the same kernel (n = {SHOWN_N}) took {times} ns per matrix before and after the "
            "suite, and any number above may be off by as much."
        )
    if unsteady := [str(row.n) for row in rows if row.spread > BUSY - 1]:
        found.append(
            f"This machine is busy: samples of n = {', '.join(unsteady)} differ by more than {BUSY - 1:.0%}."
        )
    if any(row.roofline_fraction > 1 for row in rows):
        found.append("A roofline fraction above 100%: the copy was disturbed when it was measured.")
    return found


def _place(backend: Backend) -> str:
    """Where and how the kernels ran."""
    device = backend.device()
    if backend.name == "cuda":
        return f"{device['gpu']}, {device['toolkit']}, {backend.protocols[0]} launches"
    return f"{device['cpu']}, {backend.target}, one thread"


def best_rows(rows: Iterable[ResultRow], backend: Backend, ceilings: Ceilings) -> list[BestRow]:
    """The fastest schedule of every order among one commit's results on a backend, and how it compares.

    NumPy's are measured on the host, whatever the backend.
    """
    measured = [
        row
        for row in rows
        if row.status == "measured"
        and row.params.get("batch") == TABLE_BATCH
        and row.params.get("backend", backend.name) == backend.name
        and row.params.get("protocol") in (None, backend.protocols[0])
    ]
    numpy = _seconds_per_matrix(measured, "Numpy")
    whole = _seconds_per_matrix(measured, "WholeCall")
    kernels = [row for row in measured if _question(row) in KERNEL_QUESTIONS and row.params.get("threads") == 1]
    orders = sorted({row.params["n"] for row in kernels} & numpy.keys())
    return [_best_row(n, kernels, backend, ceilings, numpy[n], whole.get(n)) for n in orders]


def table(rows: Sequence[BestRow]) -> str:
    """The rows as a Markdown table."""
    heads = "n", "best schedule", "ns per matrix", "spread", "GFLOP/s", "roofline fraction", *TIMES_NUMPY
    lines = [f"| {' | '.join(heads)} |", "| ---: | --- |" + " ---: |" * (len(heads) - 2)]
    for row in rows:
        # Not known for points of an earlier run.
        spread = "" if isnan(row.spread) else f"{row.spread:.0%}"
        call = f"{row.call_times_numpy:.1f}" if row.call_times_numpy is not None else ""
        lines.append(
            f"| {row.n} | {row.schedule} | {row.seconds_per_matrix * 1e9:,.1f} "
            f"| {spread} | {row.gflops:.1f} | {row.roofline_fraction:.0%} | {row.times_numpy:.0f} | {call} |"
        )
    return "\n".join(lines)


def _best_row(
    n: int, kernels: Sequence[ResultRow], backend: Backend, ceilings: Ceilings, numpy: float, whole: float | None
) -> BestRow:
    best = min((row for row in kernels if row.params["n"] == n), key=lambda row: row.median)
    seconds, samples = best.median, [each for record in best.records for each in record.samples]
    return BestRow(
        n=n,
        schedule="nb={nb}, {looking}, {unroll}".format_map(_schedule(best, backend)),
        seconds_per_matrix=seconds,
        spread=spread(samples) if samples else nan,
        gflops=flops(n) / seconds / 1e9,
        roofline_fraction=roofline_fraction(seconds, n, 1, backend.default_layout(n), ceilings),
        times_numpy=numpy / seconds,
        call_times_numpy=numpy / whole if whole else None,
    )


def _schedule(row: ResultRow, backend: Backend) -> Mapping[str, Any]:
    if _question(row) == "Tiles":
        return row.params
    n, dtype = row.params["n"], row.params["dtype"]
    chunk, arch = backend.default_layout(n, dtype).chunk, backend.architecture
    spec = default_spec(n, target=backend.target, dtype=dtype, chunk=chunk, batch=TABLE_BATCH, arch=arch)
    # Empty where a family of kernels has no such choice.
    return {name: getattr(spec.schedule, name, "") for name in ("nb", "looking", "unroll")}


def _seconds_per_matrix(rows: Iterable[ResultRow], question: str) -> dict[int, float]:
    """Per order; these questions measure whole calls of float32."""
    return {
        row.params["n"]: row.median / row.params["batch"]
        for row in rows
        if _question(row) == question and row.params.get("dtype") == "float32"
    }


def _question(row: ResultRow) -> str:
    return row.benchmark.split(".")[-2]
