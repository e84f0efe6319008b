"""`python -m batchchol noise`: what does equal code seem to differ by here?"""

from __future__ import annotations

import argparse
from dataclasses import replace

from batchchol.asv_plugin.gate import history, journal
from batchchol.asv_plugin.gate.decide import threshold
from batchchol.asv_plugin.gate.outcome import Verdict
from batchchol.asv_plugin.gate.run import ahead, judge, prepare
from batchchol.batches.sizes import positive
from batchchol.cli import interrupts
from batchchol.cli.commits.gate import described, measured_options, say, settings_of
from batchchol.cli.options import declare, option
from batchchol.files import make_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how often, and of what."""
    declare(
        parser,
        option("commit", nargs="?", default="HEAD", metavar="COMMIT", help="compared with itself (default: HEAD)"),
        option("--gates", type=positive, default=5, help="how often all cases are judged (default: %(default)s)"),
        *measured_options(),
    )


def run(arguments: argparse.Namespace) -> int:
    """Judge a commit against itself, time and again, and keep what each case seemed to differ by."""
    settings = replace(settings_of(arguments, arguments.commit, arguments.commit), prove=False)
    make_folder(settings.store)
    said, path = described(settings)
    flagged = 0
    with (
        ahead(settings, prepare(settings, say)) as prepared,
        interrupts.advice("the gates that ended are kept"),
    ):
        for gate in range(1, arguments.gates + 1):
            known = history.read_history(path)
            answer, controls = judge(settings, prepared, said, known, say)
            history.add(path, controls)
            journal.forget(settings)
            alarms = [each.key for each in answer.outcomes if each.verdict in (Verdict.SLOWER, Verdict.FASTER)]
            flagged += bool(alarms)
            print(
                f"gate {gate}: {len(controls)} cases, {', '.join(alarms) or 'no alarm'}, {answer.seconds:.0f} s",
                flush=True,
            )
    print(_summary(history.read_history(path), flagged, arguments.gates))
    return 0


def _summary(known: history.History, flagged: int, gates: int) -> str:
    alarms, controls = known.alarms()
    low, high = history.wilson(alarms, controls)
    lines = [
        f"{flagged} of {gates} gates had an alarm",
        f"{alarms} of {controls:,} controls of this machine were alarms: {low:.2%} to {high:.2%} (Wilson, 95%)",
    ]
    kinds = {each.key: each.kind for each in known.controls}
    for key in known.flaky():
        lines.append(f"flaky: {key}: a change counts from {threshold(kinds[key], known.noise_of(key)):.1%}")
    return "\n".join(lines)
