"""Files that commands write: whole or not at all, and nothing but a regular file is replaced."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from batchchol.errors import DataFileError
from batchchol.files import check_writable, make_folder, replace_entry, replace_file, replacing


def write_twice(path: Path) -> None:
    replace_file(path, b"first")
    replace_file(path, b"second")


def test_a_new_file_has_the_mode_that_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "new", b"data")
        replace_entry(tmp_path / "entry", b"data", 0o644)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"new": 0o640, "entry": 0o640}


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "private"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_twice(path)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"second", 0o600)


def test_readers_of_the_old_file_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_twice(path)
        assert reader.read() == b"old"


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_bytes_and_nothing_else(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with replacing(path) as stream:
            stream.write(b"new")
            raise failure

    with pytest.raises((DataFileError, KeyboardInterrupt)):
        write()
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == {path: b"old"}


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to("folder/target")
    check_writable(link)
    write_twice(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"second"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def circle_of_links(path: Path) -> None:
    path.symlink_to(path)


def unix_socket(path: Path) -> None:
    # Its address has room for 108 bytes.
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def disk(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 250))
    except PermissionError:
        pytest.skip("only root makes devices")


REFUSED = {
    "folder": (Path.mkdir, "is a folder"),
    "dangling link": (dangling_link, "symbolic link to nowhere, which is not there"),
    "circle of links": (circle_of_links, "Too many levels"),
    "socket": (unix_socket, "is neither a file"),
    "disk": (disk, "is neither a file"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_file_is_refused_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    make, message = REFUSED[kind]
    path = tmp_path / "path"
    make(path)
    before = path.lstat()
    for act in (check_writable, lambda path: replace_file(path, b"data")):
        with pytest.raises(DataFileError, match=message) as caught:
            act(path)
        assert str(path) in str(caught.value)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert [each.name for each in tmp_path.iterdir()] == ["path"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "file"
    for act in (check_writable, lambda path: replace_file(path, b"data")):
        with pytest.raises(DataFileError, match=r"there is no folder .*nowhere: make it"):
            act(path)
    with pytest.raises(DataFileError, match="Not a directory"):
        check_writable(Path("/dev/null/file"))


def test_a_file_system_that_takes_no_files_is_refused() -> None:
    # /proc is of root, with write permission, and makes no file.
    with pytest.raises(DataFileError, match="/proc/file: writing"):
        check_writable("/proc/file")


def test_looking_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    check_writable(path)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"old")
    check_writable(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_devices_are_written_to_and_never_replaced(full_device: Path) -> None:
    before = os.stat(full_device)
    check_writable(full_device)
    replace_file(full_device, b"")
    with pytest.raises(DataFileError, match="full: writing: No space left"):
        replace_file(full_device, b"data")
    after = os.stat(full_device)
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)


def test_a_pipe_with_a_name_is_written_to(tmp_path: Path) -> None:
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    check_writable(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    replace_file(path, b"data")
    reader.join(60)
    assert read == [b"data"]
    assert path.is_fifo()


STREAMS = """
import sys
from batchchol.files import check_writable, replace_file
print("before")
for name in sys.argv[1:]:
    check_writable(name)
    replace_file(name, name.encode() + b"\\n")
print("after")
"""


def test_streams_of_the_process_are_written_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("kept\n")
    names = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
    with log.open("a") as stream:
        subprocess.run([sys.executable, "-c", STREAMS, *names], stdout=stream, check=True)
    assert log.read_text().split() == ["kept", "before", *names, "after"], "what a shell appends to is not replaced"


def test_a_stream_that_is_only_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "input").touch()
    with (tmp_path / "input").open("rb") as stream, pytest.raises(DataFileError, match="Permission denied"):
        check_writable(f"/dev/fd/{stream.fileno()}")
    with pytest.raises(DataFileError, match="Bad file descriptor"):
        check_writable("/dev/fd/999999")


def test_folders_are_made_or_named(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(DataFileError, match="there is a file of this name"):
        make_folder(tmp_path / "file")
    with pytest.raises(DataFileError, match="cannot be made: Not a directory"):
        make_folder(tmp_path / "file" / "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("mode", [0o555, 0o500])
def test_folders_without_permission_are_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(DataFileError, match="Permission denied"):
        check_writable(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_write_protected_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o444)
    with pytest.raises(DataFileError, match="is write-protected"):
        check_writable(tmp_path / "file")


@pytest.mark.parametrize("make", [os.mkfifo, dangling_link, circle_of_links, Path.touch])
def test_an_entry_takes_the_place_of_anything(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "entry"
    make(path)
    replace_entry(path, b"data", 0o644)
    assert path.read_bytes() == b"data"
    assert not path.is_symlink()
    assert list(tmp_path.iterdir()) == [path]
