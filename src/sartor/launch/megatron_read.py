"""Read a Megatron-LM launch as a plan: every argument that affects time or memory; unknown ones are listed."""

from __future__ import annotations

from dataclasses import replace

from sartor.errors import NOT_GIVEN, InputError
from sartor.launch.flags import Flags, parse_flags
from sartor.launch.megatron import CP_TYPES, KIND, NO_FUSION, OPTIMIZERS, takes_heads
from sartor.launch.megatron_arguments import left_over
from sartor.launch.megatron_model_read import read_model
from sartor.launch.megatron_stages import read_stages
from sartor.launch.plan import JobParts, LaunchReading, canonical, check_numbers, no_devices
from sartor.launch.script import Command
from sartor.model.parallel import ParallelDims
from sartor.model.training import (
    ContextParallel,
    OffloadModule,
    Optimizer,
    Recipe,
    Recompute,
    RecomputeModule,
    Trainer,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel
from sartor.operators import DType
from sartor.step.trainers import MEGATRON, MEGATRON_DEEPSPEED
from sartor.units import ceil_div


def read_megatron(command: Command, num_devices: int = 0) -> LaunchReading:
    """The model, job and plan of a Megatron-LM command. ``num_devices`` wins over the script's.

    Raises `InputError` for invalid values; unknown flags are listed in the reading.
    """
    flags = parse_flags(command.arguments)
    flags.assumptions += command.notes
    _check_exclusive(flags)
    tp, pp, cp, ep = (flags.size(name, 1) or 1 for name in DEGREES)
    ep = max(ep, flags.size("--moe-expert-parallel-size", 1) or 1)  # Megatron-DeepSpeed's name
    shape = read_model(flags, tp)
    layers = None if shape is None else int(shape.num_layers)
    splits = _splits_experts(flags, tp)
    dp = _data_parallel(flags, command, num_devices, tp * pp * cp, ceil_div(ep, 1 if splits else tp), cp)
    microbatch, count = _batch(flags, dp)
    stages, virtual = read_stages(flags, pp, layers)
    zero, instances = _read_sharding(flags)
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, sequence_parallel=flags.on("--sequence-parallel")),
        microbatch_size=microbatch,
        num_microbatches=count,
        virtual_stages=virtual,
        zero_stage=zero,
        shard_group=dp * cp // instances if instances > 1 else 0,
        optimizer_offload=flags.on("--optimizer-cpu-offload", "--cpu-optimizer"),
        stage_layers=stages,
    )
    recompute, recomputed = _read_recompute(flags, virtual)
    plan = replace(plan, recompute=recompute, recompute_layers=recomputed)
    check_numbers(plan, splits_experts=splits)
    parts = _parts(flags, dp * microbatch * count, splits_experts=splits and tp > 1 and flags.on("--num-experts"))
    if parts.attention_kernel is AttentionKernel.FLASH and shape is not None and not takes_heads(shape.attention):
        multiple = MEGATRON.fused_heads
        flags.assumptions.append(
            f"attention is unfused: Transformer Engine's flash kernels need head_dim to be a multiple of {multiple}"
        )
        parts = replace(parts, attention_kernel=AttentionKernel.UNFUSED)
    if OffloadModule.LAYER in parts.offload_modules and (pp > 1 or recompute is not Recompute.NONE):
        must = "goes with no pipeline and no recomputation in Megatron-LM"
        raise InputError("--cpu-offloading-num-layers", parts.offload_layers, must, "--offload-modules")
    flags.on("--use-precision-aware-optimizer", "--te-rng-tracker", "--ckpt-format")
    unpriced = _experts_apart(flags, ep)
    unknown, others, ignored = left_over(flags)
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan, layers),
        parts=parts,
        shape=shape,
        unknown=(*unknown, *flags.odd),
        unpriced=(*unpriced, *others),
        ignored=tuple(ignored),
        assumptions=tuple(flags.assumptions),
    )


EXCLUSIVE = (
    ("--fp16", "--bf16"),
    ("--fp8-format", "--fp4-format"),
    ("--swiglu", "--squared-relu"),
    ("--swiglu", "--quick-geglu"),
    ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    ("--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers"),
    ("--pipeline-model-parallel-layout", "--decoder-last-pipeline-num-layers"),
    ("--pipeline-model-parallel-layout", "--account-for-embedding-in-pipeline-split"),
    ("--use-torch-fsdp2", "--use-distributed-optimizer"),
    ("--fine-grained-activation-offloading", "--cpu-offloading-num-layers"),
)
"""Pairs of arguments that Megatron-LM rejects together (``validate_args``)."""


def _check_exclusive(flags: Flags) -> None:
    """Raise `InputError` if two arguments exclude each other."""
    for one, other in EXCLUSIVE:
        if one in flags.given and other in flags.given:
            raise InputError(one, f"with {other}", "Megatron-LM takes one of the two", other)


DEGREES = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--expert-model-parallel-size",
)


def _splits_experts(flags: Flags, tp: int) -> bool:
    """Whether tensor parallelism splits experts (Megatron's default: yes, over all of tp)."""
    etp = flags.size("--expert-tensor-parallel-size", tp) or tp
    if etp not in (1, tp):
        flags.assumptions.append(f"--expert-tensor-parallel-size={etp} is priced as {tp}, tp's own")
    return etp > 1 or tp == 1


def _data_parallel(flags: Flags, command: Command, num_devices: int, model: int, ep: int, cp: int) -> int:
    """Data-parallel degree: devices over tp x pp x cp. Raises `InputError` if the number of devices is unknown."""
    devices = num_devices or command.num_devices
    if not devices:
        raise no_devices(model * max(ep // cp, 1))
    if devices % model:
        below = devices // model * model
        near = f"{below} and {below + model}" if below else str(model)
        raise InputError("num_devices", devices, f"must be a multiple of tp x pp x cp = {model}", near)
    return devices // model


def _batch(flags: Flags, dp: int) -> tuple[int, int]:
    """Microbatch size, and number of microbatches per pipeline."""
    microbatch = flags.size("--micro-batch-size")
    if microbatch is None:
        microbatch = 1
        flags.assumptions.append("--micro-batch-size=1 (default)")
    total = flags.size("--global-batch-size")
    if total is None:
        total = microbatch * dp
        flags.assumptions.append(f"--global-batch-size={total} (Megatron's default: micro-batch-size x dp)")
    if total % (microbatch * dp):
        step = microbatch * dp
        must = f"must be a multiple of micro-batch-size x dp = {microbatch} x {dp}"
        below = total // step * step
        raise InputError("--global-batch-size", total, must, f"{below} and {below + step}" if below else str(step))
    return microbatch, total // (microbatch * dp)


def _read_sharding(flags: Flags) -> tuple[int, int]:
    """ZeRO stage, and the number of copies of the shards."""
    strategies = ("no_shard", "optim", "optim_grads", "optim_grads_params")
    strategy = flags.word("--data-parallel-sharding-strategy", strategies) or "no_shard"
    instances = flags.size("--num-distributed-optimizer-instances", 1) or 1
    distributed, torch_fsdp = flags.on("--use-distributed-optimizer"), flags.on("--use-torch-fsdp2")
    if flags.on("--use-megatron-fsdp", "--use-custom-fsdp"):
        return strategies.index(strategy), instances
    if torch_fsdp:
        return (2 if flags.on("--torch-fsdp2-no-reshard-after-forward") else 3), instances
    if (stage := flags.size("--zero-stage", least=0, most=3)) is not None and flags.on("--deepspeed"):
        return stage, instances
    return int(distributed or flags.word("--optimizer") == "dist_muon"), instances


def _read_recompute(flags: Flags, virtual: int) -> tuple[Recompute, int]:
    granularity = flags.word("--recompute-granularity", ("full", "selective"))
    method = flags.word("--recompute-method", ("uniform", "block"))
    count = flags.size("--recompute-num-layers")
    if flags.on("--recompute-activations") and granularity is None:
        granularity = "selective"
    old = flags.word("--activations-checkpoint-method", ("uniform", "block"))  # Megatron-LM of 2021 and earlier
    if flags.on("--checkpoint-activations", "--deepspeed-activation-checkpointing") or old:
        granularity = granularity or "full"
        method, count = method or old, count or flags.size("--activations-checkpoint-num-layers")
    if granularity == "full":
        if method == "uniform" and (count or 1) > 1:
            flags.assumptions.append(f"recomputation in units of {count} layers is priced as of one layer each")
        return Recompute.FULL, count * virtual if method == "block" and count else -1
    if granularity == "selective":
        return Recompute.SELECTIVE, -1
    return Recompute.NONE, -1


def _parts(flags: Flags, batch: int, *, splits_experts: bool) -> JobParts:
    seq = flags.size("--seq-length") or flags.size("--encoder-seq-length")
    if seq is None:
        seq = flags.size("--max-position-embeddings")
        if seq:
            flags.assumptions.append(f"--seq-length={seq} (not given: --max-position-embeddings)")
    dropout = max(flags.number("--attention-dropout", 0.1), flags.number("--hidden-dropout", 0.1))
    kind = flags.word("--cp-comm-type", ("p2p", "a2a", "allgather", "a2a+p2p")) or "p2p"
    if kind == "a2a+p2p":
        flags.assumptions.append("--cp-comm-type a2a+p2p is priced as p2p")
    backend = flags.word("--attention-backend", ("flash", "fused", "unfused", "local", "auto")) or "auto"
    flags.on("--use-flash-attn")
    modules, layers = _read_offload(flags)
    return JobParts(
        seq_len=seq,
        global_batch_size=batch,
        recipe=_read_recipe(flags),
        optimizer=_read_optimizer(flags),
        moments_dtype=_read_moments(flags),
        recompute_modules=_read_modules(flags),
        offload_modules=modules,
        offload_layers=layers,
        attention_kernel=AttentionKernel.UNFUSED if backend in ("unfused", "local") else AttentionKernel.FLASH,
        context_parallel=next((c for c, word in CP_TYPES.items() if word == kind), ContextParallel.RING),
        dropout=dropout > 0,
        trainer=_read_trainer(flags, splits_experts=splits_experts),
    )


def _read_optimizer(flags: Flags) -> Optimizer:
    word = flags.word("--optimizer", ("adam", "sgd", "muon", "dist_muon")) or "adam"
    return next(o for o, name in OPTIMIZERS.items() if name == word.removeprefix("dist_"))


def _read_modules(flags: Flags) -> frozenset[RecomputeModule]:
    known = {module.value: module for module in RecomputeModule}
    words = flags.words("--recompute-modules") or ("core_attn",)
    if others := [word for word in words if word not in known]:
        must = f"must be of {', '.join(known)}"
        raise InputError("--recompute-modules", " ".join(others), must, " ".join(known))
    return frozenset(known[word] for word in words)


def _read_offload(flags: Flags) -> tuple[frozenset[OffloadModule], int]:
    """Modules whose inputs are offloaded to host memory, or whole layers and how many."""
    asked, words = flags.on("--fine-grained-activation-offloading"), flags.words("--offload-modules")
    if layers := flags.size("--cpu-offloading-num-layers", 0, least=0):
        return frozenset({OffloadModule.LAYER}), layers
    if not asked:
        if words:
            flags.assumptions.append("--offload-modules does nothing without --fine-grained-activation-offloading")
        return frozenset(), 0
    words = [part for word in words for part in FUSED_MLP.get(word, (word,))]
    known = [module.value for module in MEGATRON.offloads if module is not OffloadModule.LAYER]
    if not words or set(words) - set(known):
        must = f"must be of {', '.join((*known, *FUSED_MLP))}"
        raise InputError("--offload-modules", " ".join(words) or NOT_GIVEN, must, "core_attn")
    if "attn_proj" in words and "core_attn" not in words:
        raise InputError("--offload-modules", "attn_proj", "needs core_attn with it", "core_attn attn_proj")
    return frozenset(OffloadModule(word) for word in words), 0


FUSED_MLP = {"fused_group_mlp": ("expert_fc1", "moe_act")}
"""Inputs kept by Transformer Engine's fused experts."""


def _read_moments(flags: Flags) -> DType:
    """Data type of Adam's moments; the wider one if they differ."""
    words = [flags.word(name, ("fp32", "bf16", "fp16", "fp8")) for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype")]
    if not flags.on("--use-precision-aware-optimizer"):
        return DType.FP32
    found = {DType(word or "fp32") for word in words}
    if len(found) > 1:
        flags.assumptions.append("moments of two data types are priced as both of the wider")
    return max(found, key=lambda dtype: dtype.bytes)


def _read_recipe(flags: Flags) -> Recipe:
    fp8 = flags.word("--fp8-format", ("e4m3", "hybrid"))
    recipe = flags.word("--fp8-recipe", ("tensorwise", "delayed", "mxfp8", "blockwise", "custom")) or "delayed"
    fp4 = flags.word("--fp4-format", ("e2m1",))
    flags.word("--fp4-recipe")
    half, brain = flags.on("--fp16"), flags.on("--bf16")
    if fp4:
        return Recipe.NVFP4
    if fp8 and recipe == "custom":
        flags.assumptions.append("--fp8-recipe custom is priced as delayed")
    if fp8:
        names = {"tensorwise": Recipe.FP8_CURRENT, "mxfp8": Recipe.MXFP8, "blockwise": Recipe.FP8_BLOCK}
        return names.get(recipe, Recipe.FP8_DELAYED)
    if not half and not brain:
        flags.assumptions.append("neither --bf16 nor --fp16: trained in fp32, Megatron's default")
    return Recipe.FP16 if half else Recipe.BF16 if brain else Recipe.FP32


def _read_trainer(flags: Flags, *, splits_experts: bool) -> Trainer:
    impl = flags.word("--cuda-graph-impl", ("none", "local", "transformer_engine", "full_iteration")) or "none"
    flags.on("--overlap-param-gather")
    reduced = flags.on("--grad-reduce-in-bf16")
    full = flags.on("--accumulate-allreduce-grads-in-fp32") or not reduced
    loss = flags.word("--cross-entropy-fusion-impl", ("native", "te")) or "native"
    by_deepspeed = flags.on("--deepspeed")
    flags.on("--no-pipeline-parallel", "--deepspeed_config")
    return replace(
        MEGATRON_DEEPSPEED if by_deepspeed else MEGATRON,
        tp_overlap=flags.on("--tp-comm-overlap"),
        dp_overlap=flags.on("--overlap-grad-reduce"),
        p2p_overlap=not flags.on("--no-overlap-p2p-communication"),
        fused_kernels=flags.word("--transformer-impl", ("local", "transformer_engine")) != "local",
        cuda_graphs=flags.on("--enable-cuda-graph", "--external-cuda-graph") or impl != "none",
        grad_dtype=DType.FP32 if full else DType.BF16,
        grad_fusion=_fuses_gradients(flags),
        fused_loss=flags.on("--cross-entropy-loss-fusion") and loss == "te",
        splits_experts=splits_experts,
        dispatch_once=_dispatches_once(flags),
        ep_overlap=flags.on("--overlap-moe-expert-parallel-comm"),
    )


def _experts_apart(flags: Flags, ep: int) -> list[str]:
    """What is different where Megatron computes a device's experts in turn (its ``SequentialMLP``)."""
    grouped, experts = flags.on("--moe-grouped-gemm"), flags.size("--num-experts", 1) or 1
    if grouped or experts <= ep or flags.on("--deepspeed"):
        return []
    return ["--moe-grouped-gemm is not given: Megatron computes the experts of a device one by one, slower than priced"]


def _fuses_gradients(flags: Flags) -> bool:
    """Megatron-FSDP always goes without the fusion, which its plans are priced without."""
    off, sharded = flags.on(NO_FUSION), flags.on("--use-megatron-fsdp", "--use-custom-fsdp")
    return sharded or not off


def _dispatches_once(flags: Flags) -> bool:
    """Whether a token is sent to each node only once: DeepEP or HybridEP with the flexible dispatcher."""
    kind = flags.word("--moe-token-dispatcher-type", ("allgather", "alltoall", "flex")) or "allgather"
    backend = flags.word("--moe-flex-dispatcher-backend", ("deepep", "hybridep"))
    deepep = flags.on("--moe-enable-deepep")
    if kind == "allgather" and (flags.size("--expert-model-parallel-size", 1) or 1) > 1:
        flags.assumptions.append("--moe-token-dispatcher-type allgather is priced as alltoall")
    if (backend or deepep) and kind != "flex":
        flags.assumptions.append(f"DeepEP goes with --moe-token-dispatcher-type flex; {kind} is priced")
    return kind == "flex" and bool(backend or deepep)
