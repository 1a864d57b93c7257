"""The JSON of ``sartor plan``."""

from __future__ import annotations

from itertools import zip_longest

from sartor.answers import PlanAnswer
from sartor.hardware.cluster import Cluster
from sartor.json_types import JsonDict, picked, plain, record
from sartor.model.training import PipelineSchedule, Recompute, TrainingPlan
from sartor.plans.result import PlanSearch, PricedPlan, Tightest
from sartor.plans.simpler import Simpler
from sartor.plans.switches import settings
from sartor.plans.why_not import WhyNot
from sartor.step.mixed import devices_of_pools
from sartor.step.run_cost import RunCost

MEMORY = ("param_bytes", "grad_bytes", "optimizer_bytes", "stash_bytes", "workspace_bytes")
TIME = (
    "compute_s",
    "tp_s",
    "pp_bubble_s",
    "pp_transfer_s",
    "dp_exposed_s",
    "ep_s",
    "cp_s",
    "optimizer_s",
    "overhead_s",
)


def plan_body(answer: PlanAnswer) -> JsonDict:
    """``plan``: the best plan with the parts of its step and memory, the next best, and rejected plans."""
    found, source = answer.search, answer.source.value
    best = (
        None
        if found.best is None
        else {**priced_body(found.best, source), "stages": [record(s) for s in answer.stages]}
    )
    return {
        "status": found.status.value,
        "model": model_body(answer),
        "cluster": cluster_body(answer.cluster, found.num_devices),
        "job": job_body(answer),
        "best": best,
        "top": [priced_body(each, source) for each in found.top],
        "front": [priced_body(each, source) for each in answer.front],
        **picked(found, "evaluated", "evaluated_per_s", "space_size", "fitting", "placed", "unplaced"),
        "rejected": dict(found.rejected),
        "fixed": dict(found.fixed),
        "tightest": None if found.tightest is None else tightest_body(found.tightest),
        "next_steps": [record(each) for each in answer.next_steps],
        "roomier": None if answer.roomier is None else priced_body(answer.roomier, source),
        "simpler": None if answer.simpler is None else simpler_body(answer.simpler, source),
        "headroom": found.headroom,
        "cost": None if answer.cost is None else cost_body(answer.cost),
        "why_not": None if answer.why_not is None else why_not_body(answer.why_not),
        "searches": [
            search_body(each, cost) for each, cost in zip_longest(answer.searches, answer.costs, fillvalue=None) if each
        ],
        "assumptions": list(answer.assumptions),
    }


def simpler_body(found: Simpler, source: str) -> JsonDict:
    return {**priced_body(found.priced, source), "slower": found.slower, "without": list(found.without)}


def model_body(answer: PlanAnswer) -> JsonDict:
    reading = answer.reading
    return {
        "name": reading.shape.name,
        "num_params": plain(reading.num_params),
        "num_active_params": plain(reading.num_active_params),
        **{field: plain(value) for field, value in reading.shape.fields().items()},
    }


def cluster_body(cluster: Cluster, num_devices: int) -> JsonDict:
    """A cluster, the number of its devices in use, and its further pools."""
    counts = devices_of_pools(cluster.pools, num_devices)
    others = [_pool_body(pool, n) for pool, n in zip(cluster.others, counts[1:], strict=True)]
    return {
        **_pool_body(cluster, num_devices),
        "hbm_bytes": plain(min(gpu.hbm_bytes for gpu in cluster.gpus)),
        **({"others": others} if others else {}),
    }


def _pool_body(pool: Cluster, num_devices: int) -> JsonDict:
    """One pool of a cluster, and the number of its devices in use."""
    return {
        "name": pool.name,
        "gpu": pool.gpu.name,
        "num_devices": num_devices,
        "devices_per_node": pool.devices_per_node,
        "hbm_bytes": plain(pool.gpu.hbm_bytes),
        "tiers": [record(tier) for tier in pool.tiers],
    }


def job_body(answer: PlanAnswer) -> JsonDict:
    job = answer.job
    return {
        **picked(job, "global_batch_size", "seq_len", "tokens_per_step"),
        "dtype": job.recipe.value,
        "optimizer": job.optimizer.value,
        "attention": job.attention_kernel.value,
        "context_parallel": job.context_parallel.value,
        "routing_skew": job.routing_skew,
        "framework": job.trainer.name,
        "switches": {**settings(job)},
    }


def priced_body(priced: PricedPlan, source: str = "analytic") -> JsonDict:
    """One plan: its degrees, predicted step with interval, throughput, memory and time part by part.

    The parts of ``memory`` add up to ``peak_bytes`` (``reserved_bytes``: the allocator's gaps, CUDA context and
    libraries), those of ``time`` to ``step_s``.
    """
    step, footprint = priced.step, priced.footprint
    reserved = float(footprint.device_bytes) - float(footprint.allocated_bytes)
    return {
        **degrees(priced.plan),
        **picked(priced, "step_s", "low_s", "high_s"),
        "source": source,
        **picked(step, "tokens_per_s_per_device", "mfu"),
        "peak_bytes": plain(priced.peak_bytes),
        "peak_stage": plain(footprint.stage),
        "memory": {
            **picked(footprint, *MEMORY),
            "reserved_bytes": plain(reserved),
        },
        "allocated_bytes": plain(footprint.allocated_bytes),
        "time": picked(step, *TIME),
    }


def degrees(plan: TrainingPlan) -> JsonDict:
    """The fields of a plan under their JSON names."""
    dims = plan.dims
    return {
        "tp": int(dims.tp),
        "pp": int(dims.pp),
        "dp": int(dims.dp),
        "cp": int(dims.cp),
        "ep": int(dims.ep),
        "num_devices": int(plan.num_devices),
        "virtual_stages": int(plan.virtual_stages),
        "microbatch_size": int(plan.microbatch_size),
        "num_microbatches": int(plan.num_microbatches),
        "sequence_parallel": bool(dims.sequence_parallel),
        "zero_stage": int(plan.zero_stage),
        "shard_group": int(plan.shard_group),
        "recompute": Recompute(int(plan.recompute)).word,
        "recompute_layers": None if int(plan.recompute_layers) < 0 else int(plan.recompute_layers),
        "schedule": PipelineSchedule(int(plan.schedule)).word,
        "optimizer_offload": bool(plan.optimizer_offload),
        "stage_layers": None if plan.stage_layers is None else list(plan.stage_layers),
    }


NO_STEP = {"step_s": None, "low_s": None, "high_s": None, "mfu": None}


def cost_body(cost: RunCost) -> JsonDict:
    return {**record(cost), "goodput": record(cost.goodput)}


def why_not_body(asked: WhyNot) -> JsonDict:
    """The plan given in ``why_not``: why it cannot run (null: it can), and its step and memory next to the best plan's,
    term by term as [best, asked]."""
    plan, best = asked.plan, asked.best
    terms = (
        {}
        if plan is None
        else {
            **{name: [plain(getattr(each.step, name)) for each in (best, plan)] for name in ("step_s", *TIME)},
            **{name: [plain(getattr(each.footprint, name)) for each in (best, plan)] for name in MEMORY},
            "peak_bytes": [plain(each.peak_bytes) for each in (best, plan)],
        }
    )
    return {
        "asked": asked.asked,
        "plan": None if plan is None else degrees(plan.plan),
        "reason": asked.reason,
        **(picked(plan, "step_s", "low_s", "high_s") if plan else {"step_s": None, "low_s": None, "high_s": None}),
        "terms": terms,
    }


COSTS = ("device_hours", "usd", "energy_j", "co2_kg", "run_hours")


def search_body(search: PlanSearch, cost: RunCost | None = None) -> JsonDict:
    """One number of devices in short: its best plan and the cost of the token budget under it."""
    found = search.best
    return {
        "num_devices": search.num_devices,
        "status": search.status.value,
        **(NO_STEP if found is None else picked(found, "step_s", "low_s", "high_s") | picked(found.step, "mfu")),
        "evaluated": search.evaluated,
        "cost": None if cost is None else {**picked(cost, *COSTS), "goodput": plain(cost.goodput.share)},
        "plan": None if found is None else degrees(found.plan),
    }


def tightest_body(tightest: Tightest) -> JsonDict:
    lean = tightest.leanest
    return {
        **picked(tightest, "message", "stage", "over_bytes"),
        "leanest": None if lean is None else priced_body(lean),
        "relaxations": [picked(each, "change", "field", "value") for each in tightest.relaxations],
    }
