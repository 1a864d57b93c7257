"""A shape made for nodes of eight GPUs, run on nodes of six.

## What it finds

On nodes whose GPU count is a multiple of three, or with such a `tp`: heads that do not split over it (error if that
`tp` is asked for, else information), and an attention width, feed-forward width or vocabulary whose shards are not
multiples of the preferred length (information).

## Why it costs

Nodes of six GPUs (Summit: 6 V100) allow tensor parallelism of 1, 2, 3 and 6 inside a node. Shapes copied from
eight-GPU clusters are powers of two and are not divisible by three.

## Example

h = 4096 with 32 heads at `tp=6`. Good: h = 6144, 48 heads, a feed-forward width of 16512 and a vocabulary of 50304 =
2^7 * 3 * 131.

## Fix

Make heads, feed-forward width and vocabulary multiples of three (or six) times the preferred length, all at once.

## Source

arXiv 2401.14489 (2024-01) covers such nodes; the numbers are our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from sartor.model.layer import AttentionMixer
from sartor.model.lower.setting import kv_heads_for
from sartor.rules.rule import Context, Fix, Grade, Rule, Suspicion, around, nearest_first

NODE = 6


def six_gpu_nodes(context: Context) -> Iterator[Suspicion]:
    mixer, degree = context.shape.attention, int(context.dims.tp)
    if mixer is None or (degree % 3 and context.gpu.devices_per_node % 3):
        return
    ways = degree if degree % 3 == 0 else NODE
    sizes, grain = _sizes(context), lcm(context.alignment.preferred * ways)
    uneven = [name for name, size in sizes.items() if size % grain]
    heads = int(mixer.num_heads)
    if heads % ways == 0 and not uneven:
        return
    cannot = heads % ways != 0 and degree == ways
    names = ", ".join((["num_heads"] if heads % ways else []) + uneven)
    yield Suspicion(
        grade=Grade.ERROR if cannot else Grade.INFO,
        message=f"num_heads={heads}: {names} cannot be split {ways} ways into multiples of"
        f" {context.alignment.preferred}, as nodes of six GPUs need",
        field="num_heads" if heads % ways else _field(uneven[0]),
        value=heads if heads % ways else sizes[uneven[0]],
        fixes=tuple(_fixes(context, mixer, ways, grain)) if isinstance(mixer, AttentionMixer) else (),
        blocking=cannot,
        axis="tp",
    )


def _sizes(context: Context) -> dict[str, int]:
    """The sizes that tensor parallelism splits, by name."""
    shape, mixer = context.shape, context.shape.attention
    sizes = {"num_heads * head_dim": int(mixer.num_heads * mixer.value_dim)} if mixer else {}
    if shape.dense_ffn:
        sizes["ffn_hidden_size"] = int(shape.dense_ffn.ffn_hidden_size)
    return sizes | ({"vocab_size": int(shape.vocab_size)} if shape.lm_head else {})


def _field(name: str) -> str:
    return "num_heads" if " " in name else name


def _fixes(context: Context, mixer: AttentionMixer, ways: int, grain: int) -> Iterator[Fix]:
    """Heads on either side that split, with the nearest feed-forward width and vocabulary that do."""
    shape = context.shape
    others: dict[str, int] = {}
    if shape.dense_ffn and shape.dense_ffn.ffn_hidden_size % grain:
        width = int(shape.dense_ffn.ffn_hidden_size)
        others["ffn_hidden_size"] = nearest_first(around(width, grain), width)[0]
    if shape.lm_head and shape.vocab_size % grain:
        others["vocab_size"] = around(int(shape.vocab_size), grain)[-1]
    groups = int(mixer.num_kv_heads)
    for heads in nearest_first(around(int(mixer.num_heads), ways), int(mixer.num_heads)):
        keeps = groups == mixer.num_heads or (heads % groups == 0 and (groups % ways == 0 or ways % groups == 0))
        new = {} if heads == mixer.num_heads else {"num_heads": heads}
        yield new | ({} if keeps else {"num_kv_heads": kv_heads_for(heads, groups, ways)}) | others


RULE = Rule(code="R13", check=six_gpu_nodes, worst=Grade.ERROR, page=__doc__ or "", turned_by=("framework",))
