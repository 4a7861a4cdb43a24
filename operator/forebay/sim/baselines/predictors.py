"""One step ahead of a series: Dynamo's "constant" predictor, and a small stand-in for its "arima".

Dynamo's default asks pmdarima's auto_arima for an order and falls back to log1p(y) where that collapses to a mean
(ai-dynamo/dynamo:components/src/dynamo/planner/core/load/predictors.py). Here it is an autoregression: AR(p) of y or
of its first differences, p = 0..2, fitted by least squares, the order chosen by Akaike's criterion on the same points.
There is no moving-average part, no season (auto_arima has none by default either), and a day of points is remembered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from forebay.sim.baselines.signals import F64

_LEAST_POINTS: Final = 5  # Dynamo's minimum_data_points: below, the last value is the forecast
_MOST_POINTS: Final = 480  # a day of 180 s
_ORDERS: Final = tuple((lags, differences) for differences in (0, 1) for lags in range(3))
_OLDEST: Final = 3  # points before the first one that every order can predict


class Predictor(Protocol):
    """A series that grows by one point an interval."""

    def add(self, value: float) -> None:
        """Append a point; zeros before the first other value are not load but the time before any."""

    def next(self) -> float:
        """Return the forecast of the next point, never negative; 0 before any point."""


class Constant:
    """As the last one."""

    def __init__(self) -> None:
        self._last = 0.0

    def add(self, value: float) -> None:
        """Keep the point."""
        self._last = value

    def next(self) -> float:
        """Return the last point."""
        return self._last


class Autoregression:
    """The stand-in for "arima" that the module describes."""

    def __init__(self) -> None:
        self._points: deque[float] = deque(maxlen=_MOST_POINTS)

    def add(self, value: float) -> None:
        """Append a point."""
        if value or self._points:
            self._points.append(value)

    def next(self) -> float:
        """Fit and return the next point."""
        if not self._points:
            return 0.0
        series = np.array(self._points)
        if len(series) < _LEAST_POINTS or np.ptp(series) == 0:
            return float(series[-1])
        order, forecast = _best(series)
        if order[0] == 0:
            forecast = float(np.expm1(_best(np.log1p(series))[1]))
        return max(forecast, 0.0) if np.isfinite(forecast) else float(series[-1])


def _best(series: F64) -> tuple[tuple[int, int], float]:
    """Return the order with the least information criterion, and its forecast."""
    known = series[_OLDEST:]
    fits = [(_score(known - fitted[:-1], lags), (lags, differences), fitted[-1])
            for lags, differences in _ORDERS
            if len(known) >= 2 * (lags + 1)
            for fitted in [_fitted(series, lags, differences)]]  # fmt: skip
    _, order, forecast = min(fits, key=lambda fit: fit[0])
    return order, float(forecast)


def _fitted(series: F64, lags: int, differences: int) -> F64:
    """Return the one-step forecasts of every point from the `_OLDEST`, and of the one after the last."""
    steps = np.diff(series, prepend=series[0]) if differences else series
    rows = np.arange(_OLDEST, len(series) + 1)
    design = np.column_stack([np.ones(len(rows)), *(steps[rows - 1 - lag] for lag in range(lags))])
    weights, *_ = np.linalg.lstsq(design[:-1], steps[rows[:-1]], rcond=None)
    forecast: F64 = design @ weights
    return forecast + series[rows - 1] if differences else forecast


def _score(residuals: F64, lags: int) -> float:
    """Return Akaike's criterion, up to what all orders share; a perfect fit is as good as one to 10^-12."""
    points = len(residuals)
    return float(points * np.log(max(float(np.mean(residuals**2)), 1e-12)) + 2 * (lags + 1))
