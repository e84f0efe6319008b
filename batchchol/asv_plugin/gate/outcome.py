"""What the gate says of a case, and of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Verdict(Enum):
    """What became of a case."""

    UNCHANGED = "unchanged"
    """Proven: the same machine code, launched alike on the same data, or the same Python. Not measured."""
    SAME = "same"
    """Measured: no further from equal than what counts as a change."""
    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    """Measured, and the budget ended before the interval was narrow enough."""
    NEW = "new"
    """There is nothing of the base to compare with."""
    GONE = "gone"
    """The base has it and the head has not."""
    SKIPPED = "skipped"
    """Neither commit can run it on this machine."""
    FAILED = "failed"
    """It could not be built, crashed, or gave a wrong result."""


@dataclass(frozen=True)
class Outcome:
    """What the gate says of one case.

    Attributes
    ----------
    key : str
        The case: asv's name of the benchmark and its parameters, such as "Defaults.device_factor(n=8)".
    kind : {"kernel", "call", "track"}
        How it is measured: both commits in one process, in fresh processes in turn, or as one number of each commit.
    verdict : Verdict
    why : str
        One sentence: what proves it, what failed; empty where the numbers say it.
    ratio, low, high : float or None
        The head's time over the base's, and its confidence interval; None if nothing was measured.
    threshold : float
        The ratio, less 1, that counts as a change for this case.
    base_seconds, head_seconds : float or None
        Median times: of one call, or of the quantity that is tracked.
    log_ratios : tuple of float
        The logarithm of the ratio that each process found.
    about : mapping
        What else the record says: sources, machine code, clocks, throttling; JSON values.
    """

    key: str
    kind: str
    verdict: Verdict
    why: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float = 0.0
    base_seconds: float | None = None
    head_seconds: float | None = None
    log_ratios: tuple[float, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolution:
    """What the gate can tell on this machine, by its own controls (equal code against itself) and its evidence.

    Attributes
    ----------
    alarms, controls : int
        False alarms, and the controls among which they occurred, of this gate and of the machine's history.
    kernels, calls : float or None
        The smallest slowdown, as a ratio less 1, that half of the measured cases of the kind would have shown; None
        if none was measured.
    """

    alarms: int = 0
    controls: int = 0
    kernels: float | None = None
    calls: float | None = None


@dataclass(frozen=True)
class Answer:
    """What the gate says of a commit.

    Attributes
    ----------
    base, head : str
        The commits' hashes.
    machine : mapping
        What was measured on: JSON values.
    profile : str
        Which cases there were: see `benchmarks.harness.profiles`.
    outcomes : tuple of Outcome
    seconds, budget : float
        What it took, and what it was allowed for measuring.
    resolution : Resolution
    failure : str
        Why the gate as a whole failed, such as a commit that cannot be imported; empty if it did not.
    """

    base: str
    head: str
    machine: Mapping[str, Any]
    profile: str
    outcomes: tuple[Outcome, ...]
    seconds: float
    budget: float
    resolution: Resolution = Resolution()
    failure: str = ""

    @property
    def status(self) -> int:
        """The exit status: 2 something failed, else 1 something is slower, 3 undecided, 0 nothing is slower."""
        found = {outcome.verdict for outcome in self.outcomes}
        if self.failure or Verdict.FAILED in found:
            return 2
        if Verdict.SLOWER in found:
            return 1
        return 3 if Verdict.UNDECIDED in found else 0
