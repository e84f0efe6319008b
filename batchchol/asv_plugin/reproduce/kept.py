"""The measurements so far, a file of one record per line: appended to, and read when the same command continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from batchchol.asv_plugin.reproduce.cases import Asked, Case
from batchchol.compare.rows import Row
from batchchol.files import make_folder, read_file


@dataclass(frozen=True)
class Here:
    """Where and of what rows are measured: a machine's stable name, its GPU ("" if none is used), and the commit."""

    machine: str
    gpu: str
    commit: str


@dataclass(frozen=True)
class Round:
    """A case measured once: who took part, how many seconds it took, and its rows."""

    asked: Asked
    seconds: float
    rows: Sequence[Row]


class Kept:
    """The rounds of each case on this machine at this commit.

    Those of other machines and commits stay in the file. A changed checkout never counts as the same code: what it
    measured is written, and not read again.
    """

    def __init__(self, path: Path, here: Here) -> None:
        self.path, self.here = path, here
        self._rounds: dict[Case, list[Round]] = {}
        for record in _records(path):
            if record.get("here") == asdict(here) and not here.commit.endswith("-dirty"):
                self._hold(*_parsed(record))

    def rounds(self, case: Case, asked: Asked) -> list[Round]:
        """The rounds in which all that are asked for took part, the oldest first."""
        return [each for each in self._rounds.get(case, []) if each.asked.covers(asked)]

    def add(self, case: Case, made: Round) -> None:
        """Hold a round, and write it."""
        record = {
            "here": asdict(self.here),
            "case": case.values(),
            "contenders": sorted(made.asked.contenders),
            "maths": made.asked.maths,
            "seconds": round(made.seconds, 3),
            "rows": [asdict(row) for row in made.rows],
        }
        make_folder(self.path.parent)
        # A record that was cut off must not swallow this one.
        cut_off = self.path.exists() and not read_file(self.path).endswith(b"\n")
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write("\n" * cut_off + json.dumps(record) + "\n")
        self._hold(case, made)

    def _hold(self, case: Case, made: Round) -> None:
        self._rounds.setdefault(case, []).append(made)


def _records(path: Path) -> list[dict[str, Any]]:
    """The records that are whole: the last one may have been cut off."""
    found = []
    for line in read_file(path).splitlines() if path.exists() else []:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _parsed(record: dict[str, Any]) -> tuple[Case, Round]:
    asked = Asked(frozenset(record["contenders"]), tuple(record["maths"]))
    return Case(**record["case"]), Round(asked, record["seconds"], [Row(**row) for row in record["rows"]])
