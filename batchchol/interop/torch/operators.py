"""The operators of `torch.ops.batchchol`: their schemas, and who does them where.

`check` has an operator raise in place of returning an info that is not 0, and `jitter` is the first multiple of the
mean diagonal: the words of the API are in `batchchol.interop.torch`.
"""

from __future__ import annotations

from typing import Any

import torch

from batchchol.api.repairs import FIRST, check_jitter
from batchchol.interop.torch import batching, derivatives, device, fakes, host
from batchchol.interop.torch.dispatch import Autograd

_HOW = 'bool upper=False, str math="ieee"'
# torch.compile looks nothing up in a mapping proxy.
_FIRST, _FIRST_OF_DOUBLES = FIRST["float32"], FIRST["float64"]
_CHECKED = f"{_HOW}, bool check=False"
SCHEMAS = {
    "cholesky": f"(Tensor a, {_CHECKED}) -> (Tensor, Tensor)",
    "cholesky_repaired": f"(Tensor a, float jitter, {_CHECKED}) -> (Tensor, Tensor, Tensor)",
    "solve": f"(Tensor a, Tensor b, {_CHECKED}) -> (Tensor, Tensor)",
    "solve_repaired": f"(Tensor a, Tensor b, float jitter, {_CHECKED}) -> (Tensor, Tensor, Tensor)",
    "cho_solve": f"(Tensor L, Tensor b, {_HOW}) -> Tensor",
    "cho_inverse": f"(Tensor L, {_HOW}) -> Tensor",
    "inv": f"(Tensor a, {_CHECKED}) -> (Tensor, Tensor)",
    "slogdet": f"(Tensor a, {_CHECKED}) -> (Tensor, Tensor, Tensor)",
}


def _register() -> tuple[Any, dict[str, Any]]:
    """The library, which operators live as long as, and the operators by name."""
    library = torch.library.Library("batchchol", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        done_by = {"CPU": getattr(host, name), "CUDA": device.on_its_gpu(getattr(device, name))}
        for where, implementation in done_by.items():
            library.impl(name, implementation, where)
        qualified = f"batchchol::{name}"
        torch.library.register_fake(qualified, getattr(fakes, name), lib=library)
        save, backward = derivatives.DERIVATIVES[name]
        lib = Autograd(library, done_by)
        torch.library.register_autograd(qualified, backward, setup_context=save, lib=lib)
        torch.library.register_vmap(qualified, batching.rule(name), lib=library)
    return library, {name: getattr(torch.ops.batchchol, name).default for name in SCHEMAS}


_LIBRARY, OPERATORS = _register()


def first_share(jitter: Any, dtype: Any) -> Any:
    """The first multiple of the mean diagonal that is added to matrices of a dtype.

    Raises
    ------
    ValueError
        If it is no positive number, nor "auto".
    """
    if isinstance(jitter, float):
        # The operator checks the number.
        return jitter
    check_jitter(jitter)
    if isinstance(jitter, str):
        return _FIRST_OF_DOUBLES if dtype == torch.float64 else _FIRST
    return float(jitter)
