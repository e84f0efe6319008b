"""Old import paths that were documented once: for one version they lead to the new ones, with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

FORMER = {
    "batchchol.analysis": "batchchol.report",
    "batchchol.asv_results": "batchchol.asv_plugin.results",
    "batchchol.asv_samples": "batchchol.asv_plugin.samples",
    "batchchol.batch": "batchchol.batches.batch",
    "batchchol.cache": "batchchol.artifacts.cache",
    "batchchol.candidates": "batchchol.tune.candidates",
    "batchchol.comparison_rows": "batchchol.compare.rows",
    "batchchol.cuda": "batchchol.backends.cuda",
    "batchchol.cuda.device": "batchchol.backends.cuda.device",
    "batchchol.cuda.graph_samples": "batchchol.measure.graph_samples",
    "batchchol.cuda.graphs": "batchchol.backends.cuda.graphs",
    "batchchol.cuda.memory": "batchchol.backends.cuda.memory",
    "batchchol.cuda.single": "batchchol.compare.single_matrix",
    "batchchol.peers": "batchchol.compare.peers",
    "batchchol.residual": "batchchol.operations.residual",
    "batchchol.roofline": "batchchol.operations.roofline",
    "batchchol.search": "batchchol.tune.search",
    "batchchol.sweep": "batchchol.tune",
    "batchchol.sweep.building": "batchchol.tune.compile",
    "batchchol.sweep.engine": "batchchol.tune.sweep",
    "batchchol.sweep.expansion": "batchchol.tune.expand",
    "batchchol.sweep.rows": "batchchol.measure.row",
    "batchchol.sweep.store": "batchchol.measure.dataset",
    "batchchol.sweep.worker": "batchchol.measure.process",
    "batchchol.timing": "batchchol.measure.timing",
    "batchchol.tuning": "batchchol.tune.tuning",
}
"""By the old path, the new one."""


class _Former(MetaPathFinder, Loader):
    """Finds a module of an old path: the very module of the new one, not a copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = FORMER.get(fullname) or _inside(fullname)
        if new is None:
            return None
        warnings.warn(
            f"{fullname} is {new} now, and the old path ends with the next version",
            DeprecationWarning,
            stacklevel=2,  # the import statement: Python leaves out the import system
        )
        return ModuleSpec(fullname, self, loader_state=new)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has written the spec of the old path into the module.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def _inside(fullname: str) -> str | None:
    """The path of a module that a former package still has."""
    parent, _, name = fullname.rpartition(".")
    owner = sys.modules.get(parent)
    if owner is None or owner.__name__ == parent or not owner.__name__.startswith("batchchol."):
        return None
    new = f"{owner.__name__}.{name}"
    return new if find_spec(new) else None


def install() -> None:
    """Have the old paths found, before the folders are searched."""
    if not any(isinstance(finder, _Former) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Former())
