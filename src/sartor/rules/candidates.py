"""Candidate fixes: sizes near the current one. Pricing decides among them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from sartor.hardware.alignment import Alignment
from sartor.hardware.gpu import Gpu
from sartor.model.layer import AttentionMixer, Mixer
from sartor.rules.rule import Context, Fix, Grade

HEAD_DIMS = (64, 128, 192, 256)
"""Multiples of 64 that every flash attention kernel is compiled for."""


def ragged(value: int, alignment: Alignment) -> tuple[Grade, int] | None:
    """The grade of a length of ``value`` elements on this device and the multiple it misses; None if it is fine."""
    if value % alignment.minimum:
        hardest = Grade.ERROR if alignment.cliff else Grade.WARN
        return (hardest if alignment.cliff or alignment.graded else Grade.INFO), alignment.minimum
    if value % alignment.preferred:
        return (Grade.WARN if alignment.graded else Grade.INFO), alignment.preferred
    return None


def around(value: int, multiple: int) -> tuple[int, ...]:
    """The multiples on both sides of ``value`` (itself, where it is one), none below ``multiple``."""
    below = value // multiple * multiple
    return tuple(sorted({max(below, multiple), below + (multiple if value % multiple else 0) or multiple}))


def above(value: int, multiples: Iterable[int]) -> tuple[int, ...]:
    """The least multiple of each that is not below ``value``, ascending."""
    return tuple(sorted({-(-value // multiple) * multiple for multiple in multiples}))


def within(value: int, multiple: int, share: float = 0.03) -> tuple[int, ...]:
    """Every multiple within ``share`` of ``value``, and the two around it."""
    first, last = math.ceil(value * (1 - share) / multiple), math.floor(value * (1 + share) / multiple)
    return tuple(sorted({*around(value, multiple), *(i * multiple for i in range(max(first, 1), last + 1))}))


def fixes_of(field: str, values: Iterable[int], old: int) -> tuple[Fix, ...]:
    """One fix per value that is not the old one."""
    return tuple({field: value} for value in dict.fromkeys(values) if value != old)


def words(values: Iterable[int], old: int | None = None) -> str:
    """``(50264, 50304)`` -> ``'50264 or 50304'``; the first three of many."""
    shown = [str(value) for value in dict.fromkeys(values) if value != old][:3]
    return " or ".join(shown)


def misaligned(context: Context, size: str, multiple: int) -> str:
    """``vocab_size=50257 is not a multiple of 8 (bf16 tensor cores need it)``."""
    verb = "need" if multiple <= context.alignment.minimum else "prefer"
    return f"{size} is not a multiple of {multiple} ({context.dtype.value} {matrix_units(context.gpu)} {verb} it)"


def matrix_units(gpu: Gpu) -> str:
    """What the vendor calls the units that run GEMMs, plural."""
    if gpu.matrix_tile:
        return f"{gpu.matrix_tile}-wide systolic arrays"
    return {"NVIDIA": "tensor cores", "AMD": "matrix cores"}.get(gpu.vendor, "matrix units")


def steps(context: Context, tp: int = 1) -> tuple[int, ...]:
    """Multiples worth trying for a size split over ``tp``: the preferred one, twice and four times that."""
    return tuple(context.alignment.preferred * factor * tp for factor in (1, 2, 4))


def nearest_first(values: Iterable[int], old: int) -> list[int]:
    """Values by their distance from the old one."""
    return sorted(values, key=lambda value: (abs(value - old), value))


def head_fixes(mixer: Mixer | None, tp: int, widths: Iterable[int] = HEAD_DIMS, slack: float = 0.03) -> tuple[Fix, ...]:
    """Heads at most twice or half as wide with the same ``num_heads * head_dim`` (within ``slack``), split over ``tp``.

    ``num_kv_heads * head_dim`` is kept too, as nearly as a divisor of the heads allows. An even number of heads stays
    even, since an odd one would rule out tensor parallelism. None for mixers other than plain attention.
    """
    return tuple(_head_fixes(mixer, tp, widths, slack)) if isinstance(mixer, AttentionMixer) else ()


def _head_fixes(mixer: AttentionMixer, tp: int, widths: Iterable[int], slack: float) -> Iterator[Fix]:
    inner, kv_inner = int(mixer.num_heads * mixer.head_dim), int(mixer.num_kv_heads * mixer.head_dim)
    grouped = mixer.num_kv_heads != mixer.num_heads
    old = int(mixer.head_dim)
    for width in nearest_first((w for w in widths if old <= 2 * w <= 4 * old), old):
        for heads in around(round(inner / width) or 1, tp):
            strays = abs(heads * width - inner) > slack * inner
            if strays or (heads % 2 and not mixer.num_heads % 2) or (heads, width) == (mixer.num_heads, old):
                continue
            fix = {"num_heads": heads, "head_dim": width}
            yield fix | ({"num_kv_heads": kv_heads_for(heads, kv_inner / width, tp)} if grouped else {})


def kv_heads_for(heads: int, target: float, tp: int) -> int:
    """The divisor of ``heads`` nearest to ``wanted`` that splits over ``tp`` or is replicated evenly."""
    fitting = [g for g in range(1, heads + 1) if heads % g == 0 and (g % tp == 0 or tp % g == 0)]
    return min(fitting, key=lambda g: (abs(math.log(g / max(target, 0.5))), g))
