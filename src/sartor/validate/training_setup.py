"""Trainer, device and cluster of a published training run.

What a row states, its trainer with its switches, and the meaning of words for precision and recomputation.

The cluster of a training row: its device by name, its nodes, and the links inside and between them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import load_device
from sartor.hardware.catalog import ACCELERATORS, load_gpu
from sartor.hardware.cluster import HOP_LATENCY_S, Cluster, LinkTier
from sartor.hardware.cluster_catalog import load_cluster, usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.training import Optimizer, Recipe, Recompute, Trainer, TrainingJob
from sartor.model.workload import Loss
from sartor.operators import DType
from sartor.plans.fixed import SWITCHED, job_choices
from sartor.records.rows import Unexpressed
from sartor.run.fields import FIELDS, Origin, Run
from sartor.step.trainers import OTHER, of_release, plausible_trainers, record_named, trainer_in_table
from sartor.units import GIB, GIGA
from sartor.validate.row_shapes import number, whole


def is_stated(row: Mapping[str, str], name: str) -> bool:
    """Whether a row states a column: blank, ``unknown`` and ``any`` say nothing."""
    return (row.get(name) or "").strip().lower() not in ("", "unknown", "any")


def stated_run(row: Mapping[str, str], trainer: Trainer, gpu: Gpu) -> Run:
    """The fields and switches that the row states; a trainer that is not known is one of those plausible there."""
    names = (name for name in (*FIELDS, *SWITCHED) if name != "framework")
    columns = {name: COLUMNS.get(name, name) for name in names}
    run = Run.stated("row", **{name: row[column] for name, column in columns.items() if is_stated(row, column)})
    if trainer_in_table(row.get("framework", "")):
        return run.with_(Origin.STATED, "row", framework=trainer.names[0])
    others = (name for name in plausible_trainers([gpu]) if name != trainer.names[0])
    return run.with_(Origin.USUAL, "assumed", framework=trainer.names[0]).among("framework", *others)


COLUMNS = {"attention": "flash_attention"}
"""Columns that are not called as their field."""


def with_stated_switches(row: Mapping[str, str], job: TrainingJob, gpu: Gpu) -> TrainingJob:
    """The job with the switches that the row states, by their names in ``sartor plan --fix``. Raises ``InputError``."""
    words: dict[str, str | int] = {name: row[name] for name in SWITCHED if is_stated(row, name)}
    words |= adapters_of(row)
    return job_choices(job, [gpu], words)[0][0].job if words else job


def adapters_of(row: Mapping[str, str]) -> dict[str, str | int]:
    """The switches of fine-tuning that a row's columns state: rank and targets of adapters, bits of frozen weights."""
    words: dict[str, str | int] = {}
    if rank := whole(row, "lora_rank"):
        words["lora_rank"] = rank
    named = re.split(r"[+, ]+", row.get("lora_targets", "").lower())
    targets = {name.removeprefix("linear_").removesuffix("_proj") for name in named} - {""}
    if targets:
        attention = targets <= {"q", "k", "v", "o", "qkv", "proj", "query", "value", "attention", "attn"}
        few = targets <= {"q", "v", "query", "value"}
        words["lora_targets"] = "qv" if few else "attention" if attention else "all"
    held = row.get("frozen_base_dtype", "").strip().lower()
    if bits := 4 if held in ("nf4", "fp4", "int4", "4", "4bit", "4-bit") else 8 * (held in ("int8", "8bit", "8-bit")):
        words["frozen_bits"] = bits
    return words


def recorded(row: Mapping[str, str], job: TrainingJob, gpu: Gpu, name: str) -> Trainer:
    """A trainer that the job of a row without a known one may have had, with the row's own switches."""
    trainer = _with_switches(row, record_named(name), gpu)
    return with_stated_switches(row, replace(job, trainer=trainer), gpu).trainer


def trainer_of(row: Mapping[str, str], gpu: Gpu) -> tuple[Trainer, tuple[str, ...]]:
    """The row's trainer with the row's own switches, and what was assumed."""
    named_trainer = trainer_in_table(row.get("framework", ""))
    usual, *others = plausible_trainers([gpu])
    trainer = named_trainer or (OTHER if others else record_named(usual))
    like = "Megatron" if others else trainer.called
    assumed = () if named_trainer else (f"trainer unknown: assumed to behave like {like}",)
    return _with_switches(row, trainer, gpu), assumed


def _with_switches(row: Mapping[str, str], trainer: Trainer, gpu: Gpu) -> Trainer:
    """The trainer of the row's release, with its kernels as the row states them."""
    if row.get("compile") == "1" or row.get("eager") == "1":
        trainer = replace(trainer, fused_kernels=row.get("eager") != "1")
    kernels = row.get("framework", "").lower()
    if "liger" in kernels or "cut cross" in kernels:
        trainer = replace(trainer, fused_loss=Loss.LINEAR if "liger" in kernels else Loss.CUT)
    if main := _MAIN.get(_word_of(row, "dtype")):
        trainer = replace(trainer, main_dtype=main)
    if row.get("recompute", "").strip().lower() == "selective_op":
        trainer = replace(trainer, checkpoints_operators=True)
    return of_release(trainer, row.get("framework_version", ""), gpu.generation)


def recipe_of(row: Mapping[str, str], trainer: Trainer, gpu: Gpu) -> tuple[Recipe, tuple[str, ...]]:
    """The precision recipe; by default 16 bits (bf16 if the device supports it). Raises ``Unexpressed``."""
    word = _word_of(row, "dtype")
    if not word or word in ("mixed", "amp", "16bit", "half"):
        recipe = Recipe.BF16 if DType.BF16 in gpu.peak_flops_per_s else Recipe.FP16
        return recipe, (f"dtype not stated: {recipe.value}",)
    if word in _RECIPES:
        return _RECIPES[word], ()
    if word in ("fp8", "float8", "fp8_hybrid", "fp8_e4m3"):
        return trainer.plain_fp8, ()
    raise Unexpressed(f"dtype {word[:30]}: no precision recipe of that name")


def _word_of(row: Mapping[str, str], name: str) -> str:
    return re.sub(r"[\s\-]+", "_", row.get(name, "").strip().lower())


_RECIPES: Mapping[str, Recipe] = {
    **{recipe.value: recipe for recipe in Recipe},
    **{f"{kind}{recipe.value}": recipe for recipe in (Recipe.BF16, Recipe.FP16) for kind in ("pure_", "full_")},
    **{f"{recipe.value}_{kind}": recipe for recipe in (Recipe.BF16, Recipe.FP16) for kind in ("true", "mixed")},
    "bfloat16": Recipe.BF16,
    "float16": Recipe.FP16,
    "float32": Recipe.FP32,
    "fp8_cs": Recipe.FP8_CURRENT,
    "fp8_ds": Recipe.FP8_DELAYED,
    "fp8_tensorwise": Recipe.FP8_CURRENT,
    "fp8_sc": Recipe.FP8_BLOCK,
    "fp8_subchannel": Recipe.FP8_BLOCK,
    "fp8_blockwise": Recipe.FP8_BLOCK,
    "fp8_mx": Recipe.MXFP8,
    "fp4": Recipe.NVFP4,
}


def recompute_of(row: Mapping[str, str], layers_per_stage: int) -> tuple[Recompute, int, tuple[str, ...]]:
    """The kind of recomputation, the number of layers per stage (-1: all), and what was assumed."""
    word = row.get("recompute", "").strip().lower()
    number = re.search(r"(\d+)[ _-]*layers?\b", word)
    if word in ("none", "0", ""):
        return Recompute.NONE, -1, () if word else ("recompute not stated: none",)
    if word == "unknown":
        return Recompute.NONE, -1, ("recompute unknown: none",)
    if number:
        return Recompute.FULL, min(int(number.group(1)), layers_per_stage), ()
    if _CHEAP.fullmatch(word):
        return Recompute.NONE, -1, (f"{word[:30]}: repeats no matrix multiplication, counted as none",)
    share, words = next((way for key, way in _PARTLY.items() if key.search(word)), (1.0, ""))
    if share < 1:
        return Recompute.FULL, max(1, math.ceil(layers_per_stage * share)), (f"{word[:30]}: as {words} in full",)
    if word == "minimal" or _CORE.search(word):
        return Recompute.SELECTIVE, -1, ()
    if not _MODULES.search(word):
        raise Unexpressed(f"recompute={word[:30]} is not known")
    return Recompute.FULL, -1, () if word == "full" else (f"{word[:30]}: as full",)


def is_partial(row: Mapping[str, str]) -> bool:
    """Whether the row says that a part is recomputed, without saying how much: some blocks, or tensors of a policy
    that keeps or offloads the others."""
    return bool(_SOME.search(row.get("recompute", "").strip().lower()))


_SOME = re.compile(r"^partial(?!.*\d+[ _-]*layers?\b)|selective_block|_offloaded$")


_MODULES = re.compile(
    r"full|block|uniform|all|every|layer|checkpoint|attn|attention|mlp|ffn|moe|expert|proj|qkv|norm|act|method|save|offload"
)
"""Words for modules or kinds of recomputation that count as full."""


_CHEAP = re.compile(r"((moe_|mlp_)?act(ivation)?|layer_?norm|norm|mla_up_proj|[ ,+])+")
"""Recomputing these modules alone costs only memory traffic or one small GEMM."""

_PARTLY: Mapping[re.Pattern[str], tuple[float, str]] = {
    re.compile(r"^op$|selective_op|selective_block|every_other"): (0.5, "every second layer"),
    re.compile(r"qkv_proj"): (0.8, "four of five layers"),
    re.compile(r"^(moe|mlp|ffn)$"): (2 / 3, "two of three layers"),
    re.compile(r"^partial"): (0.5, "every second layer"),
}
"""Words for partial recomputation, and the share of fully recomputed layers with the same cost: attention's projections
are 4, and those to queries, keys and values 3, of a layer's 12 h x h GEMMs at a feed-forward width of 4 h."""

_CORE = re.compile(r"selective|core_attn|core_attention")


_MAIN: Mapping[str, DType] = {
    **dict.fromkeys(("pure_bf16", "full_bf16", "bf16_true"), DType.BF16),
    **dict.fromkeys(("pure_fp16", "full_fp16", "fp16_true"), DType.FP16),
    **dict.fromkeys(("bf16_mixed", "fp16_mixed"), DType.FP32),
}
"""Words for precision that say the type of the main weights."""


def optimizer_of(row: Mapping[str, str]) -> Optimizer:
    """The optimizer that a row's words name; Adam where they name none that is known."""
    if row.get("run_kind") == "fwd_bwd_only":
        return Optimizer.NONE
    word = row.get("optimizer", "").lower()
    kind = next((kind for pattern, kind in _OPTIMIZERS.items() if pattern.search(word)), Optimizer.ADAM)
    paged = {Optimizer.ADAM: Optimizer.PAGED_ADAM, Optimizer.ADAM_8BIT: Optimizer.PAGED_ADAM_8BIT}
    return paged.get(kind, kind) if "paged" in word else kind


_OPTIMIZERS: Mapping[re.Pattern[str], Optimizer] = {
    re.compile(r"^(none|no optimizer)$"): Optimizer.NONE,
    re.compile(r"muon"): Optimizer.MUON,
    re.compile(r"adafactor"): Optimizer.ADAFACTOR,
    re.compile(r"lion"): Optimizer.LION,
    re.compile(r"adam.*(8[ -_]?bit|int8|fp8|float8|bnb)|8[ -_]?bit.*adam"): Optimizer.ADAM_8BIT,
    re.compile(r"adam.*4[ -_]?bit|4[ -_]?bit.*adam"): Optimizer.ADAM_4BIT,
    re.compile(r"\bsgd\b|momentum"): Optimizer.SGD,
}


HBM2E_BYTES_PER_STACK_S = 400e9
"""An HBM2e stack at 3.2 Gbit/s a pin over 1024 pins (JESD235C; 2020)."""

HBM2E_STACK_BYTES = 16 * GIB
"""Eight 16 Gbit dies (JESD235C)."""


EXPORTED = {"a800": ("a100", 200e9), "h800": ("h100", 200e9)}
"""Export versions: the same chip with NVLink at 400 GB/s, both directions together (NVIDIA's and its partners' A800 and
H800 datasheets, 2022 and 2023; recalled)."""


def _gpu_of(name: str) -> tuple[Gpu, tuple[str, ...]]:
    """The device for a row's name: a chip of the accelerator template, or a GPU, by the whole name or without its last
    words.

    Removed words may be a memory size [GB], a power limit [W] or HBM2e, which then change the device. Raises
    ``Unexpressed``.
    """
    if name in ACCELERATORS:
        return load_device(name), ()
    words = [word for word in re.split(r"[-_ ]+", name.strip()) if word]
    first = words[0].lower() if words else ""
    if first in EXPORTED:
        model, rate = EXPORTED[first]
        gpu, assumed = _gpu_of("-".join([model, *words[1:]]))
        return replace(gpu, link_bytes_per_s=rate), (*assumed, f"{first.upper()} as {gpu.name} with slower NVLink")
    nearest = ""
    for count in range(len(words), 0, -1):
        try:
            gpu = load_gpu("-".join(words[:count]))
        except InputError as error:
            nearest = f"; nearest: {error.nearest}" if error.nearest else nearest
            continue
        return _with_words(gpu, words[count:])
    raise Unexpressed(f"gpu {name[:40]}: not in the catalogue{nearest}")


def _with_words(gpu: Gpu, words: list[str]) -> tuple[Gpu, tuple[str, ...]]:
    assumed = []
    for word in words:
        memory, power = re.fullmatch(r"(\d+)GB", word, re.I), re.fullmatch(r"(\d+)W", word, re.I)
        if memory and abs(int(memory.group(1)) * GIB / gpu.hbm_bytes - 1) > 0.15:
            gpu = replace(gpu, hbm_bytes=int(memory.group(1)) * GIB)
            assumed.append(f"{gpu.name} with {word}")
        if power and float(power.group(1)) < gpu.tdp_w:
            gpu = _limited(gpu, float(power.group(1)))
            assumed.append(f"{gpu.name} limited to {word}")
    if any(word.lower() == "hbm2e" for word in words):
        stacks = round(gpu.hbm_bytes / HBM2E_STACK_BYTES)
        gpu = replace(gpu, hbm_bytes_per_s=stacks * HBM2E_BYTES_PER_STACK_S)
        assumed.append(f"{gpu.name} with {stacks} stacks of HBM2e")
    return gpu, tuple(assumed)


POWER_EXPONENT = 1 / 3
"""Matrix rate scales with this power of the power limit: dynamic power is proportional to clock times voltage squared,
and voltage follows the clock."""


def _limited(gpu: Gpu, power_w: float) -> Gpu:
    """The device with a lower power limit."""
    rate = (power_w / gpu.tdp_w) ** POWER_EXPONENT
    peaks = {dtype: peak * rate for dtype, peak in gpu.peak_flops_per_s.items()}
    return replace(gpu, tdp_w=power_w, peak_flops_per_s=peaks, boost_clock_hz=gpu.boost_clock_hz * rate)


def cluster_of(row: Mapping[str, str]) -> tuple[Cluster, tuple[str, ...]]:
    """The row's cluster, of the catalogue or as two tiers (one if all devices share it), and what was assumed. Raises
    ``Unexpressed``."""
    gpu, assumed = _gpu_of(row.get("gpu", ""))
    devices, node = whole(row, "n_gpu"), whole(row, "gpus_per_node")
    if not devices:
        raise Unexpressed("n_gpu is not given")
    if is_stated(row, "cluster"):
        cluster = load_cluster(row["cluster"])
        if cluster.gpu.name != gpu.name or cluster.others:
            raise Unexpressed(f"cluster {row['cluster'][:40]} does not consist of {gpu.name}")
        return replace(cluster, gpu=gpu).reached(devices), assumed
    if gpu.accelerator is not None:
        return usual_cluster(gpu).reached(devices), (*assumed, "links of the chip itself")
    per_node = min(node or gpu.devices_per_node, devices)
    tiers: tuple[LinkTier, ...] = (_inner(row, gpu, _domain(row, gpu, per_node, devices)),)
    if devices > tiers[0].span:
        outer, guessed = _outer(row, gpu)
        tiers, assumed = (*tiers, outer), (*assumed, *guessed)
    else:
        tiers = (replace(tiers[0], span=0),)
    return Cluster(name="row", gpu=gpu, devices_per_node=per_node, tiers=tiers, num_devices=devices), assumed


def _domain(row: Mapping[str, str], gpu: Gpu, per_node: int, devices: int) -> int:
    """Devices that share the inner links: those of a node, of a rack with one switch, or of a TPU slice, whose links
    connect hosts (as many as the largest slice has, unless the row mentions several slices).

    A job over several racks uses as many whole nodes of each as divide its devices (64 of 72).
    """
    if gpu.vendor == "Google" and "slices" not in row.get("inter_node", ""):
        return max(per_node, gpu.link_domain)
    rack = re.search(r"NVL(\d+)", row.get("intra_node", ""))
    largest = max(int(rack.group(1)), per_node) if rack else per_node
    if devices <= largest:
        return largest
    return next((size for size in range(largest - largest % per_node, 0, -per_node) if devices % size == 0), per_node)


def _inner(row: Mapping[str, str], gpu: Gpu, span: int) -> LinkTier:
    kind, word = _inner_kind(row, gpu), row.get("intra_node", "")
    stated = re.search(r"(?:(\d+) ?x ?)?(\d+(?:\.\d+)?) ?GB/s", word)  # "7x128 GB/s": seven links
    both_ways = kind in ("nvswitch", "nvlink", "xgmi")  # these rates count both directions together
    device_rate = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
    rate = int(stated[1] or 1) * float(stated[2]) * GIGA / (1 + both_ways) if stated else device_rate
    return LinkTier(
        name="node",
        span=span,
        bytes_per_s=rate or 16e9,
        latency_s=HOP_LATENCY_S[kind],
        kind=kind,
        in_network_reduction=kind == "nvswitch" and gpu.generation not in ("volta", "ampere"),
        torus_axes=0 if kind != "ici" else 2 if "2D" in word else 3,
        torus_wrap=16 if "2D" in word else 4,
    )


def _inner_kind(row: Mapping[str, str], gpu: Gpu) -> str:
    word = row.get("intra_node", "").lower()
    if "ici" in word or "torus" in word or gpu.vendor.lower() == "google":
        return "ici"
    if "nvlink" in word or "nvswitch" in word:
        return "nvlink" if gpu.generation in ("pascal", "volta") else "nvswitch"
    if "fabric" in word or "xgmi" in word:
        return "xgmi"
    if "pcie" in word or not gpu.link_bytes_per_s:
        return "pcie"
    return "nvswitch" if gpu.vendor.lower() == "nvidia" else "xgmi"


def _outer(row: Mapping[str, str], gpu: Gpu) -> tuple[LinkTier, tuple[str, ...]]:
    """The network between nodes as the row names it, with a usual rate if none is given."""
    word = row.get("inter_node", "").lower()
    kinds = {"infiniband": "infiniband", "omni": "omnipath", "slingshot": "slingshot", "efa": "efa", "dcn": "dcn"}
    is_tpu = gpu.vendor.lower() == "google"
    kind = next((kind for name, kind in kinds.items() if name in word), "")
    kind = kind or ("dcn" if is_tpu else "ethernet" if "ethernet" in word or "roce" in word else "infiniband")
    stated = number(row, "inter_gbps_per_gpu")
    rate = stated if stated > 0 else usual_cluster(gpu).tiers[-1].bytes_per_s * 8 / GIGA
    assumed = () if stated > 0 else (f"network between nodes not stated: {rate:.0f} Gbit/s per device",)
    tier = LinkTier(name="network", span=0, bytes_per_s=rate * GIGA / 8, latency_s=HOP_LATENCY_S[kind], kind=kind)
    return tier, assumed
