"""A CUDA compiler that is none: what it writes looks like a cubin; it fails, hangs and lies when a source says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kernelgen import KernelSource, Launch

# By way of a shell: Linux takes no spaces in the path of an interpreter.
_SCRIPT = r"""#!/bin/sh
'''exec' "{python}" "$0" "$@"
'''
import os, re, struct, sys, time
from pathlib import Path

arguments = sys.argv[1:]
if "--version" in arguments:
    print("nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V{version}\nBuild fake_build")
    sys.exit()
if "--list-gpu-code" in arguments:
    print("sm_80\nsm_90\nsm_120")
    sys.exit()

text = Path("kernel.cu").read_text()
entries = re.findall(r'^extern "C" __global__ void (?:__launch_bounds__\([\d, ]+\) )?(\w+)', text, re.MULTILINE)
with open("{log}", "a") as log:
    log.write(" ".join([*arguments, "|", *entries]) + "\n")
if "SLOW" in text:
    time.sleep(0.2)
if "HANG" in text:
    Path("{log}.pid").write_text(str(os.getpid()))
    time.sleep(1000)
if "BROKEN" in text:
    print("kernel.cu(1): error: expected something else", file=sys.stderr)
    sys.exit(2)
if "NO_HOST" in text:
    print("gcc: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties.")
    sys.exit(1)


def elf(sections):
    # A 64-bit ELF file of sections with code, as long as they say.
    names = b"\0" + b"".join(name.encode() + b"\0" for name in ["names", *sections])
    code = b"\x90" * sum(sections.values())
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 0x28, 64 + len(names) + len(code))
    struct.pack_into("<HHH", header, 0x3A, 64, len(sections) + 2, 1)
    table = [bytes(64), struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)]
    for name, size in sections.items():
        place = names.index(name.encode() + b"\0")
        table.append(struct.pack("<IIQQQQIIQQ", place, 1, 6, 0, 64 + len(names), size, 0, 0, 1, 0))
    return bytes(header) + names + code + b"".join(table)


output = Path(arguments[arguments.index("-o") + 1])
if "EMPTY" in text:
    output.write_bytes(b"")
elif "NOTHING" not in text:
    found = [entry for entry in entries if "FORGET" not in text]
    if output.suffix == ".ptx":
        output.write_text("".join(".visible .entry " + entry + "(\n)\n{{\n}}\n" for entry in found))
    else:
        data = elf({{".text." + entry: 100 * len(entry) for entry in found}})
        output.write_bytes(data[:-10] if "HALF" in text else data)
for entry in entries if "--resource-usage" in arguments else ():
    print("ptxas info    : Compiling entry function '" + entry + "' for 'sm_90'")
    print("    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads")
    print("ptxas info    : Used 40 registers, used 1 barriers, 256 bytes smem")
"""


def write_fake_nvcc(path: Path, version: str = "13.0.88") -> Path:
    """The executable; the arguments and kernels of each run are in the file of the same name and `.log`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_SCRIPT.format(python=sys.executable, version=version, log=path.with_suffix(".log")))
    path.chmod(0o755)
    # Versions follow each other faster than the file system's clock may tick.
    os.utime(path, ns=(0, int(version.replace(".", ""))))
    return path


def compiled(path: Path) -> list[list[str]]:
    """The kernels of each run so far."""
    log = path.with_suffix(".log")
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.partition("|")[2].split() for line in lines]


def kernel_source(entry: str, words: str = "", flags: tuple[str, ...] = ()) -> KernelSource:
    """A kernel that does nothing; `words`, such as "HANG", tell the compiler what to do."""
    text = f'/* {words} */\nextern "C" __global__ void {entry}(int *info) {{}}\n'
    return KernelSource(text, entry, 1, flags, Launch(32, 32))
