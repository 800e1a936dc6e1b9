"""The curves of a race."""

from __future__ import annotations

import math
from typing import Any

from nicegui import ui

from genprior.app.snapshot import Lane

COLOURS = {
    "Auto": "#e4572e",
    "ExactADMM": "#2e86de",
    "LinearizedADMM": "#17a398",
    "LBFGS": "#9b5de5",
    "Adam": "#d99a00",
    "GradientDescent": "#7a869a",
    "ProjectedGradient": "#d6478f",
    "LevenbergMarquardt": "#5a9e3e",
}
"""One for each solver, in tiles and curves; legible on light and dark backgrounds."""

COLUMNS = {"Error": 1, "Objective": 2}
_GREY = "#8590a2"
_FAINT = "rgba(133, 144, 162, .22)"
_SMALLEST = 1e-12
_TICK = "value => value >= 0.001 && value < 1000 ? String(+value.toPrecision(3)) : value.toExponential(0)"


class Chart:
    """Relative error or objective of the best iterate, on a log scale, against seconds of computing."""

    def __init__(self) -> None:
        self._lanes: tuple[Lane, ...] = ()
        self._column = "Error"
        self._chart = ui.echart(_options()).classes("chart")

    def take_column(self, name: str) -> None:
        """Show the error or the objective."""
        self._column = name
        self.draw(self._lanes)

    def forget(self) -> None:
        """Drop the curves."""
        self._lanes = ()

    def draw(self, lanes: tuple[Lane, ...], seconds: float | None = None) -> None:
        """Show these curves."""
        self._lanes = lanes
        options = self._chart.options
        if seconds is not None:
            options["xAxis"]["max"] = seconds
        column = COLUMNS[self._column]
        options["series"] = [_series(lane, column) for lane in lanes if lane.points]
        _fit(options["yAxis"], [point[column] for lane in lanes for point in lane.points])
        options["yAxis"]["name"] = "error, relative to the truth" if column == 1 else "objective"
        self._chart.update()


def _fit(axis: dict[str, Any], values: list[float]) -> None:
    """Ends and ticks of a log axis at 1, 2 and 5 times powers of ten, or only at powers of ten for a wide range."""
    finite = [max(value, _SMALLEST) for value in values if math.isfinite(value)]
    if not finite:
        return
    low, high = math.log10(min(finite)), math.log10(max(finite))
    digits = (1, 2, 5) if high - low < 2 else (1,)
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    below = [tick for tick in ticks if tick <= min(finite) * 1.03]
    above = [tick for tick in ticks if tick >= max(finite) * 0.97]
    axis["min"], axis["max"] = max(below), min(above)
    shown = [tick for tick in ticks if axis["min"] <= tick <= axis["max"]]
    for part in ("axisLabel", "axisTick", "splitLine"):
        axis[part]["customValues"] = shown


def _series(lane: Lane, column: int) -> dict[str, Any]:
    return {
        "name": lane.name,
        "type": "line",
        "showSymbol": False,
        "animation": False,
        "step": "end",
        "color": COLOURS[lane.name],
        "lineStyle": {"width": 2.5 if lane.name == "Auto" else 2},
        "data": [
            [round(point[0], 4), max(point[column], _SMALLEST)] for point in lane.points if math.isfinite(point[column])
        ],
    }


def _options() -> dict[str, Any]:
    label = {"color": _GREY, "fontSize": 12}
    line = {"lineStyle": {"color": _FAINT}}
    return {
        "animation": False,
        "grid": {"left": 8, "right": 18, "top": 34, "bottom": 52, "containLabel": True},
        "tooltip": {"trigger": "axis", ":valueFormatter": "value => Number(value).toPrecision(3)", "confine": True},
        "legend": {"type": "scroll", "bottom": 0, "icon": "roundRect", "itemWidth": 14, "itemHeight": 4}
        | {"textStyle": label, "inactiveColor": _FAINT, "pageIconColor": _GREY, "pageTextStyle": label},
        "xAxis": {"type": "value", "name": "seconds", "nameLocation": "middle", "nameGap": 24, "min": 0, "max": 5}
        | {"nameTextStyle": label, "axisLabel": label, "splitLine": {"show": False}, "axisLine": line},
        "yAxis": {"type": "log", "name": "error, relative to the truth", "splitLine": dict(line)}
        | {"nameTextStyle": label | {"align": "left"}, "axisLabel": label | {":formatter": _TICK}}
        | {"axisTick": {"show": True}, "axisLine": {"show": False}},
        "series": [],
    }
