"""What an entry of a table becomes for a problem that it was not measured for: another dtype, order, layout, GPU."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from batchchol.defaults.elsewhere import CHANGED, spared
from batchchol.defaults.registers import block_that_fits, spills
from batchchol.defaults.runnable import lightened
from batchchol.defaults.tables import Case, Entry, Evidence
from kernelgen import MAX_CHUNK, TARGETS, KernelSpec, Schedule, SpecError
from kernelgen.schedules import in_math


class Fitted(NamedTuple):
    """A spec for a problem, how it differs from the entry, and the entry's evidence where that applies."""

    spec: KernelSpec
    unlike: str
    evidence: tuple[Evidence, ...]


def fit(
    entry: Entry,
    case: Case,
    plain: KernelSpec,
    chunk: int | None,
    *,
    arch: str | None,
    measured_on: str,
    serves: bool,
) -> Fitted | None:
    """The spec that an entry of a case is for the problem of `plain`, or None if a GPU cannot run it well.

    An entry that serves the very dtype and order may spill registers: it was the fastest although it does. Any other
    may not, and where the whole dtype was not measured a kernel that does not takes its place.
    """
    unmeasured = case.dtype != plain.problem.dtype
    entered = fitted(plain, in_math(entry.schedule, case.math, plain.problem.math), chunk)
    light = None if entered is None else lightened(entered, arch, measured_on)
    spec = None if light is None else spared(light, arch, measured_on)
    if spec is not None and ((serves and not unmeasured) or not spills(spec)):
        return Fitted(spec, _unlike(spec, light, entered), entry.evidence)
    if not unmeasured or not TARGETS[plain.target].gpu or (other := block_that_fits(plain, chunk)) is None:
        return None
    family, dtype = entry.schedule.family, plain.problem.dtype
    why = f"its {family} kernel {'cannot be built' if spec is None else 'would spill registers'}"
    return Fitted(other, f"but in {dtype} {why}: the nearest kernel that fits", ())


def _unlike(spec: KernelSpec, light: KernelSpec | None, entered: KernelSpec | None) -> str:
    """How a spec differs from what was entered."""
    if spec != light:
        return CHANGED
    return "" if spec == entered else "with less ahead: there is less shared memory"


def fitted(plain: KernelSpec, schedule: Schedule, chunk: int | None) -> KernelSpec | None:
    """The spec with a schedule of another one's, or None if that cannot be built."""
    general = plain.problem.operation.general
    # Offsets of a chunk are constants; kernels of general matrices are measured on one chunk, and serve all.
    stride = chunk if general and chunk in range(2, MAX_CHUNK + 1) else None
    changes: dict[str, Any] = {} if schedule.stride in (None, chunk) else {"stride": stride}
    staged, canonical = getattr(schedule, "staged", None), plain.layout == "canonical"
    if TARGETS[plain.target].gpu and staged and not canonical and not general:
        changes["staged"] = None
    elif staged is False and canonical:
        changes["staged"] = True
    # A tile that fits the entry's order may be larger than this one.
    nb = getattr(schedule, "nb", None)
    smaller = {} if nb is None else {"nb": min(nb, plain.problem.n)}
    for fitting in (changes, changes | smaller):
        with suppress(SpecError):
            return replace(plain, schedule=replace(schedule, **fitting))
    return None
