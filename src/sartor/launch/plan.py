"""Shared by all readers and writers of launches: what a launch specifies, and a canonical form of plans.

Two plans that differ only in fields without effect (interleaving with one stage, sequence parallelism on one device)
are the same launch. `canonical` is the form that readers return.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import combinations
from typing import Any

import numpy as np

from sartor.errors import NOT_GIVEN, InputError
from sartor.launch.shell import NOT_BESIDE
from sartor.model.plan import AXES
from sartor.model.shape import TransformerShape
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
    packed_document,
)
from sartor.model.workload import AttentionKernel, LoraTargets, usual_seq_len
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.plans.space import broken, check_job
from sartor.step.trainers import record_named, trainer_of_files
from sartor.units import Ints, ceil_div, nearest_divisors


class LaunchKind(Enum):
    """The format of launch files."""

    MEGATRON = "megatron"
    MEGATRON_BRIDGE = "megatron-bridge"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"
    MAXTEXT = "maxtext"
    AUTOMODEL = "automodel"
    TORCHTUNE = "torchtune"

    @property
    def title(self) -> str:
        return record_named(self.value).called


WRITTEN = (
    LaunchKind.MEGATRON,
    LaunchKind.MEGATRON_BRIDGE,
    LaunchKind.TORCHTITAN,
    LaunchKind.DEEPSPEED,
    LaunchKind.ACCELERATE,
)
"""Formats that are written; all are read."""


def launch_kind(word: LaunchKind | str) -> LaunchKind:
    """The format of this name, if files are written in it. Raises `InputError`."""
    name = word.value if isinstance(word, LaunchKind) else word.replace("_", "-")
    kind = next((kind for kind in WRITTEN if kind.value == name), None)
    if kind is None:
        raise InputError("trainer", name, "must be one of " + ", ".join(kind.value for kind in WRITTEN))
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """One file of a launch: its name inside the folder, and its whole text."""

    name: str
    text: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """The files of one plan, and notes on what they could not express."""

    kind: LaunchKind
    files: tuple[LaunchFile, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParts:
    """A launch's job; None where it is not given (``global_batch_size`` in sequences, ``seq_len`` in tokens)."""

    seq_len: int | None = None
    global_batch_size: int | None = None
    recipe: Recipe = Recipe.BF16
    optimizer: Optimizer = Optimizer.ADAM
    moments_dtype: DType = DType.FP32
    lora_rank: int = 0
    lora_targets: LoraTargets = LoraTargets.ALL
    frozen_bits: int = 16
    recompute_modules: frozenset[RecomputeModule] = frozenset({RecomputeModule.CORE_ATTN})
    offload_modules: frozenset[OffloadModule] = frozenset()
    offload_layers: int = 0
    attention_kernel: AttentionKernel = AttentionKernel.FLASH
    context_parallel: ContextParallel = ContextParallel.RING
    dropout: bool = False
    packed: bool = False
    """Whether sequences are packs of documents."""
    trainer: Trainer = field(default_factory=Trainer)

    @property
    def hides_documents(self) -> bool:
        """Whether documents attend within themselves; packs of adapters' runs are priced as whole sequences (one causal
        mask over the pack: MLPerf Training 5.1, Llama 2 70B LoRA)."""
        return self.packed and not self.lora_rank and self.attention_kernel is AttentionKernel.FLASH

    def pack_words(self) -> tuple[str, ...]:
        """What is assumed of packs, in a sentence; none if sequences are none."""
        if not self.packed:
            return ()
        if not self.hides_documents:
            return ("packed sequences are priced as whole ones",)
        near = f" of {packed_document(self.seq_len):,} tokens" if self.seq_len else ""
        return (f"packed documents{near} attend within themselves (--fix document_len=all: over the whole pack)",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReading:
    """A launch as read. ``unknown``: flags or fields the framework does not have; ``unpriced``: its own that may change
    time or memory but have no price here; ``ignored``: its own that change neither; ``assumptions``: what the file left
    open."""

    kind: LaunchKind
    plan: TrainingPlan
    parts: JobParts
    section: str = ""
    """The section of the launch table with its arguments, where it is not the kind's."""
    shape: TransformerShape | None = None
    model: str = ""
    """Name of the model, if the file gives only a name and no sizes."""
    unknown: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    sequence_parallel: bool = False
    """Whether the sequence would be split too if ``tp`` were above 1."""
    open_fields: Mapping[str, str] = field(default_factory=dict)
    """Arguments that bear on the price and whose value the file does not say (a variable that nothing sets), or that
    are not understood, with the words that stand there; the plan has their defaults."""
    assumed: Mapping[str, str] = field(default_factory=dict)
    """What the file leaves to the program that it starts, by option, with a sentence on what the plan has instead."""
    alternatives: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Other plausible values of the model's sizes that the file does not say."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """What the file says of fields for which an option was read instead, in words."""
    fields_in_file: frozenset[str] = frozenset()
    """Fields of the launch table of which an argument stands in the file."""
    implied: Mapping[str, str] = field(default_factory=dict)
    """Options that follow from others in this trainer's own way, with the rule."""

    @property
    def num_devices(self) -> int:
        return int(self.plan.num_devices)

    def job(self, shape: TransformerShape | None = None, seq_len: int | None = None) -> TrainingJob:
        """The job, with the given model and sequence length, else the file's. Raises `InputError`."""
        shape = shape or self.shape
        if shape is None:
            apart = "".join(f"; {note}" for note in self.assumptions if note.endswith(NOT_BESIDE))
            must = f"a launch of {self.kind.title} does not say the model's sizes; give MODEL{apart}"
            raise InputError("MODEL", "missing", must, self.model)
        tokens = seq_len or self.parts.seq_len
        if tokens is None:
            must = (
                f"a {self.kind.title} file has no sequence length; give it, or keep the script that starts it beside it"
            )
            raise InputError("seq_len", NOT_GIVEN, must, str(usual_seq_len(shape)))
        plan = self.plan
        batch = int(plan.dims.dp) * int(plan.microbatch_size) * int(plan.num_microbatches)
        rest = {f.name: getattr(self.parts, f.name) for f in fields(JobParts) if f.name != "packed"}
        rest["document_len"] = packed_document(tokens) if self.parts.hides_documents else 0
        return TrainingJob(shape=shape, **{**rest, "seq_len": tokens, "global_batch_size": batch})


def _single(plan: TrainingPlan) -> TrainingPlan:
    """The plan with Python integers and booleans. A plan with arrays of candidates is an internal error."""

    def number(value: object) -> Any:
        array = np.asarray(value)
        assert array.size == 1, "launch files are written for one plan, not for many"
        item = array.reshape(()).item()
        return item if isinstance(item, bool) else int(item)

    numbers = {name: number(value) for name, value in plan.columns.items()}
    numbers |= {"schedule": PipelineSchedule(numbers["schedule"]), "recompute": Recompute(numbers["recompute"])}
    stages = None if plan.stage_layers is None else tuple(int(n) for n in plan.stage_layers)
    return plan.with_columns(**numbers, stage_layers=stages)


def canonical(plan: TrainingPlan, num_layers: int | None = None) -> TrainingPlan:
    """The plan with every field without effect at its default, so that equal launches are equal plans.

    With ``num_layers``, stages as even as possible count as not given.
    """
    plan = _single(plan)
    d = plan.dims
    if d.tp == 1:
        plan = replace(plan, dims=replace(d, sequence_parallel=True))
    if d.pp == 1:
        plan = replace(plan, virtual_stages=1, schedule=PipelineSchedule.ONE_F_ONE_B, stage_layers=None)
    if d.dp * d.cp == 1 or plan.shard_group == 1:  # a single shard is not sharding
        plan = replace(plan, zero_stage=0)
    if plan.zero_stage == 0 or plan.shard_group in (0, d.dp * d.cp):
        plan = replace(plan, shard_group=0)
    if plan.recompute is not Recompute.FULL or _all_recomputed(plan, num_layers):
        plan = replace(plan, recompute_layers=-1)
    if num_layers and plan.stage_layers == even_stages(num_layers, d.pp * plan.virtual_stages):
        plan = replace(plan, stage_layers=None)
    return plan


def _all_recomputed(plan: TrainingPlan, num_layers: int | None) -> bool:
    return bool(
        plan.recompute_layers < 0 or (num_layers and plan.recompute_layers >= max(device_layers(plan, num_layers)))
    )


MOST_CHUNKS = 65_536
"""Of a pipeline."""


def even_stages(num_layers: int, chunks: Ints) -> tuple[int, ...]:
    """Default layers of each chunk in model order: as even as possible, the first ones taking the remainder. Raises
    `InputError` for more chunks than any model has layers."""
    chunks = int(chunks)
    if chunks > MOST_CHUNKS:
        raise InputError("pp x virtual_stages", chunks, f"must be at most {MOST_CHUNKS}")
    return tuple(num_layers // chunks + (k < num_layers % chunks) for k in range(chunks))


def stages_of(plan: TrainingPlan, num_layers: int) -> tuple[int, ...]:
    """Layers of each of the pp x virtual_stages chunks in model order. Raises `InputError` if they don't add up."""
    chunks = int(plan.dims.pp) * int(plan.virtual_stages)
    if plan.stage_layers is None:
        return even_stages(num_layers, chunks)
    if len(plan.stage_layers) != chunks or sum(plan.stage_layers) != num_layers:
        shown = ",".join(map(str, plan.stage_layers))
        must = f"must be {chunks} numbers (pp x virtual_stages) that add up to the model's {num_layers} layers"
        raise InputError("stage_layers", shown, must, ",".join(map(str, even_stages(num_layers, chunks))))
    return plan.stage_layers


def device_layers(plan: TrainingPlan, num_layers: int) -> tuple[int, ...]:
    """Layers of every pipeline rank over all its chunks (rank k holds chunks k, k + pp, ...)."""
    pp, stages = int(plan.dims.pp), stages_of(plan, num_layers)
    return tuple(sum(stages[k::pp]) for k in range(pp))


def launchable(job: TrainingJob, plan: TrainingPlan, *, splits_experts: bool = True) -> TrainingPlan:
    """The plan in canonical form, checked, with the job's batch. Raises `InputError`."""
    plan = canonical(plan, int(job.shape.num_layers))
    check_numbers(plan, splits_experts=splits_experts)
    _check_batch(job, plan)
    return plan


def check_positions(shape: TransformerShape, seq_len: int) -> None:
    """Check that a table of learned positions has a row for every token (Megatron-LM's ``validate_args``:
    max_position_embeddings >= seq_length; elsewhere the lookup fails). Raises `InputError`."""
    rows = int(shape.learned_positions)
    if 0 < rows < seq_len:
        must = f"the model has {rows} learned positions, one per token"
        raise InputError("seq_len", seq_len, must, f"{rows}, or a model whose config has more positions")


def _check_batch(job: TrainingJob, plan: TrainingPlan) -> None:
    """Check that the plan's microbatches add up to the job's batch. Raises `InputError`."""
    dp, b, count = int(plan.dims.dp), int(plan.microbatch_size), int(plan.num_microbatches)
    if dp * b * count != job.global_batch_size:
        must = f"must be dp x microbatch_size x num_microbatches = {dp} x {b} x {count}"
        raise InputError("global_batch_size", job.global_batch_size, must, str(dp * b * count))


def check_numbers(plan: TrainingPlan, *, splits_experts: bool = True) -> None:
    """Check that degrees and sizes are positive integers and that expert groups fit: ep divides dp x cp if tensor
    parallelism ``splits_experts``, else tp x dp x cp. Raises `InputError`."""
    for name in ("tp", "pp", "dp", "cp", "ep"):
        if getattr(plan.dims, name) < 1:
            raise InputError(name, getattr(plan.dims, name), "must be a positive integer", "1")
    for name in ("microbatch_size", "num_microbatches", "virtual_stages"):
        if getattr(plan, name) < 1:
            raise InputError(name, getattr(plan, name), "must be a positive integer", "1")
    ranks = plan.dims.dp * plan.dims.cp * (1 if splits_experts else plan.dims.tp)
    if ranks % plan.dims.ep:
        within = "dp x cp" if splits_experts else "tp x dp x cp"
        must = f"must divide {within} = {ranks}, within which experts are spread"
        raise InputError("ep", plan.dims.ep, must, nearest_divisors(ranks, plan.dims.ep))


def nodes_of(num_devices: int, devices_per_node: int) -> tuple[int, int]:
    """(nodes, devices on each); less than one node's devices count as one node. Raises `InputError`."""
    if num_devices <= devices_per_node:
        return 1, num_devices
    if num_devices % devices_per_node:
        below = num_devices - num_devices % devices_per_node
        must = f"must be whole nodes of {devices_per_node} devices"
        raise InputError("num_devices", num_devices, must, f"{below} and {below + devices_per_node}")
    return ceil_div(num_devices, devices_per_node), devices_per_node


def check_runs(kind: LaunchKind, job: TrainingJob, plan: TrainingPlan) -> None:
    """Check the plan against the conditions of the search, under the trainer that its files start. Raises `InputError`
    that names a field of the plan, and a value of it with which the condition holds."""
    started, switches = trainer_of_files(kind.value), job.trainer
    trainer = replace(
        started,
        splits_experts=switches.splits_experts,
        ep_overlap=switches.ep_overlap,
        tp_overlap=switches.tp_overlap and started.optional_sequence_parallel,
        cuda_graphs=switches.cuda_graphs,
    )
    job = replace(job, trainer=trainer)
    check_job(job)
    reasons = broken(job, plan)
    if not reasons:
        return
    columns = plan.columns
    rows = reversed([*AXES.values()])  # the most particular axes first
    common = {row.name: row.plain[:1] if row.common is None else row.common for row in rows}
    simpler = [(name, value) for name, values in common.items() for value in values if value != columns[name]]
    for changes in [*combinations(simpler, 1), *combinations(simpler, 2)]:
        if reasons[0] not in broken(job, plan.with_columns(**dict(changes))):
            name = changes[-1][0]
            near = ",".join(f"{axis}={_stated(axis, value)}" for axis, value in changes)
            raise InputError(name, _stated(name, columns[name]), reasons[0], near)
    raise InputError("plan", "as given", reasons[0], f"a plan that sartor plan --write {kind.value} finds")


def _stated(axis: str, value: int) -> str:
    """A value of a plan's axis as options write it."""
    return str(AXES[axis].shown(value)).lower()


SWITCHES = (
    "tp_overlap", "dp_overlap", "p2p_overlap", "ep_overlap", "fused_kernels", "fused_loss", "grad_fusion",
    "cuda_graphs", "grad_dtype", "main_dtype", "splits_experts", "dispatch_once",
)  # fmt: skip
"""Switches of a trainer; its other fields are habits, which no file sets."""


def no_devices(smallest: int) -> InputError:
    """The error if the file does not give the number of devices, which is never assumed."""
    return InputError(
        "num_devices", NOT_GIVEN, "must be given: the launch does not say how many devices it has", str(smallest)
    )


TUNED = re.compile(
    r"[-_](instruct|chat|it|base|hf|bnb[-_]4bit|unsloth|coder|pretrain|finetune|sft|peft|lora|qlora|config|recipe|mcore|muon|"
    r"(mx|nv)?fp[48](_\w+?_scaling)?|2[4-9][01]\d)(?=[-_]|$)"
)
RECIPE_NAME = re.compile(
    r"(?:q?lora_)?(llama|qwen|gemma|mistral|phi)(\d)_?(\d)?(?:_moe)?_(\d+(?:_\d+)?[bm](?:_a\d+b)?)"
)
"""Model names of recipes: llama31_405b, lora_llama3_1_8b, qwen3_moe_30b_a3b."""


def model_named(name: str) -> TransformerShape | None:
    """The model of the zoo that a launch names by a repository, a folder or a recipe; None if it has none."""
    for candidate in _names(name.rstrip("/").lower()):
        try:
            return load_model(candidate)
        except InputError:
            continue
    return None


def _names(stated: str) -> Iterator[str]:
    """Names that a model's name or folder may have in the zoo."""
    last = stated.rpartition("/")[2]
    yield from dict.fromkeys(name for name in (stated, last, TUNED.sub("", last)) if name)
    if match := RECIPE_NAME.match(TUNED.sub("", last.rpartition(".")[2])):
        family, major, minor, size = match.groups()
        release = f"{major}.{minor}" if minor else major
        yield f"{family}{release}-{size.replace('_', '-' if 'a' in size else '.')}"


Refuse = Callable[[str, object, str, str], InputError]


def refuser(kind: LaunchKind) -> Refuse:
    """A maker of errors for what a framework cannot do: ``refuse("pp", 4, "has no pipeline", "pp=1")``."""

    def refuse(field: str, value: object, why: str, nearest: str) -> InputError:
        return InputError(field, value, f"{kind.title} {why}", nearest)

    return refuse
