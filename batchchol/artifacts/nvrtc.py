"""NVRTC as a compiler to run: a stand-in for nvcc where there is none, from the wheel nvidia-cuda-nvrtc.

    python nvrtc.py LIBRARY -cubin -arch=sm_90 [OPTION ...] -o kernel.cubin kernel.cu

It takes nvcc's options as far as `batchchol.artifacts.nvcc` gives them, and prints what that reads. As a process of
its own it can be stopped at a time limit, as nvcc can; it imports nothing of the library, and so starts in 0.1 s.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_Handle = ctypes.c_void_p


class Nvrtc:
    """The library; every method raises SystemExit with the library's message if a call fails."""

    def __init__(self, path: str) -> None:
        # It asks the loader for these, which does not look beside it.
        for builtins in Path(path).parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> str:
        """The version, such as "13.0"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> list[int]:
        """The numbers of those that it makes code for."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return list(found)

    def compile(self, text: bytes, name: str, options: Sequence[str], kind: str) -> tuple[bytes, str]:
        """The code of a kind, "cubin" or "ptx", that it makes of a source, and what it says."""
        program = _Handle()
        create = self._library.nvrtcCreateProgram
        self._check(create(ctypes.byref(program), text, name.encode(), 0, None, None))
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = self._library.nvrtcCompileProgram(program, len(options), given)
        messages = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status:
            sys.exit(messages or self._said(status))
        return self._read(program, kind.upper()), messages

    def _read(self, program: Any, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        room = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, room))
        return room.raw

    def _check(self, status: int) -> None:
        if status:
            sys.exit(self._said(status))

    def _said(self, status: int) -> str:
        return f"NVRTC: {self._library.nvrtcGetErrorString(status).decode()}"


def main(library: str, *arguments: str) -> None:
    """Compile as the arguments say, or say what there is."""
    nvrtc = Nvrtc(library)
    if "--version" in arguments:
        print(f"NVRTC\nCuda compilation tools, release {nvrtc.version()}, V{nvrtc.version()}")
        return
    if "--list-gpu-code" in arguments:
        print(*(f"sm_{number}" for number in nvrtc.architectures()), sep="\n")
        return
    given = list(arguments)
    source, at = Path(given.pop()), given.index("-o")
    output = Path(given[at + 1])
    kind = "ptx" if "-ptx" in given else "cubin"
    options = [_option(each) for each in given[:at] if each not in ("-ptx", "-cubin")]
    code, messages = nvrtc.compile(source.read_bytes(), source.name, options, kind)
    print(messages, file=sys.stderr)
    output.write_bytes(code.rstrip(b"\0") if kind == "ptx" else code)


def _option(option: str) -> str:
    """NVRTC's name of one of nvcc's options."""
    return "--ptxas-options=-v" if option == "--resource-usage" else option


if __name__ == "__main__":
    main(*sys.argv[1:])
