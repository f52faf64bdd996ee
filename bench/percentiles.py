"""Percentiles of a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentiles(values: Sequence[float], *parts: float) -> list[float]:
    """For each part (0.5 is the median) the value that this part of all is not above, by the nearest rank; NaN for no values."""
    ordered = sorted(values)
    return [ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan for part in parts]
