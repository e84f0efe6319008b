"""One commit's side of a gate: which cases it has, what code they run, and its calls, timed when asked to.

The suite is that of the commit that asks, the library that of the checkout; `batchchol.asv_plugin.gate.lines` has the
methods of `Side` called.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from statistics import median
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented
from asv_runner.discovery import disc_benchmarks

from benchmarks.harness import cases, grid, library, profiles
from benchmarks.harness.benchmark import Question
from benchmarks.harness.precompile import blueprint


@dataclass(frozen=True)
class Asked:
    """A benchmark at one point."""

    benchmark: Any
    named: Mapping[str, Any]

    @property
    def question(self) -> Any:
        """The instance of the suite's class."""
        return self.benchmark.func.__self__

    @property
    def key(self) -> str:
        """Its name, and the parameters that the class varies."""
        varied = zip(self.question.param_names, self.question.params, strict=True)
        values = ", ".join(f"{name}={self.named[name]}" for name, axis in varied if len(axis) > 1)
        return f"{self.benchmark.name.split('.', 1)[1]}({values})"

    @property
    def kind(self) -> str:
        """ "kernel": its code alone is timed; "call": what the host does, too; "track": a number."""
        if self.benchmark.type == "track":
            return "track"
        plain = getattr(type(self.question), "device_factor", None) is cases._KernelQuestion.device_factor
        alone = getattr(self.question, "kernel_alone", False) or (plain and self.named.get("protocol") != "single")
        return "kernel" if alone else "call"

    @cached_property
    def point(self) -> grid.Point:
        """The point of the grid."""
        return grid.point_of(self.named)

    def planned(self, backend: Any) -> cases.Plan | None:
        """The kernel of this point, None where it is not about one of them."""
        if self.benchmark.type == "track" and not hasattr(self.question, "stats"):
            return None
        if self.kind == "call":
            return None
        return getattr(self.question, "planned", cases.planned)(self.point, backend)


def asked(profile: str, backend: str) -> Iterator[Asked]:
    """Every benchmark at every point that a profile measures on a backend."""
    for benchmark in disc_benchmarks(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        question: Question = benchmark.func.__self__
        axes = dict(zip(question.param_names, question.params, strict=True))
        if backend in axes.get("backend", (backend,)):
            for named in profiles.kept_points(
                profile, type(question).__name__, question.param_names, question.params, backend
            ):
                yield Asked(benchmark, named)


class Side:
    """Answers requests about the commit that was imported."""

    def __init__(self, profile: str, backend: str, arch: str | None, bench: str) -> None:
        if library.MISSING:
            raise ImportError(library.MISSING)
        os.environ |= {profiles.PROFILE_VARIABLE: profile, profiles.BACKEND_VARIABLE: backend}
        self._arch = arch
        self._backend = blueprint(arch) if arch else library.get_backend(backend)
        self._cases = {case.key: case for case in asked(profile, backend) if re.search(bench, case.key)}
        self._specs: dict[str, library.KernelSpec] = {}
        self._ready: dict[str, Asked] = {}

    def describe(self) -> dict[str, Any]:
        """Every case by its key: its kind, and the kernel of those that are about one, or why it is skipped."""
        return {key: {"kind": case.kind, **self._described(case)} for key, case in self._cases.items()}

    def build(self, keys: list[str]) -> dict[str, str]:
        """Compile the kernels of cases; why not, of those that cannot be."""
        specs = {key: self._specs[key] for key in keys}
        distinct = list(dict.fromkeys(specs.values()))
        if self._arch:
            from batchchol.artifacts.cuda_modules import build_all

            outcomes = build_all([library.generate_source(spec) for spec in distinct], self._arch)
        else:
            outcomes = self._backend.build(distinct)
        found = dict(zip(distinct, outcomes, strict=True))
        return {
            key: f"{found[spec].status}: {found[spec].message}"
            for key, spec in specs.items()
            if found[spec].status != "built"
        }

    def prepare(self, key: str) -> str:
        """Make a call ready to be timed; why it is skipped, or nothing."""
        case = self._cases[key]
        question = type(case.question)()
        try:
            question.setup(*(case.named[name] for name in case.question.param_names))
        except SkipNotImplemented as error:
            return str(error)
        self._ready = {key: Asked(_Bound(case.benchmark, question), case.named)}
        return ""

    def time(self, key: str, seconds: float) -> dict[str, Any]:
        """The lower quartiles of the wall and the CPU time of a call, of as many calls as take so long."""
        case = self._ready[key]
        call: Callable[..., Any] = getattr(case.question, case.benchmark.name.rsplit(".", 1)[1])
        values = [case.named[name] for name in case.question.param_names]
        if case.benchmark.device:
            taken = call(*values)
            return {"wall": median(taken.seconds), "cpu": None, "calls": len(taken.seconds)}
        wall: list[float] = []
        cpu: list[float] = []
        end = time.perf_counter() + seconds
        while not wall or time.perf_counter() < end:
            wall.append(time.perf_counter())
            cpu.append(time.process_time())
            call(*values)
            wall[-1], cpu[-1] = time.perf_counter() - wall[-1], time.process_time() - cpu[-1]
        # The quarter that other processes disturbed least.
        return {"wall": _low(wall), "cpu": _low(cpu), "calls": len(wall)}

    def track(self, key: str) -> dict[str, Any]:
        """The number that a benchmark tracks, and its unit."""
        if skipped := self.prepare(key):
            return {"skipped": skipped}
        case = self._ready[key]
        function = getattr(case.question, case.benchmark.name.rsplit(".", 1)[1])
        environment = dict(os.environ)
        try:
            value = function(*(case.named[name] for name in case.question.param_names))
        except SkipNotImplemented as error:
            return {"skipped": str(error)}
        finally:
            # A tracked function may choose another cache, which the next case must not use.
            os.environ.clear()
            os.environ.update(environment)
        return {"value": float(value), "unit": getattr(function, "unit", "")}

    def _described(self, case: Asked) -> dict[str, Any]:
        if "backend" not in case.question.param_names:
            return {"skipped": "the baseline: nothing of the library is in it"}
        if case.named.get("batch") == grid.LIMIT:
            return {"skipped": "the largest batch that fits: those of two commits do not"}
        try:
            plan = case.planned(self._backend)
            source = library.generate_source(plan.spec) if plan is not None else None
        except SkipNotImplemented as error:
            return {"skipped": str(error)}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}
        if plan is None or source is None:
            return {}
        self._specs[case.key] = plan.spec
        return {
            "spec": plan.spec.to_dict(),
            "layout": asdict(plan.layout),
            "batch": case.point.batch,
            "threads": case.point.threads,
            "nrhs": case.named.get("nrhs", 1),
            "entry": source.entry,
            "flags": list(source.flags),
            "launch": asdict(source.launch) if source.launch is not None else None,
            "lanes": source.lanes,
            "text_sha256": sha256(source.text.encode()).hexdigest(),
        }


def _low(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


class _Bound:
    """A benchmark of an instance that has been set up."""

    def __init__(self, benchmark: Any, question: Any) -> None:
        self.name, self.type = benchmark.name, benchmark.type
        self.device = type(benchmark).__name__ == "DeviceBenchmark"
        self.func = getattr(question, benchmark.name.rsplit(".", 1)[1])
