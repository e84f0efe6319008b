"""The gate's answer as JSON, with all samples, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from batchchol.asv_plugin.gate.answer.words import sentence
from batchchol.asv_plugin.gate.outcome import Answer, Outcome, Resolution, Verdict

SCHEMA = 1


def to_json(answer: Answer) -> str:
    """Everything that the answer has, its exit status and its verdict in words.

    Numbers that are not finite, which JSON lacks, are the strings "inf", "-inf" and "nan".
    """
    said = {"schema": SCHEMA, "status": answer.status, "verdict": sentence(answer)}
    return json.dumps(said | _encoded(answer), indent=1, allow_nan=False) + "\n"


def _encoded(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _encoded(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _encoded(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_encoded(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(text: str) -> Answer:
    """The answer that :func:`to_json` wrote.

    Raises
    ------
    ValueError
        If it is none, or of another schema.
    """
    try:
        found = json.loads(text)
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']!r}, expected {SCHEMA}: ask the gate again")
        known = {each.name: found[each.name] for each in fields(Answer)} | _floats(found, "seconds", "budget")
        known["outcomes"] = tuple(map(_outcome, found["outcomes"]))
        known["resolution"] = Resolution(**found["resolution"] | _floats(found["resolution"], "kernels", "calls"))
        return Answer(**known)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no answer of the gate: {error!r}") from error


def _outcome(found: Mapping[str, Any]) -> Outcome:
    numbers = _floats(found, "ratio", "low", "high", "threshold", "base_seconds", "head_seconds")
    samples = tuple(map(float, found["log_ratios"]))
    return Outcome(**{**found, **numbers, "verdict": Verdict(found["verdict"]), "log_ratios": samples})


def _floats(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: None if found[name] is None else float(found[name]) for name in names}
