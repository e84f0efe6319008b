"""Every error the library raises on purpose; each message says what to do next."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def install(extra: str) -> str:
    """How to get the packages of an extra, for messages: batchchol is on no package index, only in its clone."""
    return f"pip install -e '.[{extra}]' in the clone of batchchol"


class BatchcholError(Exception):
    """Base of the errors that batchchol raises on purpose."""


def optional(module: str, purpose: str, extra: str, otherwise: str = "") -> Any:
    """Import a module of an optional package, which `purpose` needs and an extra has.

    Raises
    ------
    BatchcholError
        If it cannot be imported; says how to get it, and what else can be done.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise BatchcholError(
            f"{purpose} needs {package}, which cannot be imported ({error}): {install(extra)}{otherwise}"
        ) from error


class SettingError(BatchcholError, ValueError):
    """An environment variable has a value that means nothing; names the variable."""


class BackendUnavailable(BatchcholError):
    """A backend was asked for that this machine cannot run."""


class UnknownBackend(BackendUnavailable, ValueError):
    """There is no backend of the name that was asked for."""


class CompilerNotFound(BatchcholError):
    """No usable compiler was found."""


class CpuUnavailable(BackendUnavailable, CompilerNotFound):
    """The CPU's kernels cannot be built: there is no C compiler."""


class NoCompilerWarning(UserWarning):
    """There is no C compiler, so LAPACK stands in for generated kernels; issued once per process."""


class CompileError(BatchcholError):
    """A kernel did not compile.

    Parameters
    ----------
    status : {"compile", "timeout"}
        The status that a sweep records for this kernel.
    message : str
        What happened, with the first lines of the compiler's own words.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class CacheError(BatchcholError):
    """The cache folder cannot be used."""


class OutOfMemory(BatchcholError, MemoryError):
    """An allocation would not fit; `needed` and `free` are in bytes."""

    def __init__(self, purpose: str, needed: int, free: int) -> None:
        super().__init__(
            f"{purpose} needs {needed:,} bytes and {free:,} bytes are free: "
            "use a smaller batch, or factor it in slices"
        )
        self.needed = needed
        self.free = free


class DeviceError(BatchcholError):
    """A GPU, or its driver, refused a call; `status` is the driver's number for why, 0 if it gave none."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DeviceLost(DeviceError):
    """Something failed on the GPU such that nothing works there until the process ends."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(
            status,
            f"{message}. The GPU's context, and all data in it, is lost to this process: start a new one "
            "(compute-sanitizer finds the kernel and the line of a bad address)",
        )


class WrongArchitecture(DeviceError):
    """Compiled code is not for this GPU, or newer than its driver."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(
            status,
            f"{message}. It was compiled for another architecture, or by a newer toolkit than the driver supports: "
            "compile it here (nvcc on the PATH, or BATCHCHOL_NVCC), or with --arch of this GPU on another machine; "
            "`python -m batchchol info` names both",
        )


class DataFileError(BatchcholError):
    """A data file is unreadable, truncated or malformed; names the file and the place in it."""

    def __init__(self, path: Path | str, place: str, reason: str) -> None:
        super().__init__(f"{path}: {place}: {reason}")
        self.path = Path(path)
        self.place = place
        self.reason = reason


class ResidualError(BatchcholError):
    """A result failed the componentwise residual check; no number of it may be stored."""
