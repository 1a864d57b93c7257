"""A plan as a Megatron-LM launch (``torchrun pretrain_gpt.py --flag ...``), and such a launch as a plan.

Written against megatron/training/arguments.py of NVIDIA/Megatron-LM (commit 000c4ac2, read 2026-11-21), its checks
included; the names are in tests/golden/launch_arguments.csv.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from sartor.errors import InputError
from sartor.interop.launch_flags import Flags, parse_flags, shown_flag
from sartor.interop.launch_plan import (
    JobParts,
    LaunchFile,
    LaunchFiles,
    LaunchKind,
    LaunchReading,
    canonical,
    check_batch,
    check_numbers,
    nearest_divisors,
    nodes_of,
    refuser,
    stages_of,
)
from sartor.interop.launch_script import Command, script_text
from sartor.interop.megatron_model import Argument, model_arguments, read_model
from sartor.model.parallel import ParallelDims
from sartor.model.training import (
    ContextParallel,
    Framework,
    Optimizer,
    PipelineSchedule,
    Recipe,
    Recompute,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel
from sartor.operators import DType
from sartor.units import ceil_div

KIND = LaunchKind.MEGATRON
_refuse = refuser(KIND)

SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""--data-parallel-sharding-strategy of Megatron FSDP; stage 1 is --use-distributed-optimizer."""
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


# -- writing ------------------------------------------------------------------------------------------------------


def megatron_files(job: TrainingJob, plan: TrainingPlan, devices_per_node: int) -> LaunchFiles:
    """``launch.sh`` with every argument that shapes time and memory; data, learning rate and checkpoints follow as
    ``"$@"``. Raises `InputError` for what Megatron-LM cannot do, naming what it could."""
    layers = int(job.shape.num_layers)
    plan = canonical(plan, layers)
    check_numbers(plan, splits_experts=job.framework.splits_experts)
    check_batch(job, plan)
    _check(job, plan)
    model, notes = model_arguments(job.shape, plan.dims.tp, job.seq_len)
    groups = {
        "MODEL_ARGS": model,
        "PARALLEL_ARGS": list(_parallel(job, plan, layers)),
        "TRAINING_ARGS": list(_training(job, plan, layers)),
    }
    nodes, local = nodes_of(int(plan.num_devices), devices_per_node)
    env = {} if plan.zero_stage > 1 else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
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
            "has 1F1B alone, plain or interleaved",
            "schedule=1f1b",
        )
    if job.recipe not in PRECISION:
        raise _refuse("recipe", job.recipe.value, "has no such precision", ", ".join(r.value for r in PRECISION))
    if not job.trains_weights:
        raise _refuse("trains_weights", "false", "trains all weights", "trains_weights=true")
    if d.cp > 1 and job.seq_len % (2 * d.cp):
        below = job.seq_len // (2 * d.cp) * 2 * d.cp
        raise _refuse("seq_len", job.seq_len, f"needs a multiple of 2 x cp = {2 * d.cp}", f"{below or 2 * d.cp}")
    if plan.zero_stage == 1 and plan.optimizer_offload and job.optimizer is Optimizer.MUON:
        raise _refuse("optimizer_offload", "true", "offloads Adam and SGD alone", "optimizer=adam")
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
    yield from _stages(plan, layers, job.shape.mtp_layers)
    if d.cp > 1:
        yield ("--context-parallel-size", str(d.cp))
        yield ("--cp-comm-type", CP_TYPES[job.context_parallel])
    if d.ep > 1:
        yield ("--expert-model-parallel-size", str(d.ep))
    if d.tp > 1 and job.shape.moe_ffn is not None:
        yield ("--expert-tensor-parallel-size", str(d.tp if job.framework.splits_experts else 1))
    if plan.zero_stage == 1:
        yield ("--use-distributed-optimizer",)
    elif plan.zero_stage > 1:
        yield ("--use-megatron-fsdp",)
        yield ("--data-parallel-sharding-strategy", SHARDING[int(plan.zero_stage)])
        yield ("--ckpt-format", "fsdp_dtensor")
    if plan.shard_group:
        yield ("--num-distributed-optimizer-instances", str(d.dp * d.cp // plan.shard_group))
    yield from _overlap(job.framework, plan)


def _overlap(framework: Framework, plan: TrainingPlan) -> Iterator[Argument]:
    if framework.dp_overlap:
        yield ("--overlap-grad-reduce",)
        if plan.zero_stage:
            yield ("--overlap-param-gather",)
    if framework.tp_overlap:
        if plan.dims.tp == 1 or not plan.dims.sequence_parallel:
            raise _refuse(
                "tp_overlap", "true", "overlaps tensor parallelism under --sequence-parallel", "tp_overlap=false"
            )
        yield ("--tp-comm-overlap",)
    if not framework.p2p_overlap and plan.virtual_stages > 1:
        yield ("--no-overlap-p2p-communication",)


def _stages(plan: TrainingPlan, layers: int, mtp: int) -> Iterator[Argument]:
    """Stages: even ones by their number, first and last apart by theirs, others as a layout."""
    pp, v = plan.dims.pp, plan.virtual_stages
    stages = stages_of(plan, layers)
    if plan.stage_layers is None and layers % (pp * v) == 0:
        if v > 1:
            yield ("--num-virtual-stages-per-pipeline-rank", str(v))
    elif v == 1 and pp > 1 and len(set(stages[1:-1])) <= 1 and _ends_say(stages):
        yield ("--decoder-first-pipeline-num-layers", str(stages[0]))
        yield ("--decoder-last-pipeline-num-layers", str(stages[-1]))
    elif pp > 1:
        yield ("--pipeline-model-parallel-layout", layout_text(stages, mtp))


def _ends_say(stages: tuple[int, ...]) -> bool:
    """Whether Megatron's own division, all but the ends evenly, gives these stages."""
    middle = stages[1:-1]
    return len(stages) > 2 and len(set(middle)) == 1 and all(stages)


def layout_text(stages: tuple[int, ...], mtp: int = 0) -> str:
    """A pipeline layout: E embedding, t layer, m MTP module, L loss, stages between bars.

    >>> layout_text((2, 3, 1))
    'Et*2|t*3|tL'
    """
    parts = ["" if n == 0 else "t" if n == 1 else f"t*{n}" for n in stages]
    parts[0] = "E" + parts[0]
    parts[-1] += ("" if not mtp else "m" if mtp == 1 else f"m*{mtp}") + "L"
    return "|".join(parts)


def _training(job: TrainingJob, plan: TrainingPlan, layers: int) -> Iterator[Argument]:
    yield ("--seq-length", str(job.seq_len))
    yield ("--micro-batch-size", str(plan.microbatch_size))
    yield ("--global-batch-size", str(job.global_batch_size))
    yield from PRECISION[job.recipe]
    yield from _recompute(plan, layers)
    optimizer = OPTIMIZERS[job.optimizer]
    yield ("--optimizer", "dist_muon" if optimizer == "muon" and plan.zero_stage == 1 else optimizer)
    if plan.optimizer_offload:
        yield ("--optimizer-cpu-offload",)
        yield ("--use-precision-aware-optimizer",)
    yield ("--attention-backend", job.attention_kernel.value)
    share = "0.1" if job.dropout else "0.0"
    yield ("--attention-dropout", share)
    yield ("--hidden-dropout", share)
    if job.framework.grad_dtype is DType.BF16:
        yield ("--grad-reduce-in-bf16",)
    if not job.framework.fused_kernels:
        yield ("--transformer-impl", "local")
    if job.framework.cuda_graphs:
        yield ("--cuda-graph-impl", "transformer_engine")
        yield ("--te-rng-tracker",)


def _recompute(plan: TrainingPlan, layers: int) -> Iterator[Argument]:
    if plan.recompute is Recompute.SELECTIVE:
        yield ("--recompute-granularity", "selective")
        yield ("--recompute-modules", "core_attn")
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


# -- reading ------------------------------------------------------------------------------------------------------


def read_megatron(command: Command, num_devices: int = 0) -> LaunchReading:
    """The model, job and plan of a Megatron-LM command. ``num_devices`` wins over what the script says.

    Raises `InputError` for values that cannot be; flags it does not know are listed in the reading.
    """
    flags = parse_flags(command.arguments)
    flags.assumptions += command.notes
    tp, pp, cp, ep = (flags.size(name, 1) or 1 for name in DEGREES)
    shape = read_model(flags, tp)
    layers = None if shape is None else int(shape.num_layers)
    splits = _splits_experts(flags, tp)
    dp = _data_parallel(flags, command, num_devices, tp * pp * cp, ceil_div(ep, 1 if splits else tp), cp)
    microbatch, count = _batch(flags, dp)
    stages, virtual = _read_stages(flags, pp, layers)
    zero, instances = _read_sharding(flags)
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, sequence_parallel=flags.on("--sequence-parallel")),
        microbatch_size=microbatch,
        num_microbatches=count,
        virtual_stages=virtual,
        zero_stage=zero,
        shard_group=dp * cp // instances if instances > 1 else 0,
        optimizer_offload=flags.on("--optimizer-cpu-offload"),
        stage_layers=stages,
    )
    recompute, recomputed = _read_recompute(flags, virtual)
    plan = replace(plan, recompute=recompute, recompute_layers=recomputed)
    check_numbers(plan, splits_experts=splits)
    parts = _parts(flags, dp * microbatch * count, splits_experts=splits and tp > 1 and flags.on("--num-experts"))
    flags.on("--use-precision-aware-optimizer", "--te-rng-tracker", "--ckpt-format", "--recompute-modules")
    return LaunchReading(
        kind=KIND,
        plan=canonical(plan, layers),
        parts=parts,
        shape=shape,
        unknown=(
            *(shown_flag(n, flags.given[n], {*KNOWN, *flags.read}) for n in flags.left() if not _no_bearing(n)),
            *flags.odd,
        ),
        ignored=tuple(n for n in flags.left() if _no_bearing(n)),
        assumptions=tuple(flags.assumptions),
    )


DEGREES = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--expert-model-parallel-size",
)


def _splits_experts(flags: Flags, tp: int) -> bool:
    """Whether tensor parallelism divides experts: Megatron's default is yes, by all of tp."""
    etp = flags.size("--expert-tensor-parallel-size", tp) or tp
    if etp not in (1, tp):
        flags.assumptions.append(f"--expert-tensor-parallel-size={etp} is priced as {tp}, tp's own")
    return etp > 1 or tp == 1


def _data_parallel(flags: Flags, command: Command, num_devices: int, model: int, ep: int, cp: int) -> int:
    """Data-parallel width: devices over tp x pp x cp; the least that holds the experts where nobody counts devices."""
    devices = num_devices or command.num_devices
    if not devices:
        least = max(ep // cp, 1)
        flags.assumptions.append(f"the number of devices is not in the file: {model * least} taken, dp={least}")
        return least
    if devices % model:
        below = devices // model * model
        near = f"{below} and {below + model}" if below else str(model)
        raise InputError("num_devices", devices, f"must be a multiple of tp x pp x cp = {model}", near)
    return devices // model


def _batch(flags: Flags, dp: int) -> tuple[int, int]:
    """Microbatch size, and microbatches of one pipeline."""
    microbatch = flags.size("--micro-batch-size")
    if microbatch is None:
        microbatch = 1
        flags.assumptions.append("--micro-batch-size=1 (not given)")
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


def _read_stages(flags: Flags, pp: int, layers: int | None) -> tuple[tuple[int, ...] | None, int]:
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
    each = flags.size("--num-layers-per-virtual-pipeline-stage")
    if each is not None and layers is not None and pp > 1:
        if layers % (pp * each):
            near = nearest_divisors(layers // pp, each) if layers % pp == 0 else ""
            must = f"must divide the {layers} layers over --pipeline-model-parallel-size {pp}"
            raise InputError("--num-layers-per-virtual-pipeline-stage", each, must, near)
        virtual = layers // (pp * each)
    return _read_ends(flags, pp, layers, virtual), virtual


def _read_ends(flags: Flags, pp: int, layers: int | None, virtual: int) -> tuple[int, ...] | None:
    """Stages with a first, a last, an embedding or a loss that count apart."""
    first = flags.size("--decoder-first-pipeline-num-layers")
    last = flags.size("--decoder-last-pipeline-num-layers")
    embedding = flags.on("--account-for-embedding-in-pipeline-split")
    loss = flags.on("--account-for-loss-in-pipeline-split")
    if layers is None or pp == 1 or not (first or last or embedding or loss):
        return None
    if embedding or loss:
        each = (layers + embedding + loss) // (pp * virtual)
        stages = [each] * (pp * virtual)
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
        found = re.search(r"\(([^()]{0,2000})\)\*(\d{1,4})", bare) or re.search(r"([EtmL])\*(\d{1,4})", bare)
        if not found or len(bare) > 100_000:
            break
        bare = bare[: found.start()] + found[1] * int(found[2]) + bare[found.end() :]
        if "(" not in bare and "*" not in bare:
            break
    if not re.fullmatch(r"E?[tm|]*L?[m|]*", bare) or len(bare) > 100_000:
        must = "must be stages of E, t, m and L between |, with (...)*n and t*n"
        raise InputError("--pipeline-model-parallel-layout", text, must, "Et*2|t*3|t*2L")
    return tuple(stage.count("t") for stage in bare.split("|"))


def _read_sharding(flags: Flags) -> tuple[int, int]:
    """ZeRO stage, and how many copies of the shards there are."""
    strategies = ("no_shard", "optim", "optim_grads", "optim_grads_params")
    strategy = flags.word("--data-parallel-sharding-strategy", strategies) or "no_shard"
    instances = flags.size("--num-distributed-optimizer-instances", 1) or 1
    torch_fsdp = flags.on("--use-torch-fsdp2")
    if flags.on("--use-megatron-fsdp", "--use-custom-fsdp"):
        return strategies.index(strategy), instances
    if torch_fsdp:
        return (2 if flags.on("--torch-fsdp2-no-reshard-after-forward") else 3), instances
    distributed = flags.word("--optimizer") in ("dist_muon",)
    return int(flags.on("--use-distributed-optimizer") or distributed), instances


def _read_recompute(flags: Flags, virtual: int) -> tuple[Recompute, int]:
    granularity = flags.word("--recompute-granularity", ("full", "selective"))
    method = flags.word("--recompute-method", ("uniform", "block"))
    count = flags.size("--recompute-num-layers")
    modules = flags.words("--recompute-modules")
    if flags.on("--recompute-activations") and granularity is None:
        granularity = "selective"
    if granularity == "full":
        if method == "uniform" and (count or 1) > 1:
            flags.assumptions.append(f"recomputation in units of {count} layers is priced as of one layer each")
        return Recompute.FULL, count * virtual if method == "block" and count else -1
    if granularity == "selective":
        others = [m for m in modules if m != "core_attn"]
        if others:
            shown = " ".join(others)
            flags.assumptions.append(f"--recompute-modules {shown}: priced as the attention core's alone")
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
    return JobParts(
        seq_len=seq,
        global_batch_size=batch,
        recipe=_read_recipe(flags),
        optimizer=_read_optimizer(flags),
        attention_kernel=AttentionKernel.UNFUSED if backend in ("unfused", "local") else AttentionKernel.FLASH,
        context_parallel=next((c for c, word in CP_TYPES.items() if word == kind), ContextParallel.RING),
        dropout=dropout > 0,
        framework=_read_framework(flags, splits_experts=splits_experts),
    )


def _read_optimizer(flags: Flags) -> Optimizer:
    word = flags.word("--optimizer", ("adam", "sgd", "muon", "dist_muon")) or "adam"
    return next(o for o, name in OPTIMIZERS.items() if name == word.removeprefix("dist_"))


def _read_recipe(flags: Flags) -> Recipe:
    fp8 = flags.word("--fp8-format", ("e4m3", "hybrid"))
    recipe = flags.word("--fp8-recipe", ("tensorwise", "delayed", "mxfp8", "blockwise", "custom")) or "delayed"
    fp4 = flags.word("--fp4-format", ("e2m1",))
    flags.word("--fp4-recipe")
    half, brain = flags.on("--fp16"), flags.on("--bf16")
    if half and brain:
        raise InputError("--fp16", "with --bf16", "must be one of the two", "--bf16")
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


def _read_framework(flags: Flags, *, splits_experts: bool) -> Framework:
    impl = flags.word("--cuda-graph-impl", ("none", "local", "transformer_engine", "full_iteration")) or "none"
    flags.on("--overlap-param-gather")
    reduced = flags.on("--grad-reduce-in-bf16")
    full = flags.on("--accumulate-allreduce-grads-in-fp32") or not reduced
    return Framework(
        name="megatron",
        tp_overlap=flags.on("--tp-comm-overlap"),
        dp_overlap=flags.on("--overlap-grad-reduce"),
        p2p_overlap=not flags.on("--no-overlap-p2p-communication"),
        fused_kernels=flags.word("--transformer-impl", ("local", "transformer_engine")) != "local",
        cuda_graphs=flags.on("--enable-cuda-graph", "--external-cuda-graph") or impl != "none",
        grad_dtype=DType.FP32 if full else DType.BF16,
        splits_experts=splits_experts,
    )


NO_BEARING = re.compile(
    r"--(no-)?(lr|min-lr|warmup|weight-decay|start-weight-decay|end-weight-decay|adam-|sgd-momentum|muon-|clip-grad|"
    r"init-method|embedding-init|seed|save|load|finetune|pretrained|ckpt|dist-ckpt|async-save|use-dist-ckpt|"
    r"auto-detect-ckpt|no-save|no-load|exit-|log-|logging|tensorboard|wandb|timing-log|one-logger|app-tag|eval-|"
    r"train-iters|train-samples|train-data|valid-data|test-data|data-|split|per-split|mock-data|num-workers|"
    r"dataloader|num-dataset|reset-|eod-|create-attention|vocab-file|merge-file|tokenizer|tiktoken|legacy-tokenizer|"
    r"trust-remote|distributed-backend|distributed-timeout|rotary-(base|interleaved|seq-len|scaling)|use-rope-scaling|"
    r"rope-scaling|rope-type|norm-epsilon|apply-layernorm|profile|use-pytorch-profiler|record-memory|memory-snapshot|"
    r"loss-scale|initial-loss|min-loss|hysteresis|fp8-(margin|interval|amax)|moe-(aux|z)-loss|moe-router-(load|dtype|"
    r"score|pre|num-groups|group-topk|topk-scaling|bias|force|fusion|padding)|moe-per-layer|mtp-loss|mscale|"
    r"manual-gc|use-mcore-models|check-|calculate-per-token|rampup|override-opt|use-checkpoint|attention-softmax|"
    r"apply-query-key|disable-gloo|enable-ft|calc-ft|ft-|local-rank|test-mode|skip-train|rerun|error-injection|"
    r"non-persistent|replication|config-logger|moe-grouped-gemm|moe-token-dispatcher-type|moe-permute-fusion|"
    r"moe-use-legacy|untie|no-masked|no-bias|no-rope-fusion|create|disable-straggler|straggler|inprocess|"
    r"full-validation|multiple-validation|empty-unused|disable-bf16|use-cpu-init|yaml-cfg|exit|object-storage|"
    r"spec|sft|decoupled|no-one-logger|enable-one|log|accumulate|bert|mask-prob|short-seq|sample-rate)"
)
"""Megatron's own arguments that change neither a step's time nor its memory in a way that is modelled."""


def _no_bearing(name: str) -> bool:
    return NO_BEARING.match(name) is not None


KNOWN = (
    *DEGREES, "--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads", "--kv-channels",
    "--group-query-attention", "--num-query-groups", "--swiglu", "--squared-relu", "--normalization",
    "--position-embedding-type", "--max-position-embeddings", "--untie-embeddings-and-output-weights",
    "--disable-bias-linear", "--add-qkv-bias", "--qk-layernorm", "--vocab-size", "--make-vocab-size-divisible-by",
    "--num-experts", "--moe-router-topk", "--moe-ffn-hidden-size", "--moe-layer-freq", "--multi-latent-attention",
    "--sequence-parallel", "--micro-batch-size", "--global-batch-size", "--seq-length", "--bf16", "--fp16",
    "--fp8-format", "--fp8-recipe", "--recompute-activations", "--recompute-granularity", "--recompute-method",
    "--recompute-num-layers", "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather",
    "--tp-comm-overlap", "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
    "--pipeline-model-parallel-layout", "--optimizer", "--attention-dropout", "--hidden-dropout", "--cp-comm-type",
    "--moe-shared-expert-intermediate-size", "--kv-lora-rank", "--q-lora-rank", "--attention-backend",
)  # fmt: skip
"""What an unknown flag is compared with, to name the one that was meant."""
