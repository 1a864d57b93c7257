"""Common parts of all figures: where they go (``Frame``), axes, legends and style, and export to files.

altair and vl-convert (extra ``report``) are imported when a figure is drawn.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from sartor.errors import MissingExtraError
from sartor.json_types import JsonDict, JsonMap
from sartor.report.palette import CSS, DARK, LIGHT, Theme, painted

FONT = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"

TITLE_WIDTH = 84
"""Characters of a title's line in a file 760 px wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where a figure goes: its colours, its width (px, or that of its container), whether it shows its title."""

    theme: Theme = LIGHT
    width: int | Literal["container"] = 640
    titled: bool = True


PAGE = Frame(theme=CSS, width="container", titled=False)
FILE = Frame()
FILE_DARK = Frame(theme=DARK)


Column: TypeAlias = Sequence[object] | npt.NDArray[np.generic]
"""Values of a figure's rows."""
Numbers: TypeAlias = npt.NDArray[np.float64]
Altair: TypeAlias = ModuleType
"""Loaded when a figure is drawn, because it is an optional dependency."""
Chart: TypeAlias = Any
"""A chart, layer, axis or encoding: Altair's own types are unions too long to spell out."""


def to_png(chart: Chart, *, scale: float = 2.0) -> bytes:
    """The chart as PNG bytes, without a browser."""
    return bytes(vl_convert().vegalite_to_png(json.dumps(chart.to_dict()), scale=scale))


def to_svg(chart: Chart) -> str:
    """The chart as an SVG document, without a browser."""
    return str(vl_convert().vegalite_to_svg(json.dumps(chart.to_dict())))


def altair() -> Altair:
    try:
        import altair
    except ImportError as error:
        raise MissingExtraError("figures (altair)", "report") from error
    return altair


def vl_convert() -> ModuleType:
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtraError("figures (vl-convert-python)", "report") from error
    return vl_convert


LETTER, SYMBOL = 5.6, 34.0
"""Widths in a legend of 11-point Helvetica [px]: mean letter, symbol with its gaps."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure being drawn: altair, and the frame it goes into. Make it with ``Sheet.of``."""

    alt: Altair
    frame: Frame

    @classmethod
    def of(cls, frame: Frame) -> Sheet:
        return cls(altair(), frame)

    @property
    def theme(self) -> Theme:
        return self.frame.theme

    def rows(self, rows: Sequence[JsonMap]) -> Chart:
        return self.alt.Chart(self.alt.Data(values=rows))

    def bars(self, rows: Sequence[JsonMap], field: str, labels: Sequence[str], colour: str | None = None) -> Chart:
        """A bar per label, from top to bottom."""
        look = {} if colour is None else {"color": colour}
        bar = self.rows(rows).mark_bar(height=15 if len(labels) > 6 else 18, **look)
        return bar.encode(y=self.names(field, labels))

    def names(self, field: str, labels: Sequence[str]) -> Chart:
        """A vertical axis of names."""
        alt = self.alt
        limit = alt.ExprRef(expr="width < 330 ? 150 : 240")
        axis = alt.Axis(labelLimit=limit, ticks=False, domain=False, labelPadding=8)
        return alt.Y(f"{field}:N", sort=list(labels), title=None, axis=axis)

    def x(self, field: str, title: str | None, ticks: int = 7, form: str | None = None, **scale: object) -> Chart:
        """The horizontal axis of a quantity; ``scale``: what differs from Altair's own scale."""
        return self.alt.X(field, **self._quantity(title, ticks, form, scale))

    def y(self, field: str, title: str | None, ticks: int = 7, form: str | None = None, **scale: object) -> Chart:
        """The vertical axis of a quantity."""
        return self.alt.Y(field, **self._quantity(title, ticks, form, scale))

    def _quantity(self, title: str | None, ticks: int, form: str | None, scale: JsonMap) -> JsonDict:
        axis = self.alt.Axis(tickCount=ticks, **({} if form is None else {"format": form}))
        return {"title": title, "axis": axis, **({"scale": self.alt.Scale(**scale)} if scale else {})}

    def stack(
        self, bars: Sequence[JsonMap], labels: Sequence[str], x: Chart, colour: Chart, tips: list[Chart]
    ) -> Chart:
        """A bar per label, its parts side by side in order (rows of `stacked`)."""
        order = self.alt.Order("order:Q")
        return self.bars(bars, "label", labels).encode(x=x, color=colour, order=order, tooltip=tips)

    def spans(
        self, rows: Sequence[JsonMap], lines: Sequence[str], x: Chart, colour: Chart, tips: list[Chart], **look: object
    ) -> Chart:
        """Boxes on lines, from ``start`` to ``end``; ``look``: what Altair's bars take."""
        bar = self.rows(rows).mark_bar(**look)
        return bar.encode(y=self.names("line", lines), x=x, x2="end:Q", color=colour, tooltip=tips)

    def log_axis(self, low: float, high: float, form: str = "~s") -> Chart:
        """Ticks at 1, 2 and 5 of every decade."""
        decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
        values = [float(f"{t:.6g}") for t in ticks if low <= t <= high]
        return self.alt.Axis(format=form, values=values, labelFlush=False)

    def hover(self, *fields: str | tuple[Any, ...]) -> list[Chart]:
        """Tooltips from fields: ``"plan:N"``, ``("time:Q", title)`` or ``("time:Q", title or None, format)``."""
        tooltips = []
        for column in fields:
            field, title, form = (*((column,) if isinstance(column, str) else column), None, None)[:3]
            tooltip = {"title": title, "format": form}
            tooltips.append(
                self.alt.Tooltip(field, **{name: value for name, value in tooltip.items() if value is not None})
            )
        return tooltips

    def interval(self, rows: Sequence[JsonMap], y: Chart, tips: list[Chart]) -> Chart:
        """A thin rule from low to high with end ticks."""
        base, ink = self.rows(rows).encode(y=y, tooltip=tips), self.theme.ink
        rule = base.mark_rule(color=ink, strokeWidth=1.2).encode(x="low:Q", x2="high:Q")
        ends = [base.mark_tick(color=ink, thickness=1.2, height=7).encode(x=f"{end}:Q") for end in ("low", "high")]
        return self.alt.layer(rule, *ends)

    def colour(self, field: str, domain: Sequence[str], colours: Sequence[str] | None = None) -> Chart:
        """Colours by word (those of the palette), with a legend if there are several."""
        alt, shown = self.alt, self.legend(domain) if len(domain) > 1 else None
        paint = painted(self.theme, domain) if colours is None else colours
        return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(domain), range=list(paint)), legend=shown)

    def legend(self, words: Sequence[str]) -> Chart:
        """A legend above the plot, in as many columns as fit."""
        widest = LETTER * max(map(len, words)) + SYMBOL
        columns = self.alt.ExprRef(expr=f"clamp(floor(width / {widest:.0f}), 1, {len(words)})")
        room = self.alt.ExprRef(expr=f"max(width - {SYMBOL:.0f}, 90)")
        return self.alt.Legend(
            orient="top", title=None, columns=columns, labelLimit=room, symbolOpacity=1, direction="horizontal"
        )

    def finish(self, chart: Chart, title: str, *, height: int) -> Chart:
        """Set size, title and style, the same for every figure."""
        alt, frame, theme = self.alt, self.frame, self.theme
        chart = chart.properties(width=frame.width, height=height)
        if frame.titled:
            chart = chart.properties(title=alt.TitleParams(text=textwrap.wrap(title, TITLE_WIDTH) or [""]))
        if frame.width == "container":
            chart = chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
        text = {"labelColor": theme.muted, "titleColor": theme.muted, "labelFont": FONT, "titleFont": FONT}
        axis = text | {
            "gridColor": theme.grid,
            "domainColor": theme.line,
            "tickColor": theme.line,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "labelOverlap": True,
        }
        return chart.configure(
            background=theme.surface if frame.titled else "transparent",
            padding=12 if frame.titled else 2,
            font=FONT,
            view=alt.ViewConfig(stroke=None),
            axis=alt.AxisConfig(**axis),
            axisY=alt.AxisConfig(labelColor=theme.ink),
            legend=alt.LegendConfig(labelColor=theme.ink, labelFont=FONT, labelFontSize=11, symbolSize=80),
            title=alt.TitleConfig(
                color=theme.ink,
                font=FONT,
                fontSize=14,
                fontWeight=600,
                anchor="start",
                frame="bounds",
                offset=14,
                lineHeight=19,
            ),
            text=alt.MarkConfig(font=FONT),
        )


def columns(**values: Column) -> list[JsonDict]:
    """Rows of a figure from its columns, all of one length; arrays become plain numbers."""
    plain = [column.tolist() if isinstance(column, np.ndarray) else column for column in values.values()]
    return [dict(zip(values, row, strict=True)) for row in zip(*plain, strict=True)]


def stacked(labels: Sequence[str], parts: Sequence[str], table: Numbers) -> list[JsonDict]:
    """A row per part of a bar above zero, from ``table`` [labels, parts]: its size and its share of the bar."""
    return [
        {"label": label, "part": part, "order": order, "size": size, "share": size / sum(sizes)}
        for label, sizes in zip(labels, table.tolist(), strict=True)
        for order, (part, size) in enumerate(zip(parts, sizes, strict=True))
        if size > 0
    ]


def falling(size: Numbers, **values: Column) -> list[JsonDict]:
    """Rows of a waterfall: each starts (``from``) where the one before it ends (``to``); ``share`` is of the sum."""
    ends = np.cumsum(size)
    return columns(**values, size=size, to=ends, share=size / ends[-1], **{"from": ends - size})


def unique(names: Iterable[str]) -> list[str]:
    """Names as labels; repeated names get a number."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def rows_height(rows: int) -> int:
    return max(24 * rows, 60)


def when(unit: str) -> tuple[tuple[str, str, str], ...]:
    """Tooltips of a box on a line of time: when it starts, how long it takes."""
    return (("start:Q", f"starts [{unit}]", ".4g"), ("took:Q", f"takes [{unit}]", ".3g"))


def time_unit(largest_s: float) -> tuple[str, float]:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if largest_s * scale >= 1:
            return unit, scale
    return "us", 1e6
