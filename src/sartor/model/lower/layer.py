"""One layer: its parts in order, with the norms and residual sums between them."""

from __future__ import annotations

from sartor.model.lower.attention import attention, latent_attention
from sartor.model.lower.ffn import dense_ffn, moe_ffn
from sartor.model.lower.linear import linear_group
from sartor.model.lower.pointwise import norm, residual
from sartor.model.lower.setting import Piece, Setting, chain, repeat
from sartor.model.lower.state_space import state_space
from sartor.model.shape import AttentionMixer, DenseFfn, Ffn, LatentAttentionMixer, Layer, Mixer


def layer(setting: Setting, part: Layer) -> Piece:
    """A residual layer. Norms of one width are one row whose count says how many there are; so are residual sums: one
    per part, or one in all where mixer and feed-forward are parallel."""
    rows, h = setting.outer_tokens, setting.hidden_size
    parts = [*(mixer(setting, m) for m in part.mixers), *(ffn(setting, f) for f in part.all_ffns)]
    own = [linear_group(setting, linear.name, [linear]) for linear in part.linears]
    sums = 1 if part.parallel else len(parts)
    norms = repeat(norm(setting, rows, h), len(part.norms)) if part.norms else Piece()
    return chain(norms, *parts, *own, repeat(residual(setting, rows, h), sums))


def mixer(setting: Setting, part: Mixer) -> Piece:
    if isinstance(part, AttentionMixer):
        return attention(setting, part)
    return latent_attention(setting, part) if isinstance(part, LatentAttentionMixer) else state_space(setting, part)


def ffn(setting: Setting, part: Ffn) -> Piece:
    return dense_ffn(setting, part) if isinstance(part, DenseFfn) else moe_ffn(setting, part)
