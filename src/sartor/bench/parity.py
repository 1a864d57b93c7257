"""Does a faster shape learn as well? Two small proxy models are trained on the same tokens with several seeds each.

Both have the same number of parameters (within ``TOLERANCE``) and see the same batches at every step of a seed. The
loss on held-out text is compared, with a t interval over seeds (paired: a seed gives both the same data and the same
random stream). For equal training time the faster shape gets more steps; the slope of its own loss curve tells how much
they lower the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sartor.bench.cases import StackRun
from sartor.errors import InputError
from sartor.json_types import JsonDict, picked
from sartor.units import FloatArray

TOLERANCE = 0.02
"""Largest relative difference of the two parameter counts."""

VOCAB = 256
"""Tokens are bytes, so any text works without a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One training run: loss on held-out text in nats per byte at ``steps``, and seconds per step."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    step_s: float

    @property
    def final(self) -> float:
        return self.losses[-1]


Train = Callable[[StackRun, int], Curve]
"""A function that trains a shape with a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Two shapes, their runs by seed, and the difference of their losses (second minus first)."""

    first: StackRun
    second: StackRun
    seeds: tuple[int, ...]
    first_curves: tuple[Curve, ...]
    second_curves: tuple[Curve, ...]

    @property
    def differences(self) -> FloatArray:
        """Differences of the final losses, by seed."""
        pairs = zip(self.first_curves, self.second_curves, strict=True)
        return np.asarray([b.final - a.final for a, b in pairs])

    @property
    def difference(self) -> float:
        return float(self.differences.mean())

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the mean difference over seeds; infinite with a single seed."""
        differences = self.differences
        if differences.size < 2:
            return -math.inf, math.inf
        half = (
            _t_quantile(0.5 + level / 2, differences.size - 1)
            * float(differences.std(ddof=1))
            / math.sqrt(differences.size)
        )
        return self.difference - half, self.difference + half

    @property
    def speedup(self) -> float:
        """Median step time of the first shape over that of the second."""
        first, second = (np.median([c.step_s for c in curves]) for curves in (self.first_curves, self.second_curves))
        return float(first / second)

    @property
    def loss_per_doubling(self) -> float:
        """How much the second shape's loss falls when its steps double, from the end of its mean loss curve."""
        steps = np.asarray(self.second_curves[0].steps, dtype=np.float64)
        losses = np.mean([curve.losses for curve in self.second_curves], axis=0)
        late = steps >= steps[-1] / 4
        return float(-np.polyfit(np.log2(steps[late]), losses[late], 1)[0]) if late.sum() >= 2 else 0.0

    @property
    def equal_time_difference(self) -> float:
        """Difference of losses at equal training time: the second shape takes ``speedup`` times the steps."""
        return self.difference - self.loss_per_doubling * math.log2(max(self.speedup, 1e-9))


def compare_shapes(first: StackRun, second: StackRun, seeds: Sequence[int], train: Train) -> Parity:
    """Train both with every seed, in turn. Raises ``InputError`` if sizes differ or there are fewer than two seeds."""
    apart = second.num_params / first.num_params - 1
    if abs(apart) > TOLERANCE:
        must = f"has {apart:+.1%} parameters against the first; at most {TOLERANCE:.0%} apart"
        raise InputError("second shape", second.name, must)
    if len(set(seeds)) < 2:
        raise InputError("seeds", len(set(seeds)), "must be at least 2: one seed has no interval", "3")
    curves = [(train(first, seed), train(second, seed)) for seed in seeds]
    return Parity(
        first=first,
        second=second,
        seeds=tuple(seeds),
        first_curves=tuple(a for a, _ in curves),
        second_curves=tuple(b for _, b in curves),
    )


def proxies(
    *, hidden_size: int, num_layers: int, num_heads: tuple[int, int], ffn: tuple[int, int], seq_len: int, batch: int
) -> tuple[StackRun, StackRun]:
    """Two stacks of one width and depth that differ in heads and feed-forward widths. Raises ``InputError``."""
    base = StackRun(
        name="proxy",
        hidden_size=hidden_size,
        num_heads=1,
        num_kv_heads=1,
        head_dim=hidden_size,
        ffn_hidden_size=4 * hidden_size,
        num_layers=num_layers,
        vocab_size=VOCAB,
        batch=batch,
        seq_len=seq_len,
    )
    models = []
    for heads, width in zip(num_heads, ffn, strict=True):
        if heads < 1 or hidden_size % heads:
            near = [h for h in range(1, hidden_size + 1) if hidden_size % h == 0]
            nearest = min(near, key=lambda h: abs(h - heads))
            raise InputError("heads", heads, f"must divide hidden_size {hidden_size}", str(nearest))
        models.append(
            replace(
                base,
                name=f"h{hidden_size}-a{heads}-f{width}",
                num_heads=heads,
                num_kv_heads=heads,
                head_dim=hidden_size // heads,
                ffn_hidden_size=width,
            )
        )
    return models[0], models[1]


def made_text(size: int, seed: int = 0) -> bytes:
    """English-like text from a second-order process over a small vocabulary: learnable, and free of licences.

    Word frequencies follow Zipf's law and each word prefers a few successors, so that a model gains from context.
    """
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "or", "st")]
    words = ["".join(rng.choice(syllables, int(rng.integers(1, 4)))) for _ in range(600)]
    ranks = 1 / np.arange(1, len(words) + 1)
    common = ranks / ranks.sum()
    follow = rng.choice(len(words), size=(len(words), len(words) // 100 + 6), p=common)
    count = size // 4
    jumps, picks = rng.random(count) < 0.25, rng.integers(0, follow.shape[1], count)
    anywhere = rng.choice(len(words), count, p=common)
    token, out = 0, []
    for jump, pick, free in zip(jumps.tolist(), picks.tolist(), anywhere.tolist(), strict=True):
        token = free if jump else int(follow[token, pick])
        out.append(words[token])
        if len(out) % 12 == 0:
            out[-1] += "."
    return " ".join(out).encode()[:size]


def parity_body(result: Parity, tokens: int, device: str) -> JsonDict:
    """The ``parity`` object of the JSON."""
    low, high = result.interval()
    runs = (result.first, result.first_curves), (result.second, result.second_curves)
    return {
        "device": device,
        "tokens_per_run": tokens,
        "seeds": list(result.seeds),
        "shapes": [
            {
                **picked(
                    run, "name", "hidden_size", "num_layers", "num_heads", "head_dim", "ffn_hidden_size", "num_params"
                ),
                "step_s": float(np.median([curve.step_s for curve in curves])),
                "steps": list(curves[0].steps),
                "losses": [list(curve.losses) for curve in curves],
            }
            for run, curves in runs
        ],
        "loss_difference": result.difference,
        "low": low,
        "high": high,
        "level": 0.95,
        "differs": low > 0 or high < 0,
        **picked(result, "speedup", "loss_per_doubling", "equal_time_difference"),
    }


def _t_quantile(p: float, degrees: int) -> float:
    """Quantile of Student's t, by bisection of its distribution function (exact sums for integer degrees)."""
    low, high = 0.0, 700.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _t_cdf(middle, degrees) < p else (low, middle)
    return 0.5 * (low + high)


def _t_cdf(t: float, degrees: int) -> float:
    """Abramowitz and Stegun 1964, 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(degrees))
    cos2 = math.cos(theta) ** 2
    if degrees % 2:
        total, term = 0.0, math.cos(theta)
        for i in range(1, degrees - 1, 2):
            total += term
            term *= cos2 * (i + 1) / (i + 2)
        return 0.5 + (theta + math.sin(theta) * total) / math.pi
    total, term = 0.0, 1.0
    for i in range(0, degrees - 1, 2):
        total += term
        term *= cos2 * (i + 1) / (i + 2)
    return 0.5 + 0.5 * math.sin(theta) * total
