"""Vision-language and audio-language models: the language model of a nested config, with towers and projectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sartor.model.layer import AttentionMixer, Linear, VectorRole, Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families import read_as, read_part
from sartor.read.families.decoder import Family, QkNorm, read_decoder
from sartor.read.families.parts import group_layers, layer_norm, plain
from sartor.read.families.tabled import is_tabled, without_sections
from sartor.read.families.towers import read_tower, tower_of
from sartor.read.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """Input of a projector: fields of the model, the tower and the text model, and both widths."""

    f: Fields
    v: Fields
    t: Fields
    vision: int
    text: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Linear layers and other parameters of a projector."""

    linears: tuple[Linear, ...] = ()
    vectors: tuple[Vectors, ...] = ()


Projector = Callable[[Bridge], _Parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FurtherTower:
    """A further tower: its field, its default type, its projector."""

    tower_field: str
    tower: str
    projector: Projector


@dataclass(frozen=True, slots=True, kw_only=True)
class Multimodal:
    """Fields of a class's parts. ``text`` and ``tower``: default model types of the nested configs."""

    text: str = "llama"
    tower: str = "clip_vision_model"
    text_field: str = "text_config"
    tower_field: str = "vision_config"
    towers: int = 1
    projector: Projector | None = None
    also: tuple[_FurtherTower, ...] = ()
    text_says_tied: bool = False
    """Whether the head is tied is in the text's config, not the whole model's."""
    flat: bool = False
    """Older files hold the text's fields at the top level."""


def read_multimodal(f: Fields, family: Multimodal) -> TransformerShape:
    """The language model, exact, and its towers, exact where their type is known."""
    if not family.flat and without_sections(f):
        return _text_alone(f, family)
    t = _text_fields(f, family)
    if family.projector is None:
        if not is_tabled(f.model_type):
            f.ledger.guess(f"the towers of {f.model_type} are left out: only the text part is counted")
        return _read_text(f, t)
    shape = _read_text(f, t, text_says_tied=family.text_says_tied)
    first = _FurtherTower(tower_field=family.tower_field, tower=family.tower, projector=family.projector)
    for beside in (first, *family.also):
        stacks = _tower_stacks(f, t, beside, int(shape.hidden_size), family.towers)
        shape = replace(shape, stacks=(*shape.stacks, *stacks))
    return shape


def _tower_stacks(f: Fields, t: Fields, beside: _FurtherTower, text: int, copies: int) -> tuple[Stack, ...]:
    """A tower and its projector as stacks; none if the tower's type is unknown, which is recorded."""
    if f.given(beside.tower_field) is None:
        f.ledger.guess(
            f"{beside.tower_field} is not in the file, so the tower is not determined: the published class's "
            "default one is counted; the text part is exact"
        )
    v = f.part(beside.tower_field, beside.tower)
    tower = tower_of(v.model_type)
    if tower is None:
        f.ledger.guess(f"the tower {v.model_type or 'without model_type'} is left out: only the text part is counted")
        return ()
    name = beside.tower_field.removesuffix("_config")
    stack = read_tower(v, tower, name=name)
    bridge = beside.projector(Bridge(f=f, v=v, t=t, vision=int(stack.hidden_size), text=text))
    projector = Stack(
        name=f"{name}_projector",
        hidden_size=text,
        runs=(),
        linears=bridge.linears,
        vectors=bridge.vectors,
        is_text=False,
        tokens=0,
    )
    return (*(replace(stack, name=f"{name}{i or ''}") for i in range(copies)), projector)


def _text_fields(f: Fields, family: Multimodal) -> Fields:
    """The text model's fields, nested or (older files) at the top level."""
    flat = family.flat and f.given(family.text_field) is None
    if flat:
        raw = {k: x for k, x in f.raw.items() if k not in (family.tower_field, "model_type")}
        return Fields(raw, family.text, "", f.ledger, f.architecture)
    kind = f.defaults.nested.get(family.text_field, family.text)
    t = f.part(family.text_field, kind)
    return t


def _text_alone(f: Fields, family: Multimodal) -> TransformerShape:
    """The text model of a file without sections, whose sizes can be those of nothing else."""
    kind = f.defaults.nested.get(family.text_field, family.text)
    f.ledger.guess(f"{f.model_type} has no {family.text_field} here: its sizes are read as those of {kind} alone")
    raw = {name: value for name, value in f.raw.items() if name != "model_type"}
    return read_part(Fields(raw, kind, "", f.ledger, f.architecture))


def _read_text(f: Fields, t: Fields, *, text_says_tied: bool = False) -> TransformerShape:
    """The language model's shape; whether its head is tied is in the whole model's config."""
    shape = read_part(t)
    tied = (t if text_says_tied else f).flag("tie_word_embeddings", default=False)
    return replace(shape, tied_embeddings=tied) if shape.lm_head else shape


# -- projectors ----------------------------------------------------------------------------------------------


def _two_linears(width: int, middle: int, out: int, *, bias: bool = True) -> tuple[Linear, Linear]:
    """The usual projector: two linear layers with an activation in between."""
    return plain("linear_1", width, middle, bias=bias), plain("linear_2", middle, out, bias=bias)


def _norm_of(size: int) -> tuple[Vectors]:
    """A norm's weights (and biases)."""
    return (Vectors(name="norm", fixed=size),)


def _side_by_side(b: Bridge) -> int:
    """Width of the tower's output: several feature layers are concatenated."""
    layers = b.f.given("vision_feature_layer")
    return b.vision * (len(layers) if isinstance(layers, list) else 1)


def two_layers(b: Bridge) -> _Parts:
    """LLaVA: two linear layers with a GELU in between."""
    bias = b.f.flag("multimodal_projector_bias", default=True)
    return _Parts(linears=_two_linears(_side_by_side(b), b.text, b.text, bias=bias))


def with_newline(b: Bridge) -> _Parts:
    """LLaVA-NeXT: LLaVA's, and a learned end of an image row."""
    return replace(two_layers(b), vectors=(Vectors(name="image_newline", fixed=b.text),))


def vip(b: Bridge) -> _Parts:
    """ViP-LLaVA: a norm over five concatenated feature layers, then two linear layers."""
    width = b.vision * len(b.f.sizes("vision_feature_layers", least=-1000) or [-2, -5, -8, -11, 6])
    bias = b.f.flag("multimodal_projector_bias", default=True)
    return _Parts(linears=_two_linears(width, b.text, b.text, bias=bias), vectors=_norm_of(2 * width))


def shuffled(b: Bridge) -> _Parts:
    """InternVL: pixels shuffled into channels, a norm, two linear layers."""
    width = b.vision * int(1 / (b.f.number("downsample_ratio") or 0.5)) ** 2
    return _Parts(linears=_two_linears(width, b.text, b.text), vectors=_norm_of(2 * width))


def aya(b: Bridge) -> _Parts:
    """Aya Vision: shuffled pixels through a norm and a gated pair of linear layers."""
    width = b.vision * b.f.size("downsample_factor") ** 2
    middle = b.f.optional_size("alignment_intermediate_size") or b.text
    linears = (plain("linear_1", width, middle, bias=True), plain("linear_2", middle // 2, b.text, bias=True))
    return _Parts(linears=linears, vectors=_norm_of(2 * width))


def command(b: Bridge) -> _Parts:
    """Command A Vision: as Aya's, without the norm."""
    return replace(aya(b), vectors=())


def soft_tokens(b: Bridge) -> _Parts:
    """Gemma 3: a norm and one matrix."""
    return _Parts(linears=(plain("input_projection", b.vision, b.text),), vectors=_norm_of(b.vision))


def one_layer(b: Bridge) -> _Parts:
    """PaliGemma: one linear layer."""
    return _Parts(linears=(plain("linear", b.vision, b.v.optional_size("projection_dim") or b.text, bias=True),))


def scaled(b: Bridge) -> _Parts:
    """Idefics3 and SmolVLM: adjacent patches concatenated, one matrix."""
    return _Parts(linears=(plain("projection", b.vision * b.f.size("scale_factor") ** 2, b.text),))


def merged(b: Bridge) -> _Parts:
    """Mistral 3: a norm, patches merged, two linear layers."""
    bias = b.f.flag("multimodal_projector_bias", default=False)
    merge = plain("merge", b.vision * b.f.size("spatial_merge_size") ** 2, b.vision)
    linears = _two_linears(_side_by_side(b), b.text, b.text, bias=bias)
    return _Parts(linears=(merge, *linears), vectors=_norm_of(b.vision))


def output_width(bias: bool) -> Projector:
    """Llama: one linear layer from the tower's stated output width."""
    return lambda b: _Parts(linears=(plain("linear", b.v.size("vision_output_dim"), b.text, bias=bias),))


def with_norm(b: Bridge) -> _Parts:
    """LFM2-VL: patches concatenated, an optional norm, two linear layers."""
    width = b.vision * b.f.size("downsample_factor") ** 2
    middle, bias = b.f.size("projector_hidden_size"), b.f.flag("projector_bias", default=True)
    normed = b.f.flag("projector_use_layernorm", default=True)
    linears = _two_linears(width, middle, b.text, bias=bias)
    return _Parts(linears=linears, vectors=_norm_of(2 * width) if normed else ())


def aligned(b: Bridge) -> _Parts:
    """DeepSeek-VL: two linear layers."""
    return _Parts(linears=_two_linears(b.vision, b.text, b.text))


def querying(b: Bridge) -> _Parts:
    """BLIP-2 and InstructBLIP: learned queries through a Q-Former (arXiv 2301.12597), then one linear layer."""
    q = b.f.part("qformer_config", f"{b.f.model_type.replace('-', '_').replace('video', '')}_qformer")
    h, count, width = q.size("hidden_size"), q.layers("num_hidden_layers"), q.size("intermediate_size")
    crossed = -(-count // q.size("cross_attention_frequency"))
    reads_text = b.f.model_type != "blip-2"
    source = q.size("encoder_hidden_size")
    sides = 2 if reads_text else 1
    block = [replace(plain(n, h, h, bias=True), count=count) for n in ("q", "k", "v", "out")]
    block += [replace(plain(n, a, c, bias=True), count=crossed) for n, a, c in _cross(h, source)]
    block += [
        replace(plain("up", h, width, bias=True), count=sides * count),
        replace(plain("down", width, h, bias=True), count=sides * count),
    ]
    norms = 2 * h * (count + crossed + sides * count + 1)
    tables = h * (q.size("vocab_size") + q.size("max_position_embeddings")) if reads_text else 0
    queries = b.f.size("num_query_tokens") * h
    return _Parts(
        linears=(*(replace(x, name=f"qformer_{x.name}") for x in block), plain("projection", h, b.text, bias=True)),
        vectors=(Vectors(name="qformer_norms", fixed=norms + queries), Vectors(name="qformer_tables", fixed=tables)),
    )


def _cross(h: int, source: int) -> tuple[tuple[str, int, int], ...]:
    return (("cross_q", h, h), ("cross_k", source, h), ("cross_v", source, h), ("cross_out", h, h))


def wide_sound(b: Bridge) -> _Parts:
    """Voxtral: several frames concatenated, two matrices."""
    return _Parts(linears=(plain("linear_1", b.v.size("intermediate_size"), b.text), plain("linear_2", b.text, b.text)))


def normed_merge(b: Bridge) -> _Parts:
    """PaddleOCR-VL and Kimi: a norm, adjacent patches concatenated, two linear layers."""
    field = next((n for n in ("merge_kernel_size", "spatial_merge_size") if b.v.has(n)), "spatial_merge_size")
    rows, columns = b.v.sizes(field, length=2) or [2, 2]
    width = b.vision * rows * columns
    return _Parts(linears=_two_linears(width, width, b.text), vectors=_norm_of(2 * b.vision))


def visual_table(b: Bridge) -> _Parts:
    """Ovis2: a table of visual words."""
    size = b.v.size("vocab_size") * (b.f.optional_size("hidden_size") or b.text)
    return _Parts(vectors=(Vectors(name="visual_words", fixed=size, embedding=True),))


def resampled(b: Bridge) -> _Parts:
    """Kosmos-2: learned queries attend to the projected patches."""
    queries = Vectors(name="queries", fixed=b.f.size("latent_query_num") * b.text)
    attention = tuple(plain(x, b.text, b.text, bias=True) for x in ("q", "k", "v", "out"))
    return _Parts(linears=(plain("dense", b.vision, b.text, bias=True), *attention), vectors=(queries,))


def nothing(_: Bridge) -> _Parts:
    """No projector: the tower's output has the text's width already."""
    return _Parts()


def one_linear(b: Bridge) -> _Parts:
    """Qwen2-Audio: one linear layer."""
    return _Parts(linears=(plain("linear", b.vision, b.text, bias=True),))


def perceiver(b: Bridge) -> _Parts:
    """Idefics2: a gated projection and a perceiver whose latents attend to the patches."""
    width = b.t.size("intermediate_size")
    p = b.f.part("perceiver_config", "idefics2_perceiver")
    hidden, depth = p.optional_size("hidden_size") or b.text, p.size("resampler_depth")
    heads, kv_heads, head_dim = p.size("resampler_n_heads"), p.size("num_key_value_heads"), p.size("resampler_head_dim")
    linears = [plain("gate", b.vision, width), plain("up", b.vision, width), plain("down", width, b.text)]
    block = (
        ("q", hidden, heads * head_dim),
        ("k", hidden, kv_heads * head_dim),
        ("v", hidden, kv_heads * head_dim),
        ("out", heads * head_dim, hidden),
        ("gate", hidden, 4 * hidden),
        ("up", hidden, 4 * hidden),
        ("down", 4 * hidden, hidden),
    )
    linears += [replace(plain(f"perceiver_{n}", a, c), count=depth) for n, a, c in block]
    vectors = Vectors(name="latents_and_norms", fixed=hidden * (p.size("resampler_n_latents") + 3 * depth + 1))
    return _Parts(linears=tuple(linears), vectors=(vectors,))


def read_mllama_text(f: Fields) -> TransformerShape:
    """Llama 3.2's text model: gated cross-attention layers, which text without an image skips."""
    shape = read_as(f, "llama")
    count, hidden = int(shape.num_layers), int(shape.hidden_size)
    where = f.sizes("cross_attention_layers", least=0) or []
    layer = shape.main.runs[0].layer
    mixer, ffn = layer.mixers[0], layer.ffn
    assert isinstance(mixer, AttentionMixer)
    assert ffn is not None
    idle = tuple(replace(x, rows=0) for x in ffn.linears(hidden))
    cross = replace(
        mixer,
        cross=True,
        causal=False,
        name="cross_attention",
        own_linears=tuple(replace(x, rows=0) for x in mixer.linears(hidden)),
        vectors=(Vectors(name="qk_norms", role=VectorRole.HEAD_NORM, fixed=2 * int(mixer.head_dim)),),
    )
    gated = replace(layer, mixers=(cross,), ffn=None, linears=idle, vectors=(Vectors(name="gates", fixed=2),))
    layers = [gated if i in where else layer for i in range(count)]
    stack = replace(shape.main, runs=group_layers(layers))
    special = Vectors(name="image_tokens", fixed=8 * hidden, embedding=True)
    return replace(shape, stacks=(stack,), vectors=(*shape.vectors, special))


def read_fuyu(f: Fields) -> TransformerShape:
    """Fuyu: no tower; patches of pixels go through one linear layer into a Persimmon model."""
    t = f.nested("text_config", "persimmon") or Fields(f.raw, "persimmon", "", f.ledger, f.architecture)
    shape = _read_text(f, t)
    side = f.size("patch_size")
    pixels = plain("patches", side * side * f.size("num_channels"), int(shape.hidden_size), bias=True)
    stack = Stack(name="vision", hidden_size=shape.hidden_size, runs=(), linears=(pixels,), is_text=False, tokens=0)
    return replace(shape, stacks=(*shape.stacks, stack))


CHAMELEON = Family(qk_norm=QkNorm.PER_HEAD, qk_norm_bias=True, q_bias="attention_bias", out_bias="attention_bias")


def read_chameleon(f: Fields) -> TransformerShape:
    """Chameleon (arXiv 2405.09818): one decoder over text and image tokens; its image tokenizer is not text."""
    f.ledger.guess("the image tokenizer of chameleon is left out: only the text part is counted")
    return read_decoder(f, CHAMELEON)


KOSMOS = Family(
    norm=layer_norm(),
    q_bias=True,
    out_bias=True,
    mlp_bias=True,
    gated=False,
    ffn=("ffn_dim",),
    attention_vectors=lambda _f, s: (Vectors(name="inner_norm", role=VectorRole.HEAD_NORM, fixed=2 * s.hidden),),
    ffn_vectors=lambda _f, _s, width: (Vectors(name="ffn_norm", fixed=2 * width),),
)


def read_kosmos_text(f: Fields) -> TransformerShape:
    """Kosmos-2's text model (arXiv 2306.14824): norms inside attention and feed-forward part."""
    names = {"layers": "num_hidden_layers", "attention_heads": "num_attention_heads", "embed_dim": "hidden_size"}
    renamed = {new: f.raw[old] for old, new in names.items() if f.given(old) is not None}
    return read_decoder(replace(f, raw={**f.raw, **renamed}), KOSMOS)
