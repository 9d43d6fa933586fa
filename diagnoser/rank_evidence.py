"""Whether values after a change are larger or smaller than those before it: a rank test that may be read at any time.

The values are means over blocks of time. Under the hypothesis that the change did nothing, their order is as good as
any other (they are exchangeable). Under Lehmann's alternative, in which the distribution after the change is F to the
power of d where it was F, an order of m values before and k after has the probability

    m! k! d^k / product over i of (a_i + d b_i)

where a_i and b_i are the values before and after among the i smallest (Savage, Annals of Mathematical Statistics 1956).
Divided by the probability at d = 1, and averaged over several d, this is an e-process in k: it begins at 1 and is at
least 1 / alpha at any time with a probability of at most alpha (Ville's inequality; Ramdas, Grünwald, Vovk, Shafer,
Statistical Science 2023). So a reader may look after each block and stop when it pleases. It needs no distribution and
no variance, and one very slow block counts as one block. Half of the average is over the same alternatives of the
survival function, since each of the two hardly stands an outlier at one of the ends.

The hypothesis "the change multiplied the values by r" is tested by dividing the values after by r. The ratios that are
not rejected are a confidence sequence: it contains the true ratio at all times together with probability 1 - alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvitals.series.types import Floats

ALTERNATIVES = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Lehmann's d over which evidence is averaged: from a shift of half a standard deviation to no overlap at all."""
_D = np.array(ALTERNATIVES)
MAX_BLOCKS = 400
"""Values of one side: more are not read."""
MIN_BEFORE = 8
"""Values before the change: with fewer no order is rare enough."""
CORRELATED, TOO_CORRELATED = 0.2, 0.5
"""Correlation of a value with the next: above the first blocks are joined, above the second nothing is tested. In
simulations with 24 blocks before and a true correlation of 0.6 this keeps false alarms at the size that is stated."""
DEPENDENCE = 2.0
"""Times the evidence that independent blocks would need: for the dependence that is left between them."""
VARIES = 1e-6
"""Of the mean: less variation is that of rounding."""
MAX_LOG = 700.0
"""Of an e-value: more than its double precision holds."""
STEP_ASIDE = 1e-9
"""Of a ratio, by which evidence is asked beside it and not at it, where values tie."""


def evidence_of_increase(before: Sequence[float] | Floats, after: Sequence[float] | Floats) -> float:
    """The e-value against "the values after are not larger". At least 0; 1 where one side has no values.

    Equal values on both sides are ordered as if those before were larger, so that ties never add evidence.
    """
    m, k = len(before), len(after)
    if m == 0 or k == 0:
        return 1.0
    values = np.concatenate([np.asarray(after, dtype=np.float64), np.asarray(before, dtype=np.float64)])
    is_after = np.concatenate([np.ones(k), np.zeros(m)])[np.argsort(values, kind="stable")]
    logs = np.concatenate([_log_likelihood_ratios(is_after, _D), _log_likelihood_ratios(is_after[::-1], 1 / _D)])
    return float(np.exp(np.minimum(logs, MAX_LOG)).mean())


def _log_likelihood_ratios(is_after: Floats, d: Floats) -> Floats:
    """Of an order, from its smallest value on, under F to the power of each d against F."""
    b = np.cumsum(is_after)
    a = np.arange(1, len(is_after) + 1) - b
    ratios: Floats = b[-1] * np.log(d) + math.lgamma(len(is_after) + 1) - np.log(a + d[:, None] * b).sum(axis=1)
    return ratios


def evidence_of_decrease(before: Sequence[float] | Floats, after: Sequence[float] | Floats) -> float:
    """The e-value against "the values after are not smaller"."""
    return evidence_of_increase(-np.asarray(before, dtype=np.float64), -np.asarray(after, dtype=np.float64))


@dataclass(frozen=True)
class RatioInterval:
    """The factor by which the values changed: an estimate and the ends of its confidence sequence; infinite where
    nothing is excluded yet."""

    ratio: float
    low: float
    high: float

    def meet(self, earlier: RatioInterval | None) -> RatioInterval:
        """What neither this interval nor an earlier one of the same sequence excludes."""
        if earlier is None:
            return self
        low, high = max(self.low, earlier.low), min(self.high, earlier.high)
        return RatioInterval(self.ratio, low, high) if low <= high else self


def evidence_limit(alpha: float) -> float:
    """The e-value at which a ratio is excluded on one side; both sides together err with probability alpha."""
    return 2 * DEPENDENCE / alpha


def ratio_interval(before: Sequence[float], after: Sequence[float], alpha: float) -> RatioInterval | None:
    """The confidence sequence of the ratio after these values, at level `1 - alpha`. The values are not negative.

    None where the values have no ratio: too few before, none after, or a side that is all zero before.
    """
    a, b = np.asarray(before[-MAX_BLOCKS:], dtype=np.float64), np.asarray(after[-MAX_BLOCKS:], dtype=np.float64)
    if len(a) < MIN_BEFORE or not len(b) or a.min() < 0 or b.min() < 0 or not a.max() > 0:
        return None
    ratios = np.unique(np.outer(b, 1 / a[a > 0]))
    limit = evidence_limit(alpha)
    low = _excluded(ratios, lambda r: evidence_of_increase(a, _divided(b, r * (1 - STEP_ASIDE))) >= limit)
    high = _excluded(ratios[::-1], lambda r: evidence_of_decrease(a, _divided(b, r * (1 + STEP_ASIDE))) >= limit)
    middle = float(np.median(np.outer(b, 1 / a[a > 0])))
    return RatioInterval(middle, 0.0 if low is None else low, math.inf if high is None else high)


def drift_interval(
    before: Sequence[float], after: Sequence[float], alpha: float, *, lower_is_better: bool
) -> RatioInterval | None:
    """The ratio where the values before depend on one another because they got worse: every value after has to be
    better than the best one before. Had the change done nothing, that would need the drift to turn; in an order by
    chance it has the probability of one in all ways to choose the values after.

    None where that is not so, or may be chance. The ends are those of the best and the worst values of both sides.
    """
    a, b = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    few = min(len(a), len(b)) < MIN_BEFORE or math.comb(len(a) + len(b), len(b)) < evidence_limit(alpha)
    if few or a.min() <= 0:
        return None
    first, last = a[: len(a) // 2].mean(), a[len(a) // 2 :].mean()
    turned = last > first and b.max() < a.min() if lower_is_better else last < first and b.min() > a.max()
    if not turned:
        return None
    return RatioInterval(float(np.median(np.outer(b, 1 / a))), float(b.min() / a.max()), float(b.max() / a.min()))


def block_factor(values: Sequence[float], most: int = 4) -> int | None:
    """How many neighbouring blocks make one value, so that values next to each other hardly depend on one another: 1, 2
    or 4. None where they depend strongly even then, or too few values are left to tell."""
    factors = [factor for factor in (1, 2, 4) if factor <= most and len(values) // factor >= MIN_BEFORE]
    for factor in factors:
        if correlation(block_means(values, factor)) <= CORRELATED:
            return factor
    last = factors[-1] if factors else None
    return last if last and correlation(block_means(values, last)) <= TOO_CORRELATED else None


def block_means(values: Sequence[float], factor: int) -> list[float]:
    """Means of `factor` neighbouring values each; those that do not fill the last one are left out."""
    whole = len(values) // factor * factor
    return np.asarray(values[:whole], dtype=np.float64).reshape(-1, factor).mean(axis=1).tolist() if whole else []


def correlation(values: Sequence[float]) -> float:
    """The correlation of values with their successors, corrected for the bias of short series (Marriott and Pope 1954);
    0 where they do not vary."""
    x = np.asarray(values, dtype=np.float64)
    off = x - x.mean() if len(x) else x
    total = float((off * off).sum())
    if len(x) < 3 or total <= len(x) * (VARIES * x.mean()) ** 2:
        return 0.0
    r = float((off[1:] * off[:-1]).sum()) / total
    return r + (1 + 3 * r) / len(x)


def _divided(values: Floats, ratio: float) -> Floats:
    """The values over a ratio, which is 0 where a value after the change is."""
    return values / ratio if ratio > 0 else np.where(values > 0, math.inf, 0.0)


def _excluded(ratios: Floats, is_excluded: Callable[[float], bool]) -> float | None:
    """The last of the ordered ratios up to which all are excluded; None where nothing is.

    Evidence only changes at a ratio of a value after to a value before, so `is_excluded` is asked beside each of them.
    """
    first, end = 0, len(ratios)
    while first < end:
        middle = (first + end) // 2
        if is_excluded(float(ratios[middle])):
            first = middle + 1
        else:
            end = middle
    return float(ratios[first - 1]) if first else None
