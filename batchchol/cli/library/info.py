"""`python -m batchchol info`: what was found on this machine, what is missing and how to get it."""

from __future__ import annotations

import argparse
import platform

import batchchol
from batchchol.artifacts.cache import default_folder
from batchchol.backends import fastest_backend, survey
from batchchol.defaults.lookup import user_table
from batchchol.defaults.shipped import source_of
from batchchol.errors import BackendUnavailable, install
from batchchol.measure.provenance import installed

# Distribution, what it is for here, and how to install it; of several with a bar between them any one will do.
OPTIONAL_PACKAGES = (
    ("pycuda", "NVIDIA GPUs", f"{install('gpu')} (needs the CUDA toolkit and a C++ compiler)"),
    ("nvidia-ml-py", "clocks and temperatures of GPUs", install("gpu")),
    ("cuda-bindings", "CUDA graphs", install("graphs")),
    ("nvidia-cuda-nvrtc", "kernels of GPUs where there is no nvcc", install("nvrtc")),
    ("asv", "benchmarks across commits", install("suite")),
    ("matplotlib", "plots", install("plots")),
    ("scikit-learn", "the digits data set; `report` and guided search", install("data")),
    ("pyarrow", "data sets of `tune --space`", install("tune")),
    ("pandas", "`report` of a data set, guided search", install("report")),
    ("ruptures", "change points of the suite's results", install("history")),
    ("optuna", "guided search by TPE, `replay`", install("search")),
    ("distributed", "`tune --cluster`", install("cluster")),
    ("torch", "operators of PyTorch; a peer of `compare`", install("torch")),
    ("mkl", "two peers of `compare`", "pip install mkl"),
    ("cupy-cuda13x|cupy-cuda12x|cupy", "orders above 128 on a GPU; a peer of `compare` there", install("large")),
    ("jax", "calls of JAX; a peer of `compare` on a GPU", f"{install('jax')}; on a GPU: pip install 'jax[cuda13]'"),
    (
        "nvidia-libmathdx-cu13|nvidia-libmathdx-cu12",
        "two peers of `compare` on a GPU",
        "pip install nvidia-libmathdx-cu13 nvidia-cuda-nvrtc nvidia-nvjitlink",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace) -> int:
    """Print the survey; 0 if some backend can be used, else 2."""
    print(f"batchchol   {batchchol.__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(f"cache       {default_folder()}")
    found = survey()
    for backend in found:
        print(f"backend     {backend.name}: {plain(backend.detail) if backend.found else 'not available'}")
        if backend.hint:
            print(f"            {backend.hint}")
    usable = _print_device({backend.name for backend in found if backend.found})
    for names, purpose, how in OPTIONAL_PACKAGES:
        first, *others = names.split("|")
        missing = f"{first}: not installed ({purpose}): {how}"
        versions = (f"{name}: {version}" for name in (first, *others) if (version := installed(name)))
        print(f"package     {next(versions, missing)}")
    return 0 if usable else 2


def plain(compiler: str) -> str:
    """What identifies a compiler, without an end for arguments where it has none."""
    return compiler.rstrip(" |")


def _print_device(found: set[str]) -> bool:
    try:
        backend, why_no_gpu = fastest_backend()
    except BackendUnavailable as error:
        print(f"fastest     none: {error}")
        return False
    print(f"fastest     {backend.name}, {backend.free_bytes() / 2**30:.1f} GiB free")
    # The reason for no GPU has been printed; that for a GPU which runs nothing has not.
    if why_no_gpu and "cuda" in found:
        print(f"            not cuda: {why_no_gpu}")
    for key, value in backend.device().items():
        print(f"            {key}: {plain(str(value))}")
    table, reason = source_of(backend.target, backend.architecture)
    print(f"defaults    {reason}")
    for dtype, measured in table.measured.items():
        print(f"            {dtype}: {measured}")
    own = user_table(backend.model, backend.target, backend.architecture)
    if own.entries:
        print(f"            before it {own.path}: {len(own.entries)} cases that were tuned here")
    return True
