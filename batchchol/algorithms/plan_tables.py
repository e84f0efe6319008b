"""The plan that a GPU's larger matrices are factored by: the user's, measured there, else the library's."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import NamedTuple

from batchchol.algorithms.plans import Plan, plan, plan_of
from batchchol.backends.cuda.device import Device
from batchchol.defaults.entries import Planned
from batchchol.defaults.generation import generation
from batchchol.defaults.lookup import user_table, within_reach
from batchchol.defaults.tables import nearest
from batchchol.defaults.user import TableWarning
from kernelgen import CUDA, SpecError

# An entry of the user's serves orders from this part of its own up to it.
_ORDERS = 0.9


class Chosen(NamedTuple):
    """A plan, and the entry of the user's table that it comes from, or that confirms it; None if there is none."""

    plan: Plan
    entry: Planned | None = None


def chosen(gpu: Device, n: int, batch: int, dtype: str, upper: bool) -> Chosen:
    """The default plan for `batch` matrices of order n on a GPU."""
    return _chosen(gpu.model, gpu.architecture, n, batch, dtype, upper, generation())


@lru_cache(maxsize=256)
def _chosen(model: str, architecture: str, n: int, batch: int, dtype: str, upper: bool, _: object) -> Chosen:
    """`chosen`, kept until other tables are read: what comes last is their `generation`."""
    shipped, table = plan(n, batch, dtype, upper), user_table(model, CUDA.name, architecture)
    own = [each for each in table.plans if each.dtype == dtype and _ORDERS * each.n <= n <= each.n]
    near = [each for each in own if within_reach(each.batch, batch)]
    if not near:
        return Chosen(shipped)
    order = min(each.n for each in near)
    entry = nearest([each for each in near if each.n == order], batch)
    if entry.kept:
        return Chosen(shipped, entry)
    try:
        return Chosen(plan_of(entry.plan, dtype, "col" if upper else "row"), entry)
    except (SpecError, ValueError, KeyError, TypeError) as error:
        why = f"another version wrote it, or it is damaged ({error}): tune again"
        warnings.warn(f"{table.path}: the plan of n={entry.n} is not used: {why}", TableWarning, stacklevel=4)
        return Chosen(shipped)
