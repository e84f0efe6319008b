"""The machines that a kernel can be generated for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "float64": 8})


@dataclass(frozen=True)
class Target:
    """A SIMD instruction set, or the threads of a GPU (`vector_bytes` 0).

    `registers` is how many of them one lane or thread has; `flags` are the compiler options that the target needs.
    """

    name: str
    vector_bytes: int
    registers: int
    flags: tuple[str, ...] = ()

    @property
    def gpu(self) -> bool:
        """Whether a lane is a thread of its own."""
        return self.vector_bytes == 0

    def lanes(self, dtype: str) -> int:
        """Matrices that one SIMD register or one GPU thread factors side by side."""
        return 1 if self.gpu else self.vector_bytes // ELEMENT_BYTES[dtype]

    def halved(self) -> Target:
        """The same instructions on vectors of half the size."""
        return replace(self, vector_bytes=self.vector_bytes // 2)


SIMD_TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            Target(
                "avx512",
                vector_bytes=64,
                registers=32,
                flags=(
                    "-mavx512f",
                    "-mavx512dq",
                    "-mavx512vl",
                    "-mavx512bw",
                    "-mfma",
                    "-mprefer-vector-width=512",
                ),
            ),
            Target("avx2", vector_bytes=32, registers=16, flags=("-mavx2", "-mfma")),
            # Sixteen-byte vectors are in every SSE2 and NEON machine's baseline: no flag needed.
            Target("generic", vector_bytes=16, registers=16),
        )
    }
)

CUDA = Target("cuda", vector_bytes=0, registers=255)

TARGETS: Mapping[str, Target] = MappingProxyType({**SIMD_TARGETS, CUDA.name: CUDA})
