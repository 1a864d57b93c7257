"""A model's sizes and its pipeline stages as Megatron-LM's arguments.

Written against megatron/training/arguments.py of NVIDIA/Megatron-LM (commit 000c4ac2, read 2026-11-21); the names are
in tests/golden/launch_arguments.csv.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sartor.errors import InputError
from sartor.launch.fields import OWN_CONFIG, Argument, numeric_arguments
from sartor.launch.plan import LaunchKind, stages_of
from sartor.launch.stated import Flags
from sartor.model.layer import AttentionMixer, DenseFfn, LatentAttentionMixer, Layer, MoeFfn, NormKind, VectorRole
from sartor.model.shape import SAME, TransformerShape
from sartor.model.training import TrainingPlan
from sartor.model.workload import VOCAB_MULTIPLE
from sartor.units import Ints, nearest_divisors, round_up


def model_arguments(shape: TransformerShape, tp: Ints, seq_len: int) -> tuple[list[Argument], list[str]]:
    """The arguments that describe a model, and notes. Raises `InputError` for a model that is not a GPT, or that the
    arguments cannot express."""
    layers = list(_layers(shape))
    mixer, notes = _mixer(shape, layers), list[str]()
    dense = next((x.ffn for x in layers if isinstance(x.ffn, DenseFfn)), None)
    moe = next((x.ffn for x in layers if isinstance(x.ffn, MoeFfn)), None)
    sample_ffn = dense or (moe.expert if moe else None)
    if sample_ffn is None:
        raise _no(shape, "layers without a feed-forward part")
    beside, numeric_notes = numeric_arguments(LaunchKind.MEGATRON, shape)
    notes += numeric_notes
    out: list[Argument] = [
        ("--num-layers", str(len(layers))),
        ("--hidden-size", str(shape.hidden_size)),
        ("--ffn-hidden-size", str(sample_ffn.ffn_hidden_size)),
    ]
    out += list(_attention_arguments(shape, layers, mixer))
    biased = _is_biased(shape, mixer, sample_ffn, moe)
    out += list(_activation(shape, sample_ffn, biased))
    if not biased:
        out += [("--disable-bias-linear",)]
        out += [("--add-qkv-bias",)] if isinstance(mixer, AttentionMixer) and mixer.q_bias else []
    out += list(_norm_arguments(shape, mixer, layers))
    out += list(_vocabulary(shape, tp, notes))
    out += list(_positions(shape, mixer, seq_len))
    out += list(_expert_arguments(moe, layers))
    if shape.mtp_layers:
        out += [("--mtp-num-layers", str(shape.mtp_layers))]
    return out + beside, notes


def _numeric(shape: TransformerShape, name: str) -> str:
    """A field of the model's numerics as text; empty if unknown or unset."""
    return "" if shape.numerics is None else str(shape.numerics.get(name) or "")


def _positions(
    shape: TransformerShape, mixer: AttentionMixer | LatentAttentionMixer, seq_len: int
) -> Iterator[Argument]:
    longest = max(shape.max_positions, seq_len, int(shape.learned_positions))
    rotated = mixer.rotary_dim if isinstance(mixer, AttentionMixer) else mixer.qk_rope_head_dim
    plain = isinstance(mixer, AttentionMixer)
    kind = "learned_absolute" if shape.learned_positions else "rope" if rotated else "none"
    yarn = kind == "rope" and plain and _numeric(shape, "rope_type") == "yarn"
    yield ("--position-embedding-type", "yarn" if yarn else kind)
    if isinstance(mixer, AttentionMixer) and 0 < rotated < mixer.head_dim:
        yield ("--rotary-percent", f"{rotated / mixer.head_dim:g}")
    if bits := _numeric(shape, "rope_layers"):
        yield ("--no-rope-freq", pattern_text([1 - int(bit) for bit in bits]))
    yield ("--max-position-embeddings", str(shape.learned_positions or longest))


def _layers(shape: TransformerShape) -> Iterator[Layer]:
    """Every layer in order."""
    if len(shape.stacks) > 1 or shape.encoder_only:
        raise _no(shape, "other stacks than one decoder")
    if shape.embedding_size not in (None, shape.hidden_size) or not shape.lm_head:
        raise _no(shape, "token tables of another width than the model, or no output head")
    runs = shape.main.runs
    if all(len(run.positions) == int(run.count) for run in runs):
        places = sorted((p, k) for k, run in enumerate(runs) for p in run.positions)
        yield from (runs[k].layer for _, k in places)
        return
    for run in runs:
        yield from [run.layer] * int(run.count)


def _mixer(shape: TransformerShape, layers: list[Layer]) -> AttentionMixer | LatentAttentionMixer:
    """The attention that all layers share, apart from windows."""
    mixers: dict[object, AttentionMixer | LatentAttentionMixer] = {}
    for layer in layers:
        if len(layer.mixers) != 1 or not isinstance(layer.mixers[0], (AttentionMixer, LatentAttentionMixer)):
            raise _no(shape, "layers that are not one attention each")
        if layer.parallel or len(layer.all_ffns) != 1:
            raise _no(shape, "attention and feed-forward in parallel")
        if layer.linears or layer.vectors or any(run.weight_sets not in (None, run.count) for run in shape.main.runs):
            raise _no(shape, "layers with further weights, or that share them")
        mixer = layer.mixers[0]
        mixers[(mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.value_dim)] = mixer
        if mixer.cross or mixer.shares_kv or mixer.projections or getattr(mixer, "gated", False):
            raise _no(shape, "attention with further projections")
    if len(mixers) != 1:
        raise _no(shape, "attention of several sizes")
    return next(iter(mixers.values()))


def _no(shape: TransformerShape, what: str) -> InputError:
    name = shape.name or shape.model_type or "this shape"
    return InputError("MODEL", name, f"Megatron-LM's GPT arguments cannot express {what}", OWN_CONFIG)


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
    if len(set(windows) - {0}) > 1 or any(getattr(layer.mixers[0], "chunked", False) for layer in layers):
        raise _no(shape, "attention windows of several sizes, or in chunks")
    if any(windows):
        yield ("--window-size", f"{max(windows) - 1},0")
        if not all(windows):
            yield ("--window-attn-skip-freq", pattern_text([int(bool(w)) for w in windows]))
    if any(v.role is VectorRole.SINKS for v in mixer.vectors):
        yield ("--softmax-type", "learnable")


def _activation(shape: TransformerShape, ffn: DenseFfn, biased: bool) -> Iterator[Argument]:
    """The activation. Megatron's GELU is the tanh form where bias and activation are fused, else the exact one."""
    word = (_numeric(shape, "activation") or ffn.activation).lower()
    word = SAME.get(word, word)
    if ffn.gated:
        gates = {"silu": "--swiglu", "quick_gelu": "--quick-geglu"}
        if word not in gates:
            raise _no(shape, f"a gate of activation {word}; its gates are SiLU and quick GELU")
        yield (gates[word],)
    elif word == "relu2":
        yield ("--squared-relu",)
    elif word == "gelu_tanh":
        if not biased:
            yield ("--openai-gelu",)
            yield ("--no-bias-gelu-fusion",)
    elif word == "gelu":
        yield ("--no-bias-gelu-fusion",)
    else:
        raise _no(shape, f"activation {word}; it has SiLU, GELU and squared ReLU")


def _is_biased(
    shape: TransformerShape, mixer: AttentionMixer | LatentAttentionMixer, ffn: DenseFfn, moe: MoeFfn | None
) -> bool:
    """Whether all linear layers have biases (Megatron's default); else none has, except possibly Q, K and V."""
    inside = {ffn.up_bias, ffn.down_bias} | ({moe.router_bias} if moe else set())
    if isinstance(mixer, LatentAttentionMixer):
        inside |= {mixer.bias}
    else:
        inside |= {mixer.out_bias} | ({mixer.q_bias, mixer.kv_bias} if mixer.out_bias else set())
        if mixer.q_bias is not mixer.kv_bias:
            raise _no(shape, "biases of queries without those of keys and values")
    if len(inside) > 1 or shape.lm_head_bias:
        raise _no(shape, "biases of some linear layers: all have one, none has, or those of Q, K and V alone")
    return inside == {True}


def _norm_arguments(
    shape: TransformerShape, mixer: AttentionMixer | LatentAttentionMixer, layers: list[Layer]
) -> Iterator[Argument]:
    """Norm arguments: norms must be before attention, before feed-forward and at the end, all of one kind."""
    kinds = {NormKind.RMS_NORM: (True, False), NormKind.LAYER_NORM: (True, True)}
    norms = [norm for layer in {id(x): x for x in layers}.values() for norm in layer.norms]
    if any(len(layer.norms) != 2 for layer in layers) or len(shape.main.norms) != 1:
        raise _no(shape, "norms elsewhere than before attention, before the feed-forward part and at the end")
    if _numeric(shape, "norm_order") == "after":
        raise _no(shape, "norms behind attention and feed-forward part")
    for norm in (*norms, *shape.main.norms):
        if norm.kind is not norms[0].kind or (norm.weight, norm.bias) != kinds[norm.kind]:
            raise _no(shape, "a LayerNorm without weight or bias")
    yield ("--normalization", "RMSNorm" if norms[0].kind is NormKind.RMS_NORM else "LayerNorm")
    of_heads = [v for v in mixer.vectors if v.role in (VectorRole.QUERY_NORM, VectorRole.KEY_NORM)]
    if isinstance(mixer, AttentionMixer) and any(v.fixed != mixer.head_dim for v in of_heads):
        raise _no(shape, "norms of queries and keys over all heads at once")
    if of_heads:
        yield ("--qk-layernorm",)


def _vocabulary(shape: TransformerShape, tp: Ints, notes: list[str]) -> Iterator[Argument]:
    """The vocabulary, and a padding multiple (8 or more if possible) that leaves it unchanged."""
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
    if moe.shared_gate:
        yield ("--moe-shared-expert-gate",)
    sparse = [int(isinstance(layer.ffn, MoeFfn)) for layer in layers]
    if not all(sparse):
        yield ("--moe-layer-freq", pattern_text(sparse))
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


def stage_arguments(plan: TrainingPlan, layers: int, mtp: int) -> Iterator[Argument]:
    """Arguments for the stages: a number if even, two if only first and last differ, else a layout."""
    pp, v = plan.dims.pp, plan.virtual_stages
    stages = stages_of(plan, layers)
    if plan.stage_layers is None and layers % (pp * v) == 0:
        if v > 1:
            yield ("--num-virtual-stages-per-pipeline-rank", str(v))
    elif v == 1 and pp > 1 and len(set(stages[1:-1])) <= 1 and _ends_say(stages):
        yield ("--decoder-first-pipeline-num-layers", str(stages[0]))
        yield ("--decoder-last-pipeline-num-layers", str(stages[-1]))
    elif pp > 1:
        yield ("--pipeline-model-parallel-layout", _layout_text(stages, mtp))


def _ends_say(stages: tuple[int, ...]) -> bool:
    """Whether Megatron's own division (all but first and last stage even) gives these stages."""
    middle = stages[1:-1]
    return len(stages) > 2 and len(set(middle)) == 1 and all(stages)


def _layout_text(stages: tuple[int, ...], mtp: int = 0) -> str:
    """A pipeline layout: E embedding, t layer, m MTP module, L loss, stages separated by bars.

    >>> _layout_text((2, 3, 1))
    'Et*2|t*3|tL'
    """
    parts = ["" if n == 0 else "t" if n == 1 else f"t*{n}" for n in stages]
    parts[0] = "E" + parts[0]
    parts[-1] += ("" if not mtp else "m" if mtp == 1 else f"m*{mtp}") + "L"
    return "|".join(parts)


def read_stages(flags: Flags, pp: int, layers: int | None) -> tuple[tuple[int, ...] | None, int]:
    """Layers of every chunk (None: even) and chunks per device."""
    layout = flags.word("--pipeline-model-parallel-layout")
    if layout is not None:
        stages = read_layout(layout)
        if len(stages) % pp:
            must = f"must have a multiple of --pipeline-model-parallel-size {pp} stages; it has {len(stages)}"
            raise InputError("--pipeline-model-parallel-layout", layout, must)
        if layers is not None and sum(stages) != layers:
            must = f"must hold the model's {layers} layers; it holds {sum(stages)}"
            raise InputError("--pipeline-model-parallel-layout", layout, must)
        return stages, len(stages) // pp
    virtual = flags.size("--num-virtual-stages-per-pipeline-rank", 1) or 1
    chunk_layers = flags.size("--num-layers-per-virtual-pipeline-stage")
    if chunk_layers is not None and layers is not None and pp > 1:
        counted = layers + sum(flags.on(f"--account-for-{end}-in-pipeline-split") for end in ("embedding", "loss"))
        if counted % (pp * chunk_layers):
            near = nearest_divisors(counted // pp, chunk_layers) if counted % pp == 0 else ""
            must = f"must divide the {counted} layers over --pipeline-model-parallel-size {pp}"
            raise InputError("--num-layers-per-virtual-pipeline-stage", chunk_layers, must, near)
        virtual = counted // (pp * chunk_layers)
    return _read_ends(flags, pp, layers, virtual), virtual


def _read_ends(flags: Flags, pp: int, layers: int | None, virtual: int) -> tuple[int, ...] | None:
    """Stages where first and last stage differ, or where embedding and loss count as a layer."""
    first = flags.size("--decoder-first-pipeline-num-layers")
    last = flags.size("--decoder-last-pipeline-num-layers")
    embedding = flags.on("--account-for-embedding-in-pipeline-split")
    loss = flags.on("--account-for-loss-in-pipeline-split")
    if layers is None or pp == 1 or not (first or last or embedding or loss):
        return None
    if embedding or loss:
        chunk_layers = (layers + embedding + loss) // (pp * virtual)
        stages = [chunk_layers] * (pp * virtual)
        stages[0] -= embedding
        stages[-1] -= loss
    else:
        ends = [n for n in (first, last) if n]
        middle, rest = pp - len(ends), layers - sum(ends)
        if rest < 0 or (middle == 0 and rest) or (middle and rest % middle):
            must = f"must leave layers that {middle} stages share evenly, of {layers}"
            raise InputError("--decoder-first-pipeline-num-layers", first or last, must)
        per_rank = [
            *([first] if first else []),
            *([rest // middle] * middle if middle else []),
            *([last] if last else []),
        ]
        if any(n % virtual for n in per_rank):
            shown = ",".join(map(str, per_rank))
            raise InputError("virtual stages", virtual, f"must divide the layers of every rank: {shown}")
        stages = [n // virtual for _ in range(virtual) for n in per_rank]
    if sum(stages) != layers or min(stages) < 0:
        raise InputError("--num-layers", layers, f"does not split over {pp * virtual} stages as asked")
    return tuple(stages)


def read_layout(text: str) -> tuple[int, ...]:
    """Layers of every stage of a layout: ``Et*3|(tt|)*2|L`` -> (3, 2, 2, 0). Raises `InputError`.

    >>> read_layout("Et*3|(tt|)*2L")
    (3, 2, 2, 0)
    """
    bare = text.replace(",", "").replace(" ", "")
    for _ in range(64):
        match = re.search(r"\(([^()]{0,2000})\)\*(\d{1,4})", bare) or re.search(r"([EtmL])\*(\d{1,4})", bare)
        if not match or len(bare) > 100_000:
            break
        bare = bare[: match.start()] + match[1] * int(match[2]) + bare[match.end() :]
        if "(" not in bare and "*" not in bare:
            break
    if not re.fullmatch(r"E?[tm|]*L?[m|]*", bare) or len(bare) > 100_000:
        must = "must be stages of E, t, m and L between |, with (...)*n and t*n"
        raise InputError("--pipeline-model-parallel-layout", text, must, "Et*2|t*3|t*2L")
    return tuple(stage.count("t") for stage in bare.split("|"))
