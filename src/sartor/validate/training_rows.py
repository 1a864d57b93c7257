"""Rows of published training runs as predictable cases: a job, a plan, a cluster, and the measurements.

Columns are those of data/end_to_end/training.csv. A row that cannot be predicted carries its reason; assumptions are
stated per row and counted in the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.shape import TransformerShape
from sartor.model.training import Recipe, RecomputeModule, Trainer, TrainingJob, TrainingPlan, packed_document
from sartor.model.workload import AttentionKernel, ParallelDims, PipelineSchedule
from sartor.plans.fixed import named_values
from sartor.records.rows import Unexpressed
from sartor.run.fields import Run
from sartor.step.question import padded_shape, usual_attention
from sartor.units import ceil_div, round_up
from sartor.validate.answer import read_rows
from sartor.validate.row_shapes import number, training_shape, whole
from sartor.validate.training_open import OpenRun, layers_by_chunk, open_runs
from sartor.validate.training_setup import (
    cluster_of,
    is_stated,
    optimizer_of,
    recipe_of,
    recompute_of,
    stated_run,
    trainer_of,
    with_stated_switches,
)

REQUIRED = ("model", "gpu", "n_gpu", "seq", "gbs", "framework")
LARGE = 1024
"""Most devices of runs used for fitting when larger runs are judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase:
    """One row. With a ``reason`` there is nothing to predict; ``assumed`` has a phrase per assumption."""

    words: Mapping[str, str]
    shape: TransformerShape | None = None
    """The model with the vocabulary that the row has; the job's is padded as its trainer does."""
    job: TrainingJob | None = None
    plan: TrainingPlan | None = None
    open_runs: tuple[OpenRun, ...] = ()
    """All runs that the row's blank cells allow; empty if nothing is open."""
    run: Run = field(default_factory=Run.stated)
    """The fields and switches that the row states, and the trainer with others where none is known."""
    cluster: Cluster | None = None
    measured_s: float = math.nan
    """Seconds of one step on the devices of the plan."""
    measured_bytes: float = math.nan
    memory_kind: str = ""
    """``allocated``, ``reserved`` or ``device``: the kind of memory in ``measured_bytes``."""
    out_of_memory: bool = False
    memory_known: bool = True
    """Whether the row states all that memory depends on (recomputation and microbatch)."""
    no_optimizer: bool = False
    """Only forward and backward were timed."""
    assumed: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()
    """What was chosen for each open fact, once the run is settled."""
    reason: str = ""

    @property
    def priceable(self) -> tuple[TrainingJob, TrainingPlan, Cluster]:
        """What a step is priced from, of a case without a ``reason``."""
        assert self.job is not None
        assert self.plan is not None
        assert self.cluster is not None
        return self.job, self.plan, self.cluster

    @property
    def precision(self) -> str:
        """``32-bit``, ``16-bit``, ``fp8`` or ``fp4``; empty without a job."""
        if self.job is None:
            return ""
        wide = {Recipe.FP32: "32-bit", Recipe.TF32: "32-bit", Recipe.FP16: "16-bit", Recipe.BF16: "16-bit"}
        return wide.get(self.job.recipe, "fp4" if self.job.recipe in (Recipe.NVFP4, Recipe.MXFP4) else "fp8")

    @property
    def experts(self) -> str:
        """``moe`` or ``dense``."""
        return "" if self.job is None else "moe" if self.job.shape.moe_ffn is not None else "dense"

    @property
    def trainer(self) -> str:
        """The trainer whose constants apply; empty without a job."""
        return "" if self.job is None else self.job.trainer.name

    @property
    def year(self) -> str:
        """Year of the software's release: ``2024`` for 2024-12, container 24.07 and "2023-2024"; empty if not given."""
        years = re.findall(r"\b20(\d\d)\b|\b(2\d)\.\d\d\b", self.words.get("framework_version", ""))
        return max((f"20{a or b}" for a, b in years), default="")

    @property
    def scale(self) -> str:
        """Devices: up to 64, up to 1,024, or more."""
        devices = 0 if self.cluster is None else self.cluster.num_devices
        return (
            "" if not devices else "up to 64" if devices <= 64 else "65 to 1024" if devices <= LARGE else "above 1024"
        )


DERIVED = {name: name for name in ("precision", "trainer", "year", "scale")} | {"experts_kind": "experts"}
"""Derived columns for grouping, with the property of a row: precision (16-bit, fp8, ...), trainer, year of its release,
scale in devices, dense or moe."""


def read_training(data: str | Path, table: str = "training", group_by: Sequence[str] = ()) -> tuple[TrainingCase, ...]:
    """Every row of a CSV file, or of ``training.csv`` in a folder (or of another ``table``). Raises ``InputError`` if
    it cannot be used."""
    _, rows = read_rows(data, table, REQUIRED, group_by, tuple(DERIVED))
    return tuple(_training_case(row) for row in rows)


def _training_case(row: Mapping[str, str]) -> TrainingCase:
    """One row as a case, or with the reason why it cannot be predicted."""
    try:
        return _case(row)
    except Unexpressed as error:
        return TrainingCase(words=row, reason=str(error))
    except InputError as error:
        return TrainingCase(words=row, reason=f"{error.field.removeprefix('fix ')}: {error.must}"[:120])


def _case(row: Mapping[str, str]) -> TrainingCase:
    if row.get("plan_known", "1") == "0":
        raise Unexpressed("plan not published")
    shape, said_shape = training_shape(row)
    cluster, said_cluster = cluster_of(row)
    trainer, said_trainer = trainer_of(row, cluster.gpu)
    recipe, said_recipe = recipe_of(row, trainer, cluster.gpu)
    assumed = [*said_shape, *said_cluster, *said_trainer, *said_recipe]
    dims, share = _dims(row, cluster, assumed)
    plan = _plan(row, dims, trainer, int(shape.num_layers), assumed)
    seq = whole(row, "seq")
    if not seq:
        raise Unexpressed("seq is not given")
    kind = row.get("run_kind", "pretrain")
    if _memory_kind(row.get("mem_kind", "")) == "device" and int(dims.pp) > 1:
        assumed.append("memory of the first node's devices, where nvidia-smi is run")
    document = packed_document(seq) if kind == "sft_packed" and not is_stated(row, "document_len") else 0
    if "packed" in kind:
        within = f"packed documents of {document} tokens attend within themselves"
        assumed.append(within if document else "packed sequences attend over their whole length")
    unfused = row.get("flash_attention") == "0"
    kernel = AttentionKernel.UNFUSED if unfused else usual_attention(trainer, [cluster.gpu])
    job = TrainingJob(
        shape=_padded(shape, trainer, int(dims.tp), assumed),
        seq_len=seq,
        global_batch_size=int(plan.dims.dp * plan.microbatch_size * plan.num_microbatches),
        recipe=recipe,
        optimizer=optimizer_of(row),
        attention_kernel=kernel,
        context_parallel=trainer.usual_context_parallel,
        document_len=document if kernel is AttentionKernel.FLASH else 0,
        routing_skew=_routing_skew(row),
        dropout=trainer.drops_out and not is_stated(row, "dropout") and _has_dropout(row, shape, assumed),
        trainer=trainer,
        trains_weights="lora" not in kind,
        recompute_modules=frozenset(trainer.always_again or {RecomputeModule.CORE_ATTN}),
    )
    job, run = with_stated_switches(row, job, cluster.gpu), stated_run(row, trainer, cluster.gpu)
    return TrainingCase(
        words=row,
        shape=shape,
        job=job,
        plan=plan,
        open_runs=open_runs(row, run, job, plan, cluster.gpu),
        run=run,
        cluster=cluster,
        measured_s=number(row, "iter_time_s") * share,
        measured_bytes=number(row, "peak_mem_gb") * 1e9,
        memory_kind=_memory_kind(row.get("mem_kind", "")),
        out_of_memory="oom" in f"{kind} {row.get('mem_kind', '')}".lower(),
        memory_known=_tells_memory(row, assumed),
        no_optimizer=kind == "fwd_bwd_only",
        assumed=tuple(dict.fromkeys(assumed)),
    )


def _routing_skew(row: Mapping[str, str]) -> float:
    skew = number(row, "routing_skew") if is_stated(row, "routing_skew") else 1.0
    if not skew >= 1:
        raise Unexpressed("routing_skew is not a number from 1")
    return skew


def _has_dropout(row: Mapping[str, str], shape: TransformerShape, assumed: list[str]) -> bool:
    """Models like GPT-2 and GPT-3 (not gated, learned positions) were trained with dropout, the trainers' default."""
    dense = shape.dense_ffn
    gated = row["gated"] == "1" if row.get("gated") else dense is None or dense.gated
    learned = row["learned_pos"] != "0" if row.get("learned_pos") else np.any(np.greater(shape.learned_positions, 0))
    if gated or not learned:
        return False
    assumed.append("dropout of 0.1, the trainer's default for models without gates and rotary positions")
    return True


def _padded(shape: TransformerShape, trainer: Trainer, tp: int, assumed: list[str]) -> TransformerShape:
    """The shape with the vocabulary as the trainer pads it; where it pads none, as one that tp divides."""
    shape = padded_shape(shape, trainer)
    if trainer.vocab_multiple or int(shape.vocab_size) % tp == 0:
        return shape
    assumed.append("vocabulary padded to a multiple of tp")
    return replace(shape, vocab_size=round_up(shape.vocab_size, tp))


def _tells_memory(row: Mapping[str, str], assumed: list[str]) -> bool:
    """Whether the row itself gives recomputation and microbatch, so that neither is a guess."""
    guesses = ("as full", "as four of five", "as two of three", "microbatch not stated")
    guessed = any(guess in phrase for phrase in assumed for guess in guesses)
    return row.get("recompute", "") not in ("", "unknown") and not guessed


def _dims(row: Mapping[str, str], cluster: Cluster, assumed: list[str]) -> tuple[ParallelDims, float]:
    """Degrees of parallelism, and a factor for measured seconds if they do not use all devices.

    Published figures are rates per device: a plan that uses fewer (or more) devices is priced on its own.
    """
    tp, pp, cp, ep = (whole(row, name) or 1 for name in ("tp", "pp", "cp", "ep"))
    dp = whole(row, "dp") or max(1, cluster.num_devices // (tp * pp * cp))
    experts = whole(row, "experts") or 1
    if experts > 1 and dp * cp > 1 and not whole(row, "ep"):
        ep = math.gcd(experts, dp * cp, cluster.devices_per_node)
        assumed.append("expert parallelism not stated: the fastest that fits")
    sp = row.get("sp", "")
    if sp == "" and tp > 1:
        assumed.append("sequence parallelism not stated: on where tp > 1")
    dims = ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, sequence_parallel=sp != "0")
    devices = tp * pp * dp * cp
    if devices != cluster.num_devices:
        assumed.append("tp x pp x dp x cp is not the number of devices: rates per device compared")
    return dims, cluster.num_devices / devices


def _plan(
    row: Mapping[str, str], dims: ParallelDims, trainer: Trainer, layers: int, assumed: list[str]
) -> TrainingPlan:
    batch = whole(row, "gbs")
    if not batch:
        raise Unexpressed("gbs is not given")
    micro, steps = _batch(row, batch, int(dims.dp), assumed)
    recompute, count, guessed = recompute_of(row, int(ceil_div(layers, dims.pp)))
    assumed.extend(guessed)
    zero = whole(row, "zero_stage")
    if zero is not None and zero > 3:
        raise Unexpressed("zero_stage is not one of 0, 1, 2, 3")
    if zero is None and dims.dp * dims.cp > 1:
        assumed.append(f"ZeRO stage not stated: {trainer.usual_zero_stage}")
    optimizer = row.get("optimizer", "").lower()
    if zero is None and trainer.usual_zero_stage < 3:
        zero = 1 if "distributed" in optimizer else trainer.usual_zero_stage
    schedule = named_values({"schedule": row["schedule"]})["schedule"] if is_stated(row, "schedule") else 0
    virtual = max(1, whole(row, "vp") or (2 if schedule >= PipelineSchedule.ZERO_BUBBLE_V else 1))
    if not row.get("vp") and dims.pp > 1 and trainer.interleaves:
        assumed.append("interleaving not stated: the fastest that fits")
    return TrainingPlan(
        dims=dims,
        microbatch_size=micro,
        num_microbatches=steps,
        virtual_stages=virtual,
        schedule=PipelineSchedule(schedule),
        zero_stage=trainer.usual_zero_stage if zero is None else zero,
        shard_group=_shard_group(row, dims),
        recompute=recompute,
        recompute_layers=count,
        optimizer_offload="offload" in optimizer and "no offload" not in optimizer,
        stage_layers=_stage_layers(row, layers, int(dims.pp) * virtual),
    )


def _stage_layers(row: Mapping[str, str], layers: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of every pipeline chunk: as stated (``7+8+8+7``; ``even``: as many each), else as trainers split them."""
    word = row.get("stage_layers", "").strip().lower()
    if not word:
        return layers_by_chunk(layers, chunks)
    if word == "even":
        return None
    stated = [int(number) for number in word.split("+") if number.strip().isdigit()]
    if len(stated) != chunks or sum(stated) != layers:
        raise Unexpressed(f"stage_layers {word[:30]} are not {chunks} numbers that add up to {layers} layers")
    return tuple(stated)


def _shard_group(row: Mapping[str, str], dims: ParallelDims) -> int:
    """Devices that share one set of shards; 0 for all of them."""
    size, ranks = whole(row, "fsdp_size") or 0, int(dims.dp * dims.cp)
    return size if 1 < size < ranks and ranks % size == 0 else 0


def _batch(row: Mapping[str, str], batch: int, dp: int, assumed: list[str]) -> tuple[int, int]:
    """Microbatch size and count; missing values are derived from the rest or assumed."""
    micro, steps = whole(row, "mbs") or 0, whole(row, "grad_accum") or 0
    if micro and steps:
        return micro, steps
    if micro:
        if batch % (dp * micro):
            assumed.append("global batch does not divide over dp x mbs: rounded up")
        return micro, int(ceil_div(batch, dp * micro))
    if batch < dp:
        raise Unexpressed("global batch is smaller than dp")
    if steps:
        return max(1, batch // (dp * steps)), steps
    share = batch // dp
    micro = next(size for size in (4, 3, 2, 1) if share % size == 0)
    assumed.append("microbatch not stated: the fastest that fits")
    return micro, share // micro


def _memory_kind(words: str) -> str:
    """The kind of memory that a row gives; PyTorch's reserved memory if only GiB is given."""
    low = words.lower()
    if not low or "oom" in low:
        return ""
    if "smi" in low or "device" in low:
        return "device"
    return "allocated" if "alloc" in low else "reserved"
