"""The requests of a deployment: their lengths and how they come, as stated or as a file recorded them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.api.words import size_of
from sartor.bounded import read_csv
from sartor.errors import InputError
from sartor.step.serving.served import Load, Recording

USUAL_LENGTH = 1024
"""Tokens of a prompt and of an answer where nobody states them."""

LONGEST = 0.99
"""Share of requests that must fit whole, where lengths are given as quantiles."""

GAP = 0.2
"""Share of a recording in which no request may come, if its mean rate is to say anything."""


def stated_request(lengths: Mapping[str, Any], cached: float) -> Load:
    """A request of lengths that are numbers or quantiles; ``cached``: share of its prompt."""
    if not 0 <= cached < 1:
        raise InputError("cached", cached, "must be a share from 0 to below 1", "0.5")
    (prompt, prompt_cv2, longest), (answer, answer_cv2, most) = (
        _lengths(name, lengths.get(name)) for name in ("input_len", "output_len")
    )
    return Load(
        concurrency=1,
        input_len=prompt,
        output_len=answer,
        cached_len=min(int(cached * prompt), prompt - 1),
        prompt_cv2=prompt_cv2,
        answer_cv2=answer_cv2,
        longest=longest + most if prompt_cv2 or answer_cv2 else 0,
    )


def _lengths(name: str, value: Any) -> tuple[int, float, int]:
    """Mean, squared coefficient of variation and longest of one number, or of the log-normal distribution that is
    nearest to quantiles."""
    stated = str(value)
    if isinstance(value, str):
        value = dict(word.strip().removeprefix("p").split("=", 1) for word in value.split(",") if "=" in word)
    if not isinstance(value, Mapping):
        size = size_of(name, value, USUAL_LENGTH)
        return size, 0.0, size
    try:
        points = sorted((float(percent), round(float(size))) for percent, size in value.items())
    except (TypeError, ValueError, OverflowError):
        must = "must be one number, or quantiles: lengths by percentage"
        raise InputError(name, stated, must, "p50=800,p95=3000") from None
    sizes = [size_of(name, size, USUAL_LENGTH) for _, size in points]
    if len(points) < 2 or not all(0 < percent < 100 for percent, _ in points) or sizes != sorted(set(sizes)):
        must = "must be two or more quantiles, percentages between 0 and 100 whose lengths rise"
        raise InputError(name, stated, must, "p50=800,p95=3000")
    deviations = [NormalDist().inv_cdf(percent / 100) for percent, _ in points]
    sigma, middle = np.polyfit(deviations, np.log(sizes), 1)
    longest = math.exp(middle + sigma * NormalDist().inv_cdf(LONGEST))
    return round(math.exp(middle + sigma**2 / 2)), math.expm1(sigma**2), max(round(longest), sizes[-1])


MOST_RECORDED = 20_000
"""Requests of a recording whose waits are found: the first of more."""


def recorded_requests(file: str | Path) -> tuple[Load, float]:
    """The requests of a CSV file or, if it has lines, of a CSV text, and how many come per second. Raises
    ``InputError``."""
    must = "must be a CSV file with a line per request: time, in, out and, where prefixes are cached, cached"
    text = str(file) if "\n" in str(file) else None
    file = file if text is None else "the text sent"
    rows = read_csv(Path(file), "traffic", must, ("time", "in", "out"), text)
    if len(rows) < 2:
        raise InputError("traffic", str(file), f"has {len(rows)} requests; a rate takes two or more")
    time_s, prompt, answer = (_column(file, rows, name, least) for name, least in (("time", 0), ("in", 1), ("out", 1)))
    cached = _column(file, rows, "cached", 0) if "cached" in rows[0] else np.zeros_like(prompt)
    between = np.diff(time_s)
    for bad, what in (
        (np.append(False, between < 0), "comes before the one above it: sort the file by time"),
        (cached >= prompt, "has no token in that is not cached"),
        (
            (cached > 0) & (cached < 1),
            "has a share as cached: it must be tokens (--cached states a share)",
        ),
    ):
        if bad.any():
            raise InputError("traffic", f"{file} line {int(bad.argmax()) + 2}", what)
    span = float(time_s[-1] - time_s[0])
    if span == 0:
        must = f"has {len(rows)} requests at one time, {time_s[0]:g} s; a rate takes two times"
        raise InputError("traffic", str(file), must)
    if between.max() > max(GAP, 4 / len(rows)) * span:
        line = int(between.argmax()) + 2
        what = f"is followed by {between.max():g} s without a request, of {span:g} s: a mean rate says little"
        raise InputError("traffic", f"{file} line {line}", what, "cut the file there")
    new = prompt - cached
    load = Load(
        concurrency=1,
        input_len=round(prompt.mean()),
        output_len=round(answer.mean()),
        cached_len=int(cached.mean()),
        prompt_cv2=_cv2(new),
        answer_cv2=_cv2(answer),
        arrival_cv2=_cv2(between),
        longest=int((prompt + answer).max()),
        recorded=Recording(time_s[:MOST_RECORDED], (new / new.mean())[:MOST_RECORDED]),
    )
    return load, (len(rows) - 1) / span


def _column(file: str | Path, rows: list[dict[str, str]], name: str, least: int) -> npt.NDArray[np.float64]:
    values = []
    for line, row in enumerate(rows, 2):
        try:
            values.append(float(row[name]))
        except ValueError:
            values.append(math.nan)
        if not least <= values[-1] < 2**40:
            must = f"{name} must be a number from {least}, not {row[name]!r}"
            raise InputError("traffic", f"{file} line {line}", must)
    return np.array(values)


def _cv2(values: npt.NDArray[np.float64]) -> float:
    """The squared coefficient of variation."""
    return float(values.var() / values.mean() ** 2)
