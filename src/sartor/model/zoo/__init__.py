"""Published models by name: one TOML file with sources per model.

The files state every size and option (norms, biases, windows, experts) in glossary words, so that the counts follow
from the file; ``[params]`` has the published totals they must match.

``build_shape`` makes a ``TransformerShape`` from an entry's table; unknown keys are rejected.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    LatentAttentionMixer,
    Layer,
    Linear,
    Mixer,
    MoeFfn,
    Norm,
    NormKind,
    Selection,
    SharedWidth,
    Split,
    VectorRole,
    Vectors,
    lightning_indexer,
    mamba2_mixer,
)
from sartor.model.shape import MAX_LAYERS, LayerRun, Stack, TransformerShape, family_numerics

KEYS = (
    "name", "family", "released", "architecture", "num_layers", "num_decoder_layers", "hidden_size", "num_heads",
    "num_kv_heads", "head_dim", "rotary_dim", "ffn_hidden_size", "activation", "gated", "parallel", "vocab_size",
    "max_positions", "positions", "position_rows", "token_types", "pooler", "tied_embeddings", "lm_head", "norm",
    "norms_per_layer", "embedding_norm", "final_norm", "qk_norm", "sinks", "biases", "mtp_layers", "windows", "experts",
    "latent", "indexer", "embedding_size", "numerics", "params", "sources", "note", "pattern", "mamba2", "weights",
)  # fmt: skip
BIASES = ("q", "kv", "out", "up", "down", "router", "lm_head")
NORMS: dict[str, Norm] = {
    "rmsnorm": Norm(),
    "layernorm": Norm(kind=NormKind.LAYER_NORM, bias=True),
    "layernorm without weights": Norm(kind=NormKind.LAYER_NORM, weight=False),
}


def build_shape(entry: JsonMap) -> TransformerShape:
    """The shape an entry describes. Raises ``InputError`` for an unknown key, norm or bias."""
    _check(entry)
    h, biases = entry["hidden_size"], entry["biases"]
    pooler = Linear(name="pooler", d_in=h, d_out=h, bias=True, split=Split.REPLICATED, rows=1)
    types = Vectors(name="token_types", per_hidden=entry.get("token_types", 0), embedding=True)
    encoder_only = entry["architecture"] == "encoder"
    narrow = entry.get("embedding_size")
    if narrow:
        around = [Linear(name=n, d_in=i, d_out=o, split=Split.REPLICATED) for n, i, o in _around(narrow, h)]
        positions = Vectors(name="positions", per_hidden=entry["position_rows"], embedding=True)
    return TransformerShape(
        name=entry["name"],
        stacks=_stacks(entry),
        vocab_size=entry["vocab_size"],
        max_positions=entry["max_positions"],
        embedding_size=narrow,
        learned_positions=0 if narrow else entry.get("position_rows", 0),
        tied_embeddings=entry["tied_embeddings"],
        lm_head=entry.get("lm_head", True),
        lm_head_bias="lm_head" in biases,
        encoder_only=encoder_only,
        linears=(*((pooler,) if entry.get("pooler") else ()), *(around if narrow else ())),
        vectors=(*((types,) if entry.get("token_types") else ()), *((positions,) if narrow else ())),
        mtp_layers=entry.get("mtp_layers", 0),
        model_type=entry["family"],
        numerics=family_numerics(entry["family"], entry.get("numerics", {}), entry["activation"]),
    )


def _around(narrow: int, hidden: int) -> tuple[tuple[str, int, int], ...]:
    """Projections between a token table narrower than the model and the model."""
    return ("project_in", narrow, hidden), ("project_out", hidden, narrow)


def _check(entry: JsonMap) -> None:
    for what, stated, expected in (
        ("key", entry, KEYS),
        ("bias", entry["biases"], BIASES),
        ("norm", (entry["norm"],), NORMS),
        ("architecture", (entry["architecture"],), ("decoder", "encoder", "encoder-decoder")),
        ("qk_norm", (entry.get("qk_norm", "none"),), ("none", "head", "width")),
    ):
        for word in stated:
            if word not in expected:
                title = entry.get("name", "zoo entry")
                raise InputError(f"{title}: {what}", word, "must be one of those the zoo knows", ", ".join(expected))
    if entry["num_layers"] > MAX_LAYERS:
        raise InputError("num_layers", entry["num_layers"], f"must be at most {MAX_LAYERS} layers")


def _stacks(entry: JsonMap) -> tuple[Stack, ...]:
    if entry["architecture"] == "encoder-decoder":
        encoder = _stack(entry, "encoder", entry["num_layers"], causal=False, cross=False)
        return (encoder, _stack(entry, "decoder", entry["num_decoder_layers"], causal=True, cross=True))
    causal = entry["architecture"] == "decoder"
    return (_stack(entry, "decoder" if causal else "encoder", entry["num_layers"], causal=causal, cross=False),)


def _stack(entry: JsonMap, name: str, num_layers: int, *, causal: bool, cross: bool) -> Stack:
    kinds = [_kind_of(entry, i) for i in range(num_layers)]
    norm = NORMS[entry["norm"]]
    outside = [*(["embedding"] if entry.get("embedding_norm") else []), *(["final"] if entry["final_norm"] else [])]
    biases = Vectors(name="relative_bias", role=VectorRole.RELATIVE_BIAS, fixed=32 * entry["num_heads"], embedding=True)
    return Stack(
        name=name,
        hidden_size=entry["hidden_size"],
        runs=_runs(kinds, {kind: _layer(entry, *kind, causal=causal, cross=cross) for kind in dict.fromkeys(kinds)}),
        norms=tuple(norm for _ in outside),
        vectors=(biases,) if entry["positions"] == "relative" else (),
    )


PARTS = {"M": "mamba2", "*": "attention", "-": "mlp", "E": "experts"}
"""Letters of ``pattern``: each layer has a single part (Nemotron-H, arXiv 2504.03624)."""


def _kind_of(entry: JsonMap, index: int) -> tuple[int, bool, str]:
    """Attention span (0: all), whether the layer has experts, and its only part if it has a single one."""
    if "pattern" in entry:
        part = PARTS[entry["pattern"][index]]
        return 0, part == "experts", part
    windows, experts = entry.get("windows"), entry.get("experts")
    pattern = windows["pattern"].split() if windows else ["global"]
    span = windows["size"] if windows and pattern[index % len(pattern)] == "local" else 0
    if experts is None or index < experts["first_dense_layers"]:
        return span, False, ""
    return span, (index + 1) % experts.get("every", 1) == 0, ""


def _runs(kinds: list[tuple[int, bool, str]], layers: Mapping[tuple[int, bool, str], Layer]) -> tuple[LayerRun, ...]:
    """Equal layers as runs in order of first appearance; positions are given unless every run is one block."""
    where = {kind: tuple(i for i, k in enumerate(kinds) if k == kind) for kind in layers}
    blocks = all(indices[-1] - indices[0] + 1 == len(indices) for indices in where.values())
    return tuple(
        LayerRun(layer=layer, count=len(where[kind]), positions=() if blocks else where[kind])
        for kind, layer in layers.items()
    )


def _layer(entry: JsonMap, span: int, has_experts: bool, only: str, *, causal: bool, cross: bool) -> Layer:
    mixer: Mixer = _latent(entry) if "latent" in entry else _attention(entry, span, causal=causal)
    if only == "mamba2":
        mixer = mamba2_mixer(entry["hidden_size"], **entry["mamba2"])
    mixers = (mixer, _attention(entry, 0, causal=False, cross=True)) if cross else (mixer,)
    ffn = _experts(entry) if has_experts else _ffn(entry, entry["ffn_hidden_size"])
    return Layer(
        mixers=() if only in ("mlp", "experts") else mixers,
        ffn=None if only in ("mamba2", "attention") else ffn,
        norms=tuple(NORMS[entry["norm"]] for _ in range(entry["norms_per_layer"] + cross)),
        parallel=entry["parallel"],
    )


def _attention(entry: JsonMap, span: int, *, causal: bool, cross: bool = False) -> AttentionMixer:
    biases, d = entry["biases"], entry["head_dim"]
    return AttentionMixer(
        num_heads=entry["num_heads"],
        num_kv_heads=entry["num_kv_heads"],
        head_dim=d,
        causal=causal,
        window=span,
        chunked=bool(span) and bool(entry["windows"].get("chunked")),
        q_bias="q" in biases,
        kv_bias="kv" in biases,
        out_bias="out" in biases,
        rotary_dim=entry.get("rotary_dim", d) if entry["positions"] == "rope" else 0,
        vectors=_attention_vectors(entry),
        cross=cross,
        name="cross_attention" if cross else "attention",
    )


def _attention_vectors(entry: JsonMap) -> tuple[Vectors, ...]:
    a, g, d = entry["num_heads"], entry["num_kv_heads"], entry["head_dim"]
    q, k = {"none": (0, 0), "head": (d, d), "width": (a * d, g * d)}[entry.get("qk_norm", "none")]
    rows = (
        Vectors(name="q_norm", role=VectorRole.QUERY_NORM, fixed=q),
        Vectors(name="k_norm", role=VectorRole.KEY_NORM, fixed=k),
        Vectors(name="sinks", role=VectorRole.SINKS, fixed=a if entry.get("sinks") else 0),
    )
    return tuple(row for row in rows if row.fixed)


def _latent(entry: JsonMap) -> LatentAttentionMixer:
    latent = entry["latent"]
    norms = (
        Vectors(name="q_norm", role=VectorRole.QUERY_NORM, fixed=latent["q_lora_rank"]),
        Vectors(name="kv_norm", role=VectorRole.LATENT_NORM, fixed=latent["kv_lora_rank"]),
    )
    mixer = LatentAttentionMixer(
        num_heads=entry["num_heads"], **latent, vectors=tuple(norm for norm in norms if norm.fixed)
    )
    if not (sparse := entry.get("indexer")):
        return mixer
    sizes = {name: sparse[name] for name in ("heads", "head_dim")}
    linears, vectors = lightning_indexer(entry["hidden_size"], latent["q_lora_rank"], **sizes)
    return replace(mixer, projections=linears, vectors=(*mixer.vectors, *vectors), selection=Selection(**sparse))


def _ffn(entry: JsonMap, width: int) -> DenseFfn:
    return DenseFfn(
        ffn_hidden_size=width,
        gated=entry["gated"],
        up_bias="up" in entry["biases"],
        down_bias="down" in entry["biases"],
        activation=entry["activation"],
    )


def _experts(entry: JsonMap) -> MoeFfn:
    experts = entry["experts"]
    computes = family_numerics(entry["family"], entry.get("numerics", {}), entry["activation"]).values
    shared = experts.get("shared_ffn_hidden_size", 0)
    return MoeFfn(
        num_experts=experts["num_experts"],
        experts_per_token=experts["experts_per_token"],
        expert=_ffn(entry, experts["ffn_hidden_size"]),
        shared=_ffn(entry, shared) if shared else None,
        shared_width=SharedWidth(experts.get("shared_width", "counted" if shared else "own")),
        router_bias="router" in entry["biases"],
        routing_groups=int(computes.get("router_groups", 1)),
        groups_per_token=int(computes.get("router_topk_groups", 1)),
    )


ENTRIES = Path(__file__).parent
ALIASES = ENTRIES / "aliases.toml"


def load_model(name: str) -> TransformerShape:
    """The shape of a zoo model. Case, spaces, ``-``, ``_``, a trailing ``-hf`` and an owner are ignored.

    Raises ``InputError`` with the nearest names for an unknown model.

    >>> load_model("Llama 3.1 8B").hidden_size
    4096
    """
    return build_shape(model_entry(name))


def model_names() -> tuple[str, ...]:
    """Every model of the zoo by its slug, sorted as people would: by family, then size."""
    return tuple(sorted((path.stem for path in _entries().values()), key=_natural))


def model_aliases() -> dict[str, str]:
    """Other names -> slug."""
    return {alias: slug for slug, aliases in _aliases().items() for alias in aliases}


def model_entry(name: str) -> JsonDict:
    """The entry as it is in the file, with sources, notes and published counts, as in ``sartor catalog models``."""
    with _find(name).open("rb") as file:
        return tomllib.load(file)


def _canonical(name: str) -> str:
    """A name without owner, case, separators and the suffix ``-hf``."""
    bare = re.sub(r"[\s_\-]hf$", "", name.lower().strip().rsplit("/", 1)[-1])
    squeezed = re.sub(r"[\s_\-()]+", "", bare)
    return re.sub(r"^(metallama|llamav?)(?=\d)", "llama", squeezed)


def _find(name: str) -> Path:
    entries, other_names = _entries(), {_canonical(alias): slug for alias, slug in model_aliases().items()}
    search_key = _canonical(name)
    search_key = _canonical(other_names.get(search_key, search_key))
    if search_key in entries:
        return entries[search_key]
    near = difflib.get_close_matches(search_key, list(entries), n=4, cutoff=0.5)
    raise InputError(
        "model",
        name,
        "not in the zoo (sartor catalog models); a path to a config.json works too",
        ", ".join(entries[key].stem for key in near),
    )


@cache
def _entries() -> dict[str, Path]:
    return {_canonical(path.stem): path for path in ENTRIES.glob("*.toml") if path != ALIASES}


@cache
def _aliases() -> dict[str, tuple[str, ...]]:
    with ALIASES.open("rb") as file:
        return {slug: tuple(aliases) for slug, aliases in tomllib.load(file).items()}


def _natural(slug: str) -> list[tuple[float, str]]:
    """Numbers compare as numbers, millions before billions: 70m < 1b < 2.8b < 12b."""
    words = re.findall(r"\d+(?:\.\d+)?[mbt]?\b|[^\d]+|\d+", slug)
    return [_number(word) for word in words]


def _number(word: str) -> tuple[float, str]:
    if not word[0].isdigit():
        return (-1.0, word)
    scale = {"m": 1e6, "b": 1e9, "t": 1e12}.get(word[-1], 1.0)
    return (float(word.rstrip("mbt")) * scale, word)
