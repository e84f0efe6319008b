"""From claims to what has to be measured for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from batchchol.compare.contenders import SINGLE
from batchchol.compare.peers import PEERS
from batchchol.compare.rows import Row
from batchchol.errors import BatchcholError
from batchchol.report.claims.listed import Claim, Listed
from batchchol.report.claims.quantities import AnyRow, Side

_RELATIVE = ("speedup", "least", "most")
_BOTH_MATHS = ("fast", "ieee")


@dataclass(frozen=True)
class Case:
    """A point of a comparison; `protocol` is the backend's name of it, `threads` are the host's."""

    backend: str
    op: str
    n: int
    nrhs: int
    batch: int
    dtype: str
    threads: int
    protocol: str

    @classmethod
    def of(cls, row: Row) -> Case:
        """The case of a row."""
        backend, protocol = ("cuda", row.protocol) if row.on_gpu else ("cpu", SINGLE[0])
        return cls(backend, row.op, row.n, row.nrhs, row.batch, row.dtype, row.threads, protocol)

    def __str__(self) -> str:
        columns = f", nrhs = {self.nrhs}" if self.nrhs > 1 else ""
        how = f"{self.threads} thread{'s' * (self.threads > 1)}" if self.backend == "cpu" else self.protocol
        return f"{self.op}, n = {self.n}{columns}, batch {self.batch:,}, {self.dtype}, {how}"

    def values(self) -> dict[str, Any]:
        """The case as a record has it."""
        return asdict(self)


@dataclass(frozen=True)
class Asked:
    """Who takes part in the measurement of a case: names of contenders, and accuracy classes of GPU kernels."""

    contenders: frozenset[str] = frozenset()
    maths: tuple[str, ...] = ()

    def __or__(self, other: Asked) -> Asked:
        return Asked(self.contenders | other.contenders, tuple(sorted({*self.maths, *other.maths})))

    def covers(self, other: Asked) -> bool:
        """Whether rows of this are enough for the other; names of contenders depend on the classes."""
        return self.contenders >= other.contenders and self.maths == other.maths


def chosen(listed: Listed, patterns: Iterable[str]) -> list[Claim]:
    """The claims whose names match one of some patterns, such as `epyc/n8/*`; all of them if there is no pattern.

    Raises
    ------
    BatchcholError
        If no claim matches a pattern.
    """
    wanted = list(patterns) or ["*"]
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in listed.claims):
            raise BatchcholError(
                f"--only: got {pattern!r}, no claim of a comparison: docs/claims.md says how to list them"
            )
    return [claim for name, claim in listed.claims.items() if any(fnmatchcase(name, each) for each in wanted)]


def is_relative(claim: Claim) -> bool:
    """Whether it is a ratio to peers of the same run."""
    return claim.quantity.partition(":")[0] in _RELATIVE


def side_of(claim: Claim) -> Side:
    """The published rows of a claim."""
    return claim.group.side(claim.group.rows, claim.point).narrowed(claim.quantity)


def rows_of(claim: Claim) -> list[AnyRow]:
    """The published rows that its value is made of; with the number of another contender the best of its own side.

    Without any of its own side rows are not of the claim.
    """
    side = side_of(claim)
    best = claim.group.side(claim.group.rows, claim.point).best
    return [*side.own, *([] if best in side.own else [best]), *(side.peers if is_relative(claim) else ())]


def compared(claim: Claim) -> list[Row]:
    """The cases of a comparison: all of them, or none where other commands measured the claim."""
    return [row for row in rows_of(claim) if isinstance(row, Row)]


def cases_of(claim: Claim) -> dict[Case, Asked]:
    """What it needs: all of these together."""
    found = dict[Case, Asked]()
    for row in compared(claim):
        case = Case.of(row)
        found[case] = found.get(case, Asked()) | Asked(frozenset([row.contender]), _maths(claim, row))
    return found


def needed(claims: Iterable[Claim]) -> Mapping[Case, Asked]:
    """What all of them need, each case once, in the order of the claims."""
    found = dict[Case, Asked]()
    for claim in claims:
        for case, asked in cases_of(claim).items():
            found[case] = found.get(case, Asked()) | asked
    return found


def missing(claim: Claim, absent: Mapping[str, str]) -> str:
    """Why it cannot be measured without some contenders, which are given with the reason; "" if it can.

    A ratio to the best of several peers still can if the one that was the fastest is there.
    """
    side = side_of(claim)
    decisive = {row.contender for row in side.own if isinstance(row, Row)}
    if is_relative(claim):
        decisive |= {each.best_peer.contender for each in side.cases()}
    return "; ".join(f"{name}: {absent[name]}" for name in sorted(decisive & absent.keys()))


def _maths(claim: Claim, row: Row) -> tuple[str, ...]:
    """The accuracy classes of a comparison in which a contender has its published name.

    With several classes the names of kernels say theirs. With one, calls from array to array may be of another.
    """
    if not row.on_gpu:
        return ()
    own = [each for each in claim.group.rows if isinstance(each, Row) and each.contender not in PEERS["cuda"]]
    if {each.contender.rpartition(" ")[2] for each in own} & set(_BOTH_MATHS):
        return _BOTH_MATHS
    return ("fast",) if any(each.math == "fast" for each in own) else ("ieee",)
