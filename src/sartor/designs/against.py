"""The best point beside others: why it beats the published baseline, and catalogue GPUs on the same jobs.

A GPU runs with its default trainer, or serves in the usual engine and in 16 bits like the chip, and is priced with its
calibration; the chip runs in lockstep and is priced by the template. Both times give how much faster the chip must be
to win at equal area, power or cost.

The value of a part is what is lost if it is replaced: the best chip under its own plan's split, with one part at a time
taken from the TPUv4-like point, priced by the same model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from sartor.cost.chip.operator_latency import PACKAGE
from sartor.cost.chip.ownership import die_cost
from sartor.cost.correction.calibration import load_calibration
from sartor.designs.candidates import Baseline, Keep, Ranked, afresh
from sartor.designs.point import ModelOutcome, ScheduleStore, evaluate_option
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.errors import InputError
from sartor.hardware.accelerator import NODES_NM, Accelerator
from sartor.hardware.cluster import Cluster, LinkTier
from sartor.hardware.cluster_catalog import CLUSTERS, cluster_from, load_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.lower.setting import feasible
from sartor.model.workload import ParallelDims
from sartor.operators import DType
from sartor.plans.result import PricedPlan
from sartor.plans.search import search_plans
from sartor.step.question import training_job
from sartor.step.serving.inference import Room
from sartor.step.serving.served import Server, padded, served_pass
from sartor.units import GIGA


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """Factor by which the chip must become faster to equal the GPU's throughput per mm2, per watt and per dollar of die
    and memory; at most 1 if it already does. None: not in the GPU's datasheet."""

    area: float | None
    power: float | None
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstModel:
    """One model on the GPU: its best plan (None: none fits), and the comparison with the chip of the design."""

    model: str
    plan: PricedPlan | _GpuPass | None
    chip_step_s: float | None
    needed: _Needed | None
    ratio: float | None
    """The chip's throughput over the GPU's: above 1 the chip is faster, device for device."""
    equal_step_s: float | None = None
    """Seconds of its best plan on the chip's network."""
    equal_ratio: float | None = None
    """The chip's throughput over the GPU's there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuPass:
    """A served model on a GPU, as in a design: copies of ``tp`` devices, each running one batch after another."""

    tp: int
    copies: int
    batch_size: int
    step_s: float
    low_s: float
    high_s: float

    @property
    def sequences_per_s(self) -> float:
        return self.copies * self.batch_size / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A catalogue GPU on all jobs of a design; ``cluster`` is the network between its nodes, ``network`` the chip's in
    words."""

    gpu: Gpu
    cluster: str
    models: tuple[AgainstModel, ...]
    network: str = ""


def against(
    question: DesignQuestion, best: Ranked | None, gpus: Sequence[Gpu], *, named: bool = True
) -> tuple[tuple[Against, ...], tuple[str, ...]]:
    """Every GPU on every job, and why some cannot be priced; ``best`` is the chip to compare with, if one was found.

    Raises ``InputError`` for such a GPU if the user ``named`` it.
    """
    comparisons, unpriced = list[Against](), list[str]()
    for gpu in gpus:
        try:
            comparisons.append(_on(question, best, gpu))
        except InputError as error:
            if named:
                raise
            unpriced.append(f"{gpu.name} is not priced on these jobs: {error}")
    return tuple(comparisons), tuple(unpriced)


def _on(question: DesignQuestion, best: Ranked | None, gpu: Gpu) -> Against:
    cluster, models = cluster_of(gpu, question.num_devices), []
    chip = best.evaluation.point.accelerator if best else None
    equal = on_network_of(chip, cluster) if chip and np.any(chip.num_links) else None
    for m, model in enumerate(question.models):
        outcome = best.evaluation.outcomes[m] if best else None
        best_plan = _best_pass if model.served else _best_plan
        plan: _GpuPass | PricedPlan | None = best_plan(question, model, cluster)
        there: _GpuPass | PricedPlan | None = best_plan(question, model, equal) if equal else None
        ratio = _ratio(outcome, plan)
        entry = AgainstModel(
            model=model.name,
            plan=plan,
            chip_step_s=outcome.step_s if outcome else None,
            needed=_needed(question, gpu, best, 1 / ratio) if best and ratio else None,
            ratio=ratio,
            equal_step_s=there.step_s if there else None,
            equal_ratio=_ratio(outcome, there),
        )
        models.append(entry)
    network = network_words(chip) if chip else ""
    return Against(gpu=gpu, cluster=cluster.name, models=tuple(models), network=network)


def _ratio(outcome: ModelOutcome | None, plan: _GpuPass | PricedPlan | None) -> float | None:
    """A chip's throughput over a GPU's; None if either has no plan."""
    if outcome is None or plan is None:
        return None
    if isinstance(plan, _GpuPass):
        return outcome.sequences_per_s / plan.sequences_per_s
    return plan.step_s / outcome.step_s


def on_network_of(chip: Accelerator, cluster: Cluster) -> Cluster:
    """A GPU's cluster with the chip's network: as many neighbours, the same nominal rates within and beyond them. What
    links sustain of these stays the GPU's."""
    joined, own = int(chip.scale_up_devices), cluster.tiers
    near = replace(own[0], span=joined, bytes_per_s=float(chip.network_bytes_per_s), alone_bytes_per_s=0.0)
    if not joined:
        return replace(cluster, tiers=(near,))
    far = own[-1] if own[1:] else LinkTier(name="scale-out", span=0, bytes_per_s=1, latency_s=0, kind="infiniband")
    far = replace(far, bytes_per_s=float(chip.scale_out_bytes_per_s), alone_bytes_per_s=0.0, oversubscription=1.0)
    if not own[1:]:
        far = replace(far, latency_s=float(chip.scale_out_latency_s))
    return replace(cluster, devices_per_node=joined, tiers=(near, far))


def network_words(chip: Accelerator) -> str:
    """``groups of 8 at 450 GB/s, 50 GB/s beyond``."""
    rate = f"at {float(chip.network_bytes_per_s) / GIGA:,.4g} GB/s"
    if not chip.scale_up_devices:
        return f"all devices {rate}"
    return f"groups of {chip.scale_up_devices} {rate}, {float(chip.scale_out_bytes_per_s) / GIGA:,.4g} GB/s beyond"


def cluster_of(gpu: Gpu, num_devices: int) -> Cluster:
    """The catalogue's first cluster of such devices, the vendor's own before others; else nodes on 400 Gbit/s each."""
    names = sorted(CLUSTERS.names(), key=lambda name: (not name.startswith(("dgx", "gb")), name))
    for name in names:
        cluster = load_cluster(name)
        if cluster.gpu.name == gpu.name and not cluster.others and not 0 < cluster.num_devices < num_devices:
            return load_cluster(name, num_devices)
    return cluster_from(gpu, gpu.devices_per_node, domain=gpu.link_domain, num_devices=num_devices)


def _best_plan(question: DesignQuestion, model: DesignModel, cluster: Cluster) -> PricedPlan | None:
    job, _ = training_job(
        model.shape,
        cluster.gpu,
        global_batch_size=question.global_batch_size,
        seq_len=model.seq_len,
        optimizer=question.optimizer.value,
    )
    return search_plans(job, cluster, question.num_devices, top=1).best


def _best_pass(question: DesignQuestion, model: DesignModel, cluster: Cluster) -> _GpuPass | None:
    """The pass with the most sequences per second over the design's widths and batches, within memory and latency."""
    passes = (
        gpu_pass
        for tp in model.widths
        if tp <= question.num_devices
        for gpu_pass in _passes(question, model, cluster, tp)
    )
    return max(passes, key=lambda gpu_pass: gpu_pass.sequences_per_s, default=None)


def _passes(question: DesignQuestion, model: DesignModel, cluster: Cluster, tp: int) -> Iterator[_GpuPass]:
    dims, sizes, gpu = ParallelDims(tp=tp), np.array(model.batch_sizes), cluster.gpu
    server = Server(shape=padded(model.shape, tp), gpu=gpu, dtype=DType.BF16, tp=tp)
    workload = server.workload(model.phase, sizes, model.seq_len, model.context_len)
    if not feasible(server.shape, dims):
        return
    calibration = load_calibration(gpu).with_kernels(server.engine.name)
    cost = served_pass(server, workload, calibration, cluster)
    columns = (np.broadcast_to(x, sizes.shape).tolist() for x in (cost.time_s, cost.low_s, cost.high_s))
    for size, time_s, low_s, high_s in zip(model.batch_sizes, *columns, strict=True):
        alone = replace(workload, microbatch_size=size)
        if time_s <= (model.latency_s or inf) and Room(gpu=gpu).memory(alone, dims).fits:
            copies = question.num_devices // tp
            yield _GpuPass(tp=tp, copies=copies, batch_size=size, step_s=time_s, low_s=low_s, high_s=high_s)


def _needed(question: DesignQuestion, gpu: Gpu, best: Ranked, slower: float) -> _Needed:
    """The needed factors; ``slower`` is the chip's step time over the GPU's."""
    usd = _gpu_usd(question, gpu)
    return _Needed(
        area=slower * best.area_mm2 / gpu.die_mm2 if gpu.die_mm2 else None,
        power=slower * best.power_w / gpu.tdp_w,
        cost=slower * best.usd / usd if usd and best.usd else None,
    )


def _gpu_usd(question: DesignQuestion, gpu: Gpu) -> float | None:
    """Manufacturing cost of the GPU's die and memory, counted like the chip's; None if its die is not published."""
    if not gpu.die_mm2 or not gpu.process_nm:
        return None
    node = min(NODES_NM, key=lambda node_nm: abs(node_nm - gpu.process_nm))
    die = float(die_cost(gpu.die_mm2, node, question.costs.wafer_usd).die_usd)
    return die + question.costs.hbm_usd_per_gb * gpu.hbm_bytes / GIGA


AGAINST = "TPUv4-like"
PARTS: dict[str, tuple[str, ...]] = {
    "arrays": ("num_tensor_cores", "array_rows", "array_cols", "tensor_core_sram_bytes"),
    "lanes": ("num_vector_cores", "vector_lanes", "vector_core_sram_bytes"),
    "buffer": ("global_buffer_bytes", "bank_bytes_per_cycle"),
    "memory": ("memory", "num_stacks", "stack_bytes_per_s"),
    "links": ("num_links", "link_bytes_per_s", "link_latency_s", "scale_up_devices", "scale_out_bytes_per_s"),
    "clock": ("clock_hz",),
    "package": PACKAGE,
}
"""Parts of a chip and their fields; for memory only the rate, the capacity stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """For one model: sequences/s of the best over those of the baseline with the expert's placement (``factor``) and
    with a searched one (``chip``), and the gain of the placement search (``placement``); None if it does not fit.

    ``left``: by part, the share of the best's throughput left with the baseline's part; the most valuable part first.
    """

    model: str
    factor: float | None
    placement: float | None
    chip: float | None
    left: tuple[tuple[str, float], ...]


def reasons(
    question: DesignQuestion, best: Ranked, ways: Sequence[Baseline], keep: Keep = afresh
) -> tuple[Reason, ...]:
    """One reason per model; empty if the baseline was not priced."""
    by_name = {way.name: way.ranked for way in ways}
    expert, searched = (by_name.get(f"{AGAINST}, {how} placement") for how in ("expert", "searched"))
    baseline = searched or expert
    if baseline is None:
        return ()
    chip = baseline.evaluation.point.accelerator
    return tuple(_reason(question, m, best, expert, searched, chip, keep) for m in range(len(question.models)))


def _reason(
    question: DesignQuestion,
    m: int,
    best: Ranked,
    expert: Ranked | None,
    searched: Ranked | None,
    chip: Accelerator,
    keep: Keep,
) -> Reason:
    outcome = best.evaluation.outcomes[m]
    left = _left(question, best, outcome, chip, keep) if outcome else {}
    mine = best.evaluation.rates[m]
    base, with_search = (entry.evaluation.rates[m] if entry else 0.0 for entry in (expert, searched))
    return Reason(
        model=question.models[m].name,
        factor=mine / base if base else None,
        placement=with_search / base if base and with_search else None,
        chip=mine / with_search if with_search else None,
        left=tuple(sorted(left.items(), key=lambda entry: entry[1])),
    )


def _left(
    question: DesignQuestion, best: Ranked, outcome: ModelOutcome, chip: Accelerator, keep: Keep
) -> dict[str, float]:
    point, store = best.evaluation.point, ScheduleStore()

    def share(changed: Accelerator) -> float:
        variant = replace(point, accelerator=changed, options=(), floor=())
        reached, _ = evaluate_option(question, variant, outcome.option, store)
        return reached.sequences_per_s / outcome.sequences_per_s if reached else 0.0

    shares = {}
    for part, names in PARTS.items():
        swapped = replace(point.accelerator, **{name: getattr(chip, name) for name in names})
        if swapped != point.accelerator:
            key = f"why, candidate {point.index}, {point.hbm_bytes:.0f} bytes, model {outcome.option.model}, {part}"
            shares[part] = keep(key, partial(share, swapped))
    return shares
