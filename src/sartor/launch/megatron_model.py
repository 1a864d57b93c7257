"""A model's sizes as Megatron-LM's arguments, and back.

Written against megatron/training/arguments.py of NVIDIA/Megatron-LM (commit 000c4ac2, read 2026-11-21); the names are
in tests/golden/launch_arguments.csv.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sartor.errors import InputError
from sartor.launch.flags import Flags
from sartor.model.defaults import VOCAB_MULTIPLE
from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    Ffn,
    LatentAttentionMixer,
    Layer,
    Mixer,
    MoeFfn,
    Norm,
    NormKind,
    Vectors,
)
from sartor.model.shape import Stack, TransformerShape
from sartor.read.families.parts import group_layers
from sartor.units import round_up

Argument = tuple[str, ...]

# -- writing ------------------------------------------------------------------------------------------------------


def model_arguments(shape: TransformerShape, tp: Any, seq_len: int) -> tuple[list[Argument], list[str]]:
    """The arguments that describe a model, and what they cannot say. Raises `InputError` for what is no GPT model."""
    layers = list(_layers(shape))
    mixer, notes = _mixer(shape, layers), list[str]()
    dense = next((x.ffn for x in layers if isinstance(x.ffn, DenseFfn)), None)
    moe = next((x.ffn for x in layers if isinstance(x.ffn, MoeFfn)), None)
    some = dense or (moe.expert if moe else None)
    if some is None:
        raise _no(shape, "layers without a feed-forward part")
    out: list[Argument] = [
        ("--num-layers", str(len(layers))),
        ("--hidden-size", str(shape.hidden_size)),
        ("--ffn-hidden-size", str(some.ffn_hidden_size)),
    ]
    out += list(_attention_arguments(shape, layers, mixer))
    out += list(_activation(some, notes))
    out += list(_biases(mixer, some))
    out += list(_norm_arguments(shape, mixer, layers))
    out += list(_vocabulary(shape, tp, notes))
    longest = max(shape.max_positions, seq_len, int(shape.learned_positions))
    rotated = mixer.rotary_dim if isinstance(mixer, AttentionMixer) else mixer.head_dim
    kind = "learned_absolute" if shape.learned_positions else "rope" if rotated else "none"
    out += [("--position-embedding-type", kind)]
    if isinstance(mixer, AttentionMixer) and 0 < rotated < mixer.head_dim:
        out += [("--rotary-percent", f"{rotated / mixer.head_dim:g}")]
    out += [("--max-position-embeddings", str(shape.learned_positions or longest))]
    out += list(_expert_arguments(moe, layers))
    if shape.mtp_layers:
        out += [("--mtp-num-layers", str(shape.mtp_layers))]
    return out, notes


def _layers(shape: TransformerShape) -> Iterator[Layer]:
    """Every layer in order."""
    if len([s for s in shape.stacks if s.is_text]) > 1 or shape.encoder_only:
        raise _no(shape, "more than one decoder stack")
    runs = shape.main.runs
    if all(len(run.positions) == int(run.count) for run in runs):
        places = sorted((p, k) for k, run in enumerate(runs) for p in run.positions)
        yield from (runs[k].layer for _, k in places)
        return
    for run in runs:
        yield from [run.layer] * int(run.count)


def _mixer(shape: TransformerShape, layers: list[Layer]) -> AttentionMixer | LatentAttentionMixer:
    """The one attention all layers have, their windows aside."""
    found: dict[object, AttentionMixer | LatentAttentionMixer] = {}
    for layer in layers:
        if len(layer.mixers) != 1 or not isinstance(layer.mixers[0], (AttentionMixer, LatentAttentionMixer)):
            raise _no(shape, "layers that are not one attention each")
        if layer.parallel or len(layer.all_ffns) != 1:
            raise _no(shape, "attention and feed-forward in parallel")
        mixer = layer.mixers[0]
        found[(mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.value_dim)] = mixer
        if mixer.cross or mixer.shares_kv or mixer.projections or getattr(mixer, "gated", False):
            raise _no(shape, "attention with further projections")
    if len(found) != 1:
        raise _no(shape, "attention of several sizes")
    return next(iter(found.values()))


def _no(shape: TransformerShape, what: str) -> InputError:
    name = shape.name or shape.model_type or "this shape"
    return InputError("MODEL", name, f"Megatron-LM's GPT arguments cannot say {what}", "a decoder of equal layers")


def _attention_arguments(
    shape: TransformerShape, layers: list[Layer], mixer: AttentionMixer | LatentAttentionMixer
) -> Iterator[Argument]:
    yield ("--num-attention-heads", str(mixer.num_heads))
    if isinstance(mixer, LatentAttentionMixer):
        yield ("--multi-latent-attention",)
        if mixer.q_lora_rank:
            yield ("--q-lora-rank", str(mixer.q_lora_rank))
        yield ("--kv-lora-rank", str(mixer.kv_lora_rank))
        yield ("--qk-head-dim", str(mixer.qk_nope_head_dim))
        yield ("--qk-pos-emb-head-dim", str(mixer.qk_rope_head_dim))
        yield ("--v-head-dim", str(mixer.v_head_dim))
        return
    if mixer.head_dim * mixer.num_heads != shape.hidden_size:
        yield ("--kv-channels", str(mixer.head_dim))
    if mixer.num_kv_heads != mixer.num_heads:
        yield ("--group-query-attention",)
        yield ("--num-query-groups", str(mixer.num_kv_heads))
    windows = [int(getattr(layer.mixers[0], "window", 0)) for layer in layers]
    if any(windows):
        yield ("--window-size", f"{max(windows) - 1},0")
        if not all(windows):
            yield ("--window-attn-skip-freq", pattern_text([int(bool(w)) for w in windows]))
    if any(v.name == "sinks" for v in mixer.vectors):
        yield ("--softmax-type", "learnable")


def _activation(ffn: DenseFfn, notes: list[str]) -> Iterator[Argument]:
    """The activation; a gated one that is not SiLU has the products of --swiglu."""
    word = ffn.activation.lower()
    if ffn.gated:
        if word not in ("silu", "swish", "swiglu"):
            notes.append(f"activation {ffn.activation}: Megatron has no argument for this gate; written as --swiglu")
        yield ("--swiglu",)
    elif word in ("relu2", "squared_relu", "relu_squared"):
        yield ("--squared-relu",)
    elif not word.startswith("gelu"):
        notes.append(f"activation {ffn.activation}: Megatron only has arguments for GELU and squared ReLU")


def _biases(mixer: AttentionMixer | LatentAttentionMixer, ffn: DenseFfn) -> Iterator[Argument]:
    everywhere = ffn.up_bias and (mixer.bias if isinstance(mixer, LatentAttentionMixer) else mixer.out_bias)
    if not everywhere:
        yield ("--disable-bias-linear",)
        if isinstance(mixer, AttentionMixer) and mixer.q_bias:
            yield ("--add-qkv-bias",)


def _norm_arguments(
    shape: TransformerShape, mixer: AttentionMixer | LatentAttentionMixer, layers: list[Layer]
) -> Iterator[Argument]:
    norm = next((n for layer in layers for n in layer.norms), Norm())
    yield ("--normalization", "RMSNorm" if norm.kind is NormKind.RMS_NORM else "LayerNorm")
    if any(v.name in ("q_norm", "k_norm") for v in mixer.vectors):
        yield ("--qk-layernorm",)


def _vocabulary(shape: TransformerShape, tp: Any, notes: list[str]) -> Iterator[Argument]:
    """The vocabulary, and a multiple that leaves it as it is where one of 8 or more does."""
    if not shape.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    vocab = int(shape.vocab_size)
    multiple = next((m for m in (128, 64, 32, 16, 8) if vocab % (m * tp) == 0), VOCAB_MULTIPLE)
    padded = round_up(vocab, multiple * tp)
    if padded != vocab:
        notes.append(f"vocab_size={vocab}: Megatron pads it to {padded}, a multiple of {multiple} x tp")
    yield ("--vocab-size", str(vocab))
    yield ("--make-vocab-size-divisible-by", str(multiple))


def _expert_arguments(moe: MoeFfn | None, layers: list[Layer]) -> Iterator[Argument]:
    if moe is None:
        return
    yield ("--num-experts", str(moe.num_experts))
    yield ("--moe-router-topk", str(moe.experts_per_token))
    yield ("--moe-ffn-hidden-size", str(moe.expert.ffn_hidden_size))
    if moe.shared is not None:
        yield ("--moe-shared-expert-intermediate-size", str(moe.shared.ffn_hidden_size))
    sparse = [int(isinstance(layer.ffn, MoeFfn)) for layer in layers]
    if not all(sparse):
        yield ("--moe-layer-freq", pattern_text(sparse))
    if any(v.name == "score_bias" for v in moe.vectors):
        yield ("--moe-router-enable-expert-bias",)
        yield ("--moe-router-score-function", "sigmoid")
    yield ("--moe-grouped-gemm",)


def pattern_text(bits: list[int]) -> str:
    """A pattern as Megatron writes it: ``[0,0,0,1,1]`` -> ``([0]*3+[1]*2)``.

    >>> pattern_text([0, 0, 0, 1, 1])
    '([0]*3+[1]*2)'
    """
    runs: list[list[int]] = []
    for bit in bits:
        if runs and runs[-1][0] == bit:
            runs[-1][1] += 1
        else:
            runs.append([bit, 1])
    return "(" + "+".join(f"[{bit}]*{count}" for bit, count in runs) + ")"


# -- reading ------------------------------------------------------------------------------------------------------


def read_model(flags: Flags, tp: int) -> TransformerShape | None:
    """The model of a launch; None where it has no sizes at all. Missing ones take Megatron's defaults, said in
    ``flags.assumptions``. Raises `InputError`."""
    layers = flags.size("--num-layers") or flags.size("--encoder-num-layers")
    hidden, heads = flags.size("--hidden-size"), flags.size("--num-attention-heads")
    if layers is None and hidden is None and heads is None:
        return None
    needed = (("--num-layers", layers), ("--hidden-size", hidden), ("--num-attention-heads", heads))
    missing = next((name for name, value in needed if value is None), None)
    if missing:
        raise InputError(missing, "missing", "must be given, as Megatron-LM has no default for it")
    assert layers is not None
    assert hidden is not None
    assert heads is not None
    norm = _read_norm(flags)
    kinds = _read_layers(flags, layers, hidden, heads, norm)
    vocab = _read_vocabulary(flags, tp)
    learned = _learned_positions(flags)
    stack = Stack(name="decoder", hidden_size=hidden, runs=group_layers(kinds), norms=(norm,))
    return TransformerShape(
        name="megatron",
        stacks=(stack,),
        vocab_size=vocab,
        max_positions=flags.size("--max-position-embeddings", 0) or 0,
        learned_positions=learned,
        tied_embeddings=not flags.on("--untie-embeddings-and-output-weights"),
        mtp_layers=flags.size("--mtp-num-layers", 0, least=0) or 0,
        model_type="megatron",
    )


def _read_norm(flags: Flags) -> Norm:
    kind = flags.word("--normalization", ("LayerNorm", "RMSNorm")) or "LayerNorm"
    return Norm() if kind == "RMSNorm" else Norm(kind=NormKind.LAYER_NORM, bias=True)


def _read_layers(flags: Flags, layers: int, hidden: int, heads: int, norm: Norm) -> list[Layer]:
    """Every layer in order, equal ones the same object."""
    local, wide = _read_mixers(flags, hidden, heads)
    windows = _read_windows(flags, layers)
    dense, moe = _read_ffns(flags, hidden)
    sparse = _read_pattern(flags, "--moe-layer-freq", layers) if moe else [0] * layers
    made: dict[tuple[int, int], Layer] = {}
    for key in set(zip(windows, sparse, strict=True)):
        ffn: Ffn = moe if key[1] and moe else dense
        made[key] = Layer(mixers=(local if key[0] else wide,), ffn=ffn, norms=(norm, norm))
    return [made[key] for key in zip(windows, sparse, strict=True)]


def _read_mixers(flags: Flags, hidden: int, heads: int) -> tuple[Mixer, Mixer]:
    """Attention of layers with a window, and of those without."""
    biased = not flags.on("--disable-bias-linear")
    qkv = flags.on("--add-qkv-bias") or biased
    if flags.on("--multi-latent-attention"):
        latent = _read_latent(flags, heads)
        return latent, latent
    head_dim = flags.size("--kv-channels")
    if head_dim is None:
        if hidden % heads:
            must = f"must divide --hidden-size {hidden}, as there is no --kv-channels"
            raise InputError("--num-attention-heads", heads, must)
        head_dim = hidden // heads
    groups = flags.size("--num-query-groups", 1) or 1
    kv_heads = groups if flags.on("--group-query-attention") else heads
    if heads % kv_heads:
        raise InputError("--num-query-groups", kv_heads, f"must divide --num-attention-heads {heads}")
    window = _window(flags)
    made = []
    for span in (window, 0):
        made.append(
            AttentionMixer(
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_dim=head_dim,
                window=span,
                q_bias=qkv,
                kv_bias=qkv,
                out_bias=biased,
                rotary_dim=_rotary(flags, head_dim),
                vectors=_attention_vectors(flags, heads, head_dim),
            )
        )
    return made[0], made[1]


def _read_latent(flags: Flags, heads: int) -> LatentAttentionMixer:
    q_rank = flags.size("--q-lora-rank", 0, least=0) or 0
    kv_rank = flags.size("--kv-lora-rank", 32) or 32
    norms = (("q_norm", q_rank), ("kv_norm", kv_rank))
    flags.on("--qk-layernorm", "--group-query-attention", "--num-query-groups", "--kv-channels")
    return LatentAttentionMixer(
        num_heads=heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=flags.size("--qk-head-dim", 128) or 128,
        qk_rope_head_dim=flags.size("--qk-pos-emb-head-dim", 64, least=0) or 0,
        v_head_dim=flags.size("--v-head-dim", 128) or 128,
        vectors=tuple(Vectors(name=name, fixed=size) for name, size in norms if size),
    )


def _attention_vectors(flags: Flags, heads: int, head_dim: int) -> tuple[Vectors, ...]:
    norms = tuple(Vectors(name=f"{x}_norm", fixed=head_dim) for x in "qk" if flags.on("--qk-layernorm"))
    learnable = flags.word("--softmax-type", ("vanilla", "learnable", "off-by-one")) == "learnable"
    return (*norms, *((Vectors(name="sinks", fixed=heads),) if learnable else ()))


def _rotary(flags: Flags, head_dim: int) -> int:
    kinds = ("learned_absolute", "rope", "mrope", "yarn", "relative", "none")
    kind = flags.word("--position-embedding-type", kinds)
    rotated = flags.on("--use-rotary-position-embeddings") or kind in ("rope", "mrope", "yarn")
    share = flags.number("--rotary-percent", 1.0)
    return int(head_dim * min(max(share, 0.0), 1.0)) if rotated else 0


def _learned_positions(flags: Flags) -> int:
    kind = flags.word("--position-embedding-type")
    if flags.on("--use-rotary-position-embeddings", "--no-position-embedding") or kind not in (
        None,
        "learned_absolute",
    ):
        return 0
    return flags.size("--max-position-embeddings", 0) or 0


def _window(flags: Flags) -> int:
    text = flags.word("--window-size")
    found = re.fullmatch(r"\(?\s*(-?\d{1,9})\s*(?:,\s*-?\d{1,9}\s*)?\)?", text or "")
    return max(int(found[1]) + 1, 0) if found else 0


def _read_windows(flags: Flags, layers: int) -> list[int]:
    if not flags.on("--window-size"):
        return [0] * layers
    text = flags.word("--window-attn-skip-freq")
    if text is None:
        return [1] * layers
    if text.isdigit():  # N: every N-th layer sees all.
        return [int((k + 1) % max(int(text), 1) != 0) for k in range(layers)]
    return _read_pattern(flags, "--window-attn-skip-freq", layers)


def _read_ffns(flags: Flags, hidden: int) -> tuple[DenseFfn, MoeFfn | None]:
    gated = flags.on("--swiglu", "--quick-geglu")
    width = flags.size("--ffn-hidden-size")
    if width is None:
        width = hidden * 8 // 3 // 64 * 64 if gated else 4 * hidden
        flags.assumptions.append(f"--ffn-hidden-size={width} (Megatron's default)")
    squared = flags.on("--squared-relu")
    bias = not flags.on("--disable-bias-linear")
    activation = "silu" if gated else "relu2" if squared else "gelu"
    dense = DenseFfn(ffn_hidden_size=width, gated=gated, up_bias=bias, down_bias=bias, activation=activation)
    experts = flags.size("--num-experts")
    if not experts:
        return dense, None
    expert = DenseFfn(
        ffn_hidden_size=flags.size("--moe-ffn-hidden-size", width) or width,
        gated=gated,
        up_bias=bias,
        down_bias=bias,
        activation=activation,
    )
    shared = flags.size("--moe-shared-expert-intermediate-size")
    top = flags.size("--moe-router-topk", 2) or 2
    if top > experts:
        raise InputError("--moe-router-topk", top, f"must be at most --num-experts {experts}", str(experts))
    return dense, MoeFfn(
        num_experts=experts,
        experts_per_token=top,
        expert=expert,
        shared=DenseFfn(ffn_hidden_size=shared, gated=gated, up_bias=bias, down_bias=bias) if shared else None,
        vectors=(Vectors(name="score_bias", fixed=experts),) if flags.on("--moe-router-enable-expert-bias") else (),
    )


def _read_pattern(flags: Flags, name: str, layers: int) -> list[int]:
    """``1``, ``N`` (one of N), or a list expression of zeros and ones: one entry per layer."""
    text = flags.word(name)
    if text is None:
        return [1] * layers
    if text.isdigit():
        every = max(int(text), 1)
        return [int(k % every == 0) for k in range(layers)]
    bits = expand_pattern(name, text)
    if len(bits) != layers:
        raise InputError(name, text, f"must have {layers} entries, one per layer; it has {len(bits)}")
    return bits


def expand_pattern(name: str, text: str) -> list[int]:
    """``([0]*3+[1]*2)*2`` as a list, by a reader of lists, ``+`` and ``*`` alone. Raises `InputError`.

    >>> expand_pattern("--moe-layer-freq", "([0]*2+[1])*2")
    [0, 0, 1, 0, 0, 1]
    """
    tokens = re.findall(r"\[[01,\s]*\]|\d+|[()+*]", text)
    if "".join(tokens) != text.replace(" ", "") and "".join(tokens).replace(" ", "") != text.replace(" ", ""):
        raise InputError(name, text, "must be a list of 0 and 1 with + and *, as ([0]*3+[1]*5)")
    try:
        bits = _terms(tokens)
    except (IndexError, ValueError):
        bits, tokens = [], ["?"]
    if tokens or not bits:
        raise InputError(name, text, "must be a list of 0 and 1 with + and *, as ([0]*3+[1]*5)")
    return bits


def _terms(tokens: list[str]) -> list[int]:
    out = _factor(tokens)
    while tokens and tokens[0] == "+":
        tokens.pop(0)
        out = out + _factor(tokens)
    return out


def _factor(tokens: list[str]) -> list[int]:
    token = tokens.pop(0)
    if token == "(":
        out = _terms(tokens)
        if tokens.pop(0) != ")":
            raise ValueError(token)
    else:
        if not token.startswith("["):
            raise ValueError(token)
        out = [int(bit) for bit in re.findall(r"[01]", token)]
    while tokens and tokens[0] == "*":
        tokens.pop(0)
        times = int(tokens.pop(0))
        if len(out) * times > 100_000:
            raise ValueError(times)
        out = out * times
    return out


def _read_vocabulary(flags: Flags, tp: int) -> int:
    """The padded vocabulary, which is what is trained."""
    padded = flags.size("--padded-vocab-size")
    multiple = flags.size("--make-vocab-size-divisible-by", VOCAB_MULTIPLE) or VOCAB_MULTIPLE
    vocab = flags.size("--vocab-size")
    if padded:
        return padded
    if vocab is None:
        vocab = 50257
        flags.assumptions.append("--vocab-size=50257 (not given: the tokenizer says it; GPT-2's is taken)")
    rounded = int(round_up(vocab, multiple * tp))
    if rounded != vocab:
        flags.assumptions.append(f"vocabulary {vocab} is padded to {rounded}, a multiple of {multiple} x tp")
    return rounded
