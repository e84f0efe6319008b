"""The backends, and which one is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from batchchol.backends import cpu
from batchchol.backends.base import Availability, Backend, Kernel
from batchchol.backends.cuda import gpus
from batchchol.errors import BatchcholError, UnknownBackend
from batchchol.parallel import setting

__all__ = [
    "DEFAULT_BACKEND",
    "Availability",
    "Backend",
    "Kernel",
    "chosen_backend",
    "fastest_backend",
    "get_backend",
    "survey",
]

# Arrays of the host are factored there by default: few of them are worth the copies to a GPU and back.
DEFAULT_BACKEND = "cpu"


def _cuda() -> Backend:
    from batchchol.backends.cuda.backend import CudaBackend

    return CudaBackend()


_BACKENDS: dict[str, Callable[[], Backend]] = {"cpu": cpu.CpuBackend, "cuda": _cuda}


def chosen_backend(name: str | None = None) -> str | None:
    """The name of the backend that was asked for, by argument or by BATCHCHOL_BACKEND; None if there was none.

    Raises
    ------
    UnknownBackend
        If there is no backend of that name.
    """
    origin, chosen = "backend", name
    if name is None:
        # An empty variable is no choice.
        origin, chosen = "BATCHCHOL_BACKEND", setting("BATCHCHOL_BACKEND")
    # Arrays and the like are compared element by element.
    if chosen is not None and not (isinstance(chosen, str) and chosen in _BACKENDS):
        raise UnknownBackend(f"{origin}={chosen!r} is unknown: use one of {', '.join(map(repr, _BACKENDS))}")
    return chosen


def get_backend(name: str | None = None) -> Backend:
    """The backend of that name, else the one that BATCHCHOL_BACKEND names, else the CPU's.

    "cuda" is that of the first GPU, or the one that this thread's calls use (`batchchol.gpus`).

    Raises
    ------
    UnknownBackend
        If there is no backend of that name.
    BackendUnavailable
        If it cannot be used here; says what is missing and how to get it.
    """
    return _made(chosen_backend(name) or DEFAULT_BACKEND)


def fastest_backend(name: str | None = None) -> tuple[Backend, str]:
    """The backend that was asked for, else the GPU's, else the CPU's; and in a line why it is not the GPU's, or "".

    A GPU that was not asked for counts if it runs a kernel: that takes a compiler, or kernels that were carried here.

    Raises
    ------
    BackendUnavailable
        If the one that was asked for, or none at all, can be used here.
    """
    if chosen := chosen_backend(name):
        return _made(chosen), ""
    from batchchol.backends.cuda.backend import prove

    try:
        backend = _made("cuda")
        prove()
        return backend, ""
    except BatchcholError as error:
        return _made("cpu"), " ".join(str(error).split())


def survey() -> list[Availability]:
    """What was found of every backend; looking for a GPU initialises CUDA in this process."""
    from batchchol.backends.cuda.backend import survey as survey_gpu

    return [cpu.survey(), survey_gpu()]


def _made(name: str) -> Backend:
    return _make(name, gpus.first() if name == "cuda" else 0)


@cache
def _make(name: str, gpu: int) -> Backend:
    """The backend of a name, for the GPU of a number, which is that of this thread's calls."""
    return _BACKENDS[name]()
