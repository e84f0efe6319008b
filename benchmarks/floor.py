"""What does a launch cost that does nothing? No call can be shorter."""

from __future__ import annotations

from typing import Any

from .harness import Question, Taken, backend_of, grid, library, timed


class Floor(Question, names=("backend", "protocol"), backend=grid.CUDA, protocol=grid.PROTOCOL):
    """An empty kernel, by both protocols; seconds per launch."""

    def prepare(self) -> None:
        self.backend = backend_of(self.point)

    def device_nothing(self, *_: Any) -> Taken:
        return timed(self.backend, [library.nothing()], 1, self.point.protocol)
