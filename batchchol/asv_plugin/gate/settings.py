"""What a gate is asked: which commits, compared how, and where its results are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """What is compared, how, and where results are kept.

    Attributes
    ----------
    folder : Path
        The clone: its suite, its repository; what is kept is in its .asv/gate.
    base, head : str
        Commits, by their hashes.
    profile, backend : str
    arch : str or None
        With one, GPU kernels are compiled for it and compared, and nothing is measured.
    bench : str
        A regular expression: of the cases, those whose keys it matches somewhere.
    prove : bool
        Whether what is proven equal is left unmeasured.
    budget : float
        Seconds for measuring.
    """

    folder: Path
    base: str
    head: str
    profile: str
    backend: str
    arch: str | None = None
    bench: str = ""
    prove: bool = True
    budget: float = 600.0

    @property
    def store(self) -> Path:
        """The folder of checkouts, machine code and journals."""
        return self.folder / ".asv" / "gate"
