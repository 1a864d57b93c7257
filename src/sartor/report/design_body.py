"""``sartor design`` as JSON. Wall-clock times are in keys named ``wall_s`` and nowhere else."""

from __future__ import annotations

from typing import Any

from sartor.answers import DesignAnswer
from sartor.designs.against import Against, AgainstModel, GpuPass
from sartor.designs.detail import (
    SOURCE,
    ModelDetail,
    area_parts,
    interval_s,
    model_detail,
    plan_fields,
    power_parts,
)
from sartor.designs.energy import evaluated_joules
from sartor.designs.question import DesignQuestion
from sartor.designs.result import Baseline, Progress, Ranked
from sartor.designs.sensitivity import Swing
from sartor.designs.why import Reason
from sartor.hardware.accelerator_catalog import accelerator_fields
from sartor.json_types import JsonDict, JsonMap, picked, plain, record
from sartor.model.training import Recompute
from sartor.report.design_shapes import best_shapes_body, joint_body, shapes_body
from sartor.report.design_words import why_texts

LEFT_OUT = ("name", "title", "note", "confidence", "sources")


def design_body(answer: DesignAnswer) -> JsonDict:
    """``design``: the best point with a plan per model, what is proved, the front, the baselines."""
    found, question = answer.result, answer.question
    return {
        "status": found.status.value,
        "interrupted": found.interrupted,
        "question": question_body(answer),
        "best": None if found.best is None else best_body(answer, found.best),
        **picked(
            found,
            "upper_bound",
            "gap",
            "space_size",
            "num_candidates",
            "evaluated",
            "pruned",
            "num_points",
            "left_out",
            "waiting",
        ),
        "tightest": found.tightest or None,
        "pareto": [ranked_body(question, each) for each in answer.front],
        "pareto_axes": None if answer.proved_front is None else list(answer.proved_front.axes),
        "pareto_proved": answer.proved_front is not None and answer.proved_front.proved,
        "baselines": [baseline_body(question, each) for each in found.baselines],
        "against": [against_body(each) for each in answer.against],
        "reasons": [reason_body(*each) for each in zip(found.reasons, why_texts(answer), strict=True)],
        "shapes": _shapes(answer),
        "convergence": [progress_body(each) for each in found.trajectory],
        "near_best": None if answer.nearby is None else {k: list(v) for k, v in answer.nearby.near_best.items()},
        "sensitivity": None if answer.nearby is None else [swing_body(each) for each in answer.nearby.swings],
        "warnings": list(answer.warnings),
        "assumptions": list(answer.assumptions),
        "wall_s": found.seconds,
    }


def best_body(answer: DesignAnswer, best: Ranked) -> JsonDict:
    """The best point, with its shape if that was searched too."""
    body = ranked_body(answer.question, best, whole=True)
    return body if answer.joint is None else {**body, **best_shapes_body(answer.joint)}


def _shapes(answer: DesignAnswer) -> JsonDict | None:
    if answer.joint is not None:
        return joint_body(answer.joint)
    return None if answer.shapes is None else shapes_body(answer.shapes)


def swing_body(swing: Swing) -> JsonDict:
    """The best chip under a changed assumption; ``most``: the best objective of all priced chips under it."""
    return {**picked(swing, "assumption", "change", "survives", "objective", "most"), "rivals": swing.num_rivals}


def against_body(found: Against) -> JsonDict:
    """A catalogue GPU on the jobs of the design; ``ratio`` is its step time over the chip's."""
    return {
        "gpu": found.gpu.name,
        "cluster": found.cluster,
        "per_model": {each.model: _against_model(each) for each in found.models},
    }


def _against_model(found: AgainstModel) -> JsonDict:
    plan = found.plan
    if plan is None:
        return {"status": "infeasible", "step_s": None, "low_s": None, "high_s": None, "ratio": None, "needed": None}
    if isinstance(plan, GpuPass):
        mfu, how = None, {"tp": plan.tp, "dp": plan.copies, "microbatch_size": plan.batch_size}
    else:
        mfu = plain(plan.step.mfu)
        how = {name: int(getattr(plan.plan.dims, name)) for name in ("tp", "pp", "dp", "cp", "ep")}
    return {
        "status": "optimal",
        **picked(plan, "step_s", "low_s", "high_s"),
        "mfu": mfu,
        "plan": how,
        "ratio": found.ratio,
        "needed": None if found.needed is None else record(found.needed),
    }


def question_body(answer: DesignAnswer) -> JsonDict:
    asked = answer.question
    return {
        "models": [
            {
                "name": model.name,
                "num_params": plain(reading.num_params),
                **picked(model, "phase", "seq_len", "context_len", "latency_s"),
                "weight": weight,
                "tensor_parallel": list(model.widths),
            }
            for model, reading, weight in zip(asked.models, answer.readings, asked.weights, strict=True)
        ],
        "num_devices": asked.num_devices,
        "global_batch_size": asked.batch,
        "space": answer.space.name,
        "objective": asked.objective.value,
        "mean": asked.mean.value,
        "area_model": asked.costs.area.value,
        "microbatch_sizes": list(asked.microbatch_sizes),
        "dtypes": [each.value for each in asked.dtypes],
        "recompute": [Recompute(each).word for each in asked.recomputes],
        "optimizer": asked.optimizer.value,
        "zero_stages": list(asked.zero_stages),
        "context_parallel": list(asked.context_widths),
        "virtual_stages": list(asked.virtual_stages),
        "budgets": record(asked.budgets),
    }


def ranked_body(question: DesignQuestion, ranked: Ranked, *, whole: bool = False) -> JsonDict:
    """An evaluated point: what it is, what it costs, how each model runs on it. ``whole``: with stages and parts."""
    point = ranked.evaluation.point
    details = {model.name: model_detail(question, ranked.evaluation, m) for m, model in enumerate(question.models)}
    joules = {model.name: evaluated_joules(question, ranked.evaluation, m) for m, model in enumerate(question.models)}
    body = {
        "architecture": architecture_body(ranked),
        **picked(ranked, "area_mm2", "power_w", "die_usd", "usd", "ownership_usd"),
        "plan": {name: None if each is None else plan_body(each, whole=whole) for name, each in details.items()},
        "energy_j_per_token": joules,
        "throughput": {name: 0.0 if each is None else each.outcome.sequences_per_s for name, each in details.items()},
        **picked(ranked, "objective", "bound"),
    }
    if whole:
        body["area"] = area_parts(question, point.accelerator)
        body["power"] = power_parts(point.accelerator)
    return body


def architecture_body(ranked: Ranked) -> JsonDict:
    """The accelerator's fields in SI units; ``hbm_bytes`` is the memory of the point."""
    point = ranked.evaluation.point
    fields: JsonMap = accelerator_fields(point.accelerator)
    kept = {name: plain(value) for name, value in fields.items() if name not in LEFT_OUT}
    stacks = max(int(point.accelerator.num_stacks), 1)
    return {**kept, "hbm_bytes": point.hbm_bytes, "stack_bytes": point.hbm_bytes / stacks}


def plan_body(detail: ModelDetail, *, whole: bool) -> JsonDict:
    """How one model runs: degrees, predicted step with its 80% interval, where it goes, stages."""
    outcome = detail.outcome
    body = {
        **plan_fields(detail),
        "step_s": outcome.step_s,
        "low_s": detail.low_s,
        "high_s": detail.high_s,
        "source": SOURCE.value,
        **picked(outcome, "sequences_per_s", "tokens_per_s"),
        **picked(detail, "mfu", "peak_bytes"),
        "time": record(detail.time),
    }
    if whole:
        body["stages"] = [record(stage) for stage in detail.stages]
        body["layers"] = [_layer(each) for each in outcome.layers]
    return body


def _layer(layer: Any) -> JsonDict:
    """One kind of layer: scheduled seconds of both passes, their proved lower bounds, and the sum's interval."""
    low_s, high_s = interval_s(layer.forward_s + layer.backward_s)
    return {**record(layer), "low_s": low_s, "high_s": high_s, "source": SOURCE.value}


def baseline_body(question: DesignQuestion, baseline: Baseline) -> JsonDict:
    """Another search method, and what it reaches under the same cost model."""
    ranked = baseline.ranked
    return {
        "name": baseline.name,
        **({"objective": None} if ranked is None else ranked_body(question, ranked)),
        "evaluated": baseline.evaluations,
        "note": baseline.note or None,
        "wall_s": baseline.seconds,
    }


def reason_body(reason: Reason, text: str) -> JsonDict:
    """Why the best is faster than the TPUv4-like point: factors, what is left with one part replaced, and a text."""
    factors = {"factor": reason.factor, "placement_factor": reason.placement, "chip_factor": reason.chip}
    return {"model": reason.model, **factors, "left": dict(reason.left), "text": text}


def progress_body(progress: Progress) -> JsonDict:
    return {**picked(progress, "evaluated", "bound", "incumbent", "phase"), "wall_s": progress.seconds}
