"""The default grid: hardware-friendly values near a baseline and within the guard, including the baseline's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.editing import EDITABLE
from sartor.model.layer import AttentionMixer
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Workload
from sartor.shapes.mixes import equal_mixes
from sartor.shapes.quality import QualityGuard
from sartor.shapes.space import ShapeAxis, Space, frozen_by_structure, is_coupled
from sartor.units import IntArray, distinct, divisors, round_up

FLASH_HEAD_DIMS = (64, 96, 128, 192, 256)
"""Head dimensions that FlashAttention-3 is compiled for (hopper/generate_kernels.py of the flash-attention repository);
FlashAttention-2 supports all of them too."""

UNFUSED_HEAD_DIMS = (64, 80, 96, 112, 128, 160, 192, 256)
"""Multiples of 16 in published models; GEMMs take any."""

RANK = "a lower rank limits what attention can express; --free {} searches it, and no study says at what cost"
KEPT = {
    "num_layers": "depth changes more than speed; --free num_layers searches it",
    "num_full_layers": "it is attention's reach, a matter of quality; --free num_full_layers searches it",
    **{rank: RANK.format(rank) for rank in ("q_lora_rank", "kv_lora_rank")},
}
"""Fields that stay unless they are freed, with the reason."""

KEEP_TP = (2, 4)
"""Tensor-parallel degrees that heads must still split over if the baseline's do: 43 heads would rule out two
devices."""

COARSER = (
    "fewer, wider experts per token are left out: controlled studies found finer ones better; "
    "--free experts_per_token searches both"
)
"""Note for mixtures of experts, unless coarser experts are allowed (``quality.QualityGuard.coarser``)."""

MAX_VALUES = 256
"""Most values of one field; the step between them doubles until there are no more."""


ROWS = 8
"""Elements of 16 bits in 16 bytes, the rows that tensor cores and grouped GEMMs take."""
SAME_SIZE = 0.05
"""Relative change of a width up to which it is about the same."""

GRAIN, MOST_GRAIN = 64, 512
"""Widths on GPUs are multiples of 64; a common multiple for several devices is at most 512."""


def grain_of(gpus: Iterable[Gpu]) -> int:
    """Multiple that widths should have on all of ``gpus``: 64; on a chip, a multiple of its array's side >= 64."""
    grains = {gpu.matrix_tile * math.ceil(GRAIN / gpu.matrix_tile) if gpu.accelerator else GRAIN for gpu in gpus}
    together = math.lcm(*grains)
    return together if together <= MOST_GRAIN else max(grains)


def build_space(
    workload: Workload,
    dims: ParallelDims,
    guard: QualityGuard | None = None,
    freeze: Iterable[str] = (),
    free: Iterable[str] = (),
    extra: dict[str, Sequence[int]] | None = None,
    keep_tp: Sequence[int] = KEEP_TP,
    grain: int = GRAIN,
    tolerance: float = 0.01,
) -> Space:
    """The default grid around a workload's shape: hardware-friendly values within the guard, including the baseline's
    own. ``freeze`` names fields that stay, ``free`` those of ``KEPT`` that do not; ``extra`` adds values of single
    fields; heads still split over the degrees in ``keep_tp`` that the baseline's split over; widths are multiples of
    ``grain`` (``grain_of``); mixtures of experts keep total and active parameters within ``tolerance``.
    Raises ``InputError`` for an unknown field in ``freeze`` and one in ``free`` that cannot change.
    """
    guard = guard or QualityGuard()
    shape = workload.shape
    baseline = {name: int(value) for name, value in shape.fields().items()}
    structure, freed, frozen_fields = frozen_by_structure(shape, workload), list(free), _checked(freeze)
    _check_freed(freed, frozen_fields, baseline, structure)
    usually_frozen = {name: why for name, why in KEPT.items() if name in baseline and name not in freed}
    reasons = {**usually_frozen, **structure, **dict.fromkeys(frozen_fields, "")}
    near = _Near(
        baseline=baseline,
        guard=guard,
        dims=dims,
        free={*baseline} - {*reasons},
        extra=extra or {},
        keep_tp=tuple(keep_tp),
        grain=grain,
    )
    mixes = near.mixes(shape, tolerance)
    widths = mixes.get("expert_ffn_hidden_size", np.zeros(0, dtype=np.int64))
    axes = [
        _axis(num_layers=near.layers()),
        _axis(hidden_size=near.hidden()),
        _attention_axis(near, shape, workload),
        _axis(vocab_size=near.vocab()),
        _axis(**_distinct({name: values for name, values in mixes.items() if name != "expert_ffn_hidden_size"})),
        *(_axis(**{rank: near.rank(rank)}) for rank in ("q_lora_rank", "kv_lora_rank") if rank in baseline),
        *(_axis(**{field: near.around(field, 0.5, 2.0, 1)}) for field in ("num_full_layers",) if field in baseline),
        _axis(**near.width(widths)),
    ]
    notes = tuple(f"{field} is kept: {why}" for field, why in reasons.items() if why)
    if "num_full_layers" in freed:
        notes = (*notes, "FLOPs that a shorter reach of attention spares count as gained: num_full_layers is free")
    if "num_experts" in baseline and not guard.coarser and "experts_per_token" in near.free:
        notes = (*notes, COARSER)
    return Space(shape=shape, axes=tuple(axes), mixes=mixes, assumptions=notes)


def _check_freed(
    freed: Iterable[str], frozen: Sequence[str], baseline: dict[str, int], structure: dict[str, str]
) -> None:
    """Refuse to free a field that the model lacks, that its structure fixes, or that is also frozen."""
    fixed = {**_one_kind_of_heads(baseline), **structure}
    can = [name for name in EDITABLE if name in baseline and name not in fixed]
    for field in freed:
        must = "is not a size of this model" if field not in baseline else ""
        if field in fixed:
            must = f"is fixed: {fixed[field] or 'it follows from num_heads'}"
        if field in frozen:
            must = "cannot be frozen too"
        if must:
            raise InputError("free", field, must, _nearest(field, [name for name in can if name not in frozen]))


def _one_kind_of_heads(baseline: dict[str, int]) -> dict[str, str]:
    """The reason why key/value heads can't change by themselves in multi-head and multi-query models."""
    heads = baseline.get("num_kv_heads")
    if heads is None or heads not in (1, baseline["num_heads"]):
        return {}
    reason = "one key/value head" if heads == 1 else "a key/value head for every head, and the two change together"
    return {"num_kv_heads": f"this model's attention has {reason}"}


def _checked(freeze: Iterable[str]) -> list[str]:
    for field in freeze:
        if field not in EDITABLE:
            raise InputError("freeze", field, "must be fields of the shape", _nearest(field, list(EDITABLE)))
    return list(freeze)


def _nearest(field: str, others: list[str]) -> str:
    """All of ``others``, those with a similar spelling first."""
    return ", ".join(dict.fromkeys([*get_close_matches(field, others), *others]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Near:
    """Values near the baseline's, by field."""

    baseline: dict[str, int]
    guard: QualityGuard
    dims: ParallelDims
    free: set[str]
    extra: dict[str, Sequence[int]]
    keep_tp: tuple[int, ...]
    grain: int

    @property
    def degrees(self) -> list[int]:
        """Tensor-parallel degrees that heads must split over."""
        degrees = [
            t for t in self.keep_tp if self.baseline["num_heads"] % t == 0 and _shares(self.baseline["num_kv_heads"], t)
        ]
        return [self.tp, *degrees]

    @property
    def tp(self) -> int:
        return int(self.dims.tp)

    def layers(self) -> IntArray:
        share = min(self.guard.depth * self.guard.width, 0.9)
        step = int(self.dims.pp) * max(1, round(self.baseline["num_layers"] / 64))
        return self.around("num_layers", 1 - share, 1 + share, step)

    def hidden(self) -> IntArray:
        """Multiples of the grain (of two from 8192, of four from 16384 up) within 20%."""
        h = self.baseline["hidden_size"]
        share = min(0.2 * self.guard.width, 0.9)
        step = self.grain * (1 if h < 8192 else 2 if h < 16384 else 4)
        return self.around("hidden_size", 1 - share, 1 + share, step, max_values=64)

    def vocab(self) -> IntArray:
        """The baseline's, and larger multiples of one, two and four grains on every tensor-parallel rank
        (at most 5% more)."""
        v = self.baseline["vocab_size"]
        padded = [
            int(round_up(v, step * ranks))
            for step in (self.grain, 2 * self.grain, 4 * self.grain)
            for ranks in {1, self.tp}
        ]
        return self._values("vocab_size", [p for p in padded if p <= 1.05 * v])

    def mixes(self, shape: TransformerShape, tolerance: float) -> dict[str, IntArray]:
        """Mixtures of experts of equal total and active parameters."""
        if "num_experts" not in self.baseline:
            return {}
        step = math.lcm(int(self.dims.ep), 1 if self.baseline["num_experts"] < 32 else 8)
        finest = self.guard.experts**self.guard.width
        grain = self.grain * self.tp
        return equal_mixes(shape, self.free, step=step, grain=grain, finest=finest, tolerance=tolerance)

    def rank(self, field: str) -> IntArray:
        """Ranks of a latent within 25%."""
        share = min(self.guard.ranks * self.guard.width, 0.9)
        return self.around(field, 1 - share, 1 + share, self.grain)

    def width(self, others: IntArray) -> dict[str, IntArray]:
        """Feed-forward width: of the experts if there are any (dense layers among them stay), else of the dense layers.
        Multiples of the grain on every rank, coarser for very wide layers; ``others`` beside those near the
        baseline's, and the nearest multiples of `ROWS` if its own is none and no multiple of the grain is near."""
        field = "expert_ffn_hidden_size" if "expert_ffn_hidden_size" in self.baseline else "ffn_hidden_size"
        if field not in self.baseline:
            return {}
        share = min(self.guard.ffn * self.guard.width, 0.9)
        hidden = self.hidden()
        low = (1 - share) * hidden.min() / self.baseline["hidden_size"]
        high = (1 + share) * hidden.max() / self.baseline["hidden_size"]
        near = self.around(field, low, high, self.grain * self.tp)
        rows, tile, own = ROWS * self.tp, self.grain * self.tp, self.baseline[field]
        far = abs(round(own / tile) * tile - own) > SAME_SIZE * own
        whole_rows = {own // rows * rows, int(round_up(own, rows))} - {0} if own % rows and far else set()
        return {field: distinct([*near, *others, *whole_rows]) if field in self.free else near}

    def around(self, field: str, low: float, high: float, step: int, max_values: int = MAX_VALUES) -> IntArray:
        """Multiples of ``step`` from ``low`` to ``high`` times the baseline's value; of its doubles if there are too
        many."""
        center = self.baseline[field]
        while (high - low) * center / step > max_values:
            step *= 2
        start, stop = math.ceil(center * low / step) * step, math.floor(center * high)
        return self._values(field, range(max(start, step), stop + 1, step))

    def _values(self, field: str, values: Iterable[int]) -> IntArray:
        """Sorted, with the baseline's own value and the extra ones; only the baseline's if the field is frozen."""
        chosen = {*values, *self.extra.get(field, ())} if field in self.free else set()
        return np.asarray(sorted({*chosen, self.baseline[field]}), dtype=np.int64)


def _distinct(rows: dict[str, IntArray]) -> dict[str, IntArray]:
    """Columns without repeated rows."""
    if not rows:
        return {}
    columns = distinct(np.stack(list(rows.values()), axis=1), axis=0).T
    return dict(zip(rows, columns, strict=True))


def _axis(**values: IntArray) -> ShapeAxis:
    return ShapeAxis(values=values)


def _attention_axis(near: _Near, shape: TransformerShape, workload: Workload) -> ShapeAxis:
    """Combinations of query heads, key/value heads and head dimension."""
    mixer = shape.attention
    if mixer is None:
        return _axis()
    if not isinstance(mixer, AttentionMixer):
        return _axis(num_heads=_latent_heads(near))
    rows = sorted({*_head_rows(near, workload), _own_heads(near)})
    columns = np.asarray(rows, dtype=np.int64).T
    return _axis(num_heads=columns[0], num_kv_heads=columns[1], head_dim=columns[2])


def _own_heads(near: _Near) -> tuple[int, int, int]:
    return near.baseline["num_heads"], near.baseline["num_kv_heads"], near.baseline["head_dim"]


def _latent_heads(near: _Near) -> IntArray:
    """Heads of latent attention within 25%; they change the parameter count, since their inner sizes stay."""
    share = min(0.25 * near.guard.width, 0.9)
    return near.around("num_heads", 1 - share, 1 + share, math.lcm(near.tp, 8))


def _head_rows(near: _Near, workload: Workload) -> Iterable[tuple[int, int, int]]:
    """Heads x head_dim equals the hidden size if the baseline's does; else it stays near its own width."""
    a0, _, d0 = _own_heads(near)
    usual_dims = FLASH_HEAD_DIMS if workload.attention_kernel is AttentionKernel.FLASH else UNFUSED_HEAD_DIMS
    head_dims = sorted({d0, *usual_dims, *near.extra.get("head_dim", ())}) if "head_dim" in near.free else [d0]
    for d in head_dims:
        for a in _head_counts(near, d):
            if "num_heads" in near.free or a == a0:
                yield from ((a, g, d) for g in _kv_counts(near, a))


def _head_counts(near: _Near, head_dim: int) -> Iterable[int]:
    a0, _, d0 = _own_heads(near)
    most_heads = a0 * near.guard.heads**near.guard.width
    if is_coupled(near.baseline):
        counts = {int(h) // head_dim for h in near.hidden() if h % head_dim == 0}
    else:
        step = math.lcm(near.tp, max(1, near.baseline["num_kv_heads"]))
        step *= math.ceil(most_heads / step / MAX_VALUES)
        counts = {*range(step, int(most_heads) + 1, step), a0 * d0 // head_dim}
    counts |= set(near.extra.get("num_heads", ()))
    return sorted(a for a in counts if 0 < a <= most_heads and all(a % t == 0 for t in near.degrees))


def _kv_counts(near: _Near, heads: int) -> Iterable[int]:
    """Divisors of the heads that split over the ranks or are replicated evenly. Multi-head and multi-query models stay
    so."""
    a0, g0, _ = _own_heads(near)
    if a0 == g0:
        return [heads] if "num_kv_heads" in near.free or heads == g0 else []
    if g0 == 1 or "num_kv_heads" not in near.free:
        return [g0] if heads % g0 == 0 else []
    most_group = int(a0 / g0 * near.guard.kv_group**near.guard.width)
    counts = (heads // group for group in divisors(heads) if 1 < group <= most_group and group < heads)
    return sorted(g for g in counts if all(_shares(g, t) for t in near.degrees))


def _shares(kv_heads: int, tp: int) -> bool:
    """Whether every rank gets whole key/value heads, its own or a shared one."""
    return kv_heads % tp == 0 or tp % kv_heads == 0
