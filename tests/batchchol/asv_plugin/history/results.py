"""Results of a suite over commits, made up for tests of their history."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from batchchol.asv_plugin.results import ResultRow
from batchchol.asv_plugin.samples import SampleRecord

DAY = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
NAME = "tiles.Tiles.device_factor"


def result(
    commit: int, median: float, *, kernel: str = "", night: int = 0, samples: int = 5, **about: Any
) -> ResultRow:
    """The result of a commit; `kernel` is the hash of its text, `night` tells runs of one commit apart."""
    date, machine = DAY + datetime.timedelta(days=commit), about.pop("machine", "mine")
    name, status = about.pop("benchmark", NAME), "failed" if math.isnan(median) else "measured"
    params = MappingProxyType({"backend": "cuda", "n": 8, "dtype": "float32", "nb": None, **about})
    taken = tuple(median * (1 + 0.002 * (index - samples // 2)) for index in range(samples))
    hexadecimal = f"{commit:02x}" * 20
    said = {
        "spec": "potrf_f32_n8_chunked_col_left_nb2_full_ieee_cuda_t32_l1_s32",
        "layout": "chunked32-col",
        "source_sha256": kernel,
        "device": {"gpu": "A GPU", "driver": "1.2", "gpu_clock_mhz": 1980},
        "conditions": {"before": {"gpu_clock_mhz": 1500, "temperature_c": 30, "throttle": ""}, "after": {}},
    }
    record = SampleRecord("run", date, hexadecimal, "env", name, params, taken, said)
    started = date + datetime.timedelta(hours=1, days=night)
    unit = "seconds"
    records = (record,) if kernel else ()
    return ResultRow(machine, "env", hexadecimal, date, name, params, status, median, (), unit, records, started)


def series(medians: Sequence[float], *, kernels: str = "", **about: Any) -> list[ResultRow]:
    """A case's results, commit after commit; `kernels` has a letter for the text of each."""
    texts = kernels or "abcdefghijklmnopqrstuvwxyz"[: len(medians)]
    return [
        result(index, median, kernel=text, **about)
        for index, (median, text) in enumerate(zip(medians, texts, strict=True), start=1)
    ]
