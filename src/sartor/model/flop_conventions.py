"""Which FLOPs a trainer's TFLOP/s counts: causal or full attention, recomputation or not, the embedding or not.

A log's rate times its step time is a number of FLOPs. The terms of the model are known exactly, so the sum closest to
that number reveals the convention. The convention says nothing about speed: two trainers that print 400 and 320 TFLOP/s
may do the same work in the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sartor.model.counts import AttentionSquare, count_params, forward_matmul_flops
from sartor.model.shape import TransformerShape

NEAR = 0.01
"""Largest relative difference at which a convention counts as found: trainers print three or four digits and ignore
biases, norms and padding."""
SAME = 0.002
"""Conventions this close to the nearest can't be distinguished from it."""
LENGTHS = tuple(2**k for k in range(9, 21))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopConvention:
    """One way to count the FLOPs of a training step, per token."""

    attention: str
    """``full``: all query-key pairs; ``causal``: unmasked pairs only; ``none``."""
    head: bool = True
    """The output head's matrix multiplication is counted."""
    embedding: bool = False
    """The look-up of tokens is counted as if it were a matrix multiplication (6 x all parameters)."""
    recompute: bool = False
    """A second forward pass is counted."""
    seq_len: int
    flops_per_token: float
    rel_error: float = math.nan
    """This count / the log's - 1."""

    @property
    def words(self) -> str:
        """As part of a sentence: ``full attention, embedding not counted``."""
        parts = [
            "no attention scores" if self.attention == "none" else f"{self.attention} attention",
            "recomputation counted" if self.recompute else "recomputation not counted",
            "embedding counted" if self.embedding else "embedding not counted",
        ]
        return ", ".join((*parts, *(() if self.head else ("output head not counted",))))

    def factor(self, model_flops_per_token: float) -> float:
        """This count over the FLOPs that sartor counts: attention as its kernel computes it, no layer twice."""
        return self.flops_per_token / model_flops_per_token


def flop_conventions(shape: TransformerShape, seq_len: int) -> Iterator[FlopConvention]:
    """Every way of counting, the most common first."""
    counts = count_params(shape)
    masked = forward_matmul_flops(shape, 1, seq_len, square=AttentionSquare.MASKED)
    full = forward_matmul_flops(shape, 1, seq_len)
    head = 2.0 * float(counts.lm_head)
    linear, scores = float(full.linear) / seq_len, float(full.attention) / seq_len
    squares = {"full": scores, "causal": float(masked.attention) / seq_len, "none": 0.0}
    for passes in (3, 4):
        for attention, pairs in squares.items():
            for with_head, with_embedding in ((True, False), (True, True), (False, False)):
                forward = linear + pairs - (0 if with_head else head)
                forward += 2.0 * float(counts.embedding) if with_embedding else 0
                yield FlopConvention(
                    attention=attention,
                    head=with_head,
                    embedding=with_embedding,
                    recompute=passes == 4,
                    seq_len=seq_len,
                    flops_per_token=passes * forward,
                )


def counted(shape: TransformerShape, flops_per_token: float, seq_len: int) -> tuple[FlopConvention, ...]:
    """The convention nearest to a log's FLOPs per token and those indistinguishable from it; empty if none is within
    ``NEAR``."""
    tried = [
        replace(convention, rel_error=convention.flops_per_token / flops_per_token - 1)
        for convention in flop_conventions(shape, seq_len)
    ]
    tried.sort(key=lambda convention: abs(convention.rel_error))
    nearest = abs(tried[0].rel_error)
    return (
        tuple(convention for convention in tried if abs(convention.rel_error) <= nearest + SAME)
        if nearest < NEAR
        else ()
    )
