"""The wheel: what is in it, and that it works where no checkout can be reached."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

# Building the wheel takes it as well.
WHY = "the extra 'test' is not installed: there is no hatchling, which builds the wheel"
sdist = pytest.importorskip("hatchling.builders.sdist", reason=WHY)

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("batchchol", "kernelgen")
TYPED = {f"{package}/py.typed" for package in PACKAGES}

FACTOR = """
import numpy as np
import batchchol
rng = np.random.default_rng(7)
for dtype in (np.float32, np.float64):
    r = rng.random((37, 9, 9))
    a = ((r + r.swapaxes(1, 2)) / 2 + 9 * np.eye(9)).astype(dtype)
    lower = batchchol.cholesky(a)
    assert lower.dtype == dtype
    np.testing.assert_allclose(lower, np.linalg.cholesky(a.astype(float)), rtol=1e-5, atol=1e-6)
print("factored")
"""
IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    parent = importlib.import_module(package)
    print(parent.__file__)
    for module in pkgutil.walk_packages(parent.__path__, package + "."):
        # Operators of PyTorch, and what stands in for PyCUDA's driver, are modules that need PyTorch and the driver.
        needs_more = ".interop." in module.name or module.name.endswith(("__main__", ".without_pycuda"))
        if not needs_more:
            print(importlib.import_module(module.name).__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, check=False, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel, and this one's dependencies but not its checkout."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    purelib = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    # A folder named by a .pth file is searched, but .pth files in it are not followed, so that the editable
    # install of the checkout, which is one, stays behind.
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(purelib, "dependencies.pth").write_text("\n".join(sorted(dependencies)) + "\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return python


def test_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names - metadata == sources
    assert {name.split("/")[0] for name in names - metadata} == set(PACKAGES)
    assert any(name.endswith(".jinja") for name in sources), "templates are package data"
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)
    assert names >= TYPED, "type checkers look at packages that say so"


def test_source_distribution_says_that_it_is_typed() -> None:
    files = {file.distribution_path for file in sdist.SdistBuilder(str(ROOT)).recurse_included_files()}
    assert files >= TYPED


def test_wheel_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    needed = [value for value in metadata.get_all("Requires-Dist", []) if "extra ==" not in value]
    assert sorted(value.split(">")[0] for value in needed) == ["jinja2", "numpy", "scipy", "threadpoolctl"]
    assert metadata["Version"] == wheel.name.split("-")[1]
    assert metadata["Requires-Python"] == ">=3.11"


def test_every_module_comes_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    files = run(installed, "-c", IMPORT_EVERYTHING, *PACKAGES, cwd=tmp_path).split()
    assert len(files) > len(PACKAGES)
    for file in files:
        assert Path(file).is_relative_to(installed.parents[1]), file


def test_installed_wheel_factors(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "-c", FACTOR, cwd=tmp_path) == "factored\n"


def test_installed_wheel_has_its_command_line(installed: Path, tmp_path: Path) -> None:
    assert "cpu" in run(installed, "-m", "batchchol", "info", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
