"""How matrices of a GPU that are larger than any kernel's of `kernelgen.MAX_N` are factored: what was the fastest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any, TypeVar

from batchchol.algorithms.blocked import Blocking
from batchchol.algorithms.on_chip import OnChip, all_on_chip, on_chip
from batchchol.algorithms.plan_space import combinations
from batchchol.algorithms.shipped_plans import shipped
from kernelgen import SpecError
from kernelgen.emit.panels.border import MOST_COLUMNS, MOST_ROWS
from kernelgen.emit.panels.fused_panel import FusedPanel
from kernelgen.emit.panels.panel import Panel, largest_tile
from kernelgen.gpu import MAX_SHARED_BYTES

Choice = TypeVar("Choice")
# The order above which a matrix fills a GPU by itself.
ALONE = 1024
_UNIT = 16
# Columns that tensor cores may take at once.
_DEPTHS = MappingProxyType({"float32": (4,), "float64": (8, 16)})
# Of matrices that are no tile themselves: the order of their tiles, of one and of many together.
_TILE, _TILE_OF_MANY = 128, 64
# Pairs of an order and the columns of a panel from there on, of many together the tiles of one; and the orders from
# which panels are factored ahead.
_PANELS = ((12_288, 512), (4096, 256), (0, 128))
_PANELS_OF_MANY = ((448, 4), (0, 2))
_AHEAD_FROM = MappingProxyType({"float32": 4096, "float64": 2048})
# The kernels by name, and what is chosen of them.
_KINDS: Mapping[type[Panel | FusedPanel | OnChip], str] = MappingProxyType(
    {FusedPanel: "fused", Panel: "tiles", OnChip: "on chip"}
)
_AXES: Mapping[type, tuple[str, ...]] = MappingProxyType(
    {
        FusedPanel: ("nb", "ib", "lb", "threads", "resident", "update", "depth"),
        Panel: ("nb", "ib", "rows", "threads", "row_threads"),
        OnChip: ("warps", "resident"),
    }
)


@dataclass(frozen=True)
class Plan:
    """How matrices of an order are factored: the kernels, and how one is cut; None if all of it is done at once.

    Fused panels have `blocks` blocks of threads to a matrix; None for its share of those that the GPU holds. With
    `border` a kernel of its own solves for the rows behind whole tiles, where these are few. With `hybrid` the host
    factors the blocks on the diagonal, of a left-looking factorization whose tile is a panel.
    """

    panel: Panel | FusedPanel | OnChip
    blocking: Blocking | None
    blocks: int | None = None
    hybrid: bool = False
    border: bool = False

    def border_rows(self, n: int) -> int:
        """The last rows of a matrix of order n that are behind whole tiles, and solved for by themselves."""
        if not self.border or not isinstance(self.panel, FusedPanel):
            return 0
        rest = n % self.panel.nb
        return rest if rest <= MOST_ROWS and self.panel.nb <= n - rest <= MOST_COLUMNS else 0

    @property
    def name(self) -> str:
        """A few words for it."""
        if isinstance(self.panel, OnChip):
            return self.panel.name
        tiles = f"tiles of {self.panel.nb} by {self.panel.ib}, {self.panel.threads} threads"
        if isinstance(self.panel, FusedPanel):
            blocks = f"{self.blocks} blocks to a matrix" if self.blocks else "one launch"
            deep = f" of depth {self.panel.depth}" if self.panel.depth > 4 else ""
            by = f", tensor cores{deep}" if self.panel.update == "tensor" else ""
            beside = f", {self.panel.resident} a multiprocessor" if self.panel.resident > 1 else ""
            last = ", a border of the last rows" if self.border else ""
            tiles = f"{blocks}, {tiles}{beside}, steps of {self.panel.lb}{by}{last}"
        if self.blocking is None:
            return tiles
        if self.hybrid:
            return f"hybrid, {self.blocking.looking} looking, nb = {self.blocking.nb} on the host"
        ahead = ", look-ahead" if self.blocking.ahead else ""
        width = f", launches of {self.blocking.tile} columns" if self.blocking.fused else ""
        return f"{self.blocking.looking} looking{ahead}, nb = {self.blocking.nb}{width}, {tiles}"


def values_of(how: Plan) -> dict[str, str | int]:
    """The choices of a plan by name, as tables and data have them; those that are not there it does without."""
    panel, cut = how.panel, how.blocking
    values: dict[str, str | int] = {"kind": "hybrid" if how.hybrid else _KINDS[type(panel)]}
    values |= {name: getattr(panel, name) for name in _AXES[type(panel)]}
    if how.blocks is not None:
        values["blocks"] = how.blocks
    if how.border:
        values["border"] = 1
    if cut is not None:
        values |= {"looking": cut.looking, "ahead": int(cut.ahead), "columns": cut.nb, "width": cut.tile}
    return values


def plan_of(values: Mapping[str, Any], dtype: str, order: str) -> Plan:
    """The plan of a dtype and an order, "row" or "col", with these choices.

    Raises
    ------
    SpecError, ValueError, KeyError, TypeError
        If they make none.
    """
    kind, cut = values["kind"], None
    kinds = {name: made for made, name in _KINDS.items()} | {"hybrid": Panel}
    if kind not in kinds:
        raise SpecError(f"kind={kind!r}: expected one of {', '.join(map(repr, kinds))}")
    made = kinds[kind]
    panel = made(dtype, order, **{name: values[name] for name in _AXES[made]})
    if "columns" in values:
        fused = kind == "fused"
        cut = Blocking(values["width"], values["columns"], values["looking"], bool(values["ahead"]), fused)
    return Plan(panel, cut, values.get("blocks"), kind == "hybrid", bool(values.get("border")))


@lru_cache(maxsize=256)
def plan(n: int, batch: int, dtype: str, upper: bool) -> Plan:
    """The default plan for `batch` matrices of order n: the fastest that was measured."""
    order = "col" if upper else "row"
    if whole := on_chip(n, dtype, order):
        return Plan(whole, None)
    return plan_of(shipped().entry(n, batch if n <= ALONE else 1, dtype).plan, dtype, order)


def ways(n: int, batch: int, dtype: str) -> list[Plan]:
    """The plans of `plan_space.toml`: one launch by several tiles, panels of it, and tiles by themselves."""
    found = [Plan(*tiled(n, batch, dtype)), *_ways_of_tiles(n, batch, dtype)]
    found += [Plan(each, None) for each in all_on_chip(n, dtype)]
    for axes, depth in product(combinations("fused"), _DEPTHS[dtype]):
        nb, threads = axes["nb"], axes["across"] * axes["nb"]
        with suppress(SpecError):
            panel = FusedPanel(dtype, "row", nb, axes["ib"], axes["lb"], threads, axes["resident"], "tensor", depth)
            found += [
                each
                for each in (Plan(panel, None, blocks, border=border) for blocks, border in _shares(n, batch))
                if each.border_rows(n) or not each.border
            ]
    if n > ALONE and batch == 1:
        panel = FusedPanel(dtype, "row", update="tensor", depth=_DEPTHS[dtype][-1])
        for axes in combinations("panels"):
            cut = axes["width"], axes["columns"]
            found.append(Plan(panel, Blocking(*cut, "left", fused=True)))
            found.append(Plan(panel, Blocking(*cut, ahead=True, fused=True)))
    return list(dict.fromkeys(found))


def _shares(n: int, batch: int) -> Iterator[tuple[int | None, bool]]:
    """Blocks to a matrix, and whether it has a border: the GPU's share, or, of many, some more."""
    if batch == 1:
        return iter([(None, False)])
    return product(dict.fromkeys((None, 4 if n > 500 else 3, max(3, n // 100), max(4, n // 55))), (False, True))


def hybrids(n: int, dtype: str) -> list[Plan]:
    """Plans whose diagonal blocks the host factors, for comparison: they keep it busy, and need CuPy."""
    widths = (axes["nb"] for axes in combinations("hybrid"))
    found = [Blocking(nb, nb, "left") for nb in widths if 4 * nb <= n]
    return [Plan(Panel(dtype, "row", _TILE), cut, hybrid=True) for cut in found]


def _ways_of_tiles(n: int, batch: int, dtype: str) -> list[Plan]:
    """Tiles that are not alone, with other columns that a panel has, and rows that a block solves for."""
    panel, cut = tiled(n, batch, dtype)
    if cut is None:
        return []
    ahead = (False, True) if batch == 1 else (False,)
    return [
        Plan(replace(panel, ib=axes["ib"], rows=axes["rows"]), replace(cut, nb=axes["tiles"] * cut.tile, ahead=each))
        for axes, each in product(combinations("tiles"), ahead)
    ]


def tiled(n: int, batch: int, dtype: str, upper: bool = False) -> tuple[Panel, Blocking | None]:
    """The kernels of tiles and how matrices are cut into them, without fused panels; None if one is a tile."""
    order = "col" if upper else "row"
    if n <= largest_tile(dtype):
        return _tile(dtype, order, _whole(n)), None
    if batch > 1 and n <= ALONE:
        # Tiles of one size, as far as whole units allow: a small one at the end costs nearly as much as the others.
        tile = _whole(-(-n // -(-n // _TILE_OF_MANY)))
        panel = Panel(dtype, order, tile, rows=64, threads=128)
        return panel, Blocking(tile, _chosen(_PANELS_OF_MANY, n) * tile)
    panel = Panel(dtype, order, _TILE, threads=512, row_threads=512)
    return panel, Blocking(_TILE, _chosen(_PANELS, n), ahead=n >= _AHEAD_FROM[dtype])


def _tile(dtype: str, order: str, n: int) -> Panel:
    """A tile alone: with more threads where a multiprocessor has room for one block."""
    few = Panel(dtype, order, n)
    return few if 2 * few.potf2_bytes <= MAX_SHARED_BYTES else replace(few, threads=512)


def _chosen(table: tuple[tuple[int, Choice], ...], n: int) -> Choice:
    return next(value for least, value in table if n >= least)


def _whole(n: int) -> int:
    return -(-n // _UNIT) * _UNIT
