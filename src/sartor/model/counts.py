"""Parameters of a shape and FLOPs of a forward pass, in closed form, and which FLOPs a trainer counts.

The counts follow from the parts' ``linears`` and ``vectors``. They broadcast over array sizes (64-bit integers: counts
above 9.2e18 need floating-point sizes).

A log's rate times its step time is a number of FLOPs. The terms of the model are known exactly, so the sum closest to
that number reveals the convention. The convention says nothing about speed: two trainers that print 400 and 320 TFLOP/s
may do the same work in the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from sartor.errors import InputError
from sartor.model.layer import (
    AttentionMixer,
    LatentAttentionMixer,
    Layer,
    Linear,
    MoeFfn,
    Split,
    StateSpaceMixer,
    Vectors,
)
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.operators import attention_pairs
from sartor.units import Floats, Ints, plain


class AttentionSquare(Enum):
    """The query-key pairs to count."""

    FULL = "full"
    MASKED = "masked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCounts:
    """Parameters of a model, each distinct tensor once.

    ``active``: those one token uses (routed experts by their share top_k / num_experts; embeddings are in).
    ``text``, ``text_active``: without vision and audio towers and projectors. ``embedding``: tables that are looked
    up. ``routed_expert``: experts the router chooses among.
    """

    total: Ints
    active: Ints
    text: Ints
    text_active: Ints
    embedding: Ints
    lm_head: Ints
    """The output head with its bias, also if it is tied to the token table."""
    routed_expert: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _FlopCounts:
    """FLOPs of the matrix multiplications of one forward pass: two per multiply-add.

    ``linear``: weights times tokens, routed experts ``experts_per_token`` times per token, logits of all positions.
    ``attention``: scores and weighted values. Convolution and scan of state-space layers are left out, as in published
    counts, and so are the scores of a sparse attention's indexer.
    """

    linear: Ints
    attention: Floats

    @property
    def total(self) -> Floats:
        return self.linear + self.attention


def count_params(shape: TransformerShape) -> ParamCounts:
    """Parameters of ``shape``: total, active, text part; scalars or arrays like the shape's sizes.

    Multi-token-prediction modules (``mtp_layers``) are not included, as in published counts of main models.
    """
    outside = _outside_params(shape)
    text = outside + _sum(_stack_params(s) for s in shape.stacks if s.is_text)
    not_text = _sum(_stack_params(s) for s in shape.stacks if not s.is_text)
    routed, idle = _sum_pairs(_routed(s) for s in shape.stacks if s.is_text)
    stored = shape.vocab_size * _embedding_size(shape) if shape.stored_head else 0
    other_routed, other_idle = _sum_pairs(_routed(s) for s in shape.stacks if not s.is_text)
    return ParamCounts(
        total=text + not_text + stored,
        active=text + not_text - idle - other_idle,
        text=text,
        text_active=text - idle,
        embedding=_embedding_params(shape),
        lm_head=_lm_head_params(shape),
        routed_expert=routed + other_routed,
    )


def check_countable(shape: TransformerShape) -> None:
    """Raises ``InputError`` for a shape with more parameters than 64 bits count."""
    if float(count_params(shape).total) > MOST_PARAMS:
        must = f"must have fewer than {MOST_PARAMS:.1e} parameters: sizes are counted in 64 bits"
        raise InputError("model", shape.name or "as given", must)


MOST_PARAMS = 2**62


def layer_params(layer: Layer, hidden_size: Ints) -> Ints:
    """Parameters of one layer of a stack of width ``hidden_size``."""
    parts = [linear.params for linear in _layer_linears(layer, hidden_size)]
    parts += [v.params(hidden_size) for v in _layer_vectors(layer)]
    parts += [norm.params(hidden_size) for norm in layer.norms]
    parts += [_expert_params(f, hidden_size) * f.num_experts for f in layer.all_ffns if isinstance(f, MoeFfn)]
    return _sum(parts)


def _layer_linears(layer: Layer, hidden_size: Ints) -> Iterator[Linear]:
    """The linear layers that all tokens pass: all but the routed experts."""
    for part in (*layer.mixers, *layer.all_ffns):
        yield from part.linears(hidden_size)
    yield from layer.linears


def layer_runs(stack: Stack) -> tuple[tuple[int, int], ...]:
    """Parameters of every layer in order, run-length encoded: ``((3, 583483392), (58, 11507286016))``.

    Layers that share their weights are listed once. For shapes of plain integers.
    """
    per_run = [(run, int(layer_params(run.layer, stack.hidden_size))) for run in stack.runs]
    if any(run.positions for run, _ in per_run):
        placed = sorted((p, params) for run, params in per_run for p in run.positions)
        ordered = [(1, params) for _, params in placed]
    else:
        ordered = [(int(run_sets(run)), params) for run, params in per_run]
    out: list[tuple[int, int]] = []
    for count, params in ordered:
        if out and out[-1][1] == params:
            out[-1] = (out[-1][0] + count, params)
        else:
            out.append((count, params))
    return tuple(out)


def forward_matmul_flops(
    shape: TransformerShape,
    batch: Ints,
    seq_len: Ints,
    *,
    square: AttentionSquare = AttentionSquare.FULL,
) -> _FlopCounts:
    """FLOPs of one forward pass of ``batch`` sequences of ``seq_len`` text tokens (encoder and decoder alike).

    Stacks that text does not pass (vision towers) count 0; a tower that is the whole model works on its own ``tokens``.
    ``square`` says which query-key pairs count. Scans, convolutions and other memory-bound work are left out.
    """
    linear: Ints = 0
    attended: Floats = 0
    for stack in shape.stacks:
        tokens = _tokens(shape, stack, seq_len)
        linear = linear + _stack_linear_flops(shape, stack, tokens, seq_len)
        attended = attended + _stack_attention_flops(shape, stack, tokens, seq_len, square)
    main_tokens = _tokens(shape, shape.main, seq_len)
    linear = linear + _linears_flops(shape.linears, main_tokens) + _lm_head_flops(shape, main_tokens)
    return _FlopCounts(linear=batch * linear, attention=_whole(batch * attended))


# -- parameters -------------------------------------------------------------------------------------------------


def _outside_params(shape: TransformerShape) -> Ints:
    h = shape.hidden_size
    head = 0 if shape.tied_embeddings else _lm_head_params(shape)
    if shape.tied_embeddings and shape.lm_head and shape.lm_head_bias:
        head = shape.vocab_size
    return (
        shape.vocab_size * _embedding_size(shape)
        + shape.learned_positions * _embedding_size(shape)
        + head
        + _sum(linear.params for linear in shape.linears)
        + _sum(v.params(h) for v in shape.vectors)
    )


def _lm_head_params(shape: TransformerShape) -> Ints:
    if not shape.lm_head:
        return 0
    return shape.vocab_size * _embedding_size(shape) + (shape.vocab_size if shape.lm_head_bias else 0)


def _embedding_size(shape: TransformerShape) -> Ints:
    return shape.hidden_size if shape.embedding_size is None else shape.embedding_size


def _embedding_params(shape: TransformerShape) -> Ints:
    tables = (shape.vocab_size + shape.learned_positions) * _embedding_size(shape)
    outer = _sum(v.params(shape.hidden_size) for v in shape.vectors if v.embedding)
    return tables + outer + _sum(_stack_embeddings(stack) for stack in shape.stacks)


def _stack_embeddings(stack: Stack) -> Ints:
    h = stack.hidden_size
    inner = (run_sets(run) * v.params(h) for run in stack.runs for v in _layer_vectors(run.layer) if v.embedding)
    return _sum(v.params(h) for v in stack.vectors if v.embedding) + _sum(inner)


def _stack_params(stack: Stack) -> Ints:
    h = stack.hidden_size
    return (
        _sum(run_sets(run) * layer_params(run.layer, h) for run in stack.runs)
        + _sum(norm.params(h) for norm in stack.norms)
        + _sum(linear.params for linear in stack.linears)
        + _sum(v.params(h) for v in stack.vectors)
    )


def run_sets(run: LayerRun) -> Ints:
    """Sets of weights in a run: one per layer unless layers share them."""
    return run.count if run.weight_sets is None else run.weight_sets


def _routed(stack: Stack) -> tuple[Ints, Ints]:
    """Routed expert parameters of a stack, and how many of them one token leaves idle."""
    routed: Ints = 0
    idle: Ints = 0
    for run in stack.runs:
        h = stack.hidden_size
        idle = idle + run_sets(run) * _sum(v.params(h) for v in _layer_vectors(run.layer) if v.idle)
        for part in run.layer.all_ffns:
            if isinstance(part, MoeFfn):
                per_token = run_sets(run) * _expert_params(part, stack.hidden_size)
                routed = routed + per_token * part.num_experts
                idle = idle + per_token * (part.num_experts - part.experts_per_token)
    return routed, idle


def _expert_params(part: MoeFfn, hidden_size: Ints) -> Ints:
    width = hidden_size if part.expert_hidden_size is None else part.expert_hidden_size
    return _sum(x.params for x in part.expert_linears(hidden_size)) + _sum(v.params(width) for v in part.expert.vectors)


def _layer_vectors(layer: Layer) -> Iterator[Vectors]:
    for part in (*layer.mixers, *layer.all_ffns):
        yield from part.vectors
        if isinstance(part, MoeFfn) and part.shared is not None:
            yield from part.shared.vectors
    yield from layer.vectors


# -- FLOPs ------------------------------------------------------------------------------------------------------


def _tokens(shape: TransformerShape, stack: Stack, seq_len: Ints) -> Ints:
    if stack.tokens is not None:
        return stack.tokens
    return seq_len if stack.is_text or stack is shape.main else 0


def _source_tokens(shape: TransformerShape, stack: Stack, seq_len: Ints) -> Ints:
    """Source tokens of cross-attention: the encoder's, 0 if text has none."""
    encoder = next((s for s in shape.stacks if s is not stack and s.is_text), None)
    return 0 if encoder is None else _tokens(shape, encoder, seq_len)


def _stack_linear_flops(shape: TransformerShape, stack: Stack, tokens: Ints, seq_len: Ints) -> Ints:
    inside = _sum(
        run.count * _layer_linear_flops(run.layer, stack.hidden_size, tokens, _source_tokens(shape, stack, seq_len))
        for run in stack.runs
    )
    return inside + _linears_flops(stack.linears, tokens)


def _layer_linear_flops(layer: Layer, hidden_size: Ints, tokens: Ints, source_tokens: Ints) -> Ints:
    total = _linears_flops(layer.linears, tokens)
    for mixer in layer.mixers:
        for linear in mixer.linears(hidden_size):
            from_source = _mixer_is_cross(mixer) and linear.split is Split.KV_HEADS
            total = total + _linears_flops((linear,), source_tokens if from_source else tokens)
    for part in layer.all_ffns:
        total = total + _linears_flops(part.linears(hidden_size), tokens)
        if isinstance(part, MoeFfn):
            total = total + part.experts_per_token * _linears_flops(part.expert_linears(hidden_size), tokens)
    return total


def _mixer_is_cross(mixer: AttentionMixer | LatentAttentionMixer | StateSpaceMixer) -> bool:
    """Whether a mixer reads keys and values from another stack."""
    return isinstance(mixer, AttentionMixer) and mixer.cross


def _linears_flops(linears: Iterable[Linear], tokens: Ints) -> Ints:
    return _sum(2 * (tokens if x.rows is None else x.rows) * x.count * x.d_in * x.d_out for x in linears)


def _lm_head_flops(shape: TransformerShape, tokens: Ints) -> Ints:
    return 2 * tokens * _embedding_size(shape) * shape.vocab_size if shape.lm_head else 0


def _stack_attention_flops(
    shape: TransformerShape, stack: Stack, tokens: Ints, seq_len: Ints, square: AttentionSquare
) -> Floats:
    total: Floats = 0
    for run in stack.runs:
        for mixer in run.layer.mixers:
            if isinstance(mixer, StateSpaceMixer):
                continue
            keys = _source_tokens(shape, stack, seq_len) if mixer.cross else tokens
            pairs = tokens * keys if square is AttentionSquare.FULL else _masked_pairs(mixer, tokens, keys)
            if isinstance(mixer, AttentionMixer) and mixer.pooled:
                seen = keys // mixer.pooled
                most = seen if mixer.selection is None else np.minimum(seen, mixer.selection.keys)
                pairs = pairs + tokens * (seen if square is AttentionSquare.FULL else plain(most))
            total = total + run.count * mixer.num_heads * pairs * 2 * (mixer.head_dim + mixer.value_dim)
    return total


def _masked_pairs(mixer: AttentionMixer | LatentAttentionMixer, tokens: Ints, keys: Ints) -> Floats:
    if isinstance(mixer, AttentionMixer) and mixer.chunked and mixer.window:
        chunks, rest = tokens // mixer.window, tokens % mixer.window
        return (chunks * mixer.window * (mixer.window + 1) + rest * (rest + 1)) / 2
    causal = mixer.causal and not mixer.cross
    chosen = mixer.selection.keys if mixer.selection and not getattr(mixer, "pooled", 0) else 0
    pairs: Floats = attention_pairs(tokens, keys, causal, mixer.window or chosen)
    return pairs


def _whole(flops: Floats) -> Floats:
    """The value as an int if it is a whole number."""
    return int(flops) if not isinstance(flops, np.ndarray) and float(flops).is_integer() else flops


def _sum(parts: Iterable[Ints]) -> Ints:
    total: Ints = 0
    for part in parts:
        total = total + part
    return total


def _sum_pairs(pairs: Iterable[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    both = list(pairs)
    return _sum(first for first, _ in both), _sum(second for _, second in both)


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
