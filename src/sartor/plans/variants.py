"""Plans near the best ones: what to fall back on where a trainer cannot run the very best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.plans.result import PricedPlan
from sartor.step.footprint import footprint, usable_bytes
from sartor.step.step import step


def fallback(
    job: TrainingJob,
    cluster: Cluster,
    plans: Iterable[PricedPlan],
    can: Callable[[TrainingPlan], bool],
    calibration: Calibration | None = None,
    filled: float = 1.0,
) -> PricedPlan | None:
    """The fastest plan that fits into the share ``filled`` of memory and ``can`` be told, of the given ones and their
    variants in switches (all layers recomputed, sequence parallelism the other way, another ZeRO stage); None where
    there is none.

    Plans are taken fastest first; the search ends with the first that is slower than what has been found.
    """
    found: PricedPlan | None = None
    seen: set[str] = set()
    for priced in sorted(plans, key=lambda each: each.step_s):
        if found is not None and priced.step_s >= found.step_s:
            break
        for plan in (priced.plan, *_switched(priced.plan)):
            if repr(plan) in seen or not can(plan):
                continue
            seen.add(repr(plan))
            other = priced if plan is priced.plan else _priced(job, plan, cluster, calibration, filled)
            if other is not None and (found is None or other.step_s < found.step_s):
                found = other
    return found


def _switched(plan: TrainingPlan) -> Iterator[TrainingPlan]:
    d, zero = plan.dims, int(plan.zero_stage)
    sequences = [bool(d.sequence_parallel), not d.sequence_parallel] if int(d.tp) > 1 else [bool(d.sequence_parallel)]
    recomputes = [(plan.recompute, plan.recompute_layers)]
    if int(plan.recompute) == Recompute.FULL and int(plan.recompute_layers) >= 0:
        recomputes.append((Recompute.FULL, -1))
    for sequence in sequences:
        for stage in dict.fromkeys((zero, 1, 2, 3)):
            for kind, layers in recomputes:
                dims = replace(d, sequence_parallel=sequence)
                yield replace(plan, dims=dims, zero_stage=stage, recompute=kind, recompute_layers=layers)


def _priced(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None, filled: float
) -> PricedPlan | None:
    try:
        memory = footprint(job, plan, cluster)
        if float(memory.device_bytes) > filled * usable_bytes(cluster):
            return None
        return PricedPlan(plan=plan, step=step(job, plan, cluster, calibration), footprint=memory)
    except InputError:
        return None
