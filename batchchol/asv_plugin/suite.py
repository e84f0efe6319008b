"""Running the asv suite: on the last commit of a clone, or on a snapshot of a folder that is not a clone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batchchol.asv_plugin.log import Entry, entries
from batchchol.errors import BatchcholError, install

CONFIG = "asv.conf.json"
_SELECTION = "benchmarks.harness.selection"
# What asv checks out and imports.
_MEASURED = ("batchchol", "kernelgen", "benchmarks")
# What asv may take to end its benchmarks when it is interrupted.
_GRACE_SECONDS = 2.0
_NO_SETTINGS = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}

Say = Callable[[str], None]


class NothingDue(BatchcholError):
    """Every point of the profile was measured lately, with the kernel that it has now."""


@dataclass(frozen=True)
class Subject:
    """What is measured: a commit of a folder, by a configuration of asv; `described` for people."""

    folder: Path
    config: Path
    commit: str
    described: str

    @property
    def results(self) -> Path:
        """The folder of asv's results."""
        return self.folder / ".asv" / "results"


def find_subject(folder: Path) -> Subject:
    """The last commit of a clone of batchchol, else a commit of the folder as it is, in a repository of its own.

    Raises
    ------
    BatchcholError
        If the folder is not that of batchchol, or git or asv is missing.
    """
    if not (folder / CONFIG).is_file():
        raise BatchcholError(f"{folder} is no clone of batchchol: change to one, or to an unpacked archive of one")
    if shutil.which("git") is None:
        raise BatchcholError("asv measures commits, and there is no git on the PATH: apt install git")
    git = ("git", "-C", str(folder))
    if (folder / ".git").exists() and (commit := _answer((*git, "rev-parse", "--verify", "HEAD"))):
        return Subject(folder, folder / CONFIG, commit, "the last commit")
    return _snapshot(folder)


def run_suite(subject: Subject, machine: str, environment: Mapping[str, str], log: Path, say: Say) -> None:
    """Run asv on a commit; progress goes to `say`, and everything printed about measured points to `log`.

    Raises
    ------
    BatchcholError
        If asv fails.
    """
    with log.open("w", encoding="utf-8") as kept:

        def show(entry: Entry) -> None:
            kept.write(str(entry))
            if entry.progress.startswith("["):
                say(entry.progress)

        status = run_asv(subject, ["HEAD^!", "--machine", machine], environment, show)
    if status:
        raise BatchcholError(f"asv ended with status {status}: see {log}")


def run_asv(
    subject: Subject,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    show: Callable[[Entry], None],
    wanted: Sequence[str] = (),
    known: Path | None = None,
) -> int:
    """Run `asv run` on the points of a profile alone, and show what it says of them; its exit status.

    `arguments` are asv's; `environment` names profile and backend; `wanted` are regular expressions like those of
    asv's option --bench, of which a point must match one, if there are any; `known` is a file of kernel texts
    (:mod:`batchchol.asv_plugin.history.due`) whose points are left out.

    Raises
    ------
    BatchcholError
        If there is no such point.
    """
    chosen = [
        word for expression in selected(subject, environment, wanted, known) for word in ("--bench", expression)
    ]
    command = [sys.executable, "-m", "asv", "--config", str(subject.config), "run", "--show-stderr", *chosen]
    with (
        subprocess.Popen(
            [*command, *arguments],
            cwd=subject.folder,
            # Progress is shown as it is made.
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            # Its own session: Ctrl-C reaches it once, from here.
            start_new_session=True,
        ) as process,
        _ending(process),
    ):
        assert process.stdout is not None
        for entry in entries(process.stdout):
            show(entry)
    return process.returncode


def selected(
    subject: Subject, environment: Mapping[str, str], wanted: Sequence[str] = (), known: Path | None = None
) -> list[str]:
    """Regular expressions that match the points to measure alone: asv would start a process for the others too.

    Raises
    ------
    BatchcholError
        If there are none, or the suite cannot be imported.
    """
    command = [sys.executable, "-m", _SELECTION, *(f"--bench={each}" for each in wanted)]
    command += [f"--known={known}"] if known else []
    done = subprocess.run(
        command, cwd=subject.folder, env=dict(environment), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BatchcholError(f"the suite cannot say what it measures: {done.stderr.strip()}")
    if not done.stdout and known:
        raise NothingDue("nothing is due: every kernel has the text that was measured last")
    if not done.stdout:
        raise BatchcholError(f"nothing to measure: the profile has no point that matches {' or '.join(wanted)}")
    return done.stdout.splitlines()


@contextmanager
def _ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """If this ends early, interrupt asv, which then ends the benchmarks it runs."""
    try:
        yield
    except BaseException:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        raise


def _snapshot(folder: Path) -> Subject:
    """A commit of what is measured, in .asv; the folder's own repository, if any, is left alone."""
    place = folder / ".asv"
    repository, config = place / "snapshot.git", place / CONFIG
    settings = _config_within(folder / CONFIG, repository.name)
    try:
        place.mkdir(exist_ok=True)
        shutil.rmtree(repository, ignore_errors=True)
        _git("init", "--quiet", "--bare", "--initial-branch=main", str(repository))
        git = ("--git-dir", str(repository), "--work-tree", str(folder))
        _git(*git, "add", "--", *(str(folder / name) for name in _MEASURED))
        named = ("-c", "user.name=batchchol", "-c", "user.email=batchchol@localhost")
        _git(*named, *git, "commit", "--quiet", "--message", "A snapshot of a folder that is no clone")
        config.write_text(settings, encoding="utf-8")
    except OSError as error:
        raise BatchcholError(f"no snapshot of {folder} can be made ({error}): asv measures commits") from error
    commit = _answer(("git", "--git-dir", str(repository), "rev-parse", "HEAD"))
    return Subject(folder, config, commit, "a snapshot of this folder, which is no clone that git can read")


def _config_within(path: Path, repository: str) -> str:
    """asv's configuration for the folder .asv: paths in it are relative to its own."""
    try:
        from asv.util import load_json
    except ImportError as error:
        raise BatchcholError(f"there is no asv: {install('suite')}") from error
    except OSError as error:
        # Where there is no shared memory (/dev/shm), for example.
        raise BatchcholError(f"asv cannot start: {error}") from error
    settings = load_json(str(path), js_comments=True)
    within = {
        name: os.path.relpath(settings[name], ".asv")
        for name in ("benchmark_dir", "env_dir", "results_dir", "html_dir")
    }
    return json.dumps({**settings, **within, "repo": repository}, indent=4)


def _git(*arguments: str) -> None:
    """Run git without what names another repository, as in a hook, and without the user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _NO_SETTINGS
    done = subprocess.run(("git", *arguments), env=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BatchcholError(f"asv measures commits, and git cannot make one of this folder: {done.stderr.strip()}")


def _answer(command: Sequence[str]) -> str:
    """What git says; empty where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout.strip()
