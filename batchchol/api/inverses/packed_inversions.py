"""Inverses of a batch in its own layout, one triangle of each, by one kernel."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from batchchol.api.arguments import Wanted
from batchchol.backends import get_backend
from batchchol.backends.base import Form
from batchchol.batches.batch import Batch
from batchchol.parallel import available_threads
from batchchol.plan import check_out, chosen_kernel
from kernelgen import SpecError

# The operations, by those that write both triangles to an array.
PACKED = {"poinv": "ppinv", "potri": "pptri"}


def inverted_in_place_of(batch: Batch, wanted: Wanted) -> tuple[Batch, Any]:
    """Inverses in `wanted.out`, a batch of the same layout, and the info of each matrix or factor.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as `inv` says, or does not belong to the others.
    """
    out = wanted.out
    _check(batch, out, wanted)
    result, device = copy(out).marked("upper" if wanted.upper else "lower"), get_backend(batch.backend)
    info = device.place(np.zeros(batch.batch, np.int32))
    if not batch.batch:
        return result, info
    choice = PACKED[wanted.op], device, Form.of(batch), wanted.upper, wanted.spec, wanted.math
    try:
        kernel = chosen_kernel(*choice, argument=wanted.argument)
    except SpecError as error:
        if wanted.spec is not None:
            raise
        raise ValueError(f"out: got a Batch, expected an array, or None: there is no kernel ({error})") from error
    threads = int(wanted.threads or available_threads(batch.nbytes + out.nbytes))
    kernel(batch, out, info, threads=threads, stream=wanted.stream)
    return result, info


def _check(batch: Batch, out: Batch, wanted: Wanted) -> None:
    if batch.layout.kind == "canonical":
        raise ValueError(
            f"out: got a Batch, expected an array of shape {(batch.batch, batch.n, batch.n)}: of {wanted.what} in "
            "the canonical layout both triangles of the inverses are written"
        )
    if wanted.op not in PACKED or wanted.jitter is not None:
        named = "logdet" if wanted.op not in PACKED else "jitter"
        raise ValueError(f"out: got a Batch with {named}, expected an array, or None")
    check_out(batch, out, in_place=out.shares_memory(batch))
    if batch.backend == "cpu":
        wanted.check_no_stream("backend 'cpu' has none")
