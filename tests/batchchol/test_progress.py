"""What is shown of a long build, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from batchchol import progress as progress_module
from batchchol.progress import Progress, ProgressDisplay, describe, minutes


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(done: int, failed: int = 0, seconds_left: float | None = 60.0) -> Progress:
    return Progress(done, 8, 0, failed, 31.4, seconds_left)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (progress(0, seconds_left=None), "0 of 8 kernels, 0:31"),
        (progress(2, seconds_left=160), "2 of 8 kernels, 0:31, about 2:40 left"),
        (progress(3, failed=1), "3 of 8 kernels, 1 failed, 0:31, about 1:00 left"),
        (progress(8, seconds_left=0.0), "8 of 8 kernels, 0:31"),
    ],
)
def test_words(state: Progress, words: str) -> None:
    assert describe(state) == words


def test_minutes() -> None:
    assert [minutes(seconds) for seconds in (0, 59.4, 59.6, 3600)] == ["0:00", "0:59", "1:00", "60:00"]


def test_a_terminal_gets_a_bar_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    with ProgressDisplay(stream, "sm_90") as display:
        for done in (2, 4):
            display(progress(done))
    first, second = stream.getvalue().removesuffix("\n").split("\r")[1:]
    assert first.startswith("sm_90 [######..................] 2 of 8 kernels")
    assert second.startswith("sm_90 [############............] 4 of 8 kernels")
    assert len(first) == len(second) == 59


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 5.5, 5.5, 9.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with ProgressDisplay(stream, "sm_90") as display:
        for done in (1, 2, 3):
            display(progress(done))
    assert stream.getvalue() == "sm_90 2 of 8 kernels, 0:31, about 1:00 left\n"
