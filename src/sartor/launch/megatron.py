"""Megatron-LM launches: a plan written as ``torchrun pretrain_gpt.py --flag ...``, a command read as model and plan.

Arguments and releases are rows of ``fields.toml``; here is what several arguments say together. Written against
megatron/training/arguments.py of NVIDIA/Megatron-LM (commit 000c4ac2, read 2026-11-21), including its checks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sartor.errors import NOT_GIVEN, InputError
from sartor.json_types import JsonDict
from sartor.launch.fields import (
    Argument,
    Quantities,
    argument_names,
    check_release,
    check_rows,
    fields_in,
    left_over,
    quantities,
    read_rows,
    rows,
    traits_of,
    written,
)
from sartor.launch.megatron_model import model_arguments, read_stages, stage_arguments
from sartor.launch.megatron_model_read import read_model
from sartor.launch.plan import (
    JobParts,
    LaunchFiles,
    LaunchKind,
    LaunchReading,
    canonical,
    check_numbers,
    check_runs,
    launchable,
    no_devices,
    nodes_of,
    refuser,
)
from sartor.launch.script import ScriptCommand, check_known, devices_in, launch_script
from sartor.launch.stated import NO_OPTIONS, Flags, Options, bearing, hole_text, parse_flags
from sartor.model.layer import AttentionMixer, LatentAttentionMixer, VectorRole
from sartor.model.shape import TransformerShape, Value
from sartor.model.training import (
    ContextParallel,
    OffloadModule,
    Optimizer,
    Recipe,
    Recompute,
    RecomputeModule,
    Trainer,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel, Loss, ParallelDims
from sartor.operators import DType
from sartor.step.stages import round_of
from sartor.step.trainers.megatron import MEGATRON
from sartor.step.trainers.megatron_deepspeed import MEGATRON_DEEPSPEED
from sartor.units import ceil_div

KIND = LaunchKind.MEGATRON
_refuse = refuser(KIND)


# -- writing ------------------------------------------------------------------------------------------------------


def megatron_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int, version: str = "") -> LaunchFiles:
    """``launch.sh`` with every argument that affects time and memory; data, learning rate and checkpoints follow as
    ``"$@"``. Raises `InputError` for what Megatron-LM cannot do, naming what it can."""
    plan, groups, notes = megatron_groups(job, plan)
    check_release(KIND, (words for group in groups.values() for words in group), version)
    # Megatron-FSDP, its ZeRO 2 and 3, wants the variable unset, and --use-distributed-optimizer, --ckpt-format
    # fsdp_dtensor and no gradient fusion with it (docs.nvidia.com/megatron-core, its User Guide, read 2026-11-26).
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "" if plan.zero_stage > 1 else "1"}
    script = launch_script(
        about=_about(job, plan),
        launcher="torchrun",
        nodes=nodes_of(int(plan.num_devices), devices_per_node),
        script='"${MEGATRON_PATH:-.}/pretrain_gpt.py"',
        groups=groups,
        env=env,
        notes=(*notes, "give data, tokenizer, learning rate and checkpoints behind this script's name"),
    )
    return LaunchFiles(kind=KIND, files=(script,), notes=tuple(notes))


def megatron_groups(
    job: TrainingJob, plan: TrainingPlan, kind: LaunchKind = KIND
) -> tuple[TrainingPlan, dict[str, list[Argument]], list[str]]:
    """The plan in canonical form, its arguments by group, and notes. Raises `InputError`."""
    layers = int(job.shape.num_layers)
    plan = launchable(job, plan, splits_experts=job.trainer.splits_experts)
    values, traits = quantities(job, plan), traits_of(job, plan)
    for part in ("parallel", "training"):
        check_rows(KIND, part, values, traits)
    _check(job, plan)
    check_runs(kind, job, plan)
    model, notes = model_arguments(job.shape, plan.dims.tp, job.seq_len)
    flash = job.attention_kernel is AttentionKernel.FLASH
    values |= {"attention_mask": not flash}  # flash attention reads no mask, whose size is quadratic in the sequence
    if flash and _only_fused(job.shape.attention):
        values["attention_kernel"] = "fused"
    if job.optimizer is Optimizer.MUON and plan.zero_stage == 1:
        values["optimizer"] = "sharded muon"
    code = {
        "stages": stage_arguments(plan, layers, job.shape.mtp_layers),
        "recompute": _recompute(job, plan),
        "offload_modules": _offload(job),
    }
    groups = {
        "MODEL_ARGS": model,
        "PARALLEL_ARGS": list(written(KIND, "parallel", values, traits, code)),
        "TRAINING_ARGS": list(written(KIND, "training", values, traits, code)),
    }
    return plan, groups, notes


def _about(job: TrainingJob, plan: TrainingPlan) -> str:
    d = plan.dims
    return (
        f"Megatron-LM: {job.shape.name or 'a model'} on {plan.num_devices} devices, "
        f"tp={d.tp} pp={d.pp} dp={d.dp} cp={d.cp} ep={d.ep}"
    )


def _check(job: TrainingJob, plan: TrainingPlan) -> None:
    """What the arguments cannot say."""
    if job.trainer.broadcasts_shards and plan.zero_stage:
        raise _refuse("framework", job.trainer.name, "gathers equal shards at once", "--framework megatron")
    if job.attention_kernel is AttentionKernel.FLASH and not _takes_heads(job.shape.attention):
        wide = f"needs a multiple of {MEGATRON.fused_heads} for Transformer Engine's flash attention"
        raise _refuse("head_dim", _head_dim(job.shape.attention), wide, "attention=unfused")


def _takes_heads(mixer: object) -> bool:
    """Whether Transformer Engine has a fused kernel for heads as wide as the mixer's."""
    return _head_dim(mixer) % MEGATRON.fused_heads == 0


def _head_dim(mixer: object) -> int:
    return int(mixer.head_dim) if isinstance(mixer, AttentionMixer) else 0


def _only_fused(mixer: object) -> bool:
    """Transformer Engine's FlashAttention takes neither a learnable softmax nor latent attention (version 2 of it), and
    ``flash`` turns its other kernels off; cuDNN's (``fused``) take both and keep no scores either."""
    sinks = isinstance(mixer, AttentionMixer) and any(vector.role is VectorRole.SINKS for vector in mixer.vectors)
    return sinks or isinstance(mixer, LatentAttentionMixer)


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
        yield ("--recompute-method", "block")
        yield ("--recompute-num-layers", str(plan.recompute_layers // plan.virtual_stages))


def _offload(job: TrainingJob) -> Iterator[Argument]:
    """Activations in host memory."""
    if OffloadModule.LAYER in job.offload_modules:
        largest = int(job.shape.num_layers) - 1  # all but the last, where backward starts
        yield ("--cpu-offloading-num-layers", str(min(job.offload_layers or largest, largest)))
    elif job.offload_modules:
        yield ("--fine-grained-activation-offloading",)
        yield ("--offload-modules", *(m.value for m in OffloadModule if m in job.offload_modules))


# -- reading ------------------------------------------------------------------------------------------------------

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


def read_megatron(command: ScriptCommand, options: Options = NO_OPTIONS) -> LaunchReading:
    """The model, job and plan of a Megatron-LM command with the ``options`` beside it.

    Raises `InputError` for invalid values; unknown flags are listed in the reading.
    """
    flags = parse_flags(command.arguments, options)
    flags.assumptions += command.notes
    for argument, excluded in EXCLUSIVE:
        if argument in flags.given and excluded in flags.given:
            raise InputError(argument, f"with {excluded}", "Megatron-LM takes one of the two", excluded)
    values = read_rows(KIND, flags, "parallel")
    tp, pp, cp, ep = (int(values[name] or 1) for name in ("tp", "pp", "cp", "ep"))
    shape = _model(flags, tp)
    values |= read_rows(KIND, flags, "training")
    layers = None if (model := options.shape or shape) is None else int(model.num_layers)
    splits = _splits_experts(flags, tp, int(values["expert_tp"] or tp))
    options.check_degrees(options.devices(command.num_devices), tp * pp * cp)
    dp = _data_parallel(options.devices(command.num_devices), tp * pp * cp, ceil_div(ep, 1 if splits else tp), cp)
    microbatch, count = _batch(flags, values, dp)
    stages, virtual = read_stages(flags, pp, layers)
    instances = int(values["instances"] or 1)
    recompute, recomputed = _read_recompute(flags, virtual)
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, sequence_parallel=bool(values["sequence_parallel"])),
        microbatch_size=microbatch,
        num_microbatches=count,
        virtual_stages=virtual,
        zero_stage=_read_zero(flags, values),
        shard_group=dp * cp // instances if instances > 1 else 0,
        optimizer_offload=bool(values["optimizer_offload"]),
        stage_layers=stages,
        recompute=recompute,
        recompute_layers=recomputed,
    )
    check_numbers(plan, splits_experts=splits)
    parts = _parts(flags, values, dp * microbatch * count, splits_experts=splits)
    implied = {} if "seq_len" in _fields_in(flags) else {"seq_len": "max_position_embeddings"}
    if parts.attention_kernel is AttentionKernel.FLASH and shape is not None and not _takes_heads(shape.attention):
        multiple = MEGATRON.fused_heads
        why = f"Transformer Engine's flash kernels need head_dim to be a multiple of {multiple}"
        flags.assumptions.append(f"attention is unfused: {why}")
        implied["attention"] = why
        parts = replace(parts, attention_kernel=AttentionKernel.UNFUSED)
    if OffloadModule.LAYER in parts.offload_modules and (pp > 1 or recompute is not Recompute.NONE):
        must = "goes with no pipeline and no recomputation in Megatron-LM"
        raise InputError("--cpu-offloading-num-layers", parts.offload_layers, must, "--offload-modules")
    unpriced = [*_experts_apart(flags, ep), *_round(flags, values, plan)]
    unknown, others, ignored = left_over(flags)
    strange = [name.partition(" ")[0] for name in unknown]
    check_known(strange, len(flags.given), command)
    if strange and not flags.has("--num-layers") and not re.search(r"(^|/)(pretrain_gpt\w*\.py|)$", command.program):
        must = f"is not Megatron-LM's, and neither is {strange[0]}; it must say the model's sizes (--num-layers ...)"
        raise InputError("launch", hole_text(command.program), must, "pretrain_gpt.py")
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan, layers),
        parts=parts,
        shape=shape,
        sequence_parallel=bool(values["sequence_parallel"]),
        unknown=(*flags.unset_arguments(), *unknown, *flags.odd),
        unpriced=(*unpriced, *others),
        ignored=tuple(ignored),
        assumptions=tuple(flags.assumptions),
        open_fields={**_bearing(flags), **_misspelt(flags)},
        alternatives={} if options.shape else flags.alternatives,
        replaced=flags.replaced,
        fields_in_file=_fields_in(flags) | devices_in(command),
        implied=implied,
    )


def _fields_in(flags: Flags) -> frozenset[str]:
    """Fields of the launch table that a command line says."""
    without_effect = not flags.gives("--deepspeed") and not flags.gives("--data-parallel-sharding-strategy")
    return fields_in(KIND, flags, "parallel", "training") - ({"zero_stage"} if without_effect else set())


def _model(flags: Flags, tp: int) -> TransformerShape | None:
    """The file's model; None where a model beside the file replaces sizes that are not known or wrong."""
    try:
        return read_model(flags, tp)
    except InputError as error:
        if flags.options.shape is None:
            raise
        flags.replaced["model"] = f"{error.field}={flags.open.get(error.field, error.value)}"
    flags.read |= {row.argument for part in ("sizes", "numerics") for row in rows(KIND, part)}
    return None


def _bearing(flags: Flags) -> dict[str, str]:
    """Arguments without a known value, but for numeric fields of the model, which have no price."""
    numeric = {row.argument for row in rows(KIND, "numerics")} | {"--max-position-embeddings"}
    return {name: words for name, words in flags.open.items() if name not in numeric}


OF_SIZES = re.compile(
    r"head-dim|-rank$|expert-?(s|-num)?$|hidden-size|intermediate|ffn|vocab-size$|num-layers|k-dense-"
)
"""In the name of an argument of a fork: a size of the model."""


def _misspelt(flags: Flags) -> dict[str, str]:
    """Flags that Megatron-LM does not have, close to one that bears on the price or named as a size of the model."""
    named = [row.argument for part in ("sizes", "parallel", "training") for row in rows(KIND, part) if row.argument]
    close = {name: difflib.get_close_matches(name.replace("_", "-"), named, 1, 0.9) for name in flags.left()}
    return {
        name: hole_text(" ".join(flags.given[name])) or "on"
        for name, near in close.items()
        if name not in argument_names()
        and (near or bearing([name.replace("-", "_")]) or (OF_SIZES.search(name) and not flags.options.shape))
    }


def _splits_experts(flags: Flags, tp: int, expert_tp: int) -> bool:
    """Whether tensor parallelism splits experts (Megatron's default: yes, over all of tp)."""
    if expert_tp not in (1, tp):
        flags.assumptions.append(f"--expert-tensor-parallel-size={expert_tp} is priced as {tp}, tp's own")
    return expert_tp > 1 or tp == 1


def _data_parallel(devices: int, model: int, ep: int, cp: int) -> int:
    """Data-parallel degree: devices over tp x pp x cp. Raises `InputError` if the number of devices is unknown."""
    if not devices:
        raise no_devices(model * max(ep // cp, 1))
    if devices % model:
        below = devices // model * model
        near = f"{below} and {below + model}" if below else str(model)
        raise InputError("num_devices", devices, f"must be a multiple of tp x pp x cp = {model}", near)
    return devices // model


def _batch(flags: Flags, values: Mapping[str, Value | None], dp: int) -> tuple[int, int]:
    """Microbatch size, and number of microbatches per pipeline."""
    microbatch, total = int(values["microbatch_size"] or 0), int(values["global_batch_size"] or 0)
    if not microbatch:
        microbatch = 1
    if not total:
        total = microbatch * dp
    if total % (microbatch * dp) and "global_batch_size" not in flags.options.sizes:
        step = microbatch * dp
        must = f"must be a multiple of micro-batch-size x dp = {microbatch} x {dp}"
        below = total // step * step
        raise InputError("--global-batch-size", total, must, f"{below} and {below + step}" if below else str(step))
    return microbatch, max(total // (microbatch * dp), 1)


def _read_zero(flags: Flags, values: Mapping[str, Value | None]) -> int:
    """ZeRO stage."""
    reshards = not flags.on("--torch-fsdp2-no-reshard-after-forward")
    stage, by_deepspeed = flags.size("--zero-stage", least=0, most=3), flags.on("--deepspeed")
    if values["fsdp"]:
        return int(values["zero_stage"] or 0)
    if flags.on("--use-torch-fsdp2"):
        return 3 if reshards else 2
    if stage is not None and by_deepspeed:
        return stage
    if by_deepspeed and (config := flags.shown("--deepspeed_config")):
        flags.open["--zero-stage"] = f"in {config}"
    return int(bool(values["sharded"]) or values["optimizer"] == "sharded muon")


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
    return Recompute.SELECTIVE if granularity == "selective" else Recompute.NONE, -1


def _parts(flags: Flags, values: Mapping[str, Value | None], batch: int, *, splits_experts: bool) -> JobParts:
    seq = values["seq_len"]
    if seq is None and (seq := flags.size("--max-position-embeddings")):
        flags.assumptions.append(f"--seq-length={seq} (not given: --max-position-embeddings)")
    dropout = max(flags.number("--attention-dropout", 0.1), flags.number("--hidden-dropout", 0.1))
    if "a2a+p2p" in flags.given.get("--cp-comm-type", ()):
        flags.assumptions.append("--cp-comm-type a2a+p2p is priced as p2p")
    flags.on("--use-flash-attn")
    modules, layers = _read_offload(flags)
    unfused = values["attention_kernel"] in ("unfused", "local")
    return JobParts(
        seq_len=None if seq is None else int(seq),
        global_batch_size=batch,
        recipe=_read_recipe(flags),
        optimizer=Optimizer(str(values["optimizer"]).removeprefix("sharded ")),
        moments_dtype=_read_moments(flags),
        recompute_modules=_read_modules(flags),
        offload_modules=modules,
        offload_layers=layers,
        attention_kernel=AttentionKernel.UNFUSED if unfused else AttentionKernel.FLASH,
        context_parallel=ContextParallel(values["context_parallel"]),
        dropout=dropout > 0,
        trainer=_read_trainer(flags, values, splits_experts=splits_experts),
    )


def _read_modules(flags: Flags) -> frozenset[RecomputeModule]:
    modules = {module.value: module for module in RecomputeModule}
    words = flags.words("--recompute-modules") or ("core_attn",)
    if others := [word for word in words if word not in modules]:
        must = f"must be of {', '.join(modules)}"
        raise InputError("--recompute-modules", " ".join(others), must, " ".join(modules))
    return frozenset(modules[word] for word in words)


def _read_offload(flags: Flags) -> tuple[frozenset[OffloadModule], int]:
    """Modules whose inputs are offloaded to host memory, or whole layers and how many."""
    switched, words = flags.on("--fine-grained-activation-offloading"), flags.words("--offload-modules")
    if layers := flags.size("--cpu-offloading-num-layers", 0, least=0):
        return frozenset({OffloadModule.LAYER}), layers
    if not switched:
        if words:
            flags.assumptions.append("--offload-modules does nothing without --fine-grained-activation-offloading")
        return frozenset(), 0
    words = [part for word in words for part in FUSED_MLP.get(word, (word,))]
    modules = [module.value for module in MEGATRON.offloads if module is not OffloadModule.LAYER]
    if not words or set(words) - set(modules):
        must = f"must be of {', '.join((*modules, *FUSED_MLP))}"
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
    dtypes = {DType(word or "fp32") for word in words}
    if len(dtypes) > 1:
        flags.assumptions.append("moments of two data types are priced as both of the wider")
    return max(dtypes, key=lambda dtype: dtype.bytes)


def _read_recipe(flags: Flags) -> Recipe:
    fp8 = flags.word("--fp8-format", ("e4m3", "hybrid"))
    recipe = flags.word("--fp8-recipe", ("tensorwise", "delayed", "mxfp8", "blockwise", "custom")) or "delayed"
    fp4 = flags.word("--fp4-format", ("e2m1",))
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


def _read_trainer(flags: Flags, values: Mapping[str, Value | None], *, splits_experts: bool) -> Trainer:
    wide = flags.on("--accumulate-allreduce-grads-in-fp32")
    by_deepspeed = flags.on("--deepspeed")
    flags.on("--no-pipeline-parallel", "--deepspeed_config")
    graphs = flags.on("--enable-cuda-graph", "--external-cuda-graph")
    trainer = MEGATRON_DEEPSPEED if by_deepspeed else MEGATRON
    narrow = values["main_grads_dtype"] == "bf16" and bool(values["precision_aware"])
    habits = replace(trainer.memory, grad_bytes=2.0) if narrow else trainer.memory
    by_te = flags.word("--cross-entropy-fusion-impl") == "te"
    names = ("tp_overlap", "dp_overlap", "p2p_overlap", "ep_overlap", "fused_kernels")
    switches: JsonDict = {name: bool(values[name]) for name in names}
    return replace(
        trainer,
        memory=replace(habits, narrow_primary=True) if _narrow_primary(flags, values) else habits,
        **switches,
        cuda_graphs=graphs or bool(values["cuda_graphs"]),
        grad_dtype=DType.FP32 if wide else DType(values["grad_dtype"]),
        grad_fusion=bool(values["fsdp"] or values["grad_fusion"]),  # Megatron-FSDP is priced without it anyway
        fused_loss=Loss.FUSED if values["fused_loss"] and by_te else Loss.UNFUSED,
        main_dtype=DType(values["main_dtype"]),
        splits_experts=splits_experts,
        dispatch_once=_dispatches_once(flags),
    )


def _narrow_primary(flags: Flags, values: Mapping[str, Value | None]) -> bool:
    """Whether 8 bits are the only copy of the layers' matrices beside the optimizer's: "Keep the compute param in fp8
    (do not use any other intermediate dtype) and perform the param all-gather in fp8" (help of ``--fp8-param-gather``
    in arguments.py, whose ``validate_args`` wants sharded optimizer states; read 2026-11-28). MXFP8 gathers them
    through the buffer of the gradients, else through one of 16 bits."""
    if not (flags.on("--fp8-param-gather") and flags.on("--fp8-format")):
        return False
    if not _read_zero(flags, values):
        must = "Megatron-LM holds weights in 8 bits alone where the optimizer is sharded"
        raise InputError("--fp8-param-gather", "on", must, "--use-distributed-optimizer beside it")
    through = "--reuse-grad-buf-for-mxfp8-param-ag"
    wide = flags.word("--fp8-recipe") == "mxfp8" and not flags.on(through)
    if wide:
        flags.assumptions.append(f"--fp8-param-gather without {through} is priced with 16-bit weights")
    return not wide


ROUND = "--microbatch-group-size-per-virtual-pipeline-stage"


def _round(flags: Flags, values: Quantities, plan: TrainingPlan) -> Iterator[str]:
    """A stated round of microbatches that is larger than need be, which costs memory. Raises `InputError` for one that
    Megatron-Core rejects, or if rounds of pp need another."""
    pp, count, virtual = int(plan.dims.pp), int(plan.num_microbatches), int(plan.virtual_stages)
    stated, smallest = values["round"], int(round_of(pp, count))
    if virtual == 1 or pp == 1:
        return
    size = int(stated or pp)
    rest = count % size
    if size >= pp and (rest == 0 or rest >= pp):
        if size != smallest:
            yield f"{ROUND} {size}"
        return
    if "num_microbatches" in flags.options.fields or {"pp", "virtual_stages", "microbatch_size"} & flags.options.fields:
        return  # other numbers of microbatches, which the rules check
    must = f"leaves {rest} of {count} microbatches in the last round, which must have none or at least pp={pp}"
    if count < pp:
        raise InputError("num_microbatches", count, f"must be at least pp={pp} to interleave", str(pp))
    raise InputError(ROUND, size if stated else f"{pp} (its default, pp)", must, f"{ROUND} {smallest}")


def _experts_apart(flags: Flags, ep: int) -> list[str]:
    """What is different where Megatron computes a device's experts in turn (its ``SequentialMLP``)."""
    grouped, experts = flags.on("--moe-grouped-gemm"), flags.size("--num-experts", 1) or 1
    if grouped or experts <= ep or flags.on("--deepspeed"):
        return []
    return ["--moe-grouped-gemm is not given: Megatron computes the experts of a device one by one, slower than priced"]


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
