"""A gate from end to end: proof, measurement within a budget, decisions, and what is kept."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import exp, isfinite
from pathlib import Path
from statistics import median
from typing import Any

from batchchol.artifacts.c_compiler import find_compiler
from batchchol.artifacts.nvcc import find_nvcc
from batchchol.asv_plugin.gate import cases, proof, sides
from batchchol.asv_plugin.gate.cases import Case, Commits
from batchchol.asv_plugin.gate.decide import Decision, decide, resolution, threshold
from batchchol.asv_plugin.gate.experiment import Found
from batchchol.asv_plugin.gate.history import Control, History
from batchchol.asv_plugin.gate.journal import Journal
from batchchol.asv_plugin.gate.measuring import CHANGED, FURTHER, Gathered, Measuring, Say
from batchchol.asv_plugin.gate.outcome import Answer, Outcome, Resolution, Verdict
from batchchol.asv_plugin.gate.settings import Settings
from batchchol.asv_plugin.gate.worker import Steady, Worker
from batchchol.errors import BatchcholError, CompilerNotFound

# What a tracked number may grow by: compile times vary, the others are exact.
TRACKED = {"seconds": 0.3, "ratio": 1.0}


def run(settings: Settings, machine: Mapping[str, Any], noise: History, say: Say) -> tuple[Answer, list[Control]]:
    """Compare two commits.

    Returns
    -------
    Answer, list of Control
        What the gate says, and what equal code measured against itself seemed to differ by.

    Raises
    ------
    BatchcholError
        If a commit cannot be measured at all; says why.
    """
    with ahead(settings, prepare(settings, say)) as prepared:
        return judge(settings, prepared, machine, noise, say)


def judge(
    settings: Settings, prepared: Prepared, machine: Mapping[str, Any], noise: History, say: Say
) -> tuple[Answer, list[Control]]:
    """Measure and decide what `prepare` found; see `run`.

    The journal stays until it is forgotten, when the answer is written.
    """
    begin, found = time.monotonic(), prepared.cases
    outcomes = {case.key: case.outcome for case in found if case.outcome is not None}
    measured: list[Gathered] = []
    alarms: list[Control] = []
    if settings.arch:
        changed = (case for case in found if case.outcome is None)
        outcomes |= {
            case.key: _outcome(case, Verdict.UNDECIDED, "changed, and not measured here") for case in changed
        }
    else:
        with Journal.open(settings) as journal:
            measuring = Measuring(settings.backend, journal, time.monotonic() + settings.budget, say)
            chosen, controls = _chosen(found, prove=settings.prove)
            measured = [Gathered(case, threshold(case.kind, noise.noise_of(case.key))) for case in chosen]
            beside = [Gathered(case, threshold(case.kind, noise.noise_of(case.key))) for case in controls]
            decisions = measuring.decide([*measured, *beside], prepared.pair, prepared.both)
            outcomes |= _outcomes(measured, decisions, found)
            equal = beside if settings.base != settings.head else measured
            alarms = _controls(equal, decisions, settings.head)
    told = (*noise.controls, *alarms)
    answer = Answer(
        settings.base,
        settings.head,
        machine,
        settings.profile,
        tuple(outcomes[case.key] for case in found),
        prepared.seconds + time.monotonic() - begin,
        settings.budget,
        _resolution(measured, told),
    )
    return answer, alarms


@dataclass(frozen=True)
class Prepared:
    """The cases, what starts the processes that measure them, and the seconds that it took."""

    cases: list[Case]
    pair: Callable[[], Worker]
    both: Callable[[], tuple[Worker, Worker]]
    seconds: float


def prepare(settings: Settings, say: Say) -> Prepared:
    """Check both commits out, ask them for their cases, and compile what is not proven to be equal.

    Raises
    ------
    BatchcholError
        If a commit cannot be measured at all, or there is no case.
    """
    begin = time.monotonic()
    commits = (settings.base, settings.head)
    checkouts = [sides.export(settings.folder, commit, settings.store / "checkouts") for commit in commits]
    caches = [settings.store / "cache" / _made_by(settings, checkout) for checkout in checkouts]
    options = {name: getattr(settings, name) for name in ("profile", "backend", "arch", "bench")}
    start = [
        partial(sides.start, settings.folder, checkout, cache, **options)
        for checkout, cache in zip(checkouts, caches, strict=True)
    ]
    with start[0]() as base, start[1]() as head:
        pair = Commits(base, head, (checkouts[0], checkouts[1]), (caches[0], caches[1]))
        found = cases.find(pair, prove=settings.prove)
    if not found:
        raise BatchcholError(f"bench: {settings.bench!r} matches no case of profile {settings.profile!r}")
    if not settings.arch:
        found = _prepare_calls(start, found)
    left = sum(case.outcome is None for case in found)
    say(f"{len(found)} cases, {left} to measure")

    def both() -> tuple[Worker, Worker]:
        first = start[0]()
        try:
            return first, start[1]()
        except BaseException:
            first.close()
            raise

    one = partial(sides.start_pair, settings.folder, settings.backend)
    return Prepared(found, one, both, time.monotonic() - begin)


@contextmanager
def ahead(settings: Settings, prepared: Prepared) -> Iterator[Prepared]:
    """What `prepare` found; the processes that measure a GPU's kernels are begun ahead, for all gates meanwhile."""
    kernels = any(case.outcome is None and case.kind == "kernel" for case in prepared.cases)
    if settings.backend != "cuda" or settings.arch or not kernels:
        yield prepared
        return
    with sides.Ahead(prepared.pair) as pair:
        yield replace(prepared, pair=pair)


def _made_by(settings: Settings, checkout: Path) -> str:
    """The name of a cache in which each source has one machine code: by the compiler, and how it is called."""
    try:
        compiler = (find_compiler if settings.backend == "cpu" else find_nvcc)().identity
    except CompilerNotFound:
        compiler = ""
    said = f"{proof.building(checkout)} {compiler} {settings.arch}"
    return sha256(said.encode()).hexdigest()[:16]


def _prepare_calls(start: Sequence[Callable[[], Worker]], found: list[Case]) -> list[Case]:
    """Have the kernels that calls use in the cache before they are timed; what fails or is skipped is decided."""
    if not any(case.outcome is None and case.kind == "call" for case in found):
        return found
    with Steady(start[0]) as base, Steady(start[1]) as head:
        return [cases.prepared(case, base, head) for case in found]


def _chosen(found: Sequence[Case], *, prove: bool) -> tuple[list[Case], list[Case]]:
    """One case of each that are measured alike, and controls: unchanged kernels whose code is known."""
    distinct = {case.identity: case for case in reversed(found) if case.outcome is None}
    chosen = [case for case in found if case.outcome is None and distinct[case.identity] is case]
    if not prove or not any(case.kind == "kernel" for case in chosen):
        return chosen, []
    unchanged = {
        case.identity: replace(case, outcome=None)
        for case in found
        if case.outcome is not None and case.outcome.verdict is Verdict.UNCHANGED and "payload" in case.base
    }
    return chosen, list(unchanged.values())[: cases.CONTROLS]


def _outcome(case: Case, verdict: Verdict, why: str) -> Outcome:
    return Outcome(case.key, case.kind, verdict, why)


def _outcomes(
    measured: Iterable[Gathered], decisions: Mapping[str, Decision], found: Sequence[Case]
) -> dict[str, Outcome]:
    """What was measured of each case, and of those that are the same measurement."""
    alike: dict[str, list[Case]] = defaultdict(list)
    for case in found:
        if case.outcome is None:
            alike[case.identity].append(case)
    made: dict[str, Outcome] = {}
    for evidence in measured:
        outcome = _tracked(evidence) if evidence.case.kind == "track" else _timed(evidence, decisions)
        for case in alike[evidence.case.identity]:
            made[case.key] = replace(outcome, key=case.key)
    return made


def _timed(evidence: Gathered, decisions: Mapping[str, Decision]) -> Outcome:
    case, decision = evidence.case, decisions.get(evidence.case.key)
    if evidence.failed:
        return _outcome(case, Verdict.FAILED, evidence.failed)
    if decision is None:
        return _outcome(case, Verdict.UNDECIDED, "the budget ended before it was measured")
    every = [*evidence.found, *evidence.fresh]
    bounded = isfinite(decision.high)
    return Outcome(
        case.key,
        case.kind,
        decision.verdict,
        _held_down(every) if bounded else "the budget ended after too few processes",
        decision.ratio,
        decision.low if bounded else None,
        decision.high if bounded else None,
        evidence.threshold,
        median(each.base for each in every),
        median(each.head for each in every),
        tuple(each.log_ratio for each in every),
        {
            "processes": [each.about for each in every],
            "machine_code": [side.get("fingerprint") for side in (case.base, case.head)],
            "source": [side.get("text_sha256") for side in (case.base, case.head)],
        },
    )


def _held_down(every: Sequence[Found]) -> str:
    """In how many processes a GPU was throttled, though they measured twice; empty if in none."""
    hot = [each.about["throttled"] for each in every if "throttled" in each.about]
    reasons = ", ".join(sorted({reason for reasons in hot for reason in reasons}))
    return f"the GPU's clock was held down in {len(hot)} of {len(every)} processes: {reasons}" if hot else ""


def _tracked(evidence: Gathered) -> Outcome:
    if evidence.failed:
        return _outcome(evidence.case, Verdict.FAILED, evidence.failed)
    if not evidence.found:
        return _outcome(evidence.case, Verdict.UNDECIDED, "the budget ended before it was measured")
    (found,) = evidence.found
    if lacking := found.about.get("skipped"):
        verdict = Verdict.SKIPPED if all(lacking) else Verdict.NEW if lacking[0] else Verdict.GONE
        return _outcome(evidence.case, verdict, next(filter(None, lacking)))
    allowed = TRACKED.get(str(found.about["unit"]), 0.0)
    ratio = exp(found.log_ratio)
    verdict = Verdict.SLOWER if ratio > 1 + allowed else Verdict.FASTER if ratio < 1 / (1 + allowed) else Verdict.SAME
    case = evidence.case
    return Outcome(
        case.key, case.kind, verdict, "", ratio, ratio, ratio, allowed, found.base, found.head, (), found.about
    )


def _controls(equal: Iterable[Gathered], decisions: Mapping[str, Decision], commit: str) -> list[Control]:
    date = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return [
        Control(
            date,
            commit,
            each.case.key,
            each.case.kind,
            each.so_far().estimate.location,
            each.so_far().estimate.error * len(each.found) ** 0.5,
            len(each.found),
            decisions[each.case.key].verdict in CHANGED,
        )
        for each in equal
        if each.case.key in decisions and len(each.found) >= FURTHER
    ]


def _resolution(measured: Sequence[Gathered], controls: Sequence[Control]) -> Resolution:
    timed = [each for each in measured if each.case.kind != "track" and each.found and not each.failed]
    every = decide([each.so_far() for each in timed])
    smallest = {
        kind: resolution(
            [made for each, made in zip(timed, every, strict=True) if each.case.kind == kind], len(timed)
        )
        for kind in ("kernel", "call")
    }
    return Resolution(sum(each.alarm for each in controls), len(controls), smallest["kernel"], smallest["call"])
