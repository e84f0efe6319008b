"""`python -m batchchol tune`: measure on this machine what is fastest, and have the library use it.

One case in under a minute (`case`), a whole search space (`space`), or, into a file of its own,
every schedule of the families asked for.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from batchchol.backends import Backend, get_backend
from batchchol.batches.host_memory import require_memory
from batchchol.batches.sizes import architecture, counts, matrices, names, orders, positive, sizes
from batchchol.cli import interrupts
from batchchol.cli.laboratory.tune import case, larger, search, space
from batchchol.cli.options import BACKEND, declare, option
from batchchol.defaults import tables
from batchchol.errors import BatchcholError, DataFileError
from batchchol.files import check_writable, read_file, replace_file
from batchchol.measure.bench import FEW_POINTS
from batchchol.measure.csv_file import append, check_appendable
from batchchol.measure.dataset import read_correct
from batchchol.measure.plan_rows import is_of_plans
from batchchol.measure.process import Measurer
from batchchol.measure.provenance import about
from batchchol.measure.row import Row
from batchchol.progress import ProgressDisplay
from batchchol.tune import candidates, tuning
from batchchol.tune.choosing import make_tables
from batchchol.tune.choosing.evidence import with_evidence
from kernelgen import KernelSpec
from kernelgen.problem import LAYOUT_KINDS, MATHS
from kernelgen.schedules import FAMILIES

_Pools = Mapping[tuple[int, str, str], Sequence[KernelSpec]]

ORDERS = "2,3,4,5,6,7,8,10,12,14,16,20,24,28,32,40,48,64,80,100,128"

_HEADER = f"{'n':>4} {'batch':>10} {'best schedule':52} {'ns/matrix':>10} {'GFLOP/s':>9} {'spread':>6} {'ratio':>6}"
_DEFAULTS = {
    "n": orders(ORDERS),
    "dtype": "float32",
    "math": ["ieee"],
    "family": "thread",
    "layout": ["chunked"],
    "batch": ["16384"],
    "out": Path("tune.csv"),
    "threads": 1,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is measured and where the results go."""
    declare(
        parser,
        BACKEND,
        option("--n", type=counts, help="orders, such as 8,16-20; above 128: how to factor them on a GPU"),
        option("--dtype", choices=("float32", "float64"), help="default: float32"),
        option("--math", type=names(MATHS), metavar="LIST", help="default: ieee"),
        option("--family", choices=(*FAMILIES, "all"), help="kernels to measure (default: all)"),
        option("--layout", type=names(LAYOUT_KINDS), metavar="LIST", help="default: those of arrays and of batches"),
        option("--target", help="instruction set (default: this machine's widest)"),
        option(
            "--batch",
            type=sizes,
            help="matrices, or memory to fill, such as 2GiB; comma-separated (default: 16384)",
        ),
        option("--threads", type=positive, help="of the host (default: all for one case, else 1)"),
        option(
            "--arch",
            type=architecture,
            help="GPU architecture, such as sm_90, that the points of --from were measured on, or to compile for",
        ),
    )
    case.add_arguments(parser)
    space.add_arguments(parser)
    search.add_arguments(parser)
    _add_files(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "files",
        "With --out or --table every schedule of --family (default: thread) and --layout (default: chunked) is "
        f"measured, of all orders ({ORDERS}) if --n is not given; the user's table is left alone.",
    )
    declare(
        group,
        option("--out", type=Path, help="every point, appended (with --table the default is tune.csv)"),
        option(
            "--from",
            dest="source",
            type=Path,
            nargs="+",
            metavar="FILE",
            help="measure nothing: choose from the points in these files, for --table",
        ),
        option(
            "--table",
            type=Path,
            help="write the winners as a table of defaults (JSON) here; a file of tables keeps what was not measured",
        ),
        option(
            "--keep-choices",
            action="store_true",
            help="with --from: keep the table's choices, and only add what was measured of them",
        ),
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what the options ask for: a space, a table out of files, every schedule into a file, or single cases."""
    if larger.is_larger(arguments.n):
        return larger.run(arguments)
    search.wanted(arguments)
    if arguments.arch and not (arguments.source or arguments.compile_only):
        raise BatchcholError(
            f"--arch: got {arguments.arch!r} without --from or --compile-only; points are measured on this machine: "
            "leave it out"
        )
    if arguments.space or arguments.data or arguments.t4 or arguments.cluster or arguments.workers:
        arguments.threads = arguments.threads or _DEFAULTS["threads"]
        return space.run(arguments, _narrowing(arguments))
    if arguments.source:
        return _choose(arguments)
    if arguments.keep_choices:
        raise BatchcholError("--keep-choices: got no --from, say which files have the measurements")
    if arguments.out or arguments.table:
        return _measure_all(arguments)
    return case.run(arguments)


def _measure_all(arguments: argparse.Namespace) -> int:
    """Measure order by order; the rows of each order and batch are on disk before the next begins."""
    for name, value in _DEFAULTS.items():
        setattr(arguments, name, getattr(arguments, name) or value)
    check_appendable(arguments.out)
    if arguments.table:
        _check_table(arguments.table)
    backend = get_backend(arguments.backend)
    for n, size in itertools.product(arguments.n, arguments.batch):
        require_memory(matrices(size, n, arguments.dtype), n, arguments.dtype, backend.free_bytes())
    pools = _pools(arguments, arguments.target or backend.target)
    with ProgressDisplay(sys.stderr, "compiling") as display:
        # What fails is found again, and recorded, when it is measured.
        backend.build([spec for specs in pools.values() for spec in specs], progress=display)
    print(_HEADER)
    rows = list(_measured(arguments, backend, pools))
    if arguments.table:
        _write_table(arguments.table, rows, backend.architecture)
    return 0


def _pools(arguments: argparse.Namespace, target: str) -> _Pools:
    """The candidates for each order, math and layout, if there are any."""
    families = case.families(arguments.family, target)
    return {
        (n, math, layout): specs
        for n, math, layout in itertools.product(arguments.n, arguments.math, arguments.layout)
        if (specs := candidates.specs(n, arguments.dtype, math, target, families, layout))
    }


def _measured(arguments: argparse.Namespace, backend: Backend, pools: _Pools) -> Iterator[Row]:
    """The rows of every pool and batch, each pool's kept in the file before the next begins."""
    origin = about(backend)
    done = (
        f"what was measured is in {arguments.out}: leave out the orders that it has, and --from makes a table of it"
    )
    with (
        interrupts.advice(done),
        Measurer(backend.name, settings=FEW_POINTS, time_limit=arguments.time_limit) as measurer,
    ):
        for ((n, _, _), specs), size in itertools.product(pools.items(), arguments.batch):
            batch = matrices(size, n, arguments.dtype)
            found: list[Row] = []
            try:
                for row in tuning.measure(backend, specs, batch, arguments.threads, measurer.measure):
                    found.append(row)
            finally:
                append(arguments.out, found, origin)
            _print(tuning.best(found))
            yield from found


def _narrowing(arguments: argparse.Namespace) -> dict[str, list[object] | None]:
    """The values of a space's points that were asked for."""
    if any(not size.isdecimal() for size in arguments.batch or ()):
        raise BatchcholError(f"--batch: got {','.join(arguments.batch)}, expected numbers of matrices of the space")
    return {
        "n": arguments.n,
        "dtype": arguments.dtype and [arguments.dtype],
        "math": arguments.math,
        "layout": arguments.layout,
        "family": [arguments.family] if arguments.family not in (None, "all") else None,
        "batch": arguments.batch and [int(size) for size in arguments.batch],
    }


def _choose(arguments: argparse.Namespace) -> int:
    """Make the table of defaults from files of rows."""
    if not arguments.table:
        raise BatchcholError("--from: got no --table, say which file the table of defaults goes to")
    if all(map(is_of_plans, arguments.source)):
        return larger.choose(arguments.source, arguments.table)
    _check_table(arguments.table)
    rows = [row for path in arguments.source for row in read_correct(path)]
    if arguments.keep_choices:
        _put_evidence(arguments.table, rows)
    else:
        _write_table(arguments.table, rows, arguments.arch)
    return 0


def _write_table(path: Path, rows: Sequence[Row], arch: str | None) -> None:
    """Put the winners into a file of tables, which may be there already."""
    known = _tables(path)
    found = make_tables.tables_of(rows, arch)
    for table in found:
        known[table.name] = known[table.name].updated(table) if table.name in known else table
    replace_file(path, tables.render(known.values()).encode())
    for table in found:
        count = sum(len(entries) for entries in table.cases.values())
        print(f"{path}: {count} entries for {table.name}")


def _put_evidence(path: Path, rows: Sequence[Row]) -> None:
    """Put into a file of tables what the rows say of its choices, and nothing else."""
    targets = {row.spec.target for row in rows}
    known = {name: with_evidence(t, rows) if t.target in targets else t for name, t in _tables(path).items()}
    entries = [entry for table in known.values() for found in table.cases.values() for entry in found]
    replace_file(path, tables.render(known.values()).encode())
    print(f"{path}: {sum(bool(entry.evidence) for entry in entries)} of {len(entries)} entries have measurements")


def _check_table(path: Path) -> None:
    """Refuse a file into which no tables can be put, before anything is measured for it."""
    check_writable(path)
    _tables(path)


def _tables(path: Path) -> dict[str, tables.Table]:
    """The tables of a file, none if there is no such file."""
    try:
        return tables.parse(read_file(path).decode()) if path.exists() else {}
    except OSError as error:
        raise DataFileError(path, "reading", error.strerror or str(error)) from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise DataFileError(path, "reading", f"not a file of tables ({error!r}): choose another one") from error


def _print(row: Row) -> None:
    spec, batch = row.spec, row.point.batch
    print(
        f"{spec.problem.n:4} {batch:10,} {case.short_name(spec):52} {row.median_seconds / batch * 1e9:10.2f} "
        f"{row.gflops:9.2f} {row.spread:6.1%} {row.ratio:6.3f}",
        flush=True,
    )
