"""The machines that a kernel can be generated for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

ELEMENT_BYTES: Mapping[str, int] = MappingProxyType({"float32": 4, "float64": 8})


@dataclass(frozen=True)
class Target:
    """An instruction set; `flags` are the compiler options that switch it on."""

    name: str
    vector_bytes: int
    registers: int
    flags: tuple[str, ...] = ()

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one SIMD register: matrices factored side by side."""
        return self.vector_bytes // ELEMENT_BYTES[dtype]


TARGETS: Mapping[str, Target] = MappingProxyType(
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
