"""What a GPU-hour costs: as the user says, else a dated default of the catalogue, else unknown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvitals.diagnoser.review.result import PriceUsed
from kvitals.diagnoser.review.review_steps import Engine
from kvitals.rules.catalogue import Price, prices
from kvitals.series.types import Floats

USER = "as given"


@dataclass(frozen=True)
class GpuPrices:
    """Prices of the user, US dollars an hour of one GPU. by_name: of hardware, a pool or a model; `every`: of the rest.

    gpus: that an engine has which does not tell.
    """

    every: float | None = None
    by_name: Mapping[str, float] = field(default_factory=dict)
    gpus: float = 1.0


@dataclass(frozen=True)
class Prices:
    """usd: of each engine's GPU-hour, NaN where unknown. used: what was taken, and for how many hours."""

    usd: Floats
    used: list[PriceUsed]

    def cost(self, hours: Floats) -> float | None:
        """Of hours [.., engine]; None where the price of some of them is unknown."""
        if np.any(np.isnan(self.usd) & (hours.reshape(-1, len(self.usd)).sum(axis=0) > 0)):
            return None
        return float(np.nansum(hours * self.usd))


def price_engines(engines: Sequence[Engine], hours: Floats, given: GpuPrices) -> Prices:
    """The price of each engine; `hours` of each, to say for how many each price stands."""
    several = [_price(engine, given) for engine in engines]
    by_price: dict[PriceUsed, float] = {}
    for price, of in zip(several, hours.tolist(), strict=True):
        by_price[price] = by_price.get(price, 0.0) + of
    usd = np.array([np.nan if one.usd_per_hour is None else one.usd_per_hour for one in several], dtype=np.float64)
    used = [_with_hours(price, of) for price, of in sorted(by_price.items(), key=lambda item: -item[1])]
    return Prices(usd, used)


def _price(engine: Engine, given: GpuPrices) -> PriceUsed:
    hardware = engine.place.get("hardware", "")
    for name in (hardware, engine.place.get("pool", ""), engine.place.get("model", "")):
        for of, usd in given.by_name.items():
            if name and of.lower() in name.lower():
                return _used(hardware, usd, usd, usd, f"{USER} for {of}", "")
    if given.every is not None:
        return _used(hardware, given.every, given.every, given.every, USER, "")
    found = default_prices(hardware)
    if not found:
        why = "hardware not told" if not hardware else "no default for this hardware"
        return _used(hardware, None, None, None, why, "")
    several = sorted(one.usd_per_hour for one in found)
    dates = sorted({one.as_of for one in found if re.match(r"\d{4}-\d\d", one.as_of)})
    basis = f"the median of {len(found)} dated defaults for {found[0].gpu}, rented and owned"
    middle = float(statistics.median(several))
    return _used(hardware, middle, several[0], several[-1], basis, dates[-1] if dates else found[0].as_of)


def default_prices(hardware: str) -> list[Price]:
    """The catalogue's prices of a GPU as NVML, AMD or a person calls it."""
    words = set(re.findall(r"[a-z]+\d+[a-z]*", hardware.lower()))
    return [one for one in prices() if one.gpu.split()[0].lower() in words]


def _used(hardware: str, usd: float | None, low: float | None, high: float | None, basis: str, as_of: str) -> PriceUsed:
    return PriceUsed(
        hardware=hardware or "not told", usd_per_hour=usd, low=low, high=high, basis=basis, as_of=as_of, gpu_hours=0.0
    )


def _with_hours(price: PriceUsed, hours: float) -> PriceUsed:
    return PriceUsed(
        hardware=price.hardware, usd_per_hour=price.usd_per_hour, low=price.low, high=price.high, basis=price.basis,
        as_of=price.as_of, gpu_hours=hours,
    )  # fmt: skip
