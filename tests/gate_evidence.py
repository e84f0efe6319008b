"""What the gate was shown to find, and not to: the tables of docs/gate.md, from the data that were measured.

    python -m tests.gate_evidence                       # print them
    python -m tests.gate_evidence --collect FOLDER CSV  # make the data of planted slowdowns from answers

FOLDER has an answer (gate.json) in each of its folders, named after what was planted: k3_1 is the first gate with 3%
in kernels, c10_2 the second with 10% in calls. `tests.planted` makes the commits, `python -m batchchol noise` the
data of equal ones.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from batchchol.asv_plugin.gate.answer import from_json
from batchchol.asv_plugin.gate.history import read_history, wilson

DATA = Path(__file__).resolve().parents[1] / "datasets"
COLUMNS = ("where", "percent", "gate", "key", "verdict", "ratio", "low", "high", "processes", "seconds")
_WHERE = {"k": "kernel", "c": "call"}
_CHANGED = ("kernel", "call")


def collect(folder: Path, out: Path) -> None:
    """One row for each case of each planted gate that was measured."""
    with out.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for path in sorted(folder.glob("*/gate.json")):
            planted, _, gate = path.parent.name.partition("_")
            answer = from_json(path.read_text(encoding="utf-8"))
            for each in answer.outcomes:
                if each.ratio is not None and each.kind in _CHANGED:
                    bounds = (
                        f"{value:.5f}" if value is not None else "" for value in (each.ratio, each.low, each.high)
                    )
                    said = (each.key, each.verdict.value, *bounds, len(each.log_ratios), f"{answer.seconds:.0f}")
                    rows.writerow((_WHERE[planted[0]], planted[1:], gate, *said))


def planted_table(path: Path) -> list[str]:
    """How many planted cases were found, by what was planted."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lines = ["| planted | gates | cases | found slower | 95% (Wilson) | undecided | the same | seconds a gate |"]
    lines.append("| --- " + "| ---: " * 7 + "|")
    for where in ("kernel", "call"):
        for percent in sorted({int(row["percent"]) for row in rows if row["where"] == where}):
            own = [row for row in rows if (row["where"], row["percent"]) == (where, str(percent))]
            lines.append(f"| {where} {percent}% | {_found(own)} |")
    return lines


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
        f"{sum(gates.values()) / len(gates):.0f}",
    )
    return " | ".join(cells)


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
        largest = max(abs(each.location) for each in controls)
        machine = path.stem.removeprefix("gate_noise_")
        lines.append(
            f"| {machine} | {len(gates)} | {len(alarmed)} | {len(controls)} | {alarms} | {low:.1%} … {high:.1%} "
            f"| {largest:.1%} |"
        )
    return lines


def tables() -> dict[str, list[str]]:
    """All tables, by the names of their data."""
    found = {path.stem: planted_table(path) for path in sorted(DATA.glob("gate_planted_*.csv"))}
    return found | {"gate_noise": noise_table(sorted(DATA.glob("gate_noise_*.jsonl")))}


def main() -> None:
    """Print the tables, or make the data of planted slowdowns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", nargs=2, type=Path, metavar=("FOLDER", "CSV"))
    arguments = parser.parse_args()
    if arguments.collect:
        collect(*arguments.collect)
    else:
        for name, lines in tables().items():
            print(f"{name}\n", *lines, "", sep="\n")


if __name__ == "__main__":
    main()
