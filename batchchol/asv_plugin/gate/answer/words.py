"""How the gate puts it: the verdict in a sentence, numbers with their units, text that is safe to print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from batchchol.asv_plugin.gate.outcome import Answer, Outcome, Resolution, Verdict

TOLD = (Verdict.FAILED, Verdict.SLOWER, Verdict.UNDECIDED, Verdict.FASTER)
"""What a reader has to know of, the most urgent first."""
ORDER = (*TOLD, Verdict.SAME, Verdict.NEW, Verdict.GONE, Verdict.SKIPPED, Verdict.UNCHANGED)
_MEASURED = (Verdict.SLOWER, Verdict.UNDECIDED, Verdict.FASTER, Verdict.SAME)
_ALARMING = {Verdict.FAILED: ("failed", "failed"), Verdict.SLOWER: ("is slower", "are slower")} | {
    Verdict.UNDECIDED: ("is undecided", "are undecided")
}
_REASONS = 3
_CONFIDENCE = 0.95


def plain(text: str) -> str:
    """A text in one line, without control characters and whatever else XML and terminals do not take."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))


def in_order(outcomes: Iterable[Outcome], *verdicts: Verdict) -> list[Outcome]:
    """The outcomes of some verdicts, the most urgent first, within a verdict the largest change."""
    found = (outcome for outcome in outcomes if outcome.verdict in verdicts)
    return sorted(found, key=lambda each: (ORDER.index(each.verdict), -_distance(each.ratio), each.key))


def _distance(ratio: float | None) -> float:
    return 0.0 if ratio is None else abs(ratio - 1)


def sentence(answer: Answer) -> str:
    """The verdict, such as "nothing is slower: 57 cases unchanged by proof, 3 measured"."""
    if answer.failure:
        return f"the gate failed: {plain(answer.failure)}"
    count = Counter(outcome.verdict for outcome in answer.outcomes)
    proven, measured = count[Verdict.UNCHANGED], sum(count[verdict] for verdict in _MEASURED)
    evidence = f"{_cases(proven)} unchanged by proof, {measured} measured"
    alarms = [
        f"{count[verdict]} {words[count[verdict] > 1]}" for verdict, words in _ALARMING.items() if count[verdict]
    ]
    if alarms:
        number, rest = alarms[0].split(" ", 1)
        return f"{', '.join([f'{_cases(int(number))} {rest}', *alarms[1:]])}: {evidence}"
    return f"{'nothing is slower' if proven or measured else 'nothing was compared'}: {evidence}"


def _cases(count: int) -> str:
    return f"{count:,} case{'s' * (count != 1)}"


def change(outcome: Outcome) -> str:
    """The change in words, such as "+4.8% (+4.1 … +5.5%)"; empty if nothing was measured."""
    if outcome.ratio is None:
        return ""
    if outcome.low is None or outcome.high is None:
        return f"{_percent(outcome.ratio)}%"
    return f"{_percent(outcome.ratio)}% ({_percent(outcome.low)} … {_percent(outcome.high)}%)"


def _percent(ratio: float) -> str:
    # Adding zero makes a plus of the minus that rounding leaves.
    return f"{round(100 * (ratio - 1), 1) + 0.0:+,.1f}"


def amount(outcome: Outcome, value: float | None) -> str:
    """A time in a unit that suits it, or a number that is tracked in its own; empty if there is none."""
    if value is None:
        return ""
    return f"{value:,.6g} {outcome.about.get('unit', '')}".rstrip() if outcome.kind == "track" else _time(value)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{_four(seconds / size)} {unit}"
    return f"{_four(seconds * 1e9)} ns"


def _four(value: float) -> str:
    """A number with four digits, zeros at its end included."""
    return f"{value:#.4g}".rstrip(".")


def notes(answer: Answer) -> list[str]:
    """What to know beside the cases: how many of each, what the machine can show, how often it erred, the time."""
    lines = (_counts(answer), _skipped(answer), _smallest(answer.resolution), _alarms(answer.resolution))
    return [*filter(None, lines), f"took {answer.seconds:,.0f} s; {answer.budget:,.0f} s were allowed for measuring"]


def _counts(answer: Answer) -> str:
    count = Counter(outcome.verdict for outcome in answer.outcomes)
    return ", ".join(f"{count[verdict]:,} {verdict.value}" for verdict in ORDER if count[verdict])


def _skipped(answer: Answer) -> str:
    """The most frequent reasons for skipping."""
    reasons = Counter(plain(each.why) for each in answer.outcomes if each.verdict is Verdict.SKIPPED and each.why)
    shown = [f"{count:,} × {reason}" for reason, count in reasons.most_common(_REASONS)]
    return f"skipped: {'; '.join(shown)}{'; …' * (len(reasons) > _REASONS)}" if shown else ""


def _smallest(resolution: Resolution) -> str:
    sizes = {"kernels": resolution.kernels, "calls": resolution.calls}
    shown = ", ".join(f"{kind} {100 * size:.2g}%" for kind, size in sizes.items() if size is not None)
    return f"smallest slowdown that this machine shows: {shown}" if shown else ""


def _alarms(resolution: Resolution) -> str:
    if not resolution.controls:
        return ""
    from scipy.stats import binomtest

    alarms, controls = resolution.alarms, resolution.controls
    interval = binomtest(alarms, controls).proportion_ci(_CONFIDENCE, method="wilson")
    rates = f"{alarms / controls:.1%} ({100 * interval.low:.1f} … {interval.high:.1%}, Wilson, {_CONFIDENCE:.0%})"
    return f"false alarms: {alarms:,} of {controls:,} controls, {rates}"
