"""Write a plan as a Megatron-LM launch (``torchrun pretrain_gpt.py --flag ...``); `megatron_read` reads one.

Written against megatron/training/arguments.py of NVIDIA/Megatron-LM (commit 000c4ac2, read 2026-11-21), including its
checks; the names are in tests/golden/launch_arguments.csv.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.launch.megatron_model import model_arguments
from sartor.launch.megatron_stages import stage_arguments
from sartor.launch.model_fields import Argument
from sartor.launch.plan import (
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    launchable,
    nodes_of,
    refuser,
)
from sartor.launch.release import check_arguments
from sartor.launch.script import script_text
from sartor.model.divisors import nearest_divisors
from sartor.model.layer import AttentionMixer, LatentAttentionMixer
from sartor.model.training import (
    ContextParallel,
    OffloadModule,
    Optimizer,
    PipelineSchedule,
    Recipe,
    Recompute,
    RecomputeModule,
    Trainer,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel
from sartor.operators import DType
from sartor.step.trainers import MEGATRON

KIND = LaunchKind.MEGATRON
_refuse = refuser(KIND)

NO_FUSION = "--no-gradient-accumulation-fusion"
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""--data-parallel-sharding-strategy of Megatron-FSDP. Its guide requires --use-distributed-optimizer (alone: stage 1),
--no-gradient-accumulation-fusion and --ckpt-format fsdp_dtensor with it, and CUDA_DEVICE_MAX_CONNECTIONS is to be unset
(docs.nvidia.com/megatron-core, Megatron-FSDP User Guide, read 2026-11-26)."""
PRECISION: dict[Recipe, tuple[Argument, ...]] = {
    Recipe.FP32: (),
    Recipe.FP16: (("--fp16",),),
    Recipe.BF16: (("--bf16",),),
    Recipe.FP8_DELAYED: (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")),
    Recipe.FP8_CURRENT: (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    Recipe.FP8_BLOCK: (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    Recipe.MXFP8: (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    Recipe.NVFP4: (("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
CP_TYPES = {ContextParallel.RING: "p2p", ContextParallel.ALL_TO_ALL: "a2a", ContextParallel.ALL_GATHER: "allgather"}
OPTIMIZERS = {Optimizer.ADAM: "adam", Optimizer.SGD: "sgd", Optimizer.MUON: "muon"}


def megatron_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int, version: str = "") -> LaunchFiles:
    """``launch.sh`` with every argument that affects time and memory; data, learning rate and checkpoints follow as
    ``"$@"``. Raises `InputError` for what Megatron-LM cannot do, naming what it can."""
    plan, groups, notes = megatron_groups(job, plan)
    check_arguments(KIND, (words for group in groups.values() for words in group), version)
    nodes, local = nodes_of(int(plan.num_devices), devices_per_node)
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "" if plan.zero_stage > 1 else "1"}
    text = script_text(
        about=_about(job, plan),
        launcher="torchrun",
        nodes=nodes,
        local=local,
        script='"${MEGATRON_PATH:-.}/pretrain_gpt.py"',
        groups=groups,
        env=env,
        notes=(*notes, "give data, tokenizer, learning rate and checkpoints behind this script's name"),
    )
    return LaunchFiles(kind=KIND, files=(LaunchFile(name="launch.sh", text=text, executable=True),), notes=tuple(notes))


def megatron_groups(job: TrainingJob, plan: TrainingPlan) -> tuple[TrainingPlan, dict[str, list[Argument]], list[str]]:
    """The plan in canonical form, its arguments by group, and notes. Raises `InputError`."""
    layers = int(job.shape.num_layers)
    plan = launchable(job, plan, splits_experts=job.trainer.splits_experts)
    _check(job, plan)
    model, notes = model_arguments(job.shape, plan.dims.tp, job.seq_len)
    groups = {
        "MODEL_ARGS": model,
        "PARALLEL_ARGS": list(_parallel(job, plan, layers)),
        "TRAINING_ARGS": list(_training(job, plan, layers)),
    }
    return plan, groups, notes


def _about(job: TrainingJob, plan: TrainingPlan) -> str:
    d = plan.dims
    return (
        f"Megatron-LM: {job.shape.name or 'a model'} on {plan.num_devices} devices, "
        f"tp={d.tp} pp={d.pp} dp={d.dp} cp={d.cp} ep={d.ep}"
    )


def _check(job: TrainingJob, plan: TrainingPlan) -> None:
    d = plan.dims
    if plan.schedule != PipelineSchedule.ONE_F_ONE_B:
        raise _refuse(
            "schedule",
            PipelineSchedule(int(plan.schedule)).word,
            "supports only the 1F1B schedule, plain or interleaved",
            "schedule=1f1b",
        )
    if job.recipe not in PRECISION:
        raise _refuse(
            "recipe", job.recipe.value, "does not support this precision", ", ".join(r.value for r in PRECISION)
        )
    if job.trainer.broadcasts_shards and plan.zero_stage:
        raise _refuse("framework", job.trainer.name, "gathers equal shards at once", "--framework megatron")
    if d.cp > 1 and job.seq_len % (2 * d.cp):
        below = job.seq_len // (2 * d.cp) * 2 * d.cp
        raise _refuse("seq_len", job.seq_len, f"needs a multiple of 2 x cp = {2 * d.cp}", f"{below or 2 * d.cp}")
    if job.attention_kernel is AttentionKernel.FLASH and not takes_heads(job.shape.attention):
        wide = f"needs a multiple of {MEGATRON.fused_heads} for Transformer Engine's flash attention"
        raise _refuse("head_dim", _head_dim(job.shape.attention), wide, "attention=unfused")
    if plan.zero_stage == 1 and plan.optimizer_offload and job.optimizer is Optimizer.MUON:
        raise _refuse("optimizer_offload", "true", "offloads only Adam and SGD", "optimizer=adam")
    if job.optimizer is Optimizer.MUON and plan.zero_stage > 1:
        raise _refuse("zero_stage", plan.zero_stage, "shards Muon's states by stage 1 at most", "zero_stage=1")
    if plan.shard_group and (d.dp * d.cp) % plan.shard_group:
        near = nearest_divisors(d.dp * d.cp, plan.shard_group)
        raise _refuse("shard_group", plan.shard_group, f"needs a divisor of dp x cp = {d.dp * d.cp}", near)


def _parallel(job: TrainingJob, plan: TrainingPlan, layers: int) -> Iterator[Argument]:
    d = plan.dims
    yield ("--tensor-model-parallel-size", str(d.tp))
    if d.tp > 1 and d.sequence_parallel:
        yield ("--sequence-parallel",)
    yield ("--pipeline-model-parallel-size", str(d.pp))
    yield from stage_arguments(plan, layers, job.shape.mtp_layers)
    if d.cp > 1:
        yield ("--context-parallel-size", str(d.cp))
        yield ("--cp-comm-type", CP_TYPES[job.context_parallel])
    if d.ep > 1:
        yield ("--expert-model-parallel-size", str(d.ep))
    if d.tp > 1 and job.shape.moe_ffn is not None:
        yield ("--expert-tensor-parallel-size", str(d.tp if job.trainer.splits_experts else 1))
    if plan.zero_stage:
        yield ("--use-distributed-optimizer",)
    if plan.zero_stage > 1:
        yield ("--use-megatron-fsdp",)
        yield ("--data-parallel-sharding-strategy", SHARDING[int(plan.zero_stage)])
        yield ("--ckpt-format", "fsdp_dtensor")
    if plan.shard_group:
        yield ("--num-distributed-optimizer-instances", str(d.dp * d.cp // plan.shard_group))
    yield from _overlap(job.trainer, plan)
    yield from _exchange(job, plan)


def _overlap(trainer: Trainer, plan: TrainingPlan) -> Iterator[Argument]:
    if trainer.dp_overlap:
        yield ("--overlap-grad-reduce",)
        if plan.zero_stage:
            yield ("--overlap-param-gather",)
    if trainer.tp_overlap and plan.dims.tp > 1:
        if not plan.dims.sequence_parallel:
            raise _refuse(
                "tp_overlap", "true", "overlaps tensor parallelism under --sequence-parallel", "tp_overlap=false"
            )
        yield ("--tp-comm-overlap",)
    if not trainer.p2p_overlap and plan.virtual_stages > 1:
        yield ("--no-overlap-p2p-communication",)


def _exchange(job: TrainingJob, plan: TrainingPlan) -> Iterator[Argument]:
    """How experts exchange tokens (transformer_config.py: overlap needs expert parallelism, interleaving in a pipeline,
    and no full recomputation; DeepEP needs the flexible dispatcher)."""
    if job.shape.moe_ffn is None:
        return
    once = job.trainer.dispatch_once and plan.dims.ep > 1
    yield ("--moe-token-dispatcher-type", "flex" if once else "alltoall")
    if once:
        yield ("--moe-enable-deepep",)
    if job.trainer.ep_overlap and plan.dims.ep > 1 and plan.virtual_stages > 1:
        if plan.recompute is Recompute.FULL:
            raise _refuse("recompute", "full", "hides experts' exchange where no layer is recomputed", "recompute=none")
        yield ("--overlap-moe-expert-parallel-comm",)


def _training(job: TrainingJob, plan: TrainingPlan, layers: int) -> Iterator[Argument]:
    yield ("--seq-length", str(job.seq_len))
    yield ("--micro-batch-size", str(plan.microbatch_size))
    yield ("--global-batch-size", str(job.global_batch_size))
    yield from PRECISION[job.recipe]
    yield from _recompute(job, plan)
    yield from _offload(job, plan)
    optimizer = OPTIMIZERS[job.optimizer]
    yield ("--optimizer", "dist_muon" if optimizer == "muon" and plan.zero_stage == 1 else optimizer)
    if plan.optimizer_offload:
        yield ("--optimizer-cpu-offload",)
    yield from _moments(job, plan)
    yield ("--attention-backend", _backend(job))
    if job.attention_kernel is AttentionKernel.FLASH:  # it reads no mask, whose size is quadratic in the sequence
        yield ("--no-create-attention-mask-in-dataloader",)
    share = "0.1" if job.dropout else "0.0"
    yield ("--attention-dropout", share)
    yield ("--hidden-dropout", share)
    if job.trainer.grad_dtype is DType.BF16:
        yield ("--grad-reduce-in-bf16",)
    if not job.trainer.grad_fusion or plan.zero_stage > 1:
        yield (NO_FUSION,)
    if job.trainer.fused_loss:
        yield ("--cross-entropy-loss-fusion",)
        yield ("--cross-entropy-fusion-impl", "te")
    if not job.trainer.fused_kernels:
        yield ("--transformer-impl", "local")
    if job.trainer.cuda_graphs:
        yield ("--cuda-graph-impl", "transformer_engine")
        yield ("--te-rng-tracker",)


def _backend(job: TrainingJob) -> str:
    """Transformer Engine's FlashAttention takes neither a learnable softmax nor latent attention (version 2 of it), and
    ``flash`` turns its other kernels off; cuDNN's (``fused``) take both and keep no scores either."""
    flash = job.attention_kernel is AttentionKernel.FLASH
    return "fused" if flash and _only_fused(job.shape.attention) else job.attention_kernel.value


def takes_heads(mixer: object) -> bool:
    """Whether Transformer Engine has a fused kernel for heads as wide as the mixer's."""
    return _head_dim(mixer) % MEGATRON.fused_heads == 0


def _head_dim(mixer: object) -> int:
    return int(mixer.head_dim) if isinstance(mixer, AttentionMixer) else 0


def _only_fused(mixer: object) -> bool:
    sinks = isinstance(mixer, AttentionMixer) and any(vector.name == "sinks" for vector in mixer.vectors)
    return sinks or isinstance(mixer, LatentAttentionMixer)


def _moments(job: TrainingJob, plan: TrainingPlan) -> Iterator[Argument]:
    """Moments narrower than fp32 need the distributed optimizer and Adam (arguments.py, optimizer_config.py)."""
    narrow = job.moments_dtype is not DType.FP32
    if narrow and (plan.zero_stage != 1 or job.optimizer is not Optimizer.ADAM):
        raise _refuse(
            "moments_dtype", job.moments_dtype.value, "narrows Adam's moments under ZeRO stage 1", "moments_dtype=fp32"
        )
    if narrow or plan.optimizer_offload:
        yield ("--use-precision-aware-optimizer",)
    if narrow:
        yield ("--exp-avg-dtype", job.moments_dtype.value)
        yield ("--exp-avg-sq-dtype", job.moments_dtype.value)


def _recompute(job: TrainingJob, plan: TrainingPlan) -> Iterator[Argument]:
    if plan.recompute is Recompute.SELECTIVE:
        yield ("--recompute-granularity", "selective")
        yield ("--recompute-modules", *(m.value for m in RecomputeModule if m in job.recompute_modules))
    elif plan.recompute is Recompute.FULL:
        yield ("--recompute-granularity", "full")
        if plan.recompute_layers < 0:
            yield ("--recompute-method", "uniform")
            yield ("--recompute-num-layers", "1")
            return
        v = plan.virtual_stages
        if plan.recompute_layers % v:
            below = plan.recompute_layers // v * v
            why = f"counts recomputed layers per chunk: a multiple of virtual_stages={v}"
            raise _refuse("recompute_layers", plan.recompute_layers, why, f"{below} and {below + v}")
        yield ("--recompute-method", "block")
        yield ("--recompute-num-layers", str(plan.recompute_layers // v))


def _offload(job: TrainingJob, plan: TrainingPlan) -> Iterator[Argument]:
    """Activations in host memory (transformer_config.py: whole layers only without pipeline, recomputation and CUDA
    graphs; the input of attention's projection only with that of its core)."""
    modules = job.offload_modules
    if absent := [module for module in modules if module not in job.trainer.offloads]:
        raise _refuse("offload_modules", absent[0].value, "does not offload it", "offload_modules=core_attn")
    if OffloadModule.LAYER in modules:
        if plan.dims.pp > 1 or plan.recompute is not Recompute.NONE or job.trainer.cuda_graphs:
            why = "offloads whole layers without pipeline, recomputation and CUDA graphs"
            raise _refuse("offload_modules", "layer", why, "offload_modules=core_attn")
        most = int(job.shape.num_layers) - 1  # all but the last, where backward starts
        yield ("--cpu-offloading-num-layers", str(min(job.offload_layers or most, most)))
    elif modules:
        if OffloadModule.ATTN_PROJ in modules and OffloadModule.CORE_ATTN not in modules:
            raise _refuse("offload_modules", "attn_proj", "needs core_attn with it", "core_attn+attn_proj")
        if job.offload_layers:
            raise _refuse("offload_layers", job.offload_layers, "offloads modules of all layers", "offload_layers=all")
        yield ("--fine-grained-activation-offloading",)
        yield ("--offload-modules", *(m.value for m in OffloadModule if m in modules))
