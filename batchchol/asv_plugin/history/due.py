"""What a nightly run leaves out: kernels whose text is that of a recent measurement."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict

from batchchol.asv_plugin.history.store import Store

Texts = dict[str, dict[str, str]]
"""Of each benchmark, by the parameters of a point (JSON with sorted names): the hash of its kernel's text."""


def measured_texts(store: Store, machine: str, since: datetime.datetime) -> Texts:
    """The kernel texts that were measured last on a machine, of runs since a time; failures are due again."""
    texts: Texts = defaultdict(dict)
    for each in sorted(store.measurements(machine), key=lambda each: each.started):
        text = each.about.get("source_sha256", "") if each.status == "measured" else ""
        texts[each.benchmark][json.dumps(dict(each.params), sort_keys=True)] = text if each.started >= since else ""
    return {benchmark: {point: text for point, text in of.items() if text} for benchmark, of in texts.items()}
