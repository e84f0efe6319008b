"""What defaults become for GPUs that were not measured, where CUDA's assembler says that they would spill registers.

A prediction: what takes the place of such a kernel spills none, and nothing of it was timed there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from kernelgen import KernelSpec, SpecError

FILE = "elsewhere.json"
"""By architecture and kernel, of an order or of all (`name_of`, `kind_of`): what is changed of its schedule.

Null: it is passed over.
"""


CHANGED = "changed so that it spills no registers there"
"""What is said of a kernel that is not the one whose times a table has."""


def spared(spec: KernelSpec, arch: str | None, measured_on: str) -> KernelSpec | None:
    """The spec as GPUs of an architecture run it without spilling registers; None if it is to be passed over.

    An architecture that is not known is taken for the latest before it that is; None for the one measured on.

    Raises
    ------
    ValueError
        If it is not an architecture's name.
    """
    if arch in (None, measured_on):
        return spec
    known = _of(str(arch))
    changes: Mapping[str, Any] | None = known.get(name_of(spec), known.get(kind_of(spec), {}))
    if changes == {}:
        return spec
    if changes:
        with suppress(SpecError):
            return replace(spec, schedule=replace(spec.schedule, **changes))
    return None


def name_of(spec: KernelSpec) -> str:
    """The name of a kernel but for its triangle, and whether it overwrites its input."""
    return re.sub(r"_upper|_inplace", "", spec.name)


def kind_of(spec: KernelSpec) -> str:
    """The name of a kernel but for its order too."""
    return re.sub(r"_n\d+_", "_", name_of(spec))


@cache
def _of(arch: str) -> Mapping[str, Any]:
    from batchchol.artifacts.nvcc import parse_architecture

    known = {parse_architecture(name)[1]: changes for name, changes in _read().items()}
    number = parse_architecture(arch)[1]
    latest = max((each for each in known if each <= number), default=None)
    return {} if latest is None else known[latest]


@cache
def _read() -> Mapping[str, Mapping[str, Any]]:
    found: Mapping[str, Mapping[str, Any]] = json.loads(
        (files("batchchol.defaults") / FILE).read_text(encoding="utf-8")
    )
    return found
