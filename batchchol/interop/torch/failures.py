"""What is refused of tensors, and what is raised of their values, in torch's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from batchchol.api.failures import raise_failures

_DTYPES = (torch.float32, torch.float64)


def check_tensor(argument: str, a: Tensor) -> None:
    """Refuse anything but a dense tensor of float32 or float64."""
    check_kind(argument, a.dtype, a.layout)


def check_kind(argument: str, dtype: Any, layout: Any) -> None:
    """`check_tensor` for a tensor of a dtype and a layout."""
    if layout != torch.strided:
        raise TypeError(f"{argument}: got a tensor of layout {layout}, expected a dense one: use .to_dense()")
    if dtype not in _DTYPES:
        raise TypeError(f"{argument}: got dtype {dtype}, expected torch.float32 or torch.float64: use .to(...)")


def raise_here(info: NDArray[np.int32], a: NDArray[Any] | None, upper: bool, instead: str) -> None:
    """`raise_failures` with torch's error.

    Raises
    ------
    torch.linalg.LinAlgError
        If an info is not 0.
    """
    try:
        raise_failures(info, a, upper, instead)
    except np.linalg.LinAlgError as error:
        raise torch.linalg.LinAlgError(str(error)) from None
