"""What the gate was shown to find, and not to: the tables of docs/gate.md, from the data that were measured.

    python -m tests.gate.evidence                       # print them
    python -m tests.gate.evidence --collect FOLDER CSV  # make the data of planted slowdowns from answers
    python -m tests.gate.evidence --commits CSV ANSWER ...  # make the data of real commits from answers (gate.json)

FOLDER has an answer (gate.json) in each of its folders, named after what was planted: k3_1 is the first gate with 3%
in kernels, c10_2 the second with 10% in calls. `tests.gate.planted` makes the commits, `python -m batchchol noise`
the data of equal ones.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import expm1
from pathlib import Path
from statistics import geometric_mean

from batchchol.asv_plugin.gate.answer import from_json
from batchchol.asv_plugin.gate.history import read_history, wilson
from batchchol.asv_plugin.gate.outcome import Outcome, Verdict

DATA = Path(__file__).resolve().parents[2] / "datasets" / "gate"
_CASE = ("key", "verdict", "ratio", "low", "high", "processes", "seconds")
PLANTED = ("where", "percent", "gate", *_CASE)
COMMITS = ("commit", "base", *_CASE)
# A planted case counts as slower if all its gates together say so by this ratio.
SLOWER = 1.02
_WHERE = {"k": "kernel", "c": "call"}
_CHANGED = ("kernel", "call")


def collect(folder: Path, out: Path) -> None:
    """One row for each case of each planted gate that was measured."""
    made = []
    for path in sorted(folder.glob("*/gate.json")):
        planted, _, gate = path.parent.name.partition("_")
        answer = from_json(path.read_text(encoding="utf-8"))
        for each in answer.outcomes:
            if each.ratio is not None and each.kind in _CHANGED:
                made.append((_WHERE[planted[0]], planted[1:], gate, *_case(each, answer.seconds)))
    _write(out, PLANTED, made)


def commits(answers: Iterable[Path], out: Path) -> None:
    """One row for each case that the commits of each answer have; one without a case for a gate that failed."""
    made = []
    for path in answers:
        answer = from_json(path.read_text(encoding="utf-8"))
        named = (answer.head[:8], answer.base[:8])
        if answer.failure:
            made.append((*named, "", "failed", "", "", "", 0, f"{answer.seconds:.0f}"))
        shared = (each for each in answer.outcomes if each.verdict is not Verdict.SKIPPED)
        made += [(*named, *_case(each, answer.seconds)) for each in shared]
    _write(out, COMMITS, made)


def _case(outcome: Outcome, seconds: float) -> tuple[object, ...]:
    numbers = (outcome.ratio, outcome.low, outcome.high)
    bounds = (f"{value:.5f}" if value is not None else "" for value in numbers)
    return outcome.key, outcome.verdict.value, *bounds, len(outcome.log_ratios), f"{seconds:.0f}"


def _write(out: Path, columns: Sequence[str], made: Iterable[Sequence[object]]) -> None:
    with out.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(made)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def planted_table(path: Path) -> list[str]:
    """How many planted cases were found, by what was planted; of all, and of those that are slower by 2% or more."""
    rows = _read(path)
    columns = "gates", "cases", "found slower", "95% (Wilson)", "undecided", "the same", "faster", "seconds a gate"
    lines = [f"| planted | {' | '.join(columns)} |", "| --- " + "| ---: " * len(columns) + "|"]
    for where in ("kernel", "call"):
        for percent in sorted({int(row["percent"]) for row in rows if row["where"] == where}):
            own = [row for row in rows if (row["where"], row["percent"]) == (where, str(percent))]
            lines.append(f"| {where} {percent}% | {_found(own)} |")
            slower = [row for row in own if geometric_mean(_ratios(own, row["key"])) >= SLOWER]
            if len(slower) < len(own):
                lines.append(f"| of these, slower by {SLOWER - 1:.0%} or more | {_found(slower)} |")
    return lines


def _ratios(rows: Iterable[Mapping[str, str]], key: str) -> list[float]:
    return [float(row["ratio"]) for row in rows if row["key"] == key]


def _found(rows: Sequence[Mapping[str, str]]) -> str:
    verdicts = Counter(row["verdict"] for row in rows)
    gates = {row["gate"]: float(row["seconds"]) for row in rows}
    slower, cases = verdicts["slower"], len(rows)
    low, high = wilson(slower, cases)
    cells = (
        f"{len(gates)}",
        f"{cases}",
        f"{slower} ({slower / cases:.1%})",
        f"{low:.1%} … {high:.1%}",
        f"{verdicts['undecided']}",
        f"{verdicts['same']}",
        f"{verdicts['faster']}",
        f"{sum(gates.values()) / len(gates):.0f}",
    )
    return " | ".join(cells)


def cases_table(path: Path) -> list[str]:
    """The planted kernels that were not found each time, or are slower by less than 2%: what the gates measured."""
    rows = _read(path)
    ratios = {key: _ratios(rows, key) for key in {row["key"] for row in rows}}
    found = Counter(row["key"] for row in rows if row["verdict"] == "slower")
    lines = ["| case | change, by gate | found slower |", "| --- | ---: | ---: |"]
    for key, own in sorted(ratios.items(), key=lambda each: geometric_mean(each[1])):
        if found[key] < len(own) or geometric_mean(own) < SLOWER:
            changes = ", ".join(f"{ratio - 1:+.1%}" for ratio in own)
            lines.append(f"| `{key}` | {changes} | {found[key]} of {len(own)} |")
    return lines


def commits_table(path: Path) -> list[str]:
    """What the gate said of real commits."""
    lines = ["| commit | slower | faster | the same | unchanged | largest change | seconds |"]
    lines.append("| --- " + "| ---: " * 6 + "|")
    rows = _read(path)
    for commit in dict.fromkeys(row["commit"] for row in rows):
        own = [row for row in rows if row["commit"] == commit]
        verdicts = Counter(row["verdict"] for row in own)
        counts = [f"{verdicts[verdict]}" for verdict in ("slower", "faster", "same", "unchanged")]
        if not own[0]["key"]:
            counts = ["failed", "", "", ""]
        changes = [float(row["ratio"]) - 1 for row in own if row["ratio"]]
        largest = f"{max(changes, key=abs):+.1%}" if changes else ""
        lines.append(f"| {commit} | {' | '.join(counts)} | {largest} | {own[0]['seconds']} |")
    return lines


def noise_table(paths: Iterable[Path]) -> list[str]:
    """How often equal commits were told apart, by machine."""
    lines = ["| machine | gates | with an alarm | cases judged | alarms | 95% (Wilson) | largest difference |"]
    lines.append("| --- " + "| ---: " * 6 + "|")
    for path in paths:
        controls = read_history(path).controls
        gates = Counter(each.date for each in controls)
        alarmed = {each.date for each in controls if each.alarm}
        alarms = sum(each.alarm for each in controls)
        low, high = wilson(alarms, len(controls))
        # Locations are logarithms of ratios.
        largest = max(abs(expm1(each.location)) for each in controls)
        machine = path.stem.removeprefix("gate_noise_")
        lines.append(
            f"| {machine} | {len(gates)} | {len(alarmed)} | {len(controls)} | {alarms} | {low:.1%} … {high:.1%} "
            f"| {largest:.1%} |"
        )
    return lines


def tables() -> dict[str, list[str]]:
    """All tables, by the names of their data."""
    found = {path.stem: planted_table(path) for path in sorted(DATA.glob("gate_planted_*.csv"))}
    found |= {path.stem: commits_table(path) for path in sorted(DATA.glob("gate_commits_*.csv"))}
    found["cases of gate_planted_h200"] = cases_table(DATA / "gate_planted_h200.csv")
    return found | {"gate_noise": noise_table(sorted(DATA.glob("gate_noise_*.jsonl")))}


def main() -> None:
    """Print the tables, or make the data that they show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", nargs=2, type=Path, metavar=("FOLDER", "CSV"))
    parser.add_argument("--commits", nargs="+", type=Path, metavar=("CSV", "ANSWER"))
    arguments = parser.parse_args()
    if arguments.collect:
        collect(*arguments.collect)
    elif arguments.commits:
        commits(arguments.commits[1:], arguments.commits[0])
    else:
        for name, lines in tables().items():
            print(f"{name}\n", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
