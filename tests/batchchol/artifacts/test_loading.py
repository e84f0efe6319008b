"""Shared objects are loaded from the bytes that were verified."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from batchchol.artifacts.c_library import load_library


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Shared objects whose function `number` has different answers."""
    folder = tmp_path_factory.mktemp("objects")
    made = []
    for number in range(3):
        source = folder / "number.c"
        source.write_text(f"int number(void) {{ return {number}; }}\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "number.so", source], check=True)
        made.append((folder / "number.so").read_bytes())
    return made


def test_each_is_what_its_bytes_say(objects: list[bytes]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    # The loader takes equal paths for equal objects, and the descriptor is the same each time.
    assert [load_library(data, "same").number() for data in objects] == [0, 1, 2]
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_profilers_see_its_name(objects: list[bytes]) -> None:
    library = load_library(objects[0] + b"other bytes", "potrf_n8" + 300 * "x")
    assert "/memfd:potrf_n8xxx" in Path("/proc/self/maps").read_text()
    assert library.number() == 0


@pytest.mark.parametrize("failure", [PermissionError(errno.EACCES, "no code in memory"), AttributeError()])
def test_without_memory_files_a_private_copy_is_loaded(
    objects: list[bytes], monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(name: str, flags: int) -> int:
        raise failure

    monkeypatch.setattr(os, "memfd_create", fail)
    assert [load_library(data, "same").number() for data in objects] == [0, 1, 2]


@pytest.mark.parametrize("data", [b"", b"no object", b"\x7fELF" + bytes(60)])
def test_what_is_no_object_is_an_error(data: bytes) -> None:
    with pytest.raises(OSError, match=r"file too short|invalid ELF header|wrong ELF class"):
        load_library(data, "none")
