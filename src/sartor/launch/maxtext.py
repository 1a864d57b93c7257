"""Read a MaxText launch (``train base.yml key=value ...``) as a plan and a model, the model by way of a config.json.

Keys, defaults and checks: maxtext/configs/base.yml, configs/types.py and configs/models/*.yml, remat policies:
layers/nnx_decoders.py of MaxText 0.2.5 (its wheel on PyPI, read 2026-11-23). A decoder block computes what the model
family of the same name does. ``ici_*`` degrees apply within a slice (a pod, or a node of GPUs), ``dcn_*`` ones between
slices. The mesh axes ``fsdp``, ``expert`` and ``context`` shard the weights, ``data`` replicates them; ``expert`` is a
data axis for everything but the experts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.launch.fields import fields_in
from sartor.launch.plan import JobParts, LaunchKind, LaunchReading, canonical, check_numbers, no_devices
from sartor.launch.script import ScriptCommand, devices_in
from sartor.launch.stated import NO_OPTIONS, Options, StatedDocument, bearing, unset_arguments
from sartor.model.editing import edit
from sartor.model.shape import TransformerShape
from sartor.model.training import (
    ContextParallel,
    OffloadModule,
    Optimizer,
    PipelineSchedule,
    Recipe,
    Recompute,
    RecomputeModule,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel, ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.read.huggingface import read_fields
from sartor.step.trainers.maxtext import MAXTEXT

BLOCKS = {
    "llama2": "llama",
    "mistral": "mistral",
    "mixtral": "mixtral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "deepseek": "deepseek_v3",
}
"""Supported decoder blocks, with the ``model_type`` of config.json that computes the same."""
NAMED = {
    "deepseek3-671b": "deepseek-v3",
    "deepseek2-236b": "deepseek-v2",
    "deepseek2-16b": "deepseek-v2-lite",
    "kimi-k2-1t": "kimi-k2",
}
"""MaxText model names that differ from the zoo's."""
OVERRIDDEN = {
    "base_emb_dim": "hidden_size",
    "base_mlp_dim": "ffn_hidden_size",
    "base_moe_mlp_dim": "expert_ffn_hidden_size",
    "base_num_decoder_layers": "num_layers",
    "base_num_query_heads": "num_heads",
    "base_num_kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "num_experts": "num_experts",
    "vocab_size": "vocab_size",
}
"""Sizes of a named model that ``override_model_config`` lets other keys change."""
LLAMA3_SCALING: JsonDict = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Constants of LLaMARotaryEmbedding (layers/embeddings.py)."""


def _shape_of(keys: StatedDocument, positions: int = 0) -> TransformerShape | None:
    """The model that the keys define or name; None if the zoo does not have the name. Raises `InputError` for
    unsupported blocks."""
    name = keys.choice("model_name", "default")
    if name != "default":
        try:
            shape = load_model(NAMED.get(name, name))
        except InputError:
            return None
        sizes = {field: size for key, field in OVERRIDDEN.items() if (size := keys.size(key))}
        return edit(shape, **sizes) if keys.flag("override_model_config") else shape
    return read_fields(_config(keys, positions), name="").shape


def _config(keys: StatedDocument, positions: int) -> JsonDict:
    """A config.json equivalent to the keys; defaults are base.yml's."""
    block = keys.choice("decoder_block", "llama2", tuple(BLOCKS))
    for ignored in ("normalize_embedding_logits", "use_qk_norm", "attention_bias"):
        keys.flag(ignored)
    width, heads, depth = _scales(keys)
    out: JsonDict = {
        "model_type": BLOCKS[block],
        "hidden_size": width * keys.count("base_emb_dim", 2048),
        "intermediate_size": heads * keys.count("base_mlp_dim", 7168),
        "num_hidden_layers": depth * keys.count("base_num_decoder_layers", 16),
        "num_attention_heads": heads * keys.count("base_num_query_heads", 16),
        "num_key_value_heads": heads * keys.count("base_num_kv_heads", 16),
        "vocab_size": keys.count("vocab_size", 32000),
        "hidden_act": "silu",
        "max_position_embeddings": positions or keys.count("max_target_length", 2048),
        "rms_norm_eps": _number(keys, "normalization_layer_epsilon", 1e-5),
        "rope_theta": _number(keys, "rope_max_timescale", 10000.0),
        "tie_word_embeddings": keys.flag("logits_via_embedding"),
    }
    if block != "deepseek":
        out["head_dim"] = keys.count("head_dim", 128)
    if block == "mistral":
        out["sliding_window"] = keys.count("sliding_window_size", 0, least=0) or None
    if scaling := _scaling(keys):
        out["rope_scaling"] = scaling
    return {**out, **_config_of_experts(keys, block)}


def _scales(keys: StatedDocument) -> tuple[int, int, int]:
    """Factors for width, for heads and feed-forward width, and for layers (``get_individual_scales``): each doubling of
    ``global_parameter_scale`` doubles the second, the first and the third in turn."""
    scale = keys.count("global_parameter_scale", 1)
    if scale & (scale - 1):
        raise InputError("global_parameter_scale", scale, "must be a power of two", str(1 << (scale.bit_length() - 1)))
    doublings, rest = divmod(scale.bit_length() - 1, 3)
    return 2 ** (doublings + (rest > 1)), 2 ** (doublings + (rest > 0)), 2**doublings


def _scaling(keys: StatedDocument) -> JsonDict:
    kind = keys.choice("rope_type", "default", ("default", "llama3.1", "yarn"))
    if kind == "llama3.1":
        return dict(LLAMA3_SCALING)
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": _number(keys, "rope_factor", 40.0),
            "beta_fast": _number(keys, "beta_fast", 32.0),
            "beta_slow": _number(keys, "beta_slow", 1.0),
            "mscale": 1.0,
            "mscale_all_dim": _number(keys, "mscale", 1.0),
            "original_max_position_embeddings": keys.count("original_max_position_embeddings", 4096),
            "truncate": keys.flag("rope_truncate", True),
        }
    factor = _number(keys, "rope_linear_scaling_factor", 1.0)
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else {}


def _config_of_experts(keys: StatedDocument, block: str) -> JsonDict:
    if block not in ("mixtral", "qwen3_moe", "deepseek"):
        return {}
    experts, width = keys.count("num_experts", 1), _scales(keys)[1] * keys.count("base_moe_mlp_dim", 7168)
    balance = _number(keys, "load_balance_loss_weight", 0.0)
    normalized, chosen = keys.flag("norm_topk_prob"), keys.count("num_experts_per_tok", 1)
    common: JsonDict = {"num_experts_per_tok": chosen, "router_aux_loss_coef": balance}
    if block == "mixtral":
        return {**common, "num_local_experts": experts, "intermediate_size": width}
    if block == "qwen3_moe":
        return {**common, "num_experts": experts, "moe_intermediate_size": width, "norm_topk_prob": normalized}
    groups = keys.count("n_routing_groups", -1)
    return {
        "num_experts_per_tok": chosen,
        "n_routed_experts": experts,
        "moe_intermediate_size": width,
        "n_shared_experts": keys.count("shared_experts", 0, least=0),
        "first_k_dense_replace": keys.count("first_num_dense_layers", 0, least=0),
        "scoring_func": keys.choice("routed_score_func", "") or "softmax",
        "topk_method": "noaux_tc" if keys.flag("routed_bias") else "greedy",
        "norm_topk_prob": True,
        "routed_scaling_factor": _number(keys, "routed_scaling_factor", 1.0),
        "n_group": groups if groups > 0 else 1,
        "topk_group": max(keys.count("topk_routing_group", -1), 1),
        "num_nextn_predict_layers": keys.count("mtp_num_layers", 0, least=0),
        **_config_of_ranks(keys),
    }


def _config_of_ranks(keys: StatedDocument) -> JsonDict:
    keys.choice("attention_type", "mla", ("mla",))
    ranks = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    config: JsonDict = {name: keys.count(name, default) for name, default in ranks.items()}
    return {**config, "q_lora_rank": keys.count("q_lora_rank", 0, least=0) or None}


def _number(keys: StatedDocument, name: str, default: float) -> float:
    value = keys.find(name)
    if value is None:
        return default
    if isinstance(value, str) and re.fullmatch(r"\d+[eE][+-]?\d{1,3}", value):  # a string in YAML 1.1
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(name, value, "must be a number")
    return float(value)


KIND = LaunchKind.MAXTEXT
PROGRAM = re.compile(r"maxtext(\.\w+)*\.train|(.*/)?maxtext/(\w+/)*train\.py|maxtext\.train", re.IGNORECASE)
"""Modules and files that train: maxtext.trainers.pre_train.train; MaxText/train.py in older versions."""

OPTIMIZERS = {Optimizer.ADAM: "adamw", Optimizer.SGD: "sgd", Optimizer.MUON: "muon"}
QUANTIZED = {
    Recipe.FP8_DELAYED: ("fp8", "te_fp8_delayedscaling", "nanoo_fp8"),
    Recipe.FP8_CURRENT: ("te_fp8_currentscaling", "fp8_full"),
    Recipe.MXFP8: ("te_mxfp8",),
    Recipe.NVFP4: ("te_nvfp4", "te_nvfp4_no_rht"),
}
"""Values of ``quantization``."""
EXCHANGES = {
    ContextParallel.ALL_GATHER: "all_gather",
    ContextParallel.RING: "ring",
    ContextParallel.ALL_TO_ALL: "ulysses",
}
AXES = ("tensor", "context", "expert", "fsdp", "data", "pipeline")

QKV = ("query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj", "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv")
OUT = ("out_proj",)
CONTEXT = ("context",)
MLP = ("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo")
EXPERTS = ("moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo", "moe_x_sorted")
DOT = (*QKV[:5], *OUT)
POLICIES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "full": ((), ()),
    "minimal": ((*DOT, *MLP), ()),
    "minimal_with_context": ((*DOT, *MLP, *CONTEXT), ()),
    "minimal_flash": ((*DOT, *MLP, *CONTEXT), ()),
    "save_dot_with_context_except_mlp": ((*DOT, *CONTEXT), ()),
    "save_dot_except_mlpwi": ((*DOT, "mlpwo"), ()),
    "save_dot_except_mlp": (DOT, ()),
    "save_qkv_proj": (QKV[:5], ()),
    "save_out_proj": (OUT, ()),
    "qkv_proj_offloaded": ((), QKV[:4]),
    "minimal_offloaded": ((), (*DOT, *MLP)),
}
"""Tensors that ``remat_policy`` keeps on the device, and in host memory."""


def _always(shape: TransformerShape | None) -> frozenset[RecomputeModule]:
    """Modules that are recomputed whatever is kept."""
    experts = {RecomputeModule.MOE_ACT} if shape is not None and shape.moe_ffn is not None else set()
    return frozenset({RecomputeModule.LAYERNORM, *experts})


def is_maxtext(value: JsonDict) -> bool:
    """Whether a YAML has MaxText's keys."""
    return any(re.match(r"(ici|dcn)_\w+_parallelism$|per_device_batch_size$|base_emb_dim$", key) for key in value)


def read_maxtext(raw: JsonDict, command: ScriptCommand | None, options: Options = NO_OPTIONS) -> LaunchReading:
    """The model, job and plan of MaxText's keys, with the ``options`` beside them; missing keys have base.yml's
    defaults. Raises `InputError`."""
    keys = StatedDocument(
        raw={name: value for name, value in raw.items() if value not in ("", None)},
        options=options,
        unchecked=_replaced(options),
        assumptions=list(command.notes) if command else [],
    )
    shape = _shape(keys, options.shape)
    dims, zero, group, repeats = _dims(keys, options.devices(command.num_devices if command else 0))
    microbatch, count = _batch(keys, dims)
    recompute, again, away = _read_remat(keys, shape)
    plan = TrainingPlan(
        dims=dims,
        microbatch_size=microbatch,
        num_microbatches=count,
        virtual_stages=_repeats(keys, dims, shape, repeats),
        schedule=PipelineSchedule.GPIPE if dims.pp > 1 else PipelineSchedule.ONE_F_ONE_B,
        zero_stage=zero,
        shard_group=group,
        recompute=recompute,
        optimizer_offload=keys.flag("optimizer_memory_host_offload"),
    )
    check_numbers(plan, splits_experts=True)
    parts = _parts(keys, int(dims.dp) * microbatch * count)
    parts = replace(parts, recompute_modules=again, offload_modules=away)
    model = keys.choice("model_name", "default")
    rest = keys.left()
    meshed = [name for name in rest if re.fullmatch(r"(ici|dcn)_\w+_parallelism", name) and keys.find(name) != 1]
    meshed += [name for name in rest if OF_SIZES.fullmatch(name) and keys.find(name) not in (1, False)]
    meshed += bearing(name for name in rest if not (PRICED.match(name) or OF_BASE.match(name) or keys.off(name)))
    open_fields = {name: words for name, words in keys.open.items() if name not in keys.unchecked}
    stated_notes = tuple(f"{name} is " for name in keys.open if name not in open_fields)
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan, None if shape is None else int(shape.num_layers)),
        parts=parts,
        shape=shape,
        sequence_parallel=True,
        model="" if model == "default" else printable(model),
        unknown=(*unset_arguments(command.arguments if command else ()), *meshed),
        unpriced=tuple(printable(f"{name}={keys.find(name)}") for name in rest if PRICED.match(name)),
        open_fields={**open_fields, **{name: "as given" for name in meshed if name not in keys.open}},
        replaced=keys.replaced,
        fields_in_file=fields_in(KIND, keys) | devices_in(command),
        implied=_implied(keys, dims, command),
        ignored=tuple(printable(name) for name in rest if not PRICED.match(name) and name not in meshed),
        assumptions=tuple(note for note in keys.assumptions if not note.startswith(stated_notes)),
    )


def _implied(keys: StatedDocument, dims: ParallelDims, command: ScriptCommand | None) -> dict[str, str]:
    """What follows from the mesh and the batch of a device."""
    devices = keys.options.devices(command.num_devices if command else 0)
    implied = {} if devices else {"dp": "the axes data, fsdp and expert of the mesh"}
    implied |= {"global_batch_size": "per_device_batch_size x num_devices x gradient_accumulation_steps"}
    if "global_batch_size" in keys.options.sizes:
        implied["microbatch_size"] = "global_batch_size / (dp x num_microbatches)"
    elif int(dims.num_devices) > int(dims.dp):
        implied["microbatch_size"] = "per_device_batch_size x num_devices / (dp x num_pipeline_microbatches)"
    return implied


def _shape(keys: StatedDocument, shape: TransformerShape | None) -> TransformerShape | None:
    """The given model (the keys may then have any decoder block), else that of the keys."""
    try:
        shape_of_keys = _shape_of(keys)
    except InputError:
        if shape is None:
            raise
        shape_of_keys = None
    return shape or shape_of_keys


PRICED = re.compile(
    r"ici_|dcn_|pipeline_|moe_|use_|num_|megablox|sparse_matmul|capacity_factor|ragged|fused_|parameter_memory|"
    r"mlp|mla_|attention|chunk_|share_|kv_|scan_|shard_|te_|weight_|activations_|logits_dot|cast_logits|base_|custom_mesh"
)
"""Keys that may change time or memory; the others have no modelled effect."""


OF_BASE = re.compile(
    r"(enable_|async_|local_|force_)?\w*(checkpoint|ckpt)|eval_|save_|load_|log_|data|grain_|tfds_|hf_|packing|adam_|kv_quant|"
    r"quantize_kvcache|quant_cfg|quantization_local|replicate_quant|input_data_sharding|logical_axis_rules|optimize_mesh|"
    r"sharding_tolerance|\w*shardy|matmul_precision|dtype_mm|\w*batch_size_(start|increment)|vi(t|sion)_|rl_|generate|"
    r"autoregressive|\w*mesh|prefill|decode|inference|compile_topology|gradient_clipping|jax_|profile|metrics_|tokenize|expansion_|\w+_(path|dir)$"
)
"""Keys of base.yml without effect on a training step, whose names might say otherwise (recalled, 2026-12-01)."""


OF_SIZES = re.compile(r"scale|int8_\w+|fwd_int8\w*|(base_)?(emb_dim|mlp_dim|num_heads|num_layers|num_decoder_layers)")
"""Keys of earlier versions that set the model's sizes or its precision."""


def _dims(keys: StatedDocument, devices: int) -> tuple[ParallelDims, int, int, int]:
    """(dims, ZeRO stage, devices of a set of shards or 0, pipeline repeats or 0); a degree of -1 takes the devices
    left. The number of slices is known if no degree between them is -1; else one slice, or nodes of 8 GPUs, is
    assumed."""
    defaults = {("ici", "fsdp"): -1, ("dcn", "data"): -1}
    mesh = {
        (net, name): keys.size(f"{net}_{name}_parallelism", also=(-1,)) or defaults.get((net, name), 1)
        for net in ("ici", "dcn")
        for name in MESH
    }
    mesh, devices = _with_degrees(keys, mesh, devices)
    slices = _slices(keys, mesh, devices)
    for net, whole in (("dcn", slices), ("ici", devices // slices if devices else 0)):
        degree_product = math.prod(n for (kind_of_net, _), n in mesh.items() if kind_of_net == net and n > 0)
        open_ = [key for key, n in mesh.items() if key[0] == net and n < 1]
        if open_ and not whole:
            raise no_devices(degree_product * slices)
        if whole and (len(open_) > 1 or whole % degree_product or (not open_ and whole != degree_product)):
            must = f"must be the product of the {net}_*_parallelism degrees ({degree_product}), -1 once taking the rest"
            raise InputError(
                "num_devices", devices or whole, must, str(degree_product * (slices if net == "ici" else 1))
            )
        mesh |= dict.fromkeys(open_, whole // degree_product)
    size = {name: mesh["ici", name] * mesh["dcn", name] for name in MESH}
    cp = size["context"] * size["context_usp_ulysses"] * size["sequence"]
    fsdp, ep = size["fsdp"] * size["fsdp_transpose"], size["expert"]
    shards, dp = fsdp * cp * ep, size["data"] * fsdp * ep
    over_data = keys.flag("shard_optimizer_over_data")
    once = keys.flag("pipeline_fsdp_ag_once") and size["pipeline"] > 1
    zero = 1 if once or (shards == 1 and over_data) else 3 if shards > 1 else 0
    tp = size["tensor"] * size["tensor_sequence"]
    dims = ParallelDims(tp=tp, pp=size["pipeline"], dp=dp, cp=cp, ep=ep, sequence_parallel=True)
    return dims, zero, shards if zero and 1 < shards < dp * cp else 0, max(keys.count("num_pipeline_repeats", -1), 0)


DEGREES = {
    "tp": ("tensor", "tensor_sequence"),
    "cp": ("context", "context_usp_ulysses", "sequence"),
    "ep": ("expert",),
    "pp": ("pipeline",),
}
"""Axes of the mesh whose product is a degree."""


def _replaced(options: Options) -> frozenset[str]:
    """Keys whose value an option states."""
    axes = [axis for name in options.sizes for axis in DEGREES.get(name, ())]
    batch = ("per_device_batch_size",) if "global_batch_size" in options.sizes else ()
    length = ("max_target_length",) if "seq_len" in options.sizes else ()
    return frozenset([*(f"{net}_{axis}_parallelism" for net in ("ici", "dcn") for axis in axes), *batch, *length])


def _with_degrees(
    keys: StatedDocument, mesh: Mapping[tuple[str, str], int], devices: int
) -> tuple[dict[tuple[str, str], int], int]:
    """The mesh with the degrees that are stated beside the launch, within a slice; its devices stay, and sharding takes
    those left."""
    changed, stated = dict(mesh), [name for name in DEGREES if name in keys.options.sizes]
    for name in stated:
        axes, degree = DEGREES[name], keys.options.sizes[name]
        words = [keys.open[f"ici_{axis}_parallelism"] for axis in axes if f"ici_{axis}_parallelism" in keys.open]
        before = math.prod(mesh[net, axis] for net in ("ici", "dcn") for axis in axes)
        keys.replaced |= {name: words[0] if words else str(before)} if words or before != degree else {}
        changed |= {(net, axis): 1 for net in ("ici", "dcn") for axis in axes} | {("ici", axes[0]): degree}
    if stated and min(mesh.values()) > 0:
        devices = devices or math.prod(mesh.values())
    if stated and all(size > 0 for (net, _), size in changed.items() if net == "ici"):
        changed["ici", "fsdp"] = -1
    return changed, devices


def _slices(keys: StatedDocument, mesh: Mapping[tuple[str, str], int], devices: int) -> int:
    """Number of slices (or nodes) of the launch."""
    product = math.prod(n for (net, _), n in mesh.items() if net == "dcn" and n > 0)
    inside = [n for (net, _), n in mesh.items() if net == "ici"]
    gpus = keys.choice("hardware", "tpu", ("tpu", "gpu", "gpu_multiprocess", "cpu")).startswith("gpu")
    if all(n > 0 for (net, _), n in mesh.items() if net == "dcn"):
        return product
    if all(n > 0 for n in inside) and devices:
        return max(devices // math.prod(inside), 1)
    nodes = devices // GPUS if gpus and devices > GPUS and devices % GPUS == 0 else 1
    slices = max(product, nodes)
    if devices:
        keys.assumptions.append(f"{slices} {'nodes' if gpus else 'slices'}: the launch does not say how many")
    return slices


MESH = (*AXES, "tensor_sequence", "context_usp_ulysses", "fsdp_transpose", "sequence")
"""Mesh axes that are read."""
GPUS = 8
"""GPUs per node, assumed if a launch on GPUs leaves both axes open."""


def _batch(keys: StatedDocument, dims: ParallelDims) -> tuple[int, int]:
    """Microbatch size of one pipeline, and number of microbatches: one pass is ``per_device_batch_size`` times devices,
    and a pipeline splits it into ``num_pipeline_microbatches``."""
    pp, dp = int(dims.pp), int(dims.dp)
    devices = int(dims.tp) * int(dims.cp) * pp * dp
    steps = keys.count("gradient_accumulation_steps", 1)
    per_device = keys.find("per_device_batch_size")
    if stated := keys.options.sizes.get("global_batch_size"):
        of_file = keys.shown("per_device_batch_size") or "12"
        keys.replaced["global_batch_size"] = f"per_device_batch_size={of_file}"
        per_device = stated / steps / devices
    per_device = 12.0 if per_device is None else per_device
    if isinstance(per_device, bool) or not isinstance(per_device, (int, float)) or not 0 < per_device < 2**30:
        raise InputError("per_device_batch_size", per_device, "must be a positive number")
    rounds = max(keys.count("num_pipeline_microbatches", -1), 0) or pp
    cut, whole = dp * (rounds if pp > 1 else 1), int(per_device * devices * (1 + 1e-9))
    if (whole % cut or whole < cut) and not stated:
        near = max(int(whole // cut), 1) * cut / devices
        raise InputError(
            "per_device_batch_size", per_device, f"must give each of {cut} parts a whole sequence", f"{near:g}"
        )
    return max(int(whole // cut), 1), steps * (rounds if pp > 1 else 1)


def _repeats(keys: StatedDocument, dims: ParallelDims, shape: TransformerShape | None, repeats: int) -> int:
    """Chunks per device, if the launch gives layers per chunk, or neither."""
    per_stage = keys.count("num_layers_per_pipeline_stage", 1)
    if int(dims.pp) == 1 or shape is None or repeats:
        return repeats if int(dims.pp) > 1 and repeats else 1
    chunks, rest = divmod(int(shape.num_layers), int(dims.pp) * per_stage)
    if rest or not chunks:
        must = f"times pp={dims.pp} must divide the model's {shape.num_layers} layers"
        raise InputError("num_layers_per_pipeline_stage", per_stage, must, "1")
    return chunks


def _parts(keys: StatedDocument, batch: int) -> JobParts:
    wide = keys.choice("dtype", "bfloat16", ("bfloat16", "float32"))
    word = keys.choice("quantization", "")
    recipe = next((recipe for recipe, words in QUANTIZED.items() if word in words), None)
    if word and recipe is None:
        choices = ", ".join(name for words in QUANTIZED.values() for name in words)
        raise InputError("quantization", printable(word), f"must be one that is priced: {choices}", "fp8")
    kind = keys.choice("context_parallel_strategy", "all_gather", (*EXCHANGES.values(), "usp"))
    optimizer = keys.choice("opt_type", "adamw", ("adamw", "adam_pax", "sgd", "muon"))
    if keys.choice("mu_dtype", "float32", ("float32", "bfloat16")) != "float32":
        keys.assumptions.append("mu_dtype=bfloat16 is priced as float32: the second moment follows the weights")
    if keys.choice("weight_dtype", "float32", ("float32", "bfloat16")) != "float32":
        keys.assumptions.append("weight_dtype=bfloat16 is priced as float32")
    narrow = keys.choice("grad_dtype", "float32", ("float32", "bfloat16")) == "bfloat16"
    exchange = next((c for c, name in EXCHANGES.items() if name == kind), ContextParallel.ALL_TO_ALL)
    plain = keys.choice("attention", "") == "dot_product"
    rate = keys.find("dropout_rate")  # base.yml: enable_dropout, at a rate of 0
    return JobParts(
        seq_len=keys.count("max_target_length", 2048),
        global_batch_size=batch,
        recipe=recipe or (Recipe.FP32 if wide == "float32" else Recipe.BF16),
        optimizer=next((o for o, name in OPTIMIZERS.items() if name == optimizer), Optimizer.ADAM),
        attention_kernel=AttentionKernel.UNFUSED if plain else AttentionKernel.FLASH,
        context_parallel=exchange,
        dropout=keys.flag("enable_dropout", True) and isinstance(rate, (int, float)) and rate > 0,
        trainer=replace(MAXTEXT, grad_dtype=DType.BF16 if narrow else DType.FP32),
    )


def _read_remat(
    keys: StatedDocument, shape: TransformerShape | None
) -> tuple[Recompute, frozenset[RecomputeModule], frozenset[OffloadModule]]:
    policy = keys.choice("remat_policy", "full", (*POLICIES, "custom"))
    places = {name: keys.choice(name, "remat") for name in (*QKV, *OUT, *CONTEXT, *MLP, *EXPERTS)}
    inputs = keys.choice("decoder_layer_input", "device", ("device", "offload")) == "offload" and policy == "custom"
    on_device, away = POLICIES.get(policy, ((), ()))
    if policy == "custom":
        on_device, away = (
            tuple(n for n, place in places.items() if place == location) for location in ("device", "offload")
        )
    stored = {*on_device, *away}
    if not stored & set(QKV) or not stored & set(OUT):
        if stored:
            keys.assumptions.append(f"remat_policy={policy} is priced as full: it keeps a part of attention alone")
        offload = frozenset({OffloadModule.LAYER_INPUT}) if inputs else frozenset[OffloadModule]()
        return Recompute.FULL, frozenset({RecomputeModule.CORE_ATTN}), offload
    again = {*_always(shape), *_not_held(stored, shape)}
    return Recompute.SELECTIVE, frozenset(again), frozenset(_moved({*away}, stored, inputs=inputs))


def _not_held(stored: set[str], shape: TransformerShape | None) -> Iterator[RecomputeModule]:
    if not stored & set(CONTEXT):
        yield RecomputeModule.CORE_ATTN
    experts = shape is not None and shape.moe_ffn is not None
    if not stored & {"mlpwi", "mlpwi_0"} and (shape is None or shape.dense_ffn is not None):
        yield RecomputeModule.MLP
    if experts and not stored & {"moe_mlpwi_0"}:
        yield RecomputeModule.MOE


def _moved(away: set[str], stored: set[str], *, inputs: bool) -> Iterator[OffloadModule]:
    if away == stored:
        yield OffloadModule.LAYER
        return
    if inputs:
        yield OffloadModule.LAYER_INPUT
    if away & set(QKV):
        yield OffloadModule.CORE_ATTN
    if away & {*OUT, *CONTEXT}:
        yield OffloadModule.ATTN_PROJ
