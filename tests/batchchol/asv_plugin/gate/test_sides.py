"""Commits and their checkouts: what is there is whole, and what is not is told of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from batchchol.asv_plugin.gate import sides
from batchchol.errors import BatchcholError

from ....repositories import git


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of one commit."""
    folder = tmp_path / "clone"
    for name in ("batchchol", "kernelgen", "docs"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"'{name}'\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "First")
    return folder


def test_a_commit_has_a_hash(clone: Path) -> None:
    head = git(clone, "rev-parse", "HEAD")
    assert sides.resolve(clone, "HEAD") == sides.resolve(clone, head[:10]) == head


@pytest.mark.parametrize("commit", ["HEAD~1", "nowhere", "--all", "", "HEAD:docs"])
def test_what_is_no_commit_is_refused(clone: Path, commit: str) -> None:
    with pytest.raises(BatchcholError, match="no commit "):
        sides.resolve(clone, commit)


def test_the_packages_of_a_commit_are_exported_once(clone: Path, tmp_path: Path) -> None:
    head = git(clone, "rev-parse", "HEAD")
    (clone / "batchchol" / "__init__.py").write_text("not committed\n")
    into = tmp_path / "checkouts"
    with ThreadPoolExecutor(4) as pool:
        places = set(pool.map(lambda _: sides.export(clone, head, into), range(4)))
    assert places == {into / head}
    assert [path.name for path in into.iterdir()] == [head]
    assert (into / head / "batchchol" / "__init__.py").read_text() == "'batchchol'\n"
    assert sorted(path.name for path in (into / head).iterdir()) == ["batchchol", "kernelgen"]


def test_a_checkout_that_was_interrupted_is_made_anew(clone: Path, tmp_path: Path) -> None:
    head, into = git(clone, "rev-parse", "HEAD"), tmp_path / "checkouts"
    with mock.patch("tarfile.TarFile.extractall", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        sides.export(clone, head, into)
    assert not list(into.iterdir())
    assert (sides.export(clone, head, into) / "kernelgen" / "__init__.py").exists()


def test_a_commit_without_the_library_is_told_of(clone: Path, tmp_path: Path) -> None:
    git(clone, "rm", "-rq", "kernelgen")
    git(clone, "commit", "--quiet", "-m", "Second")
    with pytest.raises(BatchcholError, match="has no batchchol and kernelgen"):
        sides.export(clone, git(clone, "rev-parse", "HEAD"), tmp_path / "checkouts")


def test_without_git_it_is_said_how_to_get_it(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(clone))
    with pytest.raises(BatchcholError, match="apt install git"):
        sides.resolve(clone, "HEAD")
