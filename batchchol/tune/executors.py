"""Where a space is compiled and measured: by this process and a worker of its own, or on a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from batchchol.backends import DEFAULT_BACKEND, chosen_backend
from batchchol.measure import dataset, process
from batchchol.measure.bench import Settings
from batchchol.measure.dataset import DataSet
from batchchol.measure.point import Point
from batchchol.measure.process import Measurer
from batchchol.tune import compile
from batchchol.tune.compile import Built
from batchchol.tune.sweep import Summary, sweep

if TYPE_CHECKING:
    from batchchol.tune.cluster.measure import Seats


@contextmanager
def place(arguments: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> Iterator[Place]:
    """The place that the command line names.

    Parameters
    ----------
    arguments : Namespace
        See `cli.tune.space.add_arguments`.
    folder : Path
        The data set's, which may be of one of a cluster's devices.
    say : callable
        Called with sentences about which workers of a cluster take part, and which do not.
    """
    backend = chosen_backend(arguments.backend) or DEFAULT_BACKEND
    settings = Settings(samples=arguments.samples)
    if not arguments.cluster:
        with Measurer(backend, settings=settings, time_limit=arguments.time_limit) as measurer:
            yield Here(measurer)
        return
    # Without dask there is no cluster, and no need for it.
    from batchchol.tune.cluster.compile import ClusterCompilers
    from batchchol.tune.cluster.measure import Seats
    from batchchol.tune.cluster.remote import Setup
    from batchchol.tune.cluster.workers import LOCAL, connect

    workers = arguments.workers if arguments.cluster == LOCAL else None
    with connect(arguments.cluster, backend=backend, workers=workers, threads=arguments.jobs, say=say) as crew:
        setup = Setup(backend, settings, arguments.time_limit, process.BENCH)
        seats = Seats(crew, setup, ClusterCompilers(crew), arguments.workers or 1)
        if not arguments.compile_only:
            seats.open()
            # Workers that have the device of the data set, if there already is one.
            seats.choose(dataset.device_of(folder))
            those = f"{len(seats.ready)} measure ({seats.device})"
            say(f"workers: {len(crew.members)}, of which {those}; others may join")
        yield seats


class Here:
    """One device of this machine, on which `measurer` runs the points."""

    def __init__(self, measurer: Measurer) -> None:
        self.measurer = measurer

    @property
    def device(self) -> str:
        """The device that is measured: the name of the GPU, or of the CPU."""
        return str(self.measurer.about()["device"])

    def facts(self) -> Mapping[str, Any]:
        """What a search space needs to know about it; see `Bench.facts`."""
        return self.measurer.facts()

    def build(self, points: Sequence[Point], arch: str | None, **limits: Any) -> Built:
        """See `compile.build`."""
        return compile.build(points, arch, **limits)

    def sweep(self, points: Sequence[Point], data: DataSet, **options: Any) -> Summary:
        """See `batchchol.tune.sweep.sweep`."""
        return sweep(points, self.measurer, data, **options)


Place: TypeAlias = "Here | Seats"
"""Compiles and measures points."""
