"""Every command against hostile arguments and environments: one clear message, no traceback, nothing left behind.

The commands run in this process, and nothing is compiled: what is refused is refused before that. A case that does
not end is ended by a watchdog.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from batchchol.cli import COMMANDS, main

_WATCHDOG_SECONDS = 120

NO_NUMBERS = ("", "x", "--", "nan", "1e3", "1.5", "１２", "٣", "1_0", "0x10", "1;2", "9" * 5000)
NOT_POSITIVE = (*NO_NUMBERS, "-1", "0", "9" * 30)
NO_LISTS = (*NO_NUMBERS, "1-", "5-3", "1-99999999999", "1-" + "9" * 30, ",", "1,,2")
NO_SIZES = ("", "x", "-1", "0", "1.5", "２GiB", "2gib", "1_0", "9" * 30, "9" * 5000, "9999999999GiB")
NO_SECONDS = ("", "x", "--", "nan", "inf", "-1", "0", "1e400", "１", "1_0", "9" * 5000)
NO_ARCHITECTURES = ("", "90", "sm_９０", "sm_90 sm_80", "sm_", "sm_9", "sm_99999", "SM_90", "sm_90,,sm_80", "\udcff")

GENERATE = "dataset generate banded --n 3 --batch 4 --out a.npy"
TUNE = "tune --n 4 --seconds 5"


def each(command: str, option: str, values: tuple[str, ...]) -> list[list[str]]:
    """The command with each value; it is put as --option=value, so that one may begin with a dash."""
    return [[*command.split(), f"{option}={value}"] for value in values]


# Refused by their values alone.
NUMBERS = [
    *each(GENERATE, "--n", NOT_POSITIVE),
    *each(GENERATE, "--batch", (*NO_NUMBERS, "-1", "9" * 30)),
    *each(GENERATE, "--start", (*NO_NUMBERS, "-1", "9" * 30, str(2**63))),
    *each(GENERATE, "--seed", (*NO_NUMBERS, "-1", "9" * 30)),
    *each(GENERATE, "--param", ("", "=", "bandwidth", "bandwidth=", "bandwidth=１", "bandwidth=-1", "bandwidth=1_0")),
    *each(GENERATE, "--param", ("bandwidth=" + "9" * 5000, "\udcff=1")),
    *each(GENERATE.replace("banded", "condition"), "--param", ("condition=nan", "condition=inf", "condition=1e400")),
    *each(
        GENERATE.replace("banded", "failing"),
        "--param",
        ("members=-1", "minors=0", "members=１", "base=x", "every=-1"),
    ),
    *each(GENERATE.replace("banded", "wishart"), "--param", ("columns=1", "columns=-1", "columns=" + "9" * 30)),
    *each(GENERATE, "--dtype", ("", "float16", "ｆloat32")),
    *each("dataset ladder banded --n 3", "--up-to", (*NO_SIZES, "1024", "35KiB")),
    *each("dataset ladder banded --up-to 1MiB", "--n", NOT_POSITIVE),
    *each("dataset show good.npy", "--matrix", (*NO_NUMBERS, "-1", "1", "9" * 30)),
    *each("emit", "--n", (*NOT_POSITIVE, "129")),
    *each("emit --n 8", "--nb", NOT_POSITIVE),
    *each("emit --n 8 --target cuda", "--threads", NOT_POSITIVE),
    *each("emit --n 8 --target cuda", "--stride", NOT_POSITIVE),
    *each("emit --n 8 --target cuda --family block --nb 4 --lanes 8", "--pipeline", (*NO_NUMBERS, "-1", "9" * 30)),
    *each("emit --n 8", "--math", ("", "exact", "ＩＥＥＥ")),
    *each("compile --list --arch sm_90", "--n", (*NO_LISTS, "0", "129", "9" * 30)),
    *each("compile --list --n 4", "--arch", NO_ARCHITECTURES),
    *each("compile --list --n 4 --arch sm_90", "--chunk", (*NO_LISTS, "0")),
    *each("compile --list --n 4 --arch sm_90", "--nb", (*NO_LISTS, "0", "9" * 30)),
    *each("compile --list --n 1-128 --arch sm_90 --nb 1-9000 --family all", "--threads", ("1-9000",)),
    *each("compile --list --n 4 --arch sm_90", "--jobs", NOT_POSITIVE),
    *each("compile --list --n 4 --arch sm_90", "--time-limit", NO_SECONDS),
    *each("compile --list --n 4 --arch sm_90", "--math", ("", "exact", "ieee,,fast")),
    *each("explain --batch 10", "--n", NOT_POSITIVE),
    *each("explain --n 8", "--batch", NO_SIZES),
    *each("explain --n 8 --batch 10", "--arch", NO_ARCHITECTURES),
    *each("explain --n 8 --batch 10", "--backend", ("abacus", "\udcff")),
    *each("history", "--thin", NOT_POSITIVE),
    *each("suite", "--due", NOT_POSITIVE),
    *each("tune", "--n", (*NO_LISTS, "0", "-1", "9" * 30)),
    *each(TUNE, "--batch", NO_SIZES),
    *each(TUNE, "--seconds", NO_SECONDS),
    *each(TUNE, "--threads", NOT_POSITIVE),
    *each(TUNE, "--space", ("", "nowhere", "missing.toml", "folder.toml", "pipe.toml", "empty.toml", "\udcff.toml")),
    *each("tune --space quick", "--batch", ("2GiB", *NO_SIZES)),
    *each("tune --space quick", "--budget", ("", "0", "-1", "５", "0%", "101%", "nan%", "1e400%", "9" * 5000)),
    *each("tune --space quick", "--samples", NOT_POSITIVE),
    *each("tune --space quick", "--finalists", (*NO_NUMBERS, "-1", "11")),
    *each("compare", "--n", (*NO_LISTS, "0", "-1", "9" * 30)),
    *each("compare --n 4", "--batch", (*NO_SIZES, "1,2", "2GiB")),
    *each("compare --n 4", "--samples", NOT_POSITIVE),
    *each("compare --n 4", "--threads", (*NOT_POSITIVE, "1,")),
    *each("compare --n 4", "--peers", ("", "nobody")),
    *each("factor good.npy out.npy", "--math", ("", "exact")),
    *each("factor good.npy out.npy", "--backend", ("", "abacus")),
    *each("report good.csv", "--n", NOT_POSITIVE),
    *each("report good.csv", "--batch", NOT_POSITIVE),
    *each("report good.csv", "--trees", NOT_POSITIVE),
    *each("replay data", "--repeats", NOT_POSITIVE),
    *each("replay data", "--strategies", ("", "guess")),
    *each("reproduce", "--budget", NO_SECONDS),
    *each("reproduce", "--backend", ("", "abacus")),
    *each("reproduce", "--root", ("missing", "good.npy", "\udcff")),
    *each("run", "--profile", ("", "slow")),
    *each("machine --print", "--backend", ("abacus", "\udcff")),
]

# What there is in the folder: see `place`.
UNREADABLE = ("missing{}", "folder{}", "pipe{}", "zero{}", "empty{}", "bytes{}", "good.npy/x{}", "\udcff{}")
READERS = [
    ("dataset show {}", ".npy"),
    ("dataset show {}", ".txt"),
    ("dataset convert {} a.npy", ".npy"),
    ("dataset convert {} a.txt", ".txt"),
    ("factor {} a.npy", ".npy"),
    ("factor {} a.txt", ".txt"),
    ("report {}", ".csv"),
    ("report {}", ".parquet"),
    ("report --winners winners.json {}", ".csv"),
    ("report good.csv --winners {}", ".json"),
    ("replay {}", ".parquet"),
    ("tune --space {}", ".toml"),
    ("tune --t4 a.json --data {}", ".parquet"),
    ("tune --table table.json --from {}", ".csv"),
    ("tune --table table.json --from {}", ".parquet"),
    ("tune --from good.csv --table {}", ".json"),
]

UNWRITABLE = (
    "nowhere/a{}",
    "good.npy/a{}",
    "folder{}",
    "/proc/a{}",
    "/proc/nowhere/a{}",
    "dangling{}",
    "a" * 300 + "{}",
)
WRITERS = [
    (f"{GENERATE.replace('a.npy', '{}')}", ".npy"),
    (f"{GENERATE.replace('a.npy', '{}')}", ".txt"),
    ("dataset convert good.npy {}", ".txt"),
    ("factor good.npy {}", ".npy"),
    ("tune --n 4 --out {}", ".csv"),
    ("tune --n 4 --out a.csv --table {}", ".json"),
    ("tune --from good.csv --table {}", ".json"),
    ("tune --space quick --data a --t4 {}", ".json"),
    ("report good.csv --winners {}", ".json"),
]
# A folder that is missing is made.
NO_FOLDERS = ("good.npy", "good.npy/a", "/proc/a", "zero.npy", "/dev/null", "a" * 300)
FOLDERS = [
    "tune --space quick --data {}",
    "compare --n 4 --plot {}",
    "compare --n 4 --out {}/a.csv",
    "report good.csv --plot {}/a",
    "report folder.parquet --out {}",
    "replay folder.parquet --out {}",
    "run --out {}",
]

SETTINGS = [
    *(("BATCHCHOL_BACKEND", value) for value in ("abacus", "\udcff", "ｃpu")),
    *(("BATCHCHOL_THREADS", value) for value in ("0", "-1", "x", "1.5", "\udcff")),
]
READ_BY = {
    "explain --n 8 --batch 100": ("BATCHCHOL_BACKEND",),
    "factor good.npy out.npy": ("BATCHCHOL_BACKEND",),
    "tune --n 4 --seconds 5": ("BATCHCHOL_BACKEND", "BATCHCHOL_THREADS"),
    "compare --n 4": ("BATCHCHOL_BACKEND",),
    "info": ("BATCHCHOL_THREADS",),
}


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    def bark(*_: object) -> None:
        raise AssertionError("the command does not end")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(_WATCHDOG_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files to misuse, which is the current one."""
    folder, home = tmp_path / "place", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    np.save("good.npy", 4 * np.eye(3)[None])
    for suffix in (".npy", ".txt", ".csv", ".parquet", ".toml", ".json"):
        Path(f"folder{suffix}").mkdir()
        os.mkfifo(f"pipe{suffix}")
        Path(f"zero{suffix}").symlink_to("/dev/zero")
        Path(f"dangling{suffix}").symlink_to("nowhere/at/all")
        Path(f"empty{suffix}").touch()
        Path(f"bytes{suffix}").write_bytes(bytes(range(256)))
    return folder


def tree(folder: Path) -> dict[str, object]:
    """What is there: names, kinds and sizes."""
    return {str(path): (path.lstat().st_mode, path.lstat().st_size) for path in folder.rglob("*")}


def refused(arguments: list[str], place: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What a command says that must be refused."""
    before = tree(place)
    capfd.readouterr()
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    said = capfd.readouterr().err
    about = f"{' '.join(arguments)[:200]!r}: {status}: {said}"
    assert status == 2, about
    last = said.splitlines()[-1]
    assert "error: " in last, about
    assert last.startswith(("batchchol: error: ", f"python -m batchchol {arguments[0]}")), about
    assert "Traceback" not in said, about
    assert tree(place) == before, about
    return last


def test_every_command_is_attacked() -> None:
    attacked = {case[0] for case in NUMBERS} | {command.split()[0] for command, _ in (*READERS, *WRITERS)}
    # They have no numbers and name no file, or have tests of their own.
    assert set(COMMANDS) - attacked <= {"info", "cache", "gate", "noise", "publish"}


@pytest.mark.parametrize("command", sorted({case[0] for case in NUMBERS}))
def test_values_that_mean_nothing(
    command: str, place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_is_measured(monkeypatch)
    for case in NUMBERS:
        if case[0] == command:
            assert len(refused(case, place, capfd)) < 1500


@pytest.mark.parametrize(("command", "suffix"), READERS)
def test_files_that_cannot_be_read(command: str, suffix: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in UNREADABLE:
        said = refused([word.format(name.format(suffix)) for word in command.split()], place, capfd)
        if name.startswith("missing"):
            assert "damaged" not in said


@pytest.mark.parametrize(("command", "suffix"), WRITERS)
def test_files_that_cannot_be_written(
    command: str, suffix: str, place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work_fails(monkeypatch)
    for name in UNWRITABLE:
        path = name.format(suffix)
        said = refused([word.format(path) for word in command.split()], place, capfd)
        assert path[:40] in said


@pytest.mark.parametrize("command", FOLDERS)
def test_folders_that_cannot_be_made(
    command: str, place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work_fails(monkeypatch)
    for name in NO_FOLDERS:
        said = refused([word.format(name) for word in command.split()], place, capfd)
        assert name[:40] in said


def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> None:
        raise AssertionError("measuring has begun")

    monkeypatch.setattr("batchchol.measure.process.Measurer.__enter__", begin)


def work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is known before anything is measured, read or made."""

    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    nothing_is_measured(monkeypatch)
    for name in (
        "compare.comparison.compare",
        "datasets.generation.generate",
        "api.cholesky_ex",
        "cli.laboratory.report.read_correct",
        "cli.laboratory.tune.read_correct",
        "cli.laboratory.report.make",
        "tune.choosing.suite_winners.choose",
        "tune.search.replay.load",
        "cli.laboratory.run.demonstrate",
    ):
        monkeypatch.setattr(f"batchchol.{name}", work)


@pytest.mark.parametrize("command", READ_BY)
def test_settings_that_mean_nothing(
    command: str, place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in SETTINGS:
        if variable not in READ_BY[command]:
            continue
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert variable in refused(command.split(), place, capfd)


@pytest.mark.parametrize("home", ["/proc", "/dev/null", "good.npy", "/nowhere/at/all"])
def test_a_home_that_cannot_be_written(
    home: str, place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", home)
    assert ".asv-machine.json: " in refused(["machine"], place, capfd)


@pytest.mark.parametrize("content", ["", "[]", "1" * 5000, "[" * 5000, '{"version": 1e400}', "\xff"])
def test_a_machine_file_that_is_none(content: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place.parent / "home" / ".asv-machine.json").write_bytes(content.encode("latin-1"))
    assert ".asv-machine.json: " in refused(["machine"], place, capfd)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"tables": []}',
        '{"tables": {"x": 1}}',
        "1" * 5000,
        "[" * 5000,
        json.dumps({"tables": {"x": {"cases": [1]}}}),
    ],
)
def test_a_file_of_tables_that_is_none(content: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "table.json").write_text(content)
    assert "table.json: reading: " in refused(["tune", "--from", "good.csv", "--table", "table.json"], place, capfd)


@pytest.mark.parametrize("command", ["tune --n 32 --seconds 5", "tune --n 32 --out a.csv", "compare --n 32"])
def test_batches_that_no_memory_holds(
    command: str, place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object, **__: object) -> None:
        raise AssertionError("compiling has begun")

    # A worker's process is started, and asked what memory is free.
    monkeypatch.setattr("batchchol.tune.compile.build", build)
    monkeypatch.setattr("batchchol.backends.cpu.CpuBackend.build", build)
    said = refused([*command.split(), "--batch", "1000000000000000"], place, capfd)
    assert "bytes are free" in said


@pytest.mark.parametrize("name", ["\udcff.npy", "ü ñ.npy", "-a.npy", "a\nb.npy", "null.npy"])
def test_strange_names_are_names(name: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "null.npy").symlink_to("/dev/null")
    assert main([*GENERATE.split()[:-2], f"--out={name}"]) == 0
    assert "Traceback" not in capfd.readouterr().err
    assert (place / name).exists()
    assert (place / "null.npy").is_char_device()
