"""What every test shares: a cache folder of the session's own, and the options of the command line."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before NumPy is imported: the oracle's many small products only wait for each other on many threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before JAX is imported: it would take three quarters of a GPU's memory, of which workers beside it need theirs.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Examples compile kernels, and how long that takes is no property of the code under test.
settings.register_profile("batchchol", deadline=None)
settings.load_profile("batchchol")

NVIDIA_DEVICE = Path("/dev/nvidiactl")
# What some machines set, and most do not: a fault must not hide behind it.
UNUSUAL_SETTINGS = ("PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS")
# Of fewer tests the compiler reads its headers each time: reading them ahead takes a second.
MANY_TESTS = 100
SMALL_CACHE_BYTES = 1 << 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files from what is generated now"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if NVIDIA_DEVICE.exists():
        return
    skip = pytest.mark.skip(reason=f"needs an NVIDIA GPU: {NVIDIA_DEVICE} is missing")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """What was imported and collected lives to the end: a search for garbage, 0.2 s of it, need not look there."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def interrupts() -> None:
    """Ctrl-C as in a terminal: shells have jobs in the background, and all that these start, ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def small_cache() -> Iterator[None]:
    """Cold calls of tests go round few buffers: some servers' caches would take gigabytes of them, and minutes."""
    from batchchol.backends.cpu import CpuBackend
    from batchchol.batches import host_memory

    with pytest.MonkeyPatch.context() as patch:
        smaller = lambda _: min(host_memory.last_level_cache_bytes(), SMALL_CACHE_BYTES)  # noqa: E731
        patch.setattr(CpuBackend, "last_level_cache_bytes", smaller)
        yield


@pytest.fixture
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler as users have it: that of the session leaves out passes."""
    if "system.h" in os.environ.get("BATCHCHOL_CC", ""):
        monkeypatch.delenv("BATCHCHOL_CC")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten rather than compared with."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The session's cache folder: each kernel is compiled once, and the user's own cache is left alone."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        # Under pytest-xdist the workers share one folder, one above their own.
        folder = (base.parent if base.name.startswith("popen-") else base) / "cache"
        patch.setenv("BATCHCHOL_CACHE", str(folder))
        patch.setenv("BATCHCHOL_TABLES", "shipped")
        for name in ("BATCHCHOL_BACKEND", "BATCHCHOL_THREADS", *UNUSUAL_SETTINGS):
            patch.delenv(name, raising=False)
        if request.session.testscollected >= MANY_TESTS:
            # Not at the top: it imports NumPy.
            from .system_headers import compiler_command

            if command := compiler_command(folder.parent):
                patch.setenv("BATCHCHOL_CC", command)
        yield folder
