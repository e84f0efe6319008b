"""Commands whose output is not read, cannot be written, or has no stream: one line says so, no traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import batchchol
from batchchol.cli import main

Shell = Callable[..., tuple[int, str, str]]

NO_SPACE = "No space left on device"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """shell("emit --n 1 >&-"): the exit status and what was printed; the reader of standard output can be gone."""

    def run(command: str, *, reader_gone: bool = False) -> tuple[int, str, str]:
        reading, writing = os.pipe()
        if reader_gone:
            os.close(reading)
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" -m batchchol {command}', sys.executable],
            env={**os.environ, "PYTHONPATH": str(Path(batchchol.__file__).parents[1])},
            cwd=tmp_path,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
        os.close(writing)
        printed = ""
        if not reader_gone:
            with open(reading) as stream:
                printed = stream.read()
        return done.returncode, printed, done.stderr

    return run


@pytest.mark.parametrize("command", ["emit --n 100", "emit --n 1", "info", "--help"])
def test_reader_that_is_gone(command: str, shell: Shell) -> None:
    assert shell(command, reader_gone=True) == (1, "", "")


@pytest.mark.parametrize("command", ["emit --n 100", "--version"])
def test_output_that_cannot_be_written(command: str, shell: Shell) -> None:
    status, _, said = shell(f"{command} >/dev/full")
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith("batchchol: error: ")
    assert NO_SPACE in said


def test_closed_output_is_refused(shell: Shell) -> None:
    status, _, said = shell("emit --n 1 >&-")
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith("batchchol: error: standard output is closed")


@pytest.mark.parametrize("where", [">&- 2>&- <&-", "2>&-", "2>/dev/full"])
def test_errors_that_cannot_be_printed_keep_the_exit_status(where: str, shell: Shell) -> None:
    assert shell(f"emit --n 0 {where}") == (2, "", "")


def test_characters_that_the_encoding_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(printed, encoding="ascii"))
    monkeypatch.setattr("batchchol.cli.library.info.run", lambda _: print("n³/3") or 0)
    assert main(["info"]) == 0
    assert printed.getvalue() == rb"n\xb3/3" + b"\n"


def test_failure_of_the_system_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> int:
        raise OSError(28, NO_SPACE, "/a/file")

    monkeypatch.setattr("batchchol.cli.library.info.run", fail)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == f"batchchol: error: /a/file: {NO_SPACE}\n"
