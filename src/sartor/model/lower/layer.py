"""One layer: its parts in order, with the norms, residual sums and collectives between them."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.model.layer import AttentionMixer, DenseFfn, Ffn, LatentAttentionMixer, Layer, Mixer, MoeFfn, Split
from sartor.model.lower.attention import attention, attention_core, latent_attention, named_inputs, output
from sartor.model.lower.ffn import dense_ffn, moe_ffn
from sartor.model.lower.linear import linear_group, local_inner, product, region
from sartor.model.lower.piece import Piece, around, beside, chain, repeat
from sartor.model.lower.pointwise import activation, norm, residual
from sartor.model.lower.setting import Setting
from sartor.model.lower.state_space import state_space
from sartor.operators import Role
from sartor.units import ceil_div


def layer(setting: Setting, part: Layer) -> Piece:
    """A residual layer as `lower` counts it: its norms are one operator with a count, and so are its residual sums."""
    inside = [block.inside for block in blocks_of(setting, part)]
    sums = len(inside) if part.mixers or part.all_ffns else 0
    counted = [repeat(_norm(setting, part), len(part.norms))] if part.norms else []
    return chain(*counted, *inside, *([repeat(_sum(setting), sums)] if sums else []))


def whole_layer(setting: Setting, part: Layer) -> Piece:
    """The same layer with each norm and each residual sum in its place."""
    layer = _sum(setting) if part.mixers or part.all_ffns else Piece()
    return chain(
        *(around(chain(*block.before, block.inside, *block.after), layer) for block in blocks_of(setting, part))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualBlock:
    """A part of a layer between two points of the residual stream, with the norms before and after it."""

    before: tuple[Piece, ...]
    inside: Piece
    after: tuple[Piece, ...]


def blocks_of(setting: Setting, part: Layer) -> list[ResidualBlock]:
    """A layer's residual blocks: one per mixer and feed-forward part, or a single one if they are parallel. Each block
    gets one of the layer's norms before it; if there are more norms, the others come after it."""
    if part.parallel:
        insides = [beside(*_parallel(setting, part))]
    else:
        insides = [_block(setting, x) for x in _parts(part)] or [Piece()]
    groups = (linear_group(setting, linear.name, [linear]) for linear in part.linears)
    insides[-1] = chain(insides[-1], *groups)
    count, rest = divmod(len(part.norms), len(insides))
    out = []
    for i, inside in enumerate(insides):
        mine = [_norm(setting, part) for _ in range(count + (i < rest))]
        before = len(mine) if part.parallel else 1
        out.append(ResidualBlock(before=tuple(mine[:before]), inside=inside, after=tuple(mine[before:])))
    return out


def _norm(setting: Setting, part: Layer) -> Piece:
    return norm(setting, setting.outer_tokens, setting.hidden_size, kind=part.norms[0].kind)


def _sum(setting: Setting) -> Piece:
    return residual(setting, setting.outer_tokens, setting.hidden_size)


def _parts(part: Layer) -> tuple[Mixer | Ffn, ...]:
    return (*part.mixers, *part.all_ffns)


def _block(setting: Setting, part: Mixer | Ffn) -> Piece:
    """One part with its collectives. Latent attention and experts place theirs further inside."""
    if isinstance(part, LatentAttentionMixer):
        return latent_attention(setting, part)
    if isinstance(part, MoeFfn):
        return moe_ffn(setting, part)
    cross = "cross_" if isinstance(part, AttentionMixer) and part.cross else ""
    return region(setting, cross + part.name, _inner(setting, part))


def _inner(setting: Setting, part: Mixer | Ffn) -> Piece:
    if isinstance(part, AttentionMixer):
        return attention(setting, part)
    return dense_ffn(setting, part) if isinstance(part, DenseFfn) else state_space(setting, part)  # type: ignore[arg-type]


def _parallel(setting: Setting, part: Layer) -> list[Piece]:
    """Parallel parts share the tensor-parallel region and therefore need one all-reduce (Chowdhery et al. 2022, PaLM,
    sec. 2). Some families also fuse all input projections into one GEMM and all output projections into another."""
    inside = [x for x in _parts(part) if not isinstance(x, (LatentAttentionMixer, MoeFfn))]
    apart = [_block(setting, x) for x in _parts(part) if isinstance(x, (LatentAttentionMixer, MoeFfn))]
    match inside:
        case [AttentionMixer() as mixer, DenseFfn() as ffn] if part.fuses_parallel:
            return [region(setting, "parallel", _fused(setting, mixer, ffn)), *apart]
        case []:
            return apart
        case _:
            return [region(setting, "parallel", beside(*(_inner(setting, x) for x in inside))), *apart]


def _fused(setting: Setting, mixer: AttentionMixer, ffn: DenseFfn) -> Piece:
    """Q, K, V, up (and gate) as one GEMM, both output projections as another."""
    *ups, down = ffn.linears(setting.hidden_size)
    inputs = [linear for _, linear in named_inputs(setting, mixer)] + ups
    outputs = (output(setting, mixer), down)
    d_in = sum(local_inner(linear, setting.tp) for linear in outputs)
    width = ceil_div(ffn.ffn_hidden_size, setting.tp)
    return chain(
        linear_group(setting, "parallel_in", inputs, mixer.num_kv_heads, role=Role.PARALLEL_IN),
        beside(
            attention_core(setting, mixer),
            activation(setting, setting.tokens, width, ffn.gated, f"{ffn.name}_activation"),
        ),
        product(
            setting,
            "parallel_out",
            Role.PARALLEL_OUT,
            setting.tokens,
            setting.hidden_size,
            d_in,
            setting.dtype,
            Split.ROW,
        ),
    )
