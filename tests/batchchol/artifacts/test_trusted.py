"""Folders and files that others can change are refused; those of root, and of the user alone, are not."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchchol.artifacts import trusted
from batchchol.artifacts.trusted import Untrusted, read_file, resolve_folder

Give = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "parent" / "cache"
    path.mkdir(parents=True)
    for each in (path, path.parent):
        each.chmod(0o755)
    return path


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Give:
    """give_away(path): it belongs to another user then."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 54321, 54321)
        else:
            user = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    return give


@pytest.fixture
def private_group(monkeypatch: pytest.MonkeyPatch, folder: Path) -> SimpleNamespace:
    """The group of the folder is the user's own, as Debian makes them."""
    number = folder.stat().st_gid
    group = SimpleNamespace(gr_name="ada", gr_gid=number, gr_mem=[])
    monkeypatch.setattr(pwd, "getpwuid", lambda user: SimpleNamespace(pw_name="ada", pw_gid=number))
    monkeypatch.setattr(grp, "getgrgid", lambda number: group)
    # Where the tests run as root, its group is not private for the reason that is tested.
    monkeypatch.setattr(trusted, "_ROOT_GROUP", -1)
    return group


def test_the_user_s_own_folder_is_trusted(folder: Path) -> None:
    assert resolve_folder(folder) == folder.resolve()
    assert resolve_folder(folder / "not" / "yet") == folder.resolve() / "not" / "yet"
    assert resolve_folder(Path("/usr/lib")) == Path("/usr/lib").resolve()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(
    folder: Path, private_group: SimpleNamespace, mode: int
) -> None:
    private_group.gr_mem = ["bob"]
    folder.chmod(mode)
    with pytest.raises(Untrusted, match=rf"others can write to {folder} \(its mode is {mode:04o}\): chmod go-w"):
        resolve_folder(folder)


def test_so_is_one_below_a_folder_that_others_can_write_to(folder: Path) -> None:
    folder.parent.chmod(0o777)
    with pytest.raises(Untrusted, match=rf"others can write to {folder.parent} "):
        resolve_folder(folder)
    folder.parent.chmod(0o1777)
    assert resolve_folder(folder) == folder.resolve(), "in a sticky one they cannot replace it"
    assert resolve_folder(folder.parent, shared=True) == folder.parent.resolve()


def test_a_folder_of_another_user_is_refused(folder: Path, give_away: Give) -> None:
    give_away(folder)
    with pytest.raises(Untrusted, match=r"belongs to .*uid \d+.*: chown it to .*uid \d+"):
        resolve_folder(folder)


def test_a_folder_on_the_way_of_another_user_is_refused(folder: Path, give_away: Give) -> None:
    give_away(folder.parent)
    with pytest.raises(Untrusted, match="belongs to"):
        resolve_folder(folder)


def test_links_are_followed_before_anything_is_looked_at(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert resolve_folder(link / "cache") == folder.resolve() / "cache"
    folder.chmod(0o777)
    with pytest.raises(Untrusted):
        resolve_folder(link)


def test_a_private_group_may_write(folder: Path, private_group: SimpleNamespace) -> None:
    folder.chmod(0o775)
    folder.parent.chmod(0o2775)
    assert resolve_folder(folder) == folder.resolve()
    private_group.gr_mem = ["root", "ada"]
    assert resolve_folder(folder) == folder.resolve()


@pytest.mark.parametrize("change", [{"gr_mem": ["ada", "bob"]}, {"gr_name": "users"}])
def test_a_group_of_more_users_may_not(
    folder: Path, private_group: SimpleNamespace, change: dict[str, object]
) -> None:
    private_group.__dict__.update(change)
    folder.chmod(0o775)
    with pytest.raises(Untrusted, match="others can write"):
        resolve_folder(folder)


def test_nor_one_without_a_name_or_with_an_access_list(
    folder: Path, private_group: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o775)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listxattr", lambda path, follow_symlinks: ["system.posix_acl_access"])
        with pytest.raises(Untrusted, match="others can write"):
            resolve_folder(folder)

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(grp, "getgrgid", unknown)
    with pytest.raises(Untrusted, match="others can write"):
        resolve_folder(folder)


def test_a_container_that_knows_no_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the files of root on the way seem to belong to nobody."""
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    monkeypatch.setattr(trusted, "_owners_without_a_name", lambda: {folder.stat().st_uid, 0})
    monkeypatch.setattr(trusted, "_ROOT", 88)
    with pytest.raises(Untrusted, match=f"{folder} belongs to"):
        resolve_folder(folder)


@pytest.mark.parametrize(
    ("uid_map", "owners"),
    [("0 0 4294967295\n", set()), ("1000 1000 1\n", {65534}), ("0 1000 1\n1 100000 65536\n", {65534})],
)
def test_whether_a_container_knows_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid_map: str, owners: set[int]
) -> None:
    monkeypatch.setattr(trusted, "Path", lambda path: tmp_path / path.rpartition("/")[2])
    assert trusted._owners_without_a_name() == set()
    (tmp_path / "uid_map").write_text(uid_map)
    (tmp_path / "overflowuid").write_text("65534\n")
    assert trusted._owners_without_a_name() == owners


def test_files_are_read(folder: Path) -> None:
    (folder / "file").write_bytes(b"data")
    assert read_file(folder / "file", 4) == b"data"
    with pytest.raises(Untrusted, match="larger than 3 bytes"):
        read_file(folder / "file", 3)
    with pytest.raises(FileNotFoundError):
        read_file(folder / "none", 3)


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_files_that_others_can_write_are_refused(folder: Path, mode: int) -> None:
    (folder / "file").write_bytes(b"data")
    (folder / "file").chmod(mode)
    with pytest.raises(Untrusted, match="file can be changed by others"):
        read_file(folder / "file", 100)


def test_files_of_others_are_refused(folder: Path, give_away: Give) -> None:
    (folder / "file").write_bytes(b"data")
    give_away(folder / "file")
    with pytest.raises(Untrusted, match="file can be changed by others"):
        read_file(folder / "file", 100)


def test_what_is_no_regular_file_is_refused_without_waiting(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(Untrusted, match="is no regular file"):
        read_file(folder / "pipe", 100)
    for name in ("folder", "link"):
        with pytest.raises(OSError, match=name):
            read_file(folder / name, 100)
