"""A case study's figure: speedup over the baseline, predicted and measured, arm by arm."""

from __future__ import annotations

from sartor.report.frame import FILE, Chart, Frame, altair, finish, hover, rows_chart
from sartor.report.words import printable
from sartor.units import JsonDict, JsonMap

WORDS = ("measured", "predicted")


def draw_study(body: JsonMap, device: str, frame: Frame = FILE) -> Chart:
    """Speedups of a study's arms; ``body`` is the ``study`` object of the JSON. Arms on an axis of sizes are joined by
    lines, named ones stand as points; groups stand one above the other."""
    alt = altair()
    theme = frame.theme
    rows = study_rows(body)
    named = body["axis"] in ("model", "parameters")
    field = "arm:N" if named else "x:Q"
    names = list(dict.fromkeys(row["arm"] for row in rows))
    x = (
        alt.X(field, title=None, sort=names)
        if named
        else alt.X(field, title=body["axis"], scale=alt.Scale(zero=False, nice=False), axis=alt.Axis(format=",d"))
    )
    tips = hover(alt, "arm:N", "which:N", ("speedup:Q", None, ".3f"), ("seconds:Q", "time [s]", ".4g"))
    colour = alt.Color(
        "which:N",
        scale=alt.Scale(domain=list(WORDS), range=[theme.series[0], theme.series[1]]),
        legend=alt.Legend(orient="top", title=None),
    )
    y = alt.Y("speedup:Q", title="speedup", scale=alt.Scale(zero=False), axis=alt.Axis(format=".2f", tickCount=5))
    groups = list(dict.fromkeys(row["group"] for row in rows))
    base = rows_chart(alt, rows)
    marks = base.mark_point(size=60, filled=True) if named else base.mark_line(point=alt.OverlayMarkDef(size=34))
    chart = marks.encode(x=x, y=y, color=colour, tooltip=tips)
    if len(groups) > 1:
        header = alt.Header(title=None, labelOrient="top", labelAnchor="start", labelColor=theme.ink)
        chart = chart.encode(row=alt.Row("group:N", sort=groups, header=header)).resolve_scale(y="independent")
    title = f"{printable(body['question'])} ({printable(device)})"
    return finish(alt, chart, title, frame, height=300 if len(groups) == 1 else 130)


def study_rows(body: JsonMap) -> list[JsonDict]:
    """Two rows an arm, predicted and measured; arms that were not timed are left out."""
    found = []
    for arm in body["arms"]:
        for which in WORDS:
            speedup = arm[f"{which}_speedup"]
            if speedup is not None:
                found.append(
                    {
                        "arm": arm["arm"],
                        "group": arm["group"],
                        "x": arm["x"],
                        "which": which,
                        "speedup": speedup,
                        "seconds": arm[f"{which}_s"],
                    }
                )
    return found
