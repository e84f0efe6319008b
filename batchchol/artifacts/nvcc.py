"""The CUDA compiler: finding it, and compiling CUDA sources to cubins or PTX. No GPU is needed.

It is nvcc, or NVRTC in a process of its own where that is all there is (`batchchol.artifacts.nvrtc`). Measured with
both of CUDA 13.5 on straight-line kernels: nvcc starts in 0.3 s where NVRTC takes 0.15 s, but a module of eight
kernels (n = 8) took 0.66 s and 0.65 s, and one large kernel (n = 24) 2.8 s and 2.8 s.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from batchchol.artifacts import elf
from batchchol.artifacts.compilers import (
    TIME_LIMIT,
    Compilation,
    Compiler,
    Running,
    Unusable,
    first_usable,
    probe,
)
from batchchol.errors import CompileError, CompilerNotFound

Kind = Literal["cubin", "ptx"]

_NVRTC = Path(__file__).with_name("nvrtc.py")
STANDARD_PATH = Path("/usr/local/cuda/bin/nvcc")

_HINT = (
    "`pip install nvidia-cuda-nvrtc`, or install the CUDA toolkit, or name one: BATCHCHOL_NVCC=/path/to/nvcc "
    "(no GPU is needed to compile)"
)
_NO_HOST_COMPILER = "Failed to preprocess host compiler properties"
_HOST_HINT = "nvcc needs a C++ compiler: install one (Debian and Ubuntu: apt install g++), or name it in NVCC_CCBIN"
_PROBE_SECONDS = 20.0
_VERSION = re.compile(r"^Cuda compilation tools, release .*\bV(?P<version>\d+(?:\.\d+)+)", re.MULTILINE)
_BUILD = re.compile(r"^Build (?P<build>\S+)", re.MULTILINE)
_ARCHITECTURE = re.compile(r"(?P<code>sm|compute)_(?P<number>[0-9]{2,3})(?P<suffix>[af]?)")
# What CUDA's assembler says about each kernel.
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
# nvcc reads options from these without being told: they decide what a kernel is.
_OPTION_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


@dataclass(frozen=True)
class Usage:
    """One kernel's resources; None where the assembler did not say.

    `registers` of a thread; `spill_bytes`, stored and loaded; `stack_bytes` of local memory, what is indexed by
    variables included; `shared_bytes`, static.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None


@dataclass(frozen=True)
class Code:
    """What the compiler made of one translation unit.

    `usage` and `code_bytes` are by entry; PTX has no usage and no code yet: the driver makes its code.
    """

    data: bytes
    kind: Kind
    target: str
    seconds: float
    usage: Mapping[str, Usage]
    code_bytes: Mapping[str, int]


def find_nvcc() -> Compiler:
    """Find nvcc: BATCHCHOL_NVCC, the PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda, NVIDIA's wheels; or their NVRTC.

    BATCHCHOL_NVCC is obeyed or refused, never passed over.

    Raises
    ------
    CompilerNotFound
        If there is none; says where it was looked for and how to get one.
    """
    return first_usable("CUDA", _candidates(), _identify, _HINT)


def architecture_of(major: int, minor: int) -> str:
    """The architecture name of a compute capability: ``"sm_90"`` of 9, 0."""
    return f"sm_{major}{minor}"


def parse_architecture(arch: str) -> tuple[str, int, str]:
    """Split ``"sm_90a"`` into ``("sm", 90, "a")``.

    Raises
    ------
    ValueError
        If it is not an architecture's name.
    """
    found = _ARCHITECTURE.fullmatch(arch)
    if found is None:
        raise ValueError(f"arch: got {arch!r}, expected the name of a GPU architecture, such as 'sm_90'")
    return found["code"], int(found["number"]), found["suffix"]


def known_architectures(nvcc: Compiler | None = None) -> tuple[str, ...]:
    """The architectures that nvcc makes code for, such as ``("sm_80", "sm_90")``, in ascending order."""
    nvcc = nvcc or find_nvcc()
    try:
        answer = probe((*nvcc.command, "--list-gpu-code"), _PROBE_SECONDS)
    except Unusable as error:
        raise CompilerNotFound(f"{nvcc.path} {error}: {_HINT}") from error
    names = re.findall(r"^sm_\d{2,3}$", answer, re.MULTILINE)
    if not names:
        raise CompilerNotFound(f"{nvcc.path} does not list its architectures (it says {answer!r}): {_HINT}")
    return tuple(sorted(names, key=lambda name: parse_architecture(name)[1]))


def compile_target(nvcc: Compiler, arch: str) -> tuple[Kind, str]:
    """What to compile to for `arch`: a cubin, or PTX of the nearest earlier architecture that nvcc knows.

    Raises
    ------
    ValueError
        If `arch` is not an architecture's name.
    CompileError
        If it is older than all that nvcc knows.
    """
    code, number, suffix = parse_architecture(arch)
    numbers = [parse_architecture(known)[1] for known in known_architectures(nvcc)]
    if code == "sm" and number in numbers:
        return "cubin", arch
    # No other architecture has what a suffix promises.
    earlier = [known for known in numbers if known <= number]
    if not earlier:
        raise CompileError(
            "compile",
            f"nvcc {nvcc.version} makes no code for {arch}, only from sm_{min(numbers)} on: use an older toolkit",
        )
    return "ptx", f"compute_{max(earlier)}{suffix if max(earlier) == number else ''}"


def compile_code(
    nvcc: Compiler,
    text: str,
    entries: Sequence[str],
    arch: str,
    flags: Sequence[str] = (),
    *,
    time_limit: float = TIME_LIMIT,
    keep: bool = True,
    running: Running | None = None,
) -> Code:
    """Compile one CUDA translation unit for one architecture.

    Parameters
    ----------
    nvcc : Compiler
        From :func:`find_nvcc`.
    text : str
        The translation unit.
    entries : sequence of str
        The kernels it must contain.
    arch : str
        Such as ``"sm_90"``; for one that nvcc does not know, see :func:`compile_target`.
    flags : sequence of str
        More options for nvcc.
    time_limit : float
        Seconds after which the compiler and all its processes are killed.
    keep : bool
        Whether a source that does not compile is kept for reading.
    running : Running or None
        Where the compiler is counted in while it runs.

    Raises
    ------
    ValueError
        If `arch` is not an architecture's name.
    CompileError
        Status "timeout" at the time limit, "compile" for every other failure.
    """
    kind, target = compile_target(nvcc, arch)
    report = ("--resource-usage",) if kind == "cubin" else ()
    output = f"kernel.{kind}"
    command = (*nvcc.command, f"-{kind}", f"-arch={target}", "-std=c++17", *report, *flags, "-o", output, "kernel.cu")
    compilation = Compilation("nvcc", command, text, "kernel.cu", keep)

    def fault(data: bytes) -> str:
        found = kernels_in(data, kind)
        missing = [entry for entry in entries if entry not in found]
        return f"no whole {kind} with {', '.join(missing)}" if missing else ""

    try:
        made = compilation.make(output, fault, time_limit, running)
    except CompileError as error:
        if _NO_HOST_COMPILER in str(error):
            raise CompileError(error.status, f"{error}\n{_HOST_HINT}") from error
        raise
    return Code(made.data, kind, target, made.seconds, read_usage(made.messages), kernels_in(made.data, kind))


def read_usage(messages: str) -> Mapping[str, Usage]:
    """The resources of each kernel in the messages of `nvcc --resource-usage`."""
    _, *sections = _ENTRY.split(messages)
    return {entry: _usage(section) for entry, section in zip(sections[::2], sections[1::2], strict=True)}


def _usage(section: str) -> Usage:
    registers = _REGISTERS.search(section)
    if registers is None:
        return Usage()
    # Functions that were not inlined have lines of their own in their kernel's section.
    memory = [tuple(map(int, numbers)) for numbers in _MEMORY.findall(section)]
    shared = _SHARED.search(section)
    return Usage(
        registers=int(registers[1]),
        spill_bytes=sum(stores + loads for _, stores, loads in memory),
        stack_bytes=sum(stack for stack, _, _ in memory),
        shared_bytes=int(shared[1]) if shared else 0,
    )


def kernels_in(data: bytes, kind: str) -> dict[str, int]:
    """The kernels of a module and the bytes of their code, 0 in PTX; none if it is damaged."""
    if kind == "ptx":
        text = data.decode("utf-8", "replace")
        entries = re.findall(r"^\.visible \.entry (\w+)\(", text, re.MULTILINE)
        return dict.fromkeys(entries, 0) if text.rstrip().endswith("}") else {}
    prefix = ".text."
    try:
        sections = elf.code_sections(data) if elf.is_whole(data) else []
    except ValueError:
        return {}
    return {name.removeprefix(prefix): size for name, size in sections if name.startswith(prefix)}


def _candidates() -> Iterator[tuple[str, str]]:
    """Where each command came from, and the command as for a shell."""
    chosen = os.environ.get("BATCHCHOL_NVCC", "").strip()
    if chosen:
        yield f"BATCHCHOL_NVCC={chosen}", chosen
        return
    yield "nvcc", "nvcc"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if folder := os.environ.get(variable):
            yield f"{variable}={folder}", shlex.quote(str(Path(folder, "bin", "nvcc")))
    for path in (STANDARD_PATH, *_in_wheels("bin/nvcc")):
        yield str(path), shlex.quote(str(path))
    for path in _in_wheels("lib/libnvrtc.so.*"):
        yield str(path), shlex.join((sys.executable, str(_NVRTC), str(path)))


def _in_wheels(pattern: str) -> list[Path]:
    """Candidates in the folders of NVIDIA's wheels, the newest first; the wheels are not imported."""
    try:
        found = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    folders = (found.submodule_search_locations or []) if found else []
    return [path for folder in folders for path in sorted(Path(folder).glob(f"*/{pattern}"), reverse=True)]


def _identify(path: Path, arguments: tuple[str, ...]) -> Compiler:
    """Identify nvcc, or NVRTC, by its --version."""
    options = tuple(f"{name}={value}" for name in _OPTION_VARIABLES if (value := os.environ.get(name)))
    answer = probe((str(path), *arguments, "--version"), _PROBE_SECONDS)
    version, build = _VERSION.search(answer), _BUILD.search(answer)
    if version is None:
        raise Unusable("does not present itself as nvcc")
    if answer.startswith("NVRTC"):
        return Compiler(path, version["version"], f"NVRTC {version['version']}", arguments)
    parts = (f"nvcc {version['version']}", build["build"] if build else "", shlex.join(arguments), *options)
    return Compiler(path, version["version"], " | ".join(part for part in parts if part), arguments)
