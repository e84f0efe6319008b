"""What every question shares: which of its points are measured, and why the others are skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

from . import grid, library, profiles


@contextmanager
def skipping() -> Iterator[None]:
    """Turn what cannot be built, or not on this machine, into a skip with the reason; the rest fails."""
    try:
        yield
    except (
        library.BackendUnavailable,
        library.CompilerNotFound,
        library.OutOfMemory,
        library.SpecError,
    ) as error:
        raise SkipNotImplemented(str(error)) from error


class Question:
    """Base of the suite's classes.

    A class declares its parameters as keywords: `names` are asv's `param_names`, by default those of its base class,
    and each other keyword is a parameter and its values; a parameter that is not among the names follows them. What
    is not named has the grid's single default.

    asv derives a benchmark's version from its source and drops the results of other versions. `version` is
    set by hand instead, so that an edit keeps the suite's history: raise it when something else is measured.
    """

    params: tuple[tuple[Any, ...], ...] = ()
    param_names = grid.AXES
    version = "2"
    timeout = 300
    # `asv continuous` interleaves the rounds of its two commits, against drift of the machine's clock.
    rounds = 1 if profiles.profile() == "quick" else 2

    def __init_subclass__(cls, names: Sequence[str] = (), **varied: Sequence[Any]) -> None:
        super().__init_subclass__()
        if varied:
            known = tuple(names) or cls.param_names
            cls.param_names = (*known, *(name for name in varied if name not in known))
            cls.params = grid.axes(cls.param_names, **varied)

    def setup(self, *values: Any) -> None:
        """Find the point that is measured, and prepare it."""
        self.named = self.selected(*values)
        self.point = grid.point_of(self.named)
        self.prepare()

    def prepare(self) -> None:
        """Make ready what is measured at `point`."""

    def selected(self, *values: Any) -> dict[str, Any]:
        """The parameters by name.

        Raises
        ------
        SkipNotImplemented
            If this run does not measure the point, or the commit cannot be measured at all.
        """
        named = dict(zip(self.param_names, values, strict=True))
        if reason := profiles.left_out(profiles.profile(), type(self).__name__, named):
            raise SkipNotImplemented(reason)
        if library.MISSING:
            raise SkipNotImplemented(library.MISSING)
        return named

    def points(self, backend: str) -> Iterator[dict[str, Any]]:
        """The parameters of all points that this run measures on a backend, in asv's order."""
        return profiles.kept_points(profiles.profile(), type(self).__name__, self.param_names, self.params, backend)
