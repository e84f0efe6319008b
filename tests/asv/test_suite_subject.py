"""What `make` has asv measure: the last commit of a clone, or a snapshot of a folder that is none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from batchchol.asv_plugin.suite import find_subject
from batchchol.errors import BatchcholError

from ..repositories import git

ROOT = Path(__file__).resolve().parents[2]
WHY = "the suite's extra is not installed: there is no asv"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An unpacked archive: sources, no repository."""
    folder = tmp_path / "an archive"
    for name in ("batchchol", "kernelgen", "benchmarks"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"'{name}'\n")
    for name in ("asv.conf.json", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    return folder


def test_clone_is_measured_by_its_last_commit(archive: Path) -> None:
    git(archive, "init", "--quiet")
    git(archive, "add", ".")
    git(archive, "commit", "--quiet", "-m", "First")
    subject = find_subject(archive)
    assert subject.commit == git(archive, "rev-parse", "HEAD")
    assert subject.config == archive / "asv.conf.json"


@pytest.mark.parametrize("within", ["nothing", "a clone", "an empty repository"])
def test_archive_is_measured_as_it_is(within: str, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    util = pytest.importorskip("asv.util", reason=WHY)
    if within == "a clone":
        git(archive.parent, "init", "--quiet")
        git(archive.parent, "commit", "--quiet", "--allow-empty", "-m", "Another project")
    elif within == "an empty repository":
        git(archive, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    subject = find_subject(archive)
    assert "snapshot" in subject.described
    settings = json.loads(subject.config.read_text())
    place = subject.config.parent
    assert (place / settings["benchmark_dir"]).resolve() == archive / "benchmarks"
    assert (place / settings["results_dir"]).resolve() == subject.results
    assert settings["plugins"] == util.load_json(str(ROOT / "asv.conf.json"), js_comments=True)["plugins"]
    monkeypatch.delenv("GIT_DIR")
    checkout = archive.parent / "checkout"
    git(archive.parent, "clone", "--quiet", str(place / settings["repo"]), str(checkout))
    assert git(checkout, "rev-parse", "HEAD") == subject.commit
    assert (checkout / "batchchol" / "__init__.py").read_text() == "'batchchol'\n"


def test_changed_archive_is_another_commit(archive: Path) -> None:
    pytest.importorskip("asv", reason=WHY)
    first = find_subject(archive).commit
    (archive / "kernelgen" / "__init__.py").write_text("'changed'\n")
    assert find_subject(archive).commit != first


def test_other_folders_and_missing_git_are_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BatchcholError, match="is no clone of batchchol"):
        find_subject(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BatchcholError, match="no git on the PATH"):
        find_subject(archive)
