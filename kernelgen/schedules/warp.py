"""The warp family: a warp or two for a few whole matrices, their triangles in its registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.gpu import (
    MAX_DECLARED_BYTES,
    MAX_SHARED_BYTES,
    SCHEDULERS,
    WARP,
)
from kernelgen.operations import Operation
from kernelgen.problem import Problem
from kernelgen.refusals import require
from kernelgen.schedules.axes import (
    UNROLLS,
    UPDATES,
    BaseSchedule,
    check_stride,
    number,
    resident_blocks,
    switch,
    word,
)
from kernelgen.schedules.stages.warp import WarpImage
from kernelgen.targets import ELEMENT_BYTES, Target

# Order of a tile of tensor cores' results, and of a block of its rows.
TILE, BLOCK = 8, 16
# The lanes of a matrix's panel in shared memory begin at other banks than those of its neighbours.
_SPREAD = 4
MAX_TEAM_MATRICES, MAX_TEAM_WARPS, MAX_TEAMS = 4, 8, 8
MAX_SINGLE_WARPS = 2
# Of the 255 registers of a thread, those that can be elements of its matrices: the rest has the work of a panel.
MAX_TILE_REGISTERS = {"float32": 176, "float64": 128}


@dataclass(frozen=True)
class Tile:
    """Tile column `column` of the rows of block `block`, 16 by 8, the warp's tile number `index`."""

    block: int
    column: int
    index: int


@dataclass(frozen=True)
class WarpShape:
    """`matrices` of order `n` to a team of `warps`, `teams` to a block of threads.

    A lower triangle is tiles of 16 rows and 8 columns, those with an element of it, in the registers of the team:
    four elements of a tile to a lane. The blocks of rows go to the warps in turn, to and fro, so that all have as
    many tiles. Panels, one column of tiles, go through shared memory.
    """

    n: int
    matrices: int
    warps: int
    teams: int
    rhs: int = 1

    @property
    def side(self) -> int:
        """Tiles in a row of the matrix, and groups of eight in its rows."""
        return -(-self.n // TILE)

    @property
    def blocks(self) -> int:
        """Blocks of 16 rows."""
        return -(-self.n // BLOCK)

    def rows(self, warp: int) -> tuple[int, ...]:
        """The blocks of rows of a warp, from the last one on."""
        turns = range(-(-self.blocks // self.warps))
        places = (turn * self.warps + (self.warps - 1 - warp if turn % 2 else warp) for turn in turns)
        return tuple(self.blocks - 1 - place for place in places if place < self.blocks)

    def tiles(self, warp: int) -> tuple[Tile, ...]:
        """The tiles of a warp."""
        places = [(block, column) for block in self.rows(warp) for column in range(min(2 * block + 2, self.side))]
        return tuple(Tile(block, column, index) for index, (block, column) in enumerate(places))

    @property
    def most_tiles(self) -> int:
        """Tiles of the warp that has the most."""
        return max(len(self.tiles(warp)) for warp in range(self.warps))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARP * self.warps * self.teams

    @property
    def turns(self) -> bool:
        """Whether half of a block's teams read their matrices after the other half: with two to a scheduler."""
        return self.teams == 2 * SCHEDULERS

    @property
    def solvers(self) -> int:
        """Threads that solve for the rows of one matrix."""
        return WARP * self.warps // self.matrices

    @property
    def slots(self) -> int:
        """Rows of the first panel to a thread."""
        return -(-TILE * self.side // self.solvers)

    @property
    def panel(self) -> int:
        """Scalars of the panel of one matrix."""
        return BLOCK * self.blocks * TILE + _SPREAD

    @property
    def panels(self) -> int:
        """Panels of one matrix: with several warps the next one is written while others still read the last."""
        return 1 if self.warps == 1 else 2

    @property
    def declared(self) -> int:
        """Scalars in shared memory of a block but for its stages: panels, and canonical ones' diagonal tiles."""
        return self.teams * self.matrices * (self.panels * self.panel + TILE * TILE)

    @property
    def folds(self) -> int:
        """Groups of eight rows that share their lines of the stage with another group."""
        return -(-self.side // 2)

    @property
    def line(self) -> int:
        """Scalars from one line of the stage to the next: of eight lines, the same columns are in different banks."""
        return TILE * (2 * self.folds + 1) + _SPREAD

    def group(self, number: int) -> int:
        """Where the first of eight rows begins in the stage: the longest group shares its lines with the shortest."""
        if number < self.folds:
            return TILE * self.line * number
        partner = 2 * self.folds - 1 - number
        return TILE * self.line * partner + TILE * (partner + 1)

    @property
    def stage(self) -> int:
        """Scalars of the stage of one matrix, a triangle by rows."""
        return TILE * self.folds * self.line + _SPREAD

    @property
    def kept_panels(self) -> int:
        """Scalars of all panels of one matrix, each from the block of rows with its diagonal tile on, and apart."""
        groups = sum(2 * (self.blocks - panel // 2) for panel in range(self.side))
        return TILE * TILE * groups + TILE * self.side

    @property
    def kept(self) -> int:
        """Scalars of the factor of one matrix: its panels, and the factors of diagonal tiles besides."""
        return self.kept_panels + TILE * TILE * self.side

    def column(self, *, staged: bool) -> int:
        """Where the right-hand side begins that is solved for: the factor takes the place of the stage, if any."""
        return max(self.kept, self.stage) if staged else self.kept

    def room(self, *, staged: bool) -> int:
        """Scalars from the factor of one matrix to the next: its solvers read other banks.

        Behind it are three columns, or one and a tile of right-hand sides beside each panel.
        """
        columns = 3 if self.rhs == 1 else TILE + 1
        least = self.column(staged=staged) + columns * TILE * self.side
        return least + (self.solvers - least) % WARP


@dataclass(frozen=True)
class WarpSchedule(BaseSchedule):
    """A warp or a few for a few whole matrices, their triangles in its registers.

    `matrices` and `warps` are those of a team, `teams` how many teams make a block of threads: None is two, or one of
    two warps; of eight, four read their matrices after the others, so that some compute while others wait. `update`
    says what takes a panel's part from the tiles to its right: "tensor", the tensor cores, three products of 11 bits
    for one of 24, or "fma", multiply-adds; None is the first for math "fast", and the second for "ieee". float64 has
    tensor cores of its own, and no choice, and takes up to eight warps, float32 up to two. `unroll` is "full" for
    straight-line code, or "tiles" for a loop over the panels; `blocks` are those of the block family. With `resident`
    there are no more of them: their warps go on to further matrices, and fetch these while they work on those before.
    If `staged`, whole arrays come and go by way of shared memory, in the order of memory: by panels, rows that do not
    begin with one of memory's sectors take twice the accesses.
    What solves too has `rhs` right-hand sides at a time (None is 1): the first one alone is a row below the matrix
    while it is factored, several are solved for by tensor cores, by one warp. With `few` it keeps the chain short of
    instructions that wait for each other, at the cost of registers: it factors two columns of a diagonal tile at a
    time, and asks the L2 for arrays before it may read them.
    """

    family: ClassVar[str] = "warp"
    operations: ClassVar[tuple[str, ...]] = ("potrf", "posv")

    matrices: int = number(1, MAX_TEAM_MATRICES, 1, "matrices of a team", only="gpu")
    warps: int = number(1, MAX_TEAM_WARPS, 1, "warps of a team", only="gpu")
    teams: int | None = number(1, MAX_TEAMS, None, "teams of a block", only="gpu")
    update: str | None = word(UPDATES, None, "tensor cores, or multiply-adds", only="gpu")
    unroll: str = word(UNROLLS, "tiles", "loops over panels, or straight-line code")
    blocks: int | None = resident_blocks()
    resident: bool | None = switch("whether warps go on to further matrices, fetched meanwhile", only="gpu")
    staged: bool | None = switch("whether whole arrays come and go by way of shared memory", only="gpu")
    rhs: int | None = number(1, TILE, None, "right-hand sides solved for at a time", only="gpu")
    few: bool | None = switch("whether a warp's chain of instructions is kept short, for few matrices", only="gpu")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("matrices", "warps", "teams"):
            got = getattr(self, name) or 1
            require(got & (got - 1) == 0, name, got, "use a power of two")
        works = "a team of several warps has one matrix, and a block of threads to itself; use 1"
        require(self.warps == 1 or self.matrices == 1, "matrices", self.matrices, works)
        require(self.warps == 1 or self.teams in (None, 1), "teams", self.teams, works)

    def _defaults(self, target: Target, problem: Problem) -> dict[str, Any]:
        tensor = problem.math == "fast" or problem.dtype == "float64"
        update = self.update or ("tensor" if tensor else "fma")
        teams, cache = self.teams or (2 if self.warps == 1 else 1), self.cache or "shared"
        kept = {name: getattr(self, name) or None for name in ("resident", "staged", "few")}
        rhs = (self.rhs or 1) if problem.operation.has_columns else self.rhs
        numbers = {"teams": teams, "blocks": self.blocks or 1, "rhs": rhs}
        return {"update": update, "cache": cache, **kept, **numbers}

    def check(self, problem: Problem, layout: str) -> None:
        """Refuse what this schedule cannot do with a problem in a layout."""
        check_stride(self, layout)
        self._check_resident(problem, layout)
        self._check_staged(problem, layout)
        works = "chains are shorter where solutions alone are asked for; use None"
        require(not self.few or problem.operation.has_columns, "few", self.few, works)
        works = f"{problem.op} has no right-hand sides, use None"
        require(problem.operation.has_columns or self.rhs is None, "rhs", self.rhs, works)
        require(
            self.warps == 1 or (self.rhs or 1) == 1, "rhs", self.rhs, "one warp solves for several at a time, use 1"
        )
        if problem.dtype == "float64":
            works = "in float64 a warp factors, and no more; use another family"
            require(problem.op == "potrf", "op", problem.op, works)
            require(self.update != "fma", "update", self.update, "float64 is updated by tensor cores; use 'tensor'")
        elif self.warps > MAX_SINGLE_WARPS:
            require(False, "warps", self.warps, f"float32 has up to {MAX_SINGLE_WARPS} warps; use fewer")
        most = MAX_TILE_REGISTERS[problem.dtype]
        registers = ELEMENT_BYTES[problem.dtype] * self.matrices * self.shape(problem).most_tiles
        field = "matrices" if self.matrices > 1 else "warps"
        works = f"n={problem.n} is {registers} registers of each thread, over {most}; use "
        works += "fewer" if self.matrices > 1 else "more"
        require(registers <= most, field, getattr(self, field), works)
        most = MAX_SHARED_BYTES if problem.operation.forgets else MAX_DECLARED_BYTES
        taken = self._shared_bytes(problem, layout)
        works = f"n={problem.n} is {taken:,} bytes of shared memory, over {most:,}; use fewer"
        require(taken <= most, "teams", self.teams, works)

    def _check_resident(self, problem: Problem, layout: str) -> None:
        """Refuse to go on to further matrices where these are not fetched to shared memory, or in turns."""
        stays = problem.op == "potrf" and problem.dtype == "float32" and layout == "canonical"
        works = "warps go on where they factor arrays of float32, fewer than eight teams to a block; use None"
        require(not self.resident or (stays and (self.teams or 1) < MAX_TEAMS), "resident", self.resident, works)

    def _check_staged(self, problem: Problem, layout: str) -> None:
        """Refuse an image of what is not arrays to factor, or is not left before further ones come."""
        fits = problem.op == "potrf" and layout == "canonical" and not self.resident
        works = "teams that factor arrays and do not go on have an image of them; use None"
        require(not self.staged or fits, "staged", self.staged, works)
        taken = self.image_bytes(problem) * (self.teams or 1) + self._shared_bytes(problem, layout)
        works = f"n={problem.n} is {taken:,} bytes of shared memory, over {MAX_SHARED_BYTES:,}; use fewer"
        require(not self.staged or taken <= MAX_SHARED_BYTES, "teams", self.teams, works)

    def image(self, problem: Problem) -> WarpImage:
        """The place of a team's matrices in shared memory, if they are staged."""
        return WarpImage(problem.n, self.matrices, problem.dtype, self.warps)

    def image_bytes(self, problem: Problem) -> int:
        """Bytes of a team's image, if there is one."""
        return self.image(problem).scalars * ELEMENT_BYTES[problem.dtype] if self.staged else 0

    def _shared_bytes(self, problem: Problem, layout: str) -> int:
        """Shared memory of a block: what it declares, or what solves keep, with stages where there can be one."""
        shape, each = self.shape(problem), ELEMENT_BYTES[problem.dtype]
        if not problem.operation.forgets:
            return each * shape.declared
        return each * shape.teams * shape.matrices * shape.room(staged=layout == "canonical")

    def shape(self, problem: Problem) -> WarpShape:
        """How matrices are spread over warps, registers and shared memory."""
        return WarpShape(problem.n, self.matrices, self.warps, self.teams or 1, self.rhs or 1)

    def method(self, operation: Operation) -> tuple[str, ...]:
        """The part of a kernel's name that says how it factors."""
        several = [f"rhs{self.rhs}"] * ((self.rhs or 1) > 1)
        return (self.family, f"m{self.matrices}", f"w{self.warps}", *several, str(self.update), self.unroll)

    def details(self, layout: str) -> tuple[str, ...]:
        """The last part of a kernel's name, its choices of detail."""
        stays = [name for name in ("staged", "resident", "few") if getattr(self, name)]
        return (f"t{self.teams}", f"b{self.blocks}", *stays, *super().details(layout))
