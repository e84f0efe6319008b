"""The gate from commits to exit statuses, on the CPU, with real kernels and processes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchchol.artifacts.nvcc import find_nvcc
from batchchol.asv_plugin.gate import decide, experiment, measuring
from batchchol.cli import main
from batchchol.errors import CompilerNotFound

from ...repositories import git

pytest.importorskip("asv_runner", reason="the suite's extra is not installed: there is no asv")

ROOT = Path(__file__).resolve().parents[3]
C = Path("kernelgen/templates/simd/thread.c.jinja")
CUDA = Path("kernelgen/templates/thread/thread.cu.jinja")
END = "    return status;\n"
TILES = r"Tiles.device_factor\(backend=cpu, n={n}, nb=3, looking={looking}\)"
Gate = Callable[..., tuple[int, dict[str, str]]]

# By the cases of the profile `quick` that they are about.
WRONG = '{% if n == 4 and schedule.looking == "right" %}    l[0] = -l[0];\n{% endif %}'
CRASH = '{% if n == 8 and schedule.looking == "right" %}    *(volatile int *)0 = 1;\n{% endif %}'
SLOW = (
    '{% if n == 8 and schedule.looking == "left" %}'
    "    if (first < last) factor_range(a, l, info, stride, first, first + (last - first + 1) / 2);\n{% endif %}"
)
COMMENT = "/* What follows is the end. */\n"


def commit(folder: Path, name: str, changes: dict[Path, tuple[str, str]]) -> None:
    """A commit on the first one, in a branch of its own: of each file, a text that is another."""
    git(folder, "checkout", "--quiet", "-B", name, "first")
    for path, (old, new) in changes.items():
        text = (folder / path).read_text()
        assert text.count(old) == 1
        (folder / path).write_text(text.replace(old, new))
    git(folder, "commit", "--quiet", "-am", name)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with a first commit, and others that are worse."""
    folder = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("batchchol", "kernelgen", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "asv.conf.json", folder)
    # Cold calls go round few buffers: some servers' caches would take gigabytes of them.
    path = folder / "batchchol/batches/host_memory.py"
    path.write_text(path.read_text().replace("return max(sizes, default=32 << 20)", "return 1 << 20"))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "First")
    git(folder, "branch", "first")
    commit(folder, "worse", {C: (END, WRONG + CRASH + SLOW + COMMENT + END)})
    commit(folder, "broken", {Path("batchchol/api/__init__.py"): ("\n__all__", "\nimport nonsense\n\n__all__")})
    commit(folder, "said", {Path("batchchol/api/__init__.py"): ('"""The', '"""Said otherwise: the')})
    body = "    using namespace {{ entry }}_code;\n"
    planted = "{% if n == 4 %}    if (info[0] == 77) return;\n{% endif %}"
    commit(folder, "cuda", {CUDA: (body, body + "    // What follows is the kernel.\n" + planted)})
    git(folder, "checkout", "--quiet", "first")
    return folder


@pytest.fixture
def gate(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """gate(*arguments): the exit status of a gate that measures little, and each case's verdict and reason."""
    monkeypatch.chdir(clone)
    monkeypatch.setattr(measuring, "FIRST", {"kernel": 4, "call": 4})
    monkeypatch.setattr(measuring, "FRESH", {"kernel": 4, "call": 4})
    monkeypatch.setattr(decide, "MOST", 4)
    monkeypatch.setattr(experiment, "SECONDS", {"cpu": 0.05, "cuda": 0.05})
    out = clone / ".asv" / "gate" / "answer"

    def run(*arguments: str) -> tuple[int, dict[str, str]]:
        shutil.rmtree(out, ignore_errors=True)
        status = main(["gate", *arguments, "--profile", "quick"])
        path = out / "gate.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"outcomes": [], "status": status}
        assert found["status"] == status
        return status, {each["key"]: f"{each['verdict']}: {each['why']}" for each in found["outcomes"]}

    return run


def journals(clone: Path) -> list[Path]:
    return list((clone / ".asv" / "gate" / "journals").glob("*"))


def last(clone: Path) -> str:
    path = clone / ".asv" / "gate" / "last-cpu"
    return path.read_text().strip() if path.exists() else ""


def test_where_nothing_changed_nothing_is_measured(
    gate: Gate, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = gate("first", "said", "--bench", r"Tiles.*n=4,|WholeCall.*n=8,")
    assert status == 0
    assert {each for each in said.values() if "skipped" not in each} == {
        "unchanged: the same source, flags and compiler",
        "unchanged: the same Python code, tables and templates",
    }
    assert "nothing is slower: 5 cases unchanged by proof, 0 measured" in capsys.readouterr().out
    assert not last(clone), "of a part of the suite nothing is known of the rest"


def test_no_case_is_no_answer(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = gate("first", "said", "--bench", "Nothing")
    assert status == 2
    assert "'Nothing' matches no case of profile 'quick'" in capsys.readouterr().out


def test_a_comment_in_a_template_changes_no_machine_code(gate: Gate) -> None:
    status, said = gate("first", "worse", "--bench", TILES.format(n=4, looking="left"))
    assert status == 0
    assert list(said.values()) == ["unchanged: other source, the same machine code"]


def test_worse_kernels_are_told_apart(gate: Gate, clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Without the one that is unchanged: it would be measured as a control.
    bench = f"{TILES.format(n=4, looking='right')}|{TILES.format(n=8, looking='.*')}"
    status, said = gate("first", "worse", "--bench", bench)
    assert status == 2
    wrong, crash, slow = said.values()
    assert wrong.startswith("failed: head: ResidualError: ")
    assert crash == "failed: head: the process was killed by SIGSEGV"
    assert slow == "slower: "
    assert "2 cases failed, 1 is slower: 0 cases unchanged by proof, 1 measured" in capsys.readouterr().out
    assert not journals(clone)


def test_a_slower_kernel_is_the_status_one(gate: Gate) -> None:
    status, said = gate("first", "worse", "--bench", TILES.format(n=8, looking="left"))
    assert status == 1
    assert list(said.values()) == ["slower: "]


def test_a_killed_gate_goes_on_where_it_was(gate: Gate, clone: Path) -> None:
    asked = ["first", "worse", "--bench", TILES.format(n=8, looking="left")]
    command = [sys.executable, "-m", "batchchol", "gate", *asked, "--profile", "quick"]
    with subprocess.Popen(command, cwd=clone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(known := [line for path in journals(clone) for line in path.read_text().splitlines(True)]) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    status, said = gate(*asked)
    assert status == 1
    assert list(said.values()) == ["slower: "]
    (slow,) = json.loads((clone / ".asv" / "gate" / "answer" / "gate.json").read_text())["outcomes"]
    assert slow["log_ratios"][:2] == [json.loads(line)["log_ratio"] for line in known[:2]]
    assert not journals(clone)


def test_a_commit_that_cannot_be_imported_is_a_failure(
    gate: Gate, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate("first", "broken") == (2, {})
    said = capsys.readouterr().out
    assert f"the gate failed: commit {git(clone, 'rev-parse', 'broken')[:8]} cannot be measured: " in said
    assert "No module named 'nonsense'" in said


def test_a_commit_that_is_not_there_is_a_failure(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate("first", "nowhere") == (2, {})
    assert "no commit 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("gate --bench (", "expected a regular expression"),
        ("gate --budget -1", "--budget"),
        ("gate --budget never", "--budget"),
        ("gate --profile all", "invalid choice"),
        ("noise --gates 0", "--gates"),
        ("noise --gates many", "--gates"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments.split())
    assert end.value.code == 2
    assert why in capsys.readouterr().err


def test_a_full_disk_keeps_the_journal(
    gate: Gate, clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full_device: Path
) -> None:
    def full(*_: Any) -> None:
        full_device.write_bytes(b"x")

    with monkeypatch.context() as patch:
        patch.setattr("batchchol.asv_plugin.gate.answer.write", full)
        assert (
            main(["gate", "first", "said", "--profile", "quick", "--bench", TILES.format(n=4, looking="left")]) == 2
        )
    said = capsys.readouterr()
    assert "nothing is slower" in said.out
    assert said.err.rstrip().endswith("No space left on device")
    assert len(journals(clone)) == 1
    journals(clone)[0].unlink()


def test_without_a_gpu_machine_code_decides(gate: Gate) -> None:
    try:
        find_nvcc()
    except CompilerNotFound as error:
        pytest.skip(str(error))
    status, said = gate("first", "cuda", "--proof-only", "--bench", r"Defaults.*cuda, n=[48], batch=16384")
    four, eight = said.values()
    assert four == "undecided: changed, and not measured here"
    assert eight == "unchanged: other source, the same machine code"
    assert status == 3


def test_noise_is_learned(gate: Gate, clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["noise", "first", "--gates", "1", "--profile", "quick", "--bench", TILES.format(n=4, looking="left")]
    assert main(arguments) == 0
    assert "gate 1: " in capsys.readouterr().out
    (history,) = (clone / ".asv" / "gate").glob("noise-*.jsonl")
    assert json.loads(history.read_text().splitlines()[-1])["key"].startswith("Tiles.device_factor")
    assert not journals(clone)
