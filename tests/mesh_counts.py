"""Bytes of states that trainers' own code puts on one device: their process groups or meshes, made of ranks that do not
exist (a fake process group), hold a model whose tensors have sizes and no data (the meta device).

Each function returns parameters of one pipeline rank: those it keeps between steps, and whole ones before sharding.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@dataclass(frozen=True, kw_only=True)
class Count:
    """Parameters on one device."""

    whole: int
    """Before data-parallel sharding."""
    shard: float
    """Of which the device owns this part."""


@contextmanager
def ranks(world: int, rank: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if parallel_state := sys.modules.get("megatron.core.parallel_state"):
            parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def torchtitan_count(
    module: str, flavor: str, stages: Sequence[Sequence[str]], chunks: int, stage: int, **degrees: int
) -> Count:
    """torchtitan's own model, mesh and ``parallelize_fn``; ``stages`` names the modules of every pipeline chunk."""
    parallel_dims = importlib.import_module("torchtitan.distributed.parallel_dims")
    configs = importlib.import_module("torchtitan.config.configs")
    parallel_dims.device_type = "cpu"
    pp = degrees.get("pipeline", 1)
    parallelism = configs.ParallelismConfig(
        data_parallel_replicate_degree=degrees.get("data_parallel_replicate", 1),
        data_parallel_shard_degree=degrees.get("data_parallel_shard", 1),
        tensor_parallel_degree=degrees.get("tensor", 1),
        context_parallel_degree=degrees.get("context", 1),
        expert_parallel_degree=degrees.get("expert", 1),
        pipeline_parallel_degree=pp,
        pipeline_parallel_schedule="1F1B" if chunks == 1 else "Interleaved1F1B",
        module_fqns_per_model_part=[list(names) for names in stages] if pp > 1 else None,
        spmd_backend="partial_dtensor",
    )
    world = pp
    for name in ("data_parallel_replicate", "data_parallel_shard", "tensor", "context"):
        world *= degrees.get(name, 1)
    with ranks(world, stage * world // pp):
        dims = parallel_dims.ParallelDims.from_config(parallelism, world)
        dims.build_mesh()
        spec = importlib.import_module(f"torchtitan.models.{module}").model_registry(flavor)
        training = configs.TrainingConfig(local_batch_size=8 * pp)
        compiling = configs.CompileConfig()
        spec.model.update_from_config(config=SimpleNamespace(training=training, parallelism=parallelism))
        with torch.device("meta"):
            model = spec.model.build()
        words = {
            "parallel_dims": dims,
            "training": training,
            "parallelism": parallelism,
            "compile_config": compiling,
            "ac_config": None,
            "dump_folder": "",
        }
        if pp == 1:
            return _sharded([spec.parallelize_fn(model, **words)])
        _, parts, *_ = spec.pipelining_fn(
            model,
            device=torch.device("cpu"),
            model_config=spec.model,
            parallelize_fn=spec.parallelize_fn,
            loss_fn=lambda *_: None,
            **words,
        )
        return _sharded(parts)


def fsdp2_count(module: str, flavor: str, replicate: int, shard: int) -> Count:
    """PyTorch's ``fully_shard`` on a mesh of replicate x shard, layer by layer as accelerate wraps a model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with ranks(replicate * shard, 0):
        spec = importlib.import_module(f"torchtitan.models.{module}").model_registry(flavor)
        with torch.device("meta"):
            model = spec.model.build()
        names = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (replicate, shard), mesh_dim_names=names)
        words: dict[str, Any] = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
        for layer in model.layers.values():
            fully_shard(layer, **words)
        fully_shard(model, **words)
        return _sharded([model])


def _sharded(parts: Sequence[Any]) -> Count:
    """Parameters of FSDP2's parameter groups: whole on this tensor-parallel rank, and as sharded."""
    from torch.distributed.fsdp import FSDPModule

    whole, shard, seen = 0, 0, set[int]()
    for module in (child for part in parts for child in part.modules() if isinstance(child, FSDPModule)):
        for group in module._get_fsdp_state()._fsdp_param_groups:
            for param in group.fsdp_params if id(group) not in seen else ():
                whole += param._orig_size.numel()
                shard += param.sharded_size.numel()
            seen.add(id(group))
    assert sum(p.numel() for part in parts for p in part.parameters()) > 0
    return Count(whole=whole, shard=shard)


class _Duplicated(torch.nn.Module):
    """In place of Transformer Engine's linear layer with ``parallel_mode="duplicated"``, which is not installed here:
    every tensor-parallel rank has all of it."""

    def __init__(self, input_size: int, output_size: int, *, parallel_mode: str, **_: Any) -> None:
        super().__init__()
        assert parallel_mode == "duplicated"
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size))


def megatron_count(sizes: Mapping[str, Any], stage: int, layers: Sequence[int] | None = None, **degrees: Any) -> Count:
    """Megatron-Core's own process groups and ``GPTModel``; its distributed optimizer divides what is not of experts by
    the data-parallel group with cp, and experts by theirs (``param_and_grad_buffer.py``)."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    names = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "etp": "expert_tensor_parallel_size",
    }
    of_groups = {name: degrees[key] for key, name in names.items() if key in degrees}
    world, pp = degrees["world"], degrees.get("pp", 1)
    with ranks(world, stage * world // pp):
        parallel_state.initialize_model_parallel(
            **of_groups,
            num_distributed_optimizer_instances=degrees.get("instances", 1),
            create_gloo_process_groups=False,
        )
        rest = dict(sizes)
        vocab, latent = rest.pop("vocab_size"), "kv_lora_rank" in rest
        config = (MLATransformerConfig if latent else TransformerConfig)(
            **{name: size for name, size in of_groups.items() if not name.startswith("context")},
            **rest,
            multi_latent_attention=latent,
            use_cpu_initialization=True,
            perform_initialization=False,
            params_dtype=torch.bfloat16,
            pipeline_dtype=torch.bfloat16,
            bf16=True,
            add_bias_linear=False,
            gated_linear_unit=True,
            normalization="RMSNorm",
            activation_func=torch.nn.functional.silu,
        )
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
        for layer in spec.layer_specs:
            parts = layer.submodules.self_attention.submodules
            parts.core_attention = IdentityOp  # without parameters; the local one takes no latent attention
            if latent:
                parts.linear_q_down_proj = parts.linear_kv_down_proj = _Duplicated
        engine = "megatron.core.transformer.multi_latent_attention.TELinear"
        with torch.device("meta"), patch("torch.cuda.current_device", lambda: "cpu"), patch(engine, _Duplicated):
            model = GPTModel(
                config,
                spec,
                vocab_size=vocab,
                max_sequence_length=4096,
                pre_process=parallel_state.is_pipeline_first_stage(),
                post_process=parallel_state.is_pipeline_last_stage(),
                share_embeddings_and_output_weights=False,
                position_embedding_type="rope",
            )
        of_experts = [p.numel() for p in model.parameters() if not getattr(p, "allreduce", True)]
        dense = [p.numel() for p in model.parameters() if getattr(p, "allreduce", True)]
        group = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
        experts = parallel_state.get_expert_data_parallel_group(partial_expert_data_parallel=True)
        shard = sum(dense) / group.size() + sum(of_experts) / experts.size()
    return Count(whole=sum(dense) + sum(of_experts), shard=shard)


def model_count(module: str, flavor: str) -> tuple[int, int]:
    """Parameters of a whole model outside of routed experts, and in them."""
    spec = importlib.import_module(f"torchtitan.models.{module}").model_registry(flavor)
    with torch.device("meta"):
        model = spec.model.build()
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    experts = sum(size for name, size in sizes.items() if "inner_experts" in name)
    return sum(sizes.values()) - experts, experts
