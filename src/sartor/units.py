"""SI constants, integers that divide, parsing and formatting: the only place where units are converted.

Everything inside sartor is SI (seconds, bytes, FLOP, hertz, watt). ``Ints`` and ``Floats`` mark fields that hold one
number or an array of them; each formula is written once and works for both."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from sartor.errors import InputError

Ints: TypeAlias = int | npt.NDArray[Any]
Floats: TypeAlias = float | npt.NDArray[Any]
Bools: TypeAlias = bool | npt.NDArray[Any]
Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

MEGA, GIGA, TERA = 1e6, 1e9, 1e12
KIB, MIB, GIB = 2**10, 2**20, 2**30
MICRO = 1e-6


Result = TypeVar("Result")
Inputs = ParamSpec("Inputs")


class _Key:
    """An input that cannot be hashed, as a key: a record by its identity, an array by its entries."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.key = (whole.shape, whole.dtype, whole.tobytes()) if isinstance(whole, np.ndarray) else id(whole)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key


def remembered(function: Callable[Inputs, Result], most: int = 256) -> Callable[Inputs, Result]:
    """Decorator: the last ``most`` results are kept, by the inputs' values, but dataclasses by identity. Arrays in a
    result must not be changed."""

    def whole(key: object) -> object:
        return key.whole if isinstance(key, _Key) else key

    cached: Callable[..., Result] = lru_cache(maxsize=most)(
        lambda *keys, **named: function(*map(whole, keys), **named)  # type: ignore[arg-type]
    )

    @wraps(function)
    def recalled(*inputs: Inputs.args, **named: Inputs.kwargs) -> Result:
        keys = (_Key(x) if hasattr(x, "__dataclass_fields__") or isinstance(x, np.ndarray) else x for x in inputs)
        return cached(*keys, **named)

    recalled.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return recalled


FEW = 32
"""Entries of arrays up to which `remembered_if_few` keeps results: a plan and its neighbours."""


def remembered_if_few(function: Callable[Inputs, Result], most: int = FEW) -> Callable[Inputs, Result]:
    """`remembered` where no array among the inputs has more than ``most`` entries; else the function itself."""
    recalled = remembered(function)

    @wraps(function)
    def recalled_if_few(*inputs: Inputs.args, **named: Inputs.kwargs) -> Result:
        few = all(x.size <= most for x in inputs if isinstance(x, np.ndarray))
        return (recalled if few else function)(*inputs, **named)

    return recalled_if_few


def shaped(values: Array, shape: tuple[int, ...]) -> Any:
    """Values in a shape; a number for no axes."""
    return values.reshape(shape) if shape else float(values[0])


def plain(value: Any) -> Any:
    """A single number as a float; an array unchanged."""
    return float(value) if np.ndim(value) == 0 else value


@overload
def ceil_div(a: int, b: int) -> int: ...
@overload
def ceil_div(a: Ints, b: Ints) -> Ints: ...
@overload
def ceil_div(a: float, b: float) -> float: ...
def ceil_div(a: Floats, b: Floats) -> Floats:
    """Smallest integer not below ``a / b``, for integers and integer arrays (``b > 0``)."""
    return -(-a // b)


@overload
def round_up(a: int, multiple: int) -> int: ...
@overload
def round_up(a: Ints, multiple: Ints) -> Ints: ...
def round_up(a: Ints, multiple: Ints) -> Ints:
    """Smallest multiple of ``multiple`` not below ``a``."""
    return ceil_div(a, multiple) * multiple


def distinct(values: Any, axis: int | None = None) -> Any:
    """Sorted distinct values, or rows of an ``axis``. They are asked for with their positions, because ``np.unique``
    without any takes 15 ms to load masked arrays."""
    ordered, _ = np.unique(values, axis=axis, return_index=True)
    return ordered


def largest_power_of_two_dividing(a: Any) -> Any:
    """Largest power of two that divides ``a`` (``a > 0``), elementwise: 2560 -> 512, 80 -> 16."""
    return a & -a


_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_COUNTS = ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def format_seconds(seconds: float) -> str:
    """``0.00123`` -> ``'1.23 ms'``; never ``1e+03 ms``."""
    for scale, unit in _SECONDS:
        if abs(seconds) >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}" if abs(seconds) < 999.5 * scale else f"{seconds / scale:,.0f} {unit}"
    return "0 s" if abs(seconds) < 1e-12 else f"{seconds / 1e-9:.2g} ns"


_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15}


def parse_count(field: str, text: str) -> float:
    """``"1.5T"`` -> 1.5e12."""
    word = text.strip().lower()
    suffix = word[-1:] if word[-1:] in _SUFFIXES else ""
    try:
        value = float(word.removesuffix(suffix)) * _SUFFIXES[suffix]
    except ValueError:
        raise InputError(field, text, "must be a number, optionally with k, M, B or T", "1T") from None
    if not 0 < value < 1e20:
        raise InputError(field, text, "must be above 0 and below 1e20", "1T")
    return value


_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}


def parse_seconds(field: str, text: str) -> float:
    """``"200ms"`` -> 0.2, ``"0.2"`` -> 0.2, ``"5min"`` -> 300."""
    unit = text.strip().lower().lstrip("+-.0123456789e").strip()
    try:
        return float(text.strip().lower().removesuffix(unit)) * _TIMES[unit]
    except (KeyError, ValueError):
        raise InputError(field, text, "must be a number of seconds, or of ms, min or h by name", "200ms") from None


_SIZES: dict[str, float] = {
    f"{prefix}{i}b": (1024.0 if i else 1e3) ** n for n, prefix in enumerate("_kmgt") if n for i in ("", "i")
}


def parse_bytes(field: str, text: str) -> float:
    """``"64MB"`` -> 64e6, ``"256 MiB"`` -> 2**28, ``"64e6"`` -> 64e6."""
    word = text.strip().lower()
    unit = next((name for name in _SIZES if word.endswith(name)), "")
    try:
        return float(word.removesuffix(unit)) * _SIZES.get(unit, 1)
    except ValueError:
        raise InputError(field, text, "must be a number of bytes, or of kB, MB, GB, MiB or GiB", "64MB") from None


def format_count(count: float) -> str:
    """``8030261248`` -> ``'8.03B'``; never ``1e+03M``."""
    for scale, unit in _COUNTS:
        if abs(count) >= 0.9995 * scale:
            return f"{count / scale:.3g}{unit}"
    return f"{count:.3g}"


def format_bytes(size: float) -> str:
    """``1536`` -> ``'1.5 KiB'``; never ``1.02e+03 MiB``."""
    for scale, unit in _BYTES:
        if abs(size) >= scale:
            number = f"{size / scale:.3g}" if abs(size) < 999.5 * scale else f"{size / scale:.0f}"
            return f"{number} {unit}"
    return f"{size:.0f} B"


def room_text(limit_bytes: float, headroom: float) -> str:
    """Memory that may be used, and what it is of.

    >>> room_text(0.95 * 80 * 2**30, 0.05)
    '76 GiB (80 GiB less 5% headroom)'
    """
    if not headroom:
        return format_bytes(limit_bytes)
    whole = format_bytes(limit_bytes / (1 - headroom))
    return f"{format_bytes(limit_bytes)} ({whole} less {100 * headroom:.3g}% headroom)"


def format_rate(bytes_per_s: float) -> str:
    """``4.5e11`` -> ``'450 GB/s'``: decimal, as vendors and NCCL quote links and memory."""
    rate = bytes_per_s / GIGA
    return f"{rate:.3g} GB/s" if rate < 999.5 else f"{rate:,.0f} GB/s"


def format_share(share: float) -> str:
    """``0.1234`` -> ``'12.3%'``."""
    return f"{100 * share:.1f}%"


def format_change(share: float, digits: int = 1) -> str:
    """``+2.1%``; a change that rounds to zero is ``0.0%``."""
    text = f"{100 * share:+.{digits}f}%"
    return text[1:] if float(text[:-1]) == 0 else text


def divisors(number: int) -> list[int]:
    """All divisors of a number above 0, smallest first."""
    tried = np.arange(1, math.isqrt(number) + 1)
    low: list[int] = tried[number % tried == 0].tolist()
    return low + [number // d for d in reversed(low) if d * d != number]


def nearest_divisors(total: Ints, wanted: Ints) -> str:
    """The two divisors of ``total`` nearest to ``wanted``, for the end of an error message."""
    near = sorted(divisors(int(total)), key=lambda d: abs(d - int(wanted)))[:2]
    return " and ".join(map(str, sorted(near)))
