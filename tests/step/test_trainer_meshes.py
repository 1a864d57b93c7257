"""States that sartor prices are those that each trainer's own mesh leaves on a device.

torchtitan, Megatron-Core and PyTorch's FSDP2 build their groups and shard a model on the meta device here
(``mesh_counts``); DeepSpeed's and MaxText's rules are restated from their sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.shape import TransformerShape
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims, Recompute
from sartor.model.zoo import load_model
from sartor.step.footprint import every_stage
from sartor.step.question import as_trained
from sartor.step.trainers import record_named

PACKAGES = ("torch", "torchtitan", "megatron")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(find_spec, PACKAGES)), reason="wants torchtitan and megatron-core: make test-torch"),
    pytest.mark.filterwarnings("ignore"),
]
FLAVORS = {
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
}
CLUSTER = load_cluster("dgx-h100")


def shape_of(model: str) -> TransformerShape:
    """The model without modules for multi-token prediction."""
    return replace(load_model(model), mtp_layers=0)


def plan_of(shape: TransformerShape, **axes: Any) -> TrainingPlan:
    """A plan with as even stages as possible."""
    chunks = axes.get("pp", 1) * axes.get("virtual_stages", 1)
    layers = tuple(len(part) for part in np.array_split(np.arange(int(shape.num_layers)), chunks))
    return TrainingPlan(recompute=Recompute.FULL, num_microbatches=64, stage_layers=layers).with_columns(**axes)


def priced(model: str, trainer: str, **axes: Any) -> list[tuple[float, float, float]]:
    """Bytes of weights, gradients and optimizer states on every stage."""
    record = replace(record_named(trainer), splits_experts=axes.pop("splits", record_named(trainer).splits_experts))
    plan = plan_of(shape_of(model), **axes)
    batch = int(plan.dims.dp) * 64
    job = TrainingJob(shape=shape_of(model), seq_len=4096, global_batch_size=batch, trainer=record)
    held = every_stage(job, plan, CLUSTER).held
    columns = held.weights + held.narrow_weights, held.grads, held.optimizer
    return [(float(w), float(g), float(o)) for w, g, o in zip(*(column[:, 0] for column in columns), strict=True)]


def check(model: str, trainer: str, counted: Sequence[tuple[float, float, float]], **axes: Any) -> None:
    for stage, (ours, theirs) in enumerate(zip(priced(model, trainer, **axes), counted, strict=True)):
        assert ours == pytest.approx(theirs, rel=0.01), (stage, np.array(ours) / theirs)


def torchtitan_states(model: str, **axes: int) -> list[tuple[float, float, float]]:
    """fp32 shards of weights, gradients and two moments; with a pipeline, 16-bit weights of up to three chunks and the
    summed gradients of all are whole between microbatches."""
    from mesh_counts import torchtitan_count

    dp, cp, pp, chunks = (axes.get(name, 1) for name in ("dp", "cp", "pp", "virtual_stages"))
    group = axes.get("shard_group", 0) or dp * cp
    layers = plan_of(shape_of(model), **axes).stage_layers or ()
    ends = np.cumsum(layers)
    modules = [[f"layers.{i}" for i in range(end - count, end)] for count, end in zip(layers, ends, strict=True)]
    modules[0] = ["tok_embeddings", *modules[0]]
    modules[-1] += ["norm", "lm_head"]
    degrees = {"tensor": axes.get("tp", 1), "context": cp, "expert": axes.get("ep", 1), "pipeline": pp}
    degrees |= {"data_parallel_shard": group // cp, "data_parallel_replicate": dp * cp // group}
    states = []
    for stage in range(pp):
        count = torchtitan_count(*FLAVORS[model], modules, chunks, stage, **degrees)
        gathered = count.whole * min(3 / chunks, 1) if pp > 1 else 0
        summed = count.whole if pp > 1 else count.shard
        states.append((4 * count.shard + 2 * gathered, 4.0 * summed, 8 * count.shard))
    return states


TORCHTITAN: Sequence[tuple[str, dict[str, int]]] = (
    ("llama-3.1-8b", {"dp": 8}),
    ("llama-3.1-8b", {"tp": 2, "dp": 8}),
    ("llama-3.1-8b", {"tp": 2, "cp": 2, "dp": 16, "shard_group": 16}),
    ("llama-3.1-8b", {"pp": 2, "virtual_stages": 2, "dp": 4}),
    ("llama-3.1-8b", {"pp": 2, "virtual_stages": 4, "dp": 4, "shard_group": 2}),
    ("llama-3.1-70b", {"tp": 8, "pp": 4, "dp": 4}),
    ("llama-3.1-405b", {"tp": 8, "pp": 2, "dp": 8}),
    ("deepseek-v3", {"dp": 1024, "ep": 16, "shard_group": 32}),
    ("deepseek-v3", {"dp": 1024, "ep": 64}),
    ("deepseek-v3", {"tp": 4, "dp": 64, "ep": 16}),
    ("deepseek-v3", {"tp": 2, "cp": 2, "dp": 64, "ep": 32, "shard_group": 64}),
    ("deepseek-v2-lite", {"dp": 8, "ep": 8}),
    ("qwen3-30b-a3b", {"tp": 4, "dp": 8}),
    ("qwen3-30b-a3b", {"tp": 4, "dp": 8, "ep": 8}),
    ("qwen3-30b-a3b", {"tp": 4, "dp": 16, "ep": 16, "shard_group": 8}),
    ("qwen3-235b-a22b", {"pp": 2, "dp": 32, "ep": 8}),
)


@pytest.mark.parametrize(("model", "axes"), TORCHTITAN)
def test_torchtitan_puts_these_states_on_a_device(model: str, axes: Mapping[str, int]) -> None:
    zero = 2 if axes.get("pp", 1) > 1 else 3
    check(model, "torchtitan", torchtitan_states(model, **axes), zero_stage=zero, **axes)


@pytest.mark.parametrize(
    ("model", "replicate", "shard"),
    [("llama-3.1-8b", 1, 8), ("llama-3.1-8b", 4, 8), ("llama-3.1-70b", 1, 64), ("qwen3-30b-a3b", 2, 16)],
)
def test_fsdp2_puts_these_states_on_a_device(model: str, replicate: int, shard: int) -> None:
    from mesh_counts import fsdp2_count

    owned = fsdp2_count(*FLAVORS[model], replicate, shard).shard
    group = shard if replicate > 1 else 0
    counted = [(4 * owned, 4 * owned, 8 * owned)]
    check(model, "fsdp", counted, dp=replicate * shard, zero_stage=3, shard_group=group)


def megatron_sizes(shape: TransformerShape, tp: int) -> dict[str, Any]:
    """Arguments of Megatron's configuration. The vocabulary is padded to a multiple of 128 x tp
    (``--make-vocab-size-divisible-by``)."""
    sizes = shape.fields()
    trained = as_trained(
        TrainingJob(shape=shape, seq_len=1, global_batch_size=1, trainer=record_named("megatron")), ParallelDims(tp=tp)
    )
    out: dict[str, Any] = {
        "vocab_size": int(trained.vocab_size),
        "num_layers": int(shape.num_layers),
        "hidden_size": int(shape.hidden_size),
        "num_attention_heads": sizes["num_heads"],
        "num_query_groups": sizes["num_kv_heads"],
        "kv_channels": sizes["head_dim"],
        "ffn_hidden_size": sizes.get("ffn_hidden_size", sizes.get("expert_ffn_hidden_size")),
        "qk_layernorm": shape.name.startswith(("Qwen3", "DeepSeek")),
    }
    if "num_experts" in sizes:
        out |= {"num_moe_experts": sizes["num_experts"], "moe_ffn_hidden_size": sizes["expert_ffn_hidden_size"]}
        out |= {"moe_router_topk": sizes["experts_per_token"]}
    if "kv_lora_rank" in sizes:
        del out["kv_channels"], out["num_query_groups"]
        out |= {"q_lora_rank": sizes.get("q_lora_rank"), "kv_lora_rank": sizes["kv_lora_rank"]}
        out |= {"qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
        dense = 3 if sizes["num_layers"] == 61 else 1
        out |= {"moe_layer_freq": [0] * dense + [1] * (sizes["num_layers"] - dense)}
        shared = sizes["num_shared_experts"] * sizes["expert_ffn_hidden_size"]
        out |= {"moe_shared_expert_intermediate_size": shared}
    return out


MEGATRON: Sequence[tuple[str, dict[str, int]]] = (
    ("llama-3.1-8b", {"tp": 2, "pp": 2, "dp": 4}),
    ("llama-3.1-70b", {"tp": 8, "pp": 4, "dp": 4}),
    ("llama-3.1-70b", {"tp": 4, "cp": 2, "dp": 8, "shard_group": 8}),
    ("mixtral-8x7b", {"tp": 8, "dp": 1}),
    ("mixtral-8x7b", {"tp": 8, "pp": 2, "dp": 4, "ep": 4}),
    ("mixtral-8x7b", {"tp": 8, "pp": 2, "dp": 4, "ep": 8, "splits": 0}),
    ("mixtral-8x7b", {"tp": 2, "dp": 128, "ep": 8, "shard_group": 64}),
    ("mixtral-8x7b", {"tp": 2, "dp": 128, "ep": 8, "shard_group": 64, "splits": 0}),
    ("qwen3-30b-a3b", {"dp": 32, "ep": 8}),
    ("qwen3-30b-a3b", {"tp": 2, "cp": 2, "dp": 8, "ep": 8, "splits": 0}),
    ("qwen3-30b-a3b", {"tp": 2, "pp": 4, "dp": 16, "ep": 4}),
    ("deepseek-v3", {"tp": 2, "dp": 512, "ep": 64}),
    ("deepseek-v3", {"tp": 2, "dp": 512, "ep": 64, "splits": 0}),
    ("deepseek-v2-lite", {"dp": 16, "ep": 8}),
)


@pytest.mark.parametrize(("model", "axes"), MEGATRON)
def test_megatron_puts_these_states_on_a_device(model: str, axes: dict[str, int]) -> None:
    """16-bit weights, fp32 gradients that its distributed optimizer does not shard, and its share of fp32 weights and
    two moments."""
    from mesh_counts import megatron_count

    tp, dp, cp, pp = (axes.get(name, 1) for name in ("tp", "dp", "cp", "pp"))
    group = axes.get("shard_group", 0) or dp * cp
    degrees = {"world": tp * dp * cp * pp, "instances": dp * cp // group}
    degrees |= {name: axes[name] for name in ("tp", "pp", "cp", "ep") if name in axes}
    degrees |= {} if axes.get("splits", 1) else {"etp": 1}
    counts = [megatron_count(megatron_sizes(shape_of(model), tp), stage, **degrees) for stage in range(pp)]
    states = [(2.0 * count.whole, 4.0 * count.whole, 12 * count.shard) for count in counts]
    zero = 1 if dp * cp > 1 else 0
    check(model, "megatron", states, zero_stage=zero, **{**axes, "splits": bool(axes.get("splits", 1))})


@pytest.mark.parametrize(
    ("model", "dp", "ep", "zero"),
    [("llama-3.1-8b", 8, 1, 1), ("llama-3.1-70b", 64, 1, 3), ("qwen3-30b-a3b", 32, 8, 1), ("qwen3-30b-a3b", 32, 8, 2)],
)
def test_deepspeed_partitions_experts_among_their_own_replicas(model: str, dp: int, ep: int, zero: int) -> None:
    """``_create_expert_and_data_parallel`` of utils/groups.py and ``real_dp_process_group`` of
    runtime/zero/stage_1_and_2.py (0.19.8): experts are partitioned over world / ep, all else over the world; gradients
    are summed in the model's own type (``get_data_types`` of runtime/engine.py)."""
    from mesh_counts import model_count

    dense, experts = model_count(*FLAVORS[model])
    whole, shard = dense + experts / ep, dense / dp + experts / ep / (dp / ep)
    weights, grads = (shard if zero >= stage else whole for stage in (3, 2))
    check(model, "deepspeed", [(2 * weights, 2 * grads, 12 * shard)], dp=dp, ep=ep, zero_stage=zero)


@pytest.mark.parametrize(
    ("model", "fsdp", "expert", "tensor", "context"),
    [
        ("llama-3.1-8b", 8, 1, 1, 1),
        ("llama-3.1-70b", 16, 1, 8, 2),
        ("deepseek-v3", 16, 16, 1, 1),
        ("deepseek-v3", 8, 16, 2, 2),
    ],
)
def test_maxtext_divides_weights_over_every_axis_but_data(
    model: str, fsdp: int, expert: int, tensor: int, context: int
) -> None:
    """``logical_axis_rules`` of base.yml (000b810b, read 2026-11-29): experts' weights have ``exp`` over expert,
    ``embed_moe`` over fsdp and context and ``mlp_moe`` over tensor; all others ``embed`` (or ``q_lora``, ``kv_lora``)
    over fsdp, context and expert, and ``heads``, ``mlp`` or ``vocab`` over tensor. sartor's dp holds fsdp x expert."""
    from mesh_counts import model_count

    dense, experts = model_count(*FLAVORS[model])
    owned = dense / (fsdp * context * expert * tensor) + experts / (expert * fsdp * context * tensor)
    axes = {"dp": fsdp * expert, "ep": expert, "tp": tensor, "cp": context, "zero_stage": 3}
    check(model, "maxtext", [(4 * owned, 4 * owned, 8 * owned)], **axes)
