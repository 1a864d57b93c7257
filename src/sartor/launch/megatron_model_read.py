"""Read a model's sizes from Megatron-LM's arguments; `megatron_model` writes them."""

from __future__ import annotations

import re
from dataclasses import replace

from sartor.errors import InputError
from sartor.launch.fields import read_numerics
from sartor.launch.plan import LaunchKind, model_named
from sartor.launch.stated import Flags
from sartor.model.layer import (
    MOST_ROUTING_GROUPS,
    AttentionMixer,
    DenseFfn,
    Ffn,
    LatentAttentionMixer,
    Layer,
    Mixer,
    MoeFfn,
    Norm,
    NormKind,
    SharedWidth,
    VectorRole,
    Vectors,
)
from sartor.model.shape import MAX_LAYERS, Numerics, Stack, TransformerShape, Value
from sartor.model.workload import VOCAB_MULTIPLE
from sartor.read.families.parts import group_layers
from sartor.units import round_up


def read_model(flags: Flags, tp: int) -> TransformerShape | None:
    """The model of a launch; None if it gives no sizes at all. Missing ones get Megatron's defaults, listed in
    ``flags.assumptions``. Raises `InputError`."""
    layers = flags.size("--num-layers", most=MAX_LAYERS) or flags.size("--encoder-num-layers", most=MAX_LAYERS)
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
    shape = TransformerShape(
        name="megatron",
        stacks=(stack,),
        vocab_size=vocab,
        max_positions=flags.size("--max-position-embeddings", 0) or 0,
        learned_positions=learned,
        tied_embeddings=not flags.on("--untie-embeddings-and-output-weights"),
        mtp_layers=flags.size("--mtp-num-layers", 0, least=0, most=MAX_LAYERS) or 0,
        model_type="megatron",
    )
    return replace(shape, numerics=_read_numerics(flags, shape))


def _read_numerics(flags: Flags, shape: TransformerShape) -> Numerics:
    """The model's numerics: what the launch sets besides sizes."""
    beside = dict(read_numerics(LaunchKind.MEGATRON, flags, shape).values)
    exact = flags.on("--no-bias-gelu-fusion") or flags.on("--disable-bias-linear")
    named = {"--quick-geglu": "quick_gelu", "--swiglu": "silu", "--squared-relu": "relu2", "--openai-gelu": "gelu_tanh"}
    activations = [activation for flag, activation in named.items() if flags.on(flag)]
    beside["activation"] = activations[0] if activations else "gelu" if exact else "gelu_tanh"
    if flags.word("--position-embedding-type") == "alibi":  # Megatron-DeepSpeed's
        beside["position_bias"] = "alibi"
    skipped = _read_skipped(flags, int(shape.num_layers))
    if skipped:
        beside["rope_layers"] = skipped
    return Numerics(values=beside)


def _read_skipped(flags: Flags, layers: int) -> Value:
    """A string with 1 for each layer that uses RoPE and 0 for each that does not; empty if all do."""
    text = flags.word("--no-rope-freq")
    if text is None:
        return ""
    if text.isdigit():  # N: every N-th layer does not use RoPE
        bits = [int((k + 1) % max(int(text), 1) != 0) for k in range(layers)]
    else:
        bits = [1 - bit for bit in _read_pattern(flags, "--no-rope-freq", layers)]
    return "".join(map(str, bits))


def _read_norm(flags: Flags) -> Norm:
    kind = flags.word("--normalization", ("LayerNorm", "RMSNorm")) or "LayerNorm"
    return Norm() if kind == "RMSNorm" else Norm(kind=NormKind.LAYER_NORM, bias=True)


def _read_layers(flags: Flags, layers: int, hidden: int, heads: int, norm: Norm) -> list[Layer]:
    """Every layer in order; equal layers are the same object."""
    local, wide = _read_mixers(flags, hidden, heads)
    windows = _read_windows(flags, layers)
    dense, moe = _read_ffns(flags, hidden)
    sparse = _read_pattern(flags, "--moe-layer-freq", layers) if moe else [0] * layers
    layer_by_kind: dict[tuple[int, int], Layer] = {}
    for key in set(zip(windows, sparse, strict=True)):
        ffn: Ffn = moe if key[1] and moe else dense
        layer_by_kind[key] = Layer(mixers=(local if key[0] else wide,), ffn=ffn, norms=(norm, norm))
    return [layer_by_kind[key] for key in zip(windows, sparse, strict=True)]


def _read_mixers(flags: Flags, hidden: int, heads: int) -> tuple[Mixer, Mixer]:
    """The attention of layers with a window, and of layers without."""
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
    mixers = []
    for span in (window, 0):
        mixers.append(
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
    return mixers[0], mixers[1]


def _read_latent(flags: Flags, heads: int) -> LatentAttentionMixer:
    q_rank = flags.size("--q-lora-rank", 0, least=0) or 0
    kv_rank = flags.size("--kv-lora-rank", 32) or 32
    norms = (("q_norm", VectorRole.QUERY_NORM, q_rank), ("kv_norm", VectorRole.LATENT_NORM, kv_rank))
    flags.on("--qk-layernorm", "--group-query-attention", "--num-query-groups", "--kv-channels")
    return LatentAttentionMixer(
        num_heads=heads,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=flags.size("--qk-head-dim", 128) or 128,
        qk_rope_head_dim=flags.size("--qk-pos-emb-head-dim", 64, least=0) or 0,
        v_head_dim=flags.size("--v-head-dim", 128) or 128,
        vectors=tuple(Vectors(name=name, role=role, fixed=size) for name, role, size in norms if size),
    )


def _attention_vectors(flags: Flags, heads: int, head_dim: int) -> tuple[Vectors, ...]:
    kinds = {"q_norm": VectorRole.QUERY_NORM, "k_norm": VectorRole.KEY_NORM} if flags.on("--qk-layernorm") else {}
    norms = tuple(Vectors(name=name, role=role, fixed=head_dim) for name, role in kinds.items())
    learnable = flags.word("--softmax-type", ("vanilla", "learnable", "off-by-one")) == "learnable"
    return (*norms, *((Vectors(name="sinks", role=VectorRole.SINKS, fixed=heads),) if learnable else ()))


def _rotary(flags: Flags, head_dim: int) -> int:
    kinds = ("learned_absolute", "rope", "mrope", "yarn", "relative", "none", "alibi")
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
    match = re.fullmatch(r"\(?\s*(-?\d{1,9})\s*(?:,\s*-?\d{1,9}\s*)?\)?", text or "")
    return max(int(match[1]) + 1, 0) if match else 0


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
    experts = None if experts == 1 and flags.on("--deepspeed") else experts  # Megatron-DeepSpeed's default: dense
    if not experts:
        return dense, None
    expert = DenseFfn(
        ffn_hidden_size=flags.size("--moe-ffn-hidden-size", width) or width,
        gated=gated,
        up_bias=bias,
        down_bias=bias,
        activation=activation,
    )
    shared, gate = flags.size("--moe-shared-expert-intermediate-size"), flags.on("--moe-shared-expert-gate")
    top = flags.size("--moe-router-topk", 2) or 2
    if top > experts:
        raise InputError("--moe-router-topk", top, f"must be at most --num-experts {experts}", str(experts))
    groups, chosen = _routing_groups(flags, experts)
    return dense, MoeFfn(
        num_experts=experts,
        experts_per_token=top,
        expert=expert,
        shared=DenseFfn(ffn_hidden_size=shared, gated=gated, up_bias=bias, down_bias=bias) if shared else None,
        shared_width=SharedWidth.OWN if gate or (shared or 0) % expert.ffn_hidden_size else SharedWidth.COUNTED,
        shared_gate=gate,
        router_bias=bias,
        routing_groups=groups,
        groups_per_token=chosen,
    )


def _routing_groups(flags: Flags, experts: int) -> tuple[int, int]:
    """Number of expert groups, and how many of them a token chooses from; (1, 1) unless both flags are given."""
    groups = flags.size("--moe-router-num-groups", 1, most=min(experts, MOST_ROUTING_GROUPS)) or 1
    chosen = flags.size("--moe-router-group-topk", most=groups)
    return (groups, chosen) if chosen else (1, 1)


def _read_pattern(flags: Flags, name: str, layers: int) -> list[int]:
    """``1``, ``N`` (one of N), or a list expression of zeros and ones: one entry per layer."""
    text = flags.word(name)
    if text is None:
        return [1] * layers
    if text.isdigit():
        period = max(int(text), 1)
        return [int(k % period == 0) for k in range(layers)]
    bits = expand_pattern(name, text)
    if len(bits) != layers:
        raise InputError(name, text, f"must have {layers} entries, one per layer; it has {len(bits)}")
    return bits


def expand_pattern(name: str, text: str) -> list[int]:
    """``([0]*3+[1]*2)*2`` as a list, parsed without ``eval`` (only lists, ``+`` and ``*``). Raises `InputError`.

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


VOCABULARIES = (32000, 128256, 151936, 256000)
"""Those of the tokenizers of Llama 2 and Mistral, Llama 3, Qwen, and Gemma (`sartor.model.zoo`)."""


def _of_tokenizer(flags: Flags) -> tuple[int, bool]:
    """The vocabulary where no argument says it, and whether nothing speaks for another one: of the zoo's model by whose
    name the tokenizer is loaded, else GPT-2's."""
    of_names = ("--tokenizer-model", "--tokenizer-name-or-path")
    name = next(filter(None, map(flags.shown, of_names)), "")
    flags.arity |= dict.fromkeys(of_names, 1)
    of_type = "llama-2-7b" if flags.shown("--tokenizer-type") == "Llama2Tokenizer" else ""
    if model := model_named(name) or model_named(of_type):
        vocab = int(model.vocab_size)
        flags.assumptions.append(f"--vocab-size={vocab} (not given: of {model.name}, whose tokenizer is named)")
        return vocab, True
    which = f"the tokenizer {name} says it, and is not known" if name else "the tokenizer says it"
    flags.assumptions.append(f"--vocab-size=50257 (not given: {which}; GPT-2's is taken)")
    return 50257, not name


def _read_vocabulary(flags: Flags, tp: int) -> int:
    """The padded vocabulary, which is what gets trained."""
    padded = flags.size("--padded-vocab-size")
    multiple = flags.size("--make-vocab-size-divisible-by", VOCAB_MULTIPLE) or VOCAB_MULTIPLE
    vocab = flags.size("--vocab-size")
    if padded:
        return padded
    if vocab is None:
        vocab, known = _of_tokenizer(flags)
        others = () if known else (int(round_up(size, multiple * tp)) for size in VOCABULARIES)
        flags.alternatives["vocab_size"] = tuple(others)
    rounded = int(round_up(vocab, multiple * tp))
    if rounded != vocab:
        flags.assumptions.append(f"vocabulary {vocab} is padded to {rounded}, a multiple of {multiple} x tp")
    return rounded
