"""The cases of a gate: what both commits have of each benchmark and point, and what needs no measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batchchol.asv_plugin.gate import proof
from batchchol.asv_plugin.gate.outcome import Outcome, Verdict
from batchchol.asv_plugin.gate.worker import Lost, Refused, Steady, Worker

Described = Mapping[str, Any]
CONTROLS = 3
"""Unchanged kernels that are measured beside those that changed, to see what this machine makes of equal code."""
_WHERE = ("layout", "batch", "threads", "nrhs")


@dataclass(frozen=True)
class Case:
    """A benchmark at a point, in both commits.

    Attributes
    ----------
    key, kind : str
        See :class:`~batchchol.asv_plugin.gate.outcome.Outcome`.
    base, head : mapping
        What each commit says of it: its kernel, if it is about one (see `benchmarks.harness.side`), with the file of
        its machine code as `payload`. Empty if the commit has no such case.
    outcome : Outcome or None
        What is known without measuring.
    """

    key: str
    kind: str
    base: Described = field(default_factory=dict)
    head: Described = field(default_factory=dict)
    outcome: Outcome | None = None

    def known(self, verdict: Verdict, why: str) -> Case:
        """The case, decided."""
        return replace(self, outcome=Outcome(self.key, self.kind, verdict, why))

    @property
    def identity(self) -> str:
        """What is measured: cases that have it in common are one measurement."""
        if self.kind != "kernel":
            return self.key
        return str([[side[name] for name in ("payload", "spec", *_WHERE)] for side in (self.base, self.head)])


@dataclass(frozen=True)
class Commits:
    """The two commits: a process of each, and what it was started from."""

    base: Worker
    head: Worker
    checkouts: tuple[Path, Path]
    caches: tuple[Path, Path]


def find(commits: Commits, *, prove: bool) -> list[Case]:
    """All cases, those decided that need no measurement; with `prove`, by what both commits would run."""
    base, head = commits.base.ask("describe"), commits.head.ask("describe")
    found = [_case(key, base.get(key), head.get(key)) for key in dict.fromkeys([*base, *head])]
    alike = prove and proof.calls_alike(*commits.checkouts)
    builds_alike = commits.caches[0] == commits.caches[1]
    found = [_proven(case, alike, builds_alike) if prove else case for case in found]
    built = _built(commits, found)
    return [_compared(case) if prove else case for case in built]


def _case(key: str, base: Described | None, head: Described | None) -> Case:
    present: Described = head or base or {}
    return _known(Case(key, present["kind"], base or {}, head or {}), base, head)


def _known(case: Case, base: Described | None, head: Described | None) -> Case:
    """The case, decided if a commit lacks it or fails to say what it is."""
    if base is None or "skipped" in base:
        if head is None or "skipped" in head:
            return case.known(Verdict.SKIPPED, (head or base or {}).get("skipped", ""))
        return case.known(Verdict.NEW, _lacking("base", base))
    if head is None or "skipped" in head:
        return case.known(Verdict.GONE, _lacking("head", head))
    if failed := base.get("failed") or head.get("failed"):
        return case.known(Verdict.FAILED, failed)
    return case


def _lacking(commit: str, described: Described | None) -> str:
    return f"the {commit} cannot run it: {described['skipped']}" if described else f"the {commit} has no such case"


def _proven(case: Case, calls_alike: bool, builds_alike: bool) -> Case:
    """The case, decided if its sources prove that nothing changed."""
    if case.outcome is not None:
        return case
    if "spec" in case.base:
        if builds_alike and proof.written_alike(case.base, case.head):
            return case.known(Verdict.UNCHANGED, "the same source, flags and compiler")
    elif calls_alike:
        return case.known(Verdict.UNCHANGED, "the same Python code, tables and templates")
    return case


def _built(commits: Commits, found: Sequence[Case]) -> list[Case]:
    """The cases with the machine code of their kernels, or why there is none."""
    keys = [case.key for case in found if case.outcome is None and "spec" in case.base]
    keys += _controls(found) if keys else []
    failed = [side.ask("build", limit=3600.0, keys=keys) for side in (commits.base, commits.head)]
    why = {key: reason for fails in reversed(failed) for key, reason in fails.items()}
    records = [proof.read_records(cache) for cache in commits.caches]
    return [
        case.known(Verdict.FAILED, why[case.key])
        if case.key in why
        else _with_code(case, records)
        if case.key in keys
        else case
        for case in found
    ]


def prepared(case: Case, base: Steady, head: Steady) -> Case:
    """The case; a call that a commit lacks or fails to prepare is decided. What it compiles is in the cache then."""
    if case.outcome is not None or case.kind != "call":
        return case
    lacking = []
    for name, side in (("base", base), ("head", head)):
        try:
            lacking.append(side.ask("prepare", key=case.key))
        except (Refused, Lost) as error:
            return case.known(Verdict.FAILED, f"{name}: {error}")
    described = zip(lacking, (case.base, case.head), strict=True)
    return _known(case, *({"skipped": why} if why else side for why, side in described))


def _controls(found: Sequence[Case]) -> list[str]:
    """A few kernels, far from each other, whose sources are equal: measured beside the others."""
    equal = [
        case.key
        for case in found
        if case.outcome is not None and case.outcome.verdict is Verdict.UNCHANGED and case.kind == "kernel"
    ]
    return equal[:: max(len(equal) // CONTROLS, 1)][:CONTROLS]


def _with_code(case: Case, records: Sequence[proof.Records]) -> Case:
    sides = []
    for name, side, known in zip(("base", "head"), (case.base, case.head), records, strict=True):
        code = proof.find_code(known, side)
        if code is None:
            return case.known(Verdict.FAILED, f"{name}: it was built, but its machine code is not in the cache")
        sides.append({**side, "payload": str(code.path), "fingerprint": code.fingerprint})
    return replace(case, base=sides[0], head=sides[1])


def _compared(case: Case) -> Case:
    """The case, decided if its machine code proves that nothing changed."""
    base, head = case.base, case.head
    if case.outcome is not None or "fingerprint" not in base:
        return case
    if base["fingerprint"] == head["fingerprint"] and proof.launched_alike(base, head):
        return case.known(Verdict.UNCHANGED, "other source, the same machine code")
    return case
