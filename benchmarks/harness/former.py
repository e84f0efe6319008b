"""Commits from before batchchol had rooms: what the suite imports is found where it was then."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

FORMER = {
    "batchchol.asv_plugin": "batchchol",
    "batchchol.asv_plugin.samples": "batchchol.asv_samples",
    "batchchol.backends.cuda.backend": "batchchol.backends.cuda",
    "batchchol.backends.cuda.device": "batchchol.cuda.device",
    "batchchol.backends.cuda.graphs": "batchchol.cuda.graphs",
    "batchchol.backends.cuda.support": "batchchol.cuda.support",
    "batchchol.batches": "batchchol",
    "batchchol.batches.batch": "batchchol.batch",
    "batchchol.batches.packing": "batchchol.packing",
    "batchchol.artifacts": "batchchol",
    "batchchol.artifacts.cuda_modules": "batchchol.cuda.modules",
    "batchchol.artifacts.nvcc": "batchchol.cuda.toolkit",
    "batchchol.compare": "batchchol",
    "batchchol.compare.single_matrix": "batchchol.cuda.single",
    "batchchol.datasets.generation": "batchchol.datasets",
    "batchchol.defaults.lookup": "batchchol.defaults",
    "batchchol.defaults.tables": "batchchol.tables",
    "batchchol.measure": "batchchol",
    "batchchol.measure.graph_samples": "batchchol.cuda.graph_samples",
    "batchchol.measure.timing": "batchchol.timing",
    "batchchol.operations": "batchchol",
    "batchchol.operations.residual": "batchchol.residual",
}
"""By the path that the suite imports, the one of those commits."""

# Modules then, packages now.
_PACKAGES = ("batchchol.backends.cuda", "batchchol.datasets", "batchchol.defaults")


class _Former(MetaPathFinder, Loader):
    """Finds the module of the former path in place of one that such a commit does not have."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in FORMER else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(FORMER[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has written the spec of the current path into the module.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Where the commit that is measured has no rooms, have its modules found by their current paths."""
    if find_spec("batchchol.batches") is not None:
        return
    sys.meta_path.insert(0, _Former())
    for name in _PACKAGES:
        with suppress(ImportError):
            import_module(name).__path__ = []
