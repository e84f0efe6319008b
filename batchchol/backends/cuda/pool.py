"""Where device memory comes from and returns to: pieces no longer in use are kept, and reused.

Allocating and freeing by the driver takes longer than most factorizations, and freeing waits for all work on the GPU.
All of this library's memory is allocated, used and given back in the order of the default stream: what is queued
there later may have a piece whose last use is queued there already. So a piece that is kept serves the next caller
with no call of the driver, also while another library's stream is being captured, when the driver's own
stream-ordered allocator must not be called.

PyCUDA frees memory in the thread that made its context alone, and only warns of the rest: any thread may drop what
comes from here.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Any

from batchchol.backends.cuda.device import Device
from batchchol.errors import OutOfMemory

# The largest share of the GPU's memory that is kept. What has been kept longest is freed first.
KEPT_SHARE = 1 / 8
GRANULE = 512
# A piece serves a smaller request, if what is left over is at most this share of it.
_LEFT_OVER = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Memory that PyCUDA allocated, and how many bytes."""

    pool: Pool
    handle: Any
    address: int
    size: int


class Pool:
    """The memory of one GPU, whose number is `gpu`; any thread may use it."""

    def __init__(self, gpu: Device) -> None:
        self._gpu, self.gpu = gpu, gpu.number
        self._most = int(gpu.handle.total_memory() * KEPT_SHARE)
        # What is kept: by address, the oldest first; and as (size, address), the smallest first.
        self._pieces: dict[int, Piece] = {}
        self._sizes: list[tuple[int, int]] = []
        self.kept = 0
        # Whether an interrupt may have left the two below what the first one says.
        self._torn = False
        # The garbage collector may drop arrays inside any line of this class, under the lock as well, for which they
        # must not wait then: they wait here until it is free.
        self._returned: deque[tuple[Piece, bool]] = deque()
        self._lock = threading.Lock()

    def allocate(self, nbytes: int, purpose: str) -> Memory:
        """Memory of at least this many bytes, aligned to 512 of them.

        Raises
        ------
        OutOfMemory
            If there is not as much, nothing being kept any more.
        """
        size = -(-nbytes // GRANULE) * GRANULE
        if self._returned:
            self._tidy()
        piece = None
        with self._lock:
            if self._torn:
                self._mend()
            place = bisect_left(self._sizes, (size, 0))
            if place < len(self._sizes) and self._sizes[place][0] <= size + size // _LEFT_OVER:
                piece = self._remove(place)
        if self._returned:
            self._tidy()
        if piece is None:
            piece = self._new(size, purpose)
        made = Memory(piece.address)
        made._piece = piece
        return made

    def give_back(self, piece: Piece, reusable: bool) -> None:
        """Keep a piece for the next, or free it, once all work on the GPU is done."""
        # Most pieces are put away at once, which takes less than `_tidy`.
        if reusable and self.kept + piece.size <= self._most and not self._lock.locked():
            with self._lock:
                if self._torn:
                    self._mend()
                self._keep(piece)
        else:
            self._returned.append((piece, reusable))
        if self._returned:
            self._tidy()

    def release(self) -> int:
        """Free what is kept, once all work on the GPU is done; how many bytes that was."""
        with self._lock:
            if self._torn:
                self._mend()
            pieces = [self._remove(-1) for _ in range(len(self._sizes))]
        self._free(pieces)
        self._tidy()
        return sum(piece.size for piece in pieces)

    def _remove(self, place: int) -> Piece:
        """A piece that is no longer kept."""
        self._torn = True
        size, address = self._sizes.pop(place)
        self.kept -= size
        piece = self._pieces.pop(address)
        self._torn = False
        return piece

    def _keep(self, piece: Piece) -> None:
        self._torn = True
        self._pieces[piece.address] = piece
        insort(self._sizes, (piece.size, piece.address))
        self.kept += piece.size
        self._torn = False

    def _mend(self) -> None:
        """Have all as the pieces say, which one step each puts in and takes out."""
        self._sizes = sorted((piece.size, address) for address, piece in self._pieces.items())
        self.kept = sum(size for size, _ in self._sizes)
        self._torn = False

    def _tidy(self) -> None:
        """Put away what was given back; whichever thread holds the lock does it for all."""
        while self._returned and not self._lock.locked():
            with self._lock:
                surplus = self._put_away()
            if surplus:
                self._free(surplus)

    def _put_away(self) -> list[Piece]:
        """Keep what was given back, but for what is too much: that is to be freed."""
        if self._torn:
            self._mend()
        surplus: list[Piece] = []
        while self._returned:
            piece, reusable = self._returned.popleft()
            if reusable and piece.size <= self._most:
                self._keep(piece)
            else:
                surplus.append(piece)
        while self.kept > self._most:
            oldest = next(iter(self._pieces.values()))
            surplus.append(self._remove(bisect_left(self._sizes, (oldest.size, oldest.address))))
        return surplus

    def _free(self, pieces: list[Piece]) -> None:
        # A capture by another library does not concern this memory.
        with self._gpu.current("freeing"), self._gpu.driver.relaxed():
            for piece in pieces:
                piece.handle.free()

    def _new(self, size: int, purpose: str) -> Piece:
        with self._gpu.current("allocating"), self._gpu.driver.relaxed():
            try:
                handle = self._gpu.pycuda.mem_alloc(size)
            except self._gpu.pycuda.MemoryError:
                self.release()
                handle = self._allocate_at_last(size, purpose)
        return Piece(self, handle, int(handle), size)

    def _allocate_at_last(self, size: int, purpose: str) -> Any:
        cuda = self._gpu.pycuda
        try:
            return cuda.mem_alloc(size)
        except cuda.MemoryError as error:
            raise OutOfMemory(f"{purpose}, on the GPU,", size, int(cuda.mem_get_info()[0])) from error


class Memory(int):
    """The address of a piece of device memory, which returns to its pool once nothing refers to it."""

    _piece: Piece
    reusable = True

    @property
    def gpu(self) -> int:
        """The number of the GPU that it is on."""
        return self._piece.pool.gpu

    def __del__(self) -> None:
        try:
            piece = self._piece
            piece.pool.give_back(piece, self.reusable)
        except Exception:
            # The interpreter or the context is going down, and the memory with it.
            return
