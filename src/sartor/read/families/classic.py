"""Decoder families of the GPT-2 era: layer norms, biases, plain feed-forward parts, and one peculiarity each."""

from __future__ import annotations

from dataclasses import replace

from sartor.model.layer import Layer, Linear, Vectors
from sartor.model.shape import TransformerShape
from sartor.read.families import parts
from sartor.read.families.decoder import Family, QkNorm, assemble, attention, dense_ffn, read_decoder, read_sizes
from sartor.read.families.parts import Reach, check_kv_heads, head_of, heads, layer_norm, positions
from sartor.read.fields import Fields

BIASED = Family(norm=layer_norm(), q_bias=True, out_bias=True, mlp_bias=True, gated=False, rotary=0)
"""GPT-2 and its relatives: layer norms, biases everywhere, a plain feed-forward part."""
GPT2 = replace(BIASED, ffn=("n_inner",), ffn_factor=4, positions=positions("n_positions", "max_position_embeddings"))


# -- heads --------------------------------------------------------------------------------------------------------


def bigcode_heads(f: Fields, hidden: int) -> tuple[int, int, int]:
    """GPT-BigCode: one key/value head when ``multi_query``."""
    num_heads, _, head_dim = heads(replace(f, raw={**f.raw, "num_key_value_heads": None}), hidden)
    return num_heads, 1 if f.flag("multi_query") else num_heads, head_dim


def _falcon_heads(f: Fields, hidden: int) -> tuple[int, int, int]:
    """Falcon: grouped heads in the new architecture, else one key/value head when ``multi_query``."""
    num_heads, kv_heads, head_dim = heads(f, hidden)
    if not f.flag("new_decoder_architecture"):
        kv_heads = 1 if f.flag("multi_query") else num_heads
    check_kv_heads(f, num_heads, kv_heads)
    return num_heads, kv_heads, head_dim


def full_heads(f: Fields, hidden: int) -> tuple[int, int, int]:
    """As many key/value heads as query heads, of width hidden size / heads, whatever the file says."""
    quiet = {name: None for name in (*parts.KV_HEADS, *parts.HEAD_DIM) if name in f.raw}
    return heads(replace(f, raw={**f.raw, **quiet}), hidden)


# -- readers ------------------------------------------------------------------------------------------------------


def falcon(f: Fields) -> TransformerShape:
    """Falcon: one norm when attention and feed-forward run in parallel, two in the new architecture."""
    new, parallel = f.flag("new_decoder_architecture"), f.flag("parallel_attn")
    ahead = f.optional_size("num_ln_in_parallel_attn") or (2 if new else 1)
    family = Family(
        norm=layer_norm(),
        norms=2 if not parallel or ahead == 2 else 1,
        parallel=parallel,
        q_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        gated=False,
        ffn=("ffn_hidden_size",),
        ffn_factor=4,
        heads=_falcon_heads,
    )
    return read_decoder(f, family)


def mpt(f: Fields) -> TransformerShape:
    """MPT: no biases anywhere, ALiBi in place of a table, feed-forward ``expansion_ratio`` times as wide."""
    factor = f.size("expansion_ratio")
    family = Family(norm=layer_norm(bias=False), gated=False, rotary=0, ffn=(), ffn_factor=factor, heads=full_heads)
    return read_decoder(f, family)


def opt(f: Fields) -> TransformerShape:
    """OPT: positions shifted by two; OPT-350M has a token table narrower than the model, with projections around."""
    affine = f.flag("layer_norm_elementwise_affine")
    norm = layer_norm(weight=affine, bias=affine)
    family = Family(
        norm=norm,
        rotary=0,
        final_norm=f.flag("do_layer_norm_before") and not f.flag("_remove_final_layer_norm"),
        q_bias="enable_bias",
        out_bias="enable_bias",
        mlp_bias="enable_bias",
        gated=False,
        ffn=("ffn_dim",),
        heads=full_heads,
    )
    sizes = read_sizes(f, family)
    layer = Layer(mixers=(attention(f, sizes, family, Reach()),), ffn=dense_ffn(f, sizes, family), norms=(norm, norm))
    h, e = sizes.hidden, f.optional_size("word_embed_proj_dim") or sizes.hidden
    around = () if e == h else (parts.plain("project_in", e, h), parts.plain("project_out", h, e))
    rows = f.size("max_position_embeddings") + 2
    if e == h:
        return assemble(f, replace(family, positions=lambda _: rows), h, [layer] * sizes.layers)
    table = Vectors(name="positions", per_hidden=rows, embedding=True)
    shape = assemble(f, family, h, [layer] * sizes.layers, linears=around, vectors=(table,), embedding_size=e)
    top = tuple(replace(x, d_in=e) if x.name == "score" else x for x in shape.linears)
    return replace(shape, linears=top)


def stablelm(f: Fields) -> TransformerShape:
    """StableLM: gated feed-forward under layer norms; one norm per layer when the residual is parallel."""
    parallel = f.flag("use_parallel_residual")
    family = Family(
        norm=layer_norm(),
        norms=1 if parallel else 2,
        parallel=parallel,
        q_bias="use_qkv_bias",
        qk_norm=QkNorm.PER_HEAD,
        qk_norm_if="qk_layernorm",
        rotary=0.25,
    )
    return read_decoder(f, family)


def gpt_neo(f: Fields) -> TransformerShape:
    """GPT-Neo: alternating global and local layers, as listed in ``attention_types`` (pattern, times)."""
    family = replace(
        BIASED,
        q_bias=False,
        ffn_factor=4,
        positions=positions("max_position_embeddings"),
        spans=_gpt_neo_spans,
        heads=full_heads,
    )
    return read_decoder(f, family)


def _gpt_neo_spans(f: Fields, layers: int) -> list[Reach]:
    kinds = f.words("attention_layers") or _spelt_out(f)
    window = f.optional_size("window_size") or 256
    if len(kinds) < layers:
        raise f.refuse("attention_types", f"{len(kinds)} layers", f"must spell out {layers} layers")
    return [Reach(window) if kind == "local" else Reach() for kind in kinds[:layers]]


def _spelt_out(f: Fields) -> list[str]:
    out: list[str] = []
    for entry in f.sequence("attention_types") or []:
        ok = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)
        if not ok or type(entry[1]) is not int or not 0 < entry[1] * len(entry[0]) <= 65_536:
            raise f.refuse("attention_types", entry, "must be pairs of a pattern and how often it repeats")
        out += [str(kind) for kind in entry[0]] * entry[1]
    return out


def gpt_neox_japanese(f: Fields) -> TransformerShape:
    """GPT-NeoX Japanese: no biases except one after the last layer's attention."""
    family = Family(norm=layer_norm(), gated=False, ffn=(), ffn_factor=f.size("intermediate_multiple_size"))
    sizes = read_sizes(f, family)
    layer = Layer(
        mixers=(attention(f, sizes, family, Reach()),),
        ffn=dense_ffn(f, sizes, family),
        norms=(family.norm, family.norm),
    )
    last = replace(layer, vectors=(Vectors(name="dense_bias", per_hidden=1),))
    return assemble(f, family, sizes.hidden, [layer] * (sizes.layers - 1) + [last])


def cpmant(f: Fields) -> TransformerShape:
    """CPM-Ant: gated feed-forward, bucketed position bias for segments, prompts as extra rows of the table."""
    family = Family(heads=_cpmant_heads, ffn=("dim_ff",))
    sizes = read_sizes(f, family)
    norms = (family.norm, family.norm)
    layer = Layer(mixers=(attention(f, sizes, family, Reach()),), ffn=dense_ffn(f, sizes, family), norms=norms)
    segments, prompts = f.size("segment_types"), f.size("prompt_types") * f.size("prompt_length")
    buckets = segments * segments + f.size("position_bias_num_buckets")
    tables = (
        Vectors(name="segments", per_hidden=segments, embedding=True),
        Vectors(name="prompts", per_hidden=prompts, embedding=True),
        Vectors(name="position_bias", fixed=buckets * sizes.heads),
    )
    shape = assemble(f, family, sizes.hidden, [layer] * sizes.layers, vectors=tables)
    # The head's rows are the vocabulary without the prompts: a table of its own.
    return replace(shape, tied_embeddings=False) if shape.lm_head else shape


def _cpmant_heads(f: Fields, hidden: int) -> tuple[int, int, int]:
    num_heads = f.size(*parts.HEADS)
    return num_heads, num_heads, f.size("dim_head")


def modernbert_decoder(f: Fields) -> TransformerShape:
    """ModernBERT as a decoder: norm after the embedding instead of before the first attention, a dense head."""
    norm = layer_norm(bias=f.flag("norm_bias"))
    family = Family(
        norm=norm,
        embedding_norm=True,
        q_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        lm_head_bias="decoder_bias",
        heads=full_heads,
    )
    sizes = read_sizes(f, family)
    kinds = f.words("layer_types", length=sizes.layers)
    period = f.optional_size("global_attn_every_n_layers") or 3
    window = (f.optional_size("local_attention") or 128) // 2
    local = [k != "full_attention" for k in kinds] if kinds else [i % period != 0 for i in range(sizes.layers)]
    ffn, h = dense_ffn(f, sizes, family), sizes.hidden
    built = {
        (is_local, first): Layer(
            mixers=(attention(f, sizes, family, Reach(window if is_local else 0)),),
            ffn=ffn,
            norms=(norm,) if first else (norm, norm),
        )
        for is_local in (True, False)
        for first in (True, False)
    }
    layers = [built[is_local, i == 0] for i, is_local in enumerate(local)]
    head: tuple[Linear, ...] = ()
    vectors: tuple[Vectors, ...] = ()
    if head_of(f) is not parts.Head.NONE:
        head = (parts.plain("head", h, h, bias=f.flag("classifier_bias")),)
        vectors = (Vectors(name="head_norm", per_hidden=2 if norm.bias else 1),)
    shape = assemble(f, family, h, layers, linears=head, vectors=vectors)
    return shape
