"""Vision and audio towers: one reader, and a table of what each tower class does beyond its config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, Norm, VectorRole, Vectors
from sartor.model.shape import LayerRun, Stack
from sartor.read.families import made
from sartor.read.families.decoder import Choice, choose
from sartor.read.families.parts import layer_norm, plain
from sartor.read.fields import Fields, tower_rows
from sartor.units import nearest_divisors

HIDDEN = ("hidden_size", "d_model", "embed_dim", "width")
LAYERS = ("num_hidden_layers", "depth", "encoder_layers", "layers", "num_layers")
HEADS = ("num_attention_heads", "num_heads", "attention_heads", "encoder_attention_heads", "heads")
FFN = ("intermediate_size", "encoder_ffn_dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Properties of a tower class.

    ``positions``: rows of the position table, as a function of fields and patches; ``around``: everything else outside
    the layers (mergers, adapters, pooling heads).
    """

    norm: Norm = field(default_factory=layer_norm)
    hidden: tuple[str, ...] = HIDDEN
    q_bias: Choice = True
    k_bias: Choice | None = None
    out_bias: Choice | None = None
    mlp_bias: Choice = True
    gated: Choice = False
    ffn: tuple[str, ...] = FFN
    patch: bool = True
    patch_bias: Choice = True
    temporal: bool = False
    class_token: int = 0
    """Learned tokens before the patches."""
    positions: Callable[[Fields, int], int] | None = None
    outer_norms: int = 0
    """Norms before and after the layers."""
    scale: int = 0
    """Learned per-channel scales in each layer."""
    qk_norm: Choice = False
    layer_vectors: Callable[[Fields, int], tuple[Vectors, ...]] | None = None
    around: Callable[[Fields, int], tuple[tuple[Linear, ...], tuple[Vectors, ...]]] | None = None


def tower_of(model_type: str) -> Tower | None:
    """What the class of a tower does beyond its config; None for an unknown type."""
    row = tower_rows().get(model_type)
    return None if row is None else made(Tower, row.facts)


def read_tower(v: Fields, tower: Tower, *, name: str = "vision") -> Stack:
    """The tower's stack; text does not pass it (``tokens`` 0)."""
    hidden, count = v.size(*tower.hidden), v.layers(*LAYERS)
    patches = grid(v) if tower.patch and tower.positions else 0
    rows = tower.positions(v, patches) if tower.positions else 0
    linears, vectors = tower.around(v, hidden) if tower.around else ((), ())
    tables = [Vectors(name="positions", per_hidden=rows, embedding=True)] if rows else []
    tokens = [Vectors(name="class_token", per_hidden=tower.class_token)] if tower.class_token else []
    return Stack(
        name=name,
        hidden_size=hidden,
        runs=(LayerRun(layer=_tower_layer(v, tower, hidden), count=count),),
        norms=(tower.norm,) * tower.outer_norms,
        linears=linears,
        vectors=(*_patch_vectors(v, tower, hidden), *tokens, *tables, *vectors),
        is_text=False,
        tokens=0,
    )


def _tower_layer(v: Fields, tower: Tower, hidden: int) -> Layer:
    """One layer of the tower."""
    heads = v.size(*HEADS)
    if hidden % heads:
        raise v.refuse("num_attention_heads", heads, f"must divide {hidden}", nearest_divisors(hidden, heads))
    width = v.optional_size(*tower.ffn)
    if width is None:
        width = int(hidden * (v.number("mlp_ratio") or 4.0))
    q_bias = choose(v, tower.q_bias)
    k_bias = q_bias if tower.k_bias is None else choose(v, tower.k_bias)
    lost = (Vectors(name="v_bias", fixed=hidden),) if q_bias and not k_bias else ()
    qk_norm = (
        (Vectors(name="qk_norms", role=VectorRole.HEAD_NORM, fixed=2 * hidden),) if choose(v, tower.qk_norm) else ()
    )
    mixer = AttentionMixer(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        causal=False,
        q_bias=q_bias,
        kv_bias=k_bias,
        out_bias=q_bias if tower.out_bias is None else choose(v, tower.out_bias),
        vectors=(*lost, *qk_norm),
    )
    bias = choose(v, tower.mlp_bias)
    ffn = DenseFfn(ffn_hidden_size=width, gated=choose(v, tower.gated), up_bias=bias, down_bias=bias, activation="gelu")
    scales = (Vectors(name="scales", per_hidden=tower.scale),) if tower.scale else ()
    extra = tower.layer_vectors(v, hidden) if tower.layer_vectors else ()
    return Layer(mixers=(mixer,), ffn=ffn, norms=(tower.norm, tower.norm), vectors=(*scales, *extra))


def _patch_vectors(v: Fields, tower: Tower, hidden: int) -> tuple[Vectors, ...]:
    """The convolution that cuts the image (or short videos) into patches."""
    if not tower.patch:
        return ()
    down, across = v.sizes("patch_size", length=2) or [16, 16]
    channels = v.optional_size("num_channels", "in_channels", "in_chans") or 3
    frames = v.size("temporal_patch_size") if tower.temporal else 1
    bias = hidden if choose(v, tower.patch_bias) else 0
    return (Vectors(name="patches", fixed=down * across * channels * frames * hidden + bias),)


def grid(v: Fields) -> int:
    """Patches of one image."""
    height, width = v.sizes("image_size", length=2) or [224, 224]
    down, across = v.sizes("patch_size", length=2) or [16, 16]
    return (height // down) * (width // across)


# -- what stands around --------------------------------------------------------------------------------------


def pooling_head(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """SigLIP's attention pooling, unless ``vision_use_head`` is false."""
    if not v.flag("vision_use_head", default=True):
        return (), ()
    width = v.size("intermediate_size")
    linears = (
        plain("head_qkv", hidden, 3 * hidden, bias=True),
        plain("head_out", hidden, hidden, bias=True),
        plain("head_up", hidden, width, bias=True),
        plain("head_down", width, hidden, bias=True),
    )
    return linears, (Vectors(name="probe_and_norm", per_hidden=3),)


def merger(norm_vectors: int, out: str) -> Callable[[Fields, int], tuple[tuple[Linear, ...], tuple[Vectors, ...]]]:
    """Qwen-VL's merger: adjacent patches concatenated, two linear layers to the text's width."""

    def around(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
        wide = hidden * v.size("spatial_merge_size") ** 2
        linears = (plain("merge_1", wide, wide, bias=True), plain("merge_2", wide, v.size(out), bias=True))
        return linears, (Vectors(name="merge_norm", per_hidden=norm_vectors),)

    return around


def deepstack(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Qwen3-VL's mergers: one after the tower and one per deepstack layer, with a norm on the merged width."""
    linears, vectors = merger(2, "out_hidden_size")(v, hidden)
    wide = hidden * v.size("spatial_merge_size") ** 2
    levels = v.sizes("deepstack_visual_indexes", least=0) or []
    renamed = tuple(x for i in range(len(levels)) for x in (_named(linears[0], i), _named(linears[1], i)))
    return (*linears, *renamed), (*vectors, Vectors(name="deepstack_norms", fixed=2 * wide * len(levels)))


def _named(x: Linear, level: int) -> Linear:
    return Linear(name=f"{x.name}_{level}", d_in=x.d_in, d_out=x.d_out, bias=x.bias, split=x.split)


def pixel_shuffle_adapter(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Llama 4's adapter behind the tower."""
    width, out = v.size("projector_input_dim"), v.size("projector_output_dim")
    return (plain("adapter_1", v.size("intermediate_size"), width), plain("adapter_2", width, out)), ()


def gated_merger(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """GLM-4V's output: a norm, a strided convolution, a projection, a norm, a gated pair of matrices."""
    out, width, merge = v.size("out_hidden_size"), v.size("intermediate_size"), v.size("spatial_merge_size")
    inner = width if v.model_type in ("glm4v_moe_vision", "glm4v_vision") else v.size("context_dim")
    inner = v.optional_size("context_dim") or inner
    linears = (
        plain("merge_projection", out, out),
        plain("merge_gate", out, inner),
        plain("merge_up", out, inner),
        plain("merge_down", inner, out),
    )
    around = Vectors(name="downsample", fixed=merge * merge * hidden * out + 3 * out)
    return linears, (around, Vectors(name="convolution_norm", per_hidden=1))


def tiles_and_gates(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Llama 3.2 Vision: aspect-ratio tables, gates, and a second, gated stack of global layers."""
    ratios, tiles = 9, v.size("max_num_tiles")
    listed = v.raw.get("supported_aspect_ratios")
    ratios = len(listed) + 1 if isinstance(listed, list) and listed else ratios
    rows = grid(v) + 1
    width, count = v.size("intermediate_size"), v.size("num_global_layers")
    per_layer = 4 * hidden * hidden + 2 * hidden * width + width + hidden + 4 * hidden + 2
    tables = ratios * tiles * hidden * (rows + 2)
    return (), (
        Vectors(name="aspect_ratios", fixed=tables + 3, embedding=True),
        Vectors(name="global_layers", fixed=count * per_layer),
    )


def mask_token(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """InternVL's tower: an optional mask token, a final norm unless it averages."""
    token = int(v.flag("use_mask_token", default=False))
    norm = 0 if v.flag("use_mean_pooling", default=True) else 2
    return (), (Vectors(name="mask_token_and_norm", per_hidden=token + norm),) if token + norm else ()


def sound_front(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Whisper's two convolutions of three taps over the spectrogram."""
    return (), (Vectors(name="convolutions", fixed=3 * hidden * (v.size("num_mel_bins") + hidden) + 2 * hidden),)


def omni_sound(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Qwen2.5-Omni's audio tower: Whisper's convolutions, a projection to the text's width, begin and end tokens."""
    out = v.size("output_dim")
    convolutions = sound_front(v, hidden)[1]
    marks = Vectors(name="begin_and_end", fixed=2 * out, embedding=True)
    return (plain("projection", hidden, out, bias=True),), (*convolutions, marks)


def strided_sound(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Qwen3-Omni's audio tower: three strided 2-d convolutions, then three linear layers."""
    width, out = v.size("downsample_hidden_size"), v.size("output_dim")
    bins = v.size("num_mel_bins")
    for _ in range(3):
        bins = (bins + 1) // 2
    linears = (
        plain("conv_out", width * bins, hidden),
        plain("projection_1", hidden, hidden, bias=True),
        plain("projection_2", hidden, out, bias=True),
    )
    return linears, (Vectors(name="convolutions", fixed=9 * width * (1 + 2 * width) + 3 * width),)


def visual_words(v: Fields, hidden: int) -> tuple[tuple[Linear, ...], tuple[Vectors, ...]]:
    """Ovis2's output: logits over a visual vocabulary with a norm; a norm after the patches."""
    words = v.size("vocab_size") - v.size("num_visual_indicator_tokens")
    head = plain("head", hidden * v.size("hidden_stride") ** 2, words)
    return (head,), (Vectors(name="head_norm", fixed=2 * words),)


def learned_grid(v: Fields, patches: int) -> int:
    """Rows of a learned position grid that is interpolated to the image (Kimi)."""
    return v.size("pos_emb_height", "init_pos_emb_height") * v.size("pos_emb_width", "init_pos_emb_width")


def optional_positions(v: Fields, patches: int) -> int:
    """A position per patch and one for the class token, unless switched off (InternVL)."""
    return patches + 1 if v.flag("use_absolute_position_embeddings", default=True) else 0


def plus(extra: int) -> Callable[[Fields, int], int]:
    """A position per patch plus ``extra``."""
    return lambda v, patches: patches + extra


def field_rows(name: str) -> Callable[[Fields, int], int]:
    """As many positions as the field ``name`` says."""
    return lambda v, patches: v.size(name)
