"""asv's output, condensed: what was measured and what failed stays, what was left out is a line."""

from __future__ import annotations

from batchchol.asv_plugin.log import Entry, entries

HEAD = ["· Discovering benchmarks", "[ 0.00%] ·· Benchmarking checkout-py3.11"]
LEFT_OUT = """\
[25.00%] ··· blocks.Blocks.device_factor                                     ok
[25.00%] ··· ========= ===== =====
              backend    n
             --------- ----- -----
                cuda     4    n/a
                cuda     8    n/a
             ========= ===== =====

[25.00%] ···· For parameters: 'cuda', 4
              asv: skipped: SkipNotImplemented('not here')

              For parameters: 'cuda', 8
              asv: skipped: SkipNotImplemented('not here')

""".splitlines()
MEASURED = """\
[50.00%] ··· calls.Calls.time_cholesky                                       ok
[50.00%] ··· ===== ======== ==========
             --           dtype
             -------------- ----------
               n    batch    float32
             ===== ======== ==========
               4    16384    20.9±6ms
               8    16384      n/a
             ===== ======== ==========

[50.00%] ···· For parameters: 8, 16384
              asv: skipped: SkipNotImplemented('not in the profile')

""".splitlines()
FAILED = """\
[75.00%] ··· calls.Calls.track_bytes                                   1/2 failed
[75.00%] ··· ===== ========
               n
             ----- --------
               4     3012
               8    failed
             ===== ========

[75.00%] ···· For parameters: 8
              Traceback (most recent call last):
              ResidualError: wrong

""".splitlines()


def test_benchmarks_without_a_number_are_skipped() -> None:
    reason = " " * 13 + "skipped: SkipNotImplemented('not here')"
    expected = Entry(LEFT_OUT[0].replace(" ok", " skipped"), (reason,))
    assert list(entries(LEFT_OUT)) == [expected]
    assert str(expected).count("\n") == 2


def test_numbers_stay_and_the_rest_goes() -> None:
    (entry,) = entries(MEASURED)
    assert entry.progress == MEASURED[0]
    kept = [line.rstrip() for line in MEASURED[1:9] if "n/a" not in line]
    assert list(entry.details) == [*kept, " " * 13 + "skipped: SkipNotImplemented('not in the profile')"]


def test_failures_stay_with_their_parameters_and_messages() -> None:
    (entry,) = entries(FAILED)
    assert [entry.progress, *entry.details] == [line.rstrip() for line in FAILED if line]


def test_every_entry_comes_when_the_next_begins() -> None:
    found = entries(iter([*HEAD, *LEFT_OUT, *MEASURED, *FAILED]))
    assert [str(next(found)).split()[-1] for _ in range(2)] == ["benchmarks", "checkout-py3.11"]
    assert [entry.progress.split()[-1] for entry in found] == ["skipped", "ok", "failed"]
