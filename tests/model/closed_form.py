"""Parameter and FLOP counts as papers print them, in paper letters: what ``lower`` and ``counts`` must agree with.

Nothing here looks at a ``TransformerShape``; every formula is the cited one, written on one line, for numbers or
arrays. Letters: microbatch b, sequence s, hidden h, heads a, key/value heads g, head dim d, feed-forward f,
vocabulary v, layers L, experts E of which k per token, tokens T = b s. FLOPs count a multiply-add as two.
"""

from __future__ import annotations

from typing import Any


def gpt_params(L: Any, h: Any, s: Any, v: Any) -> Any:
    """12 L h^2 (1 + 13/(12 h) + (v + s)/(12 L h)): tied embeddings, learned positions, biases; the final norm's 2 h are
    left out. Narayanan et al. 2021 (arXiv 2104.04473), eq. 2."""
    return 12 * L * h**2 + 13 * L * h + (v + s) * h


def gpt_layer_forward_flops(b: Any, s: Any, h: Any) -> Any:
    """24 b s h^2 + 4 b s^2 h: one multi-head layer with f = 4 h, all s x s pairs. Narayanan et al. 2021, sec. 3."""
    return 24 * b * s * h**2 + 4 * b * s**2 * h


def gpt_iteration_flops(B: Any, s: Any, h: Any, L: Any, v: Any) -> Any:
    """72 B s L h^2 (1 + s/(6 h) + v/(12 L h)): forward and backward with nothing recomputed, unfused attention.
    Korthikanti et al. 2022 (arXiv 2205.05198), appendix A."""
    return 72 * B * s * L * h**2 + 12 * B * s**2 * L * h + 6 * B * s * h * v


def gpt_iteration_flops_recomputed(B: Any, s: Any, h: Any, L: Any, v: Any) -> Any:
    """96 B s L h^2 (1 + s/(6 h) + v/(16 L h)): every layer's forward done twice. Narayanan et al. 2021, eq. 3."""
    return 96 * B * s * L * h**2 + 16 * B * s**2 * L * h + 6 * B * s * h * v


def attention_projection_flops(T: Any, h: Any, a: Any, g: Any, d: Any) -> Any:
    """2 T h (a + 2 g) d + 2 T a d h: grouped-query QKV and output. Ainslie et al. 2023 (arXiv 2305.13245): g heads of
    keys and values instead of a."""
    return 2 * T * h * (a + 2 * g) * d + 2 * T * a * d * h


def attention_square_flops(b: Any, s: Any, a: Any, d: Any) -> Any:
    """4 b s^2 a d: scores and weighted values over all pairs. Narayanan et al. 2021, sec. 3."""
    return 4 * b * s**2 * a * d


def attention_causal_flops(b: Any, s: Any, a: Any, d: Any) -> Any:
    """2 b s (s + 1) a d: the pairs a causal mask lets through (s (s + 1)/2 of s^2)."""
    return 2 * b * s * (s + 1) * a * d


def flash_attention_training_factor() -> float:
    """3.5: forward has 2 products, backward 5 because it recomputes the scores. Dao 2023 (arXiv 2307.08691), sec. 4.1:
    forward FLOPs times 2.5 for the backward pass."""
    return 3.5


def ffn_flops(T: Any, h: Any, f: Any) -> Any:
    """4 T h f: up and down. Narayanan et al. 2021, sec. 3 (16 T h^2 for f = 4 h)."""
    return 4 * T * h * f


def gated_ffn_flops(T: Any, h: Any, f: Any) -> Any:
    """6 T h f: gate, up and down. Shazeer 2020 (arXiv 2002.05202), eq. 6."""
    return 6 * T * h * f


def moe_flops(T: Any, h: Any, f: Any, E: Any, k: Any) -> Any:
    """2 T h E + 6 k T h f: router and k gated experts per token. Jiang et al. 2024 (Mixtral, arXiv 2401.04088),
    sec. 2.1."""
    return 2 * T * h * E + 6 * k * T * h * f


def latent_projection_flops(
    T: Any, h: Any, a: Any, q_rank: Any, kv_rank: Any, d_nope: Any, d_rope: Any, d_v: Any
) -> Any:
    """Down- and up-projections and output of multi-head latent attention. DeepSeek-V2 (arXiv 2405.04434),
    sec. 2.1 and appendix C."""
    down = 2 * T * h * (q_rank + kv_rank + d_rope)
    up = 2 * T * q_rank * a * (d_nope + d_rope) + 2 * T * kv_rank * a * (d_nope + d_v)
    return down + up + 2 * T * a * d_v * h


def latent_decode_attention_flops(b: Any, context: Any, a: Any, kv_rank: Any, d_rope: Any) -> Any:
    """2 b n a (2 kv_rank + d_rope): absorbed attention of one new token over n cached latents, itself included.
    DeepSeek-V2, sec. 2.1.2."""
    return 2 * b * context * a * (2 * kv_rank + d_rope)


def logits_flops(T: Any, h: Any, v: Any) -> Any:
    """2 T h v. Narayanan et al. 2021, appendix."""
    return 2 * T * h * v


def kv_cache_bytes(tokens: Any, L: Any, g: Any, d: Any, element_bytes: Any) -> Any:
    """2 L g d per token: a key and a value per layer and key/value head. Shazeer 2019 (arXiv 1911.02150), sec. 2.4."""
    return 2 * tokens * L * g * d * element_bytes


def tensor_parallel_layer_bytes(b: Any, s: Any, h: Any, element_bytes: Any) -> Any:
    """4 all-reduces of b s h per layer: two forward, two backward. Shoeybi et al. 2019 (arXiv 1909.08053), fig. 4."""
    return 4 * b * s * h * element_bytes
