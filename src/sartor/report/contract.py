"""Answers as JSON: glossary names, SI units with the unit in the key, plain Python numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.answers import Advice, CollectiveAnswer, GemmAnswer, Lint, ModelEstimate
from sartor.cost.collective.ring import volume
from sartor.cost.correction.calibration import ANY
from sartor.cost.cost import Cost
from sartor.json_types import JsonDict, picked, plain, record
from sartor.model.workload import Phase
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, MemoryBound, Operator, kind_name
from sartor.plans.search import HeldPlan
from sartor.units import Floats

TILE_KEYS = ("tile_m", "tile_n", "waves", "tile_efficiency", "wave_efficiency")


def estimate_body(answer: ModelEstimate) -> JsonDict:
    """``estimate``: the model, the workload, every operator with its terms, and totals."""
    return {
        "model": model_body(answer),
        "workload": workload_body(answer),
        "operators": operators_body(answer),
        "totals": totals_body(answer),
        "interval_parts": [record(part) for part in answer.interval_parts],
    }


def operators_body(answer: ModelEstimate) -> list[JsonDict]:
    pairs = zip(answer.graph.operators, answer.estimate.costs, strict=True)
    return [operator_body(op, cost) for op, cost in pairs]


def model_body(answer: ModelEstimate) -> JsonDict:
    reading = answer.question.reading
    return {
        "name": reading.shape.name,
        "model_type": reading.shape.model_type or None,
        **picked(reading, "num_params", "num_active_params", "text_params", "exact"),
        "unread_sizes": list(reading.unread_sizes),
        "assumptions": list(answer.question.assumptions),
        **{field: plain(value) for field, value in reading.shape.fields().items()},
    }


def workload_body(answer: ModelEstimate) -> JsonDict:
    workload, dims, held = answer.question.workload, answer.question.dims, answer.question.held
    return {
        "gpu": answer.question.gpu.name,
        **picked(workload, "phase", "dtype", "microbatch_size", "seq_len", "context_len"),
        "attention": workload.attention_kernel.value,
        **picked(dims, "tp", "pp", "ep"),
        "tokens": workload.tokens,
        **(_plan_of(held) if held else {"kernels": _kernels_of(answer), "num_devices": int(dims.num_devices)}),
    }


def _kernels_of(answer: ModelEstimate) -> str | None:
    """For inference, the framework whose kernels run, if known."""
    known = answer.question.calibration
    return known.kernels if known and known.kernels not in ("", ANY) else None


def _plan_of(held: HeldPlan) -> JsonDict:
    """For training, the cluster, devices and batch of the whole plan."""
    return {
        "cluster": held.cluster.name,
        "num_devices": held.num_devices,
        "global_batch_size": held.job.global_batch_size,
    }


def totals_body(answer: ModelEstimate, *, remedies: bool = True) -> JsonDict:
    """Totals of a training step or an inference pass, and of one microbatch: seconds, FLOPs and layers. ``remedies``:
    if it does not fit, search for changes that would make it fit."""
    found = answer.estimate
    return {
        "layer_time_s": plain(answer.layer_time_s),
        **picked(answer, *INTERVAL),
        "source": answer.source.value,
        "microbatch_s": plain(found.time_s),
        "formula_time_s": plain(found.formula_time_s),
        "flops": plain(found.matmul_flops),
        **picked(answer, "tokens_per_s", "mfu"),
        **step_body(answer),
        **serving_body(answer),
        **fit_body(answer, remedies),
    }


def fit_body(answer: ModelEstimate, remedies: bool = True) -> JsonDict:
    """Whether the fullest device has enough memory, and changes that would each make it fit."""
    return {
        **picked(answer, "fits", "peak_bytes", "usable_bytes"),
        "headroom": plain(1 - answer.peak_bytes / answer.usable_bytes),
        "would_fit": [dict(each) for each in answer.would_fit] if remedies else [],
    }


def step_body(answer: ModelEstimate) -> JsonDict:
    """For training, the plan and its step, as in the JSON of `plan`."""
    held, priced = answer.question.held, answer.priced
    if held is None or priced is None:
        return {}
    from sartor.report.plan_body import priced_body

    of_plan = priced_body(priced, answer.source.value)
    return {key: of_plan[key] for key in of_plan if key not in ("low_s", "high_s", "source", "mfu", "peak_bytes")}


def serving_body(answer: ModelEstimate) -> JsonDict:
    """For inference, the memory of one device, and the usual metrics of decoding and prefill."""
    served = answer.serving
    if served is None:
        return {}
    workload = answer.question.workload
    decode = {"time_per_output_token_s": plain(answer.time_s), "knee_microbatch_size": served.knee}
    prefill = {"time_to_first_token_s": plain(answer.time_s)}
    return {
        "step_s": plain(answer.time_s),
        "tokens_per_s_per_device": plain(answer.tokens_per_s_per_device),
        "bandwidth_utilization": served.bandwidth_utilization,
        **(decode if workload.phase is Phase.DECODE else prefill),
        "kv_cache_bytes_per_sequence": served.memory.kv_cache_bytes_per_sequence,
        "max_microbatch_size": served.most_sequences,
        "memory": {
            name: getattr(served.memory, name)
            for name in ("param_bytes", "kv_cache_bytes", "workspace_bytes", "context_bytes")
        },
    }


def operator_body(op: Operator, cost: Cost) -> JsonDict:
    """One operator: kind, size, and the time and terms of one execution."""
    batch, m, n, k = problem_size(op)
    details = cost.details
    return {
        "name": op.name,
        "kind": kind_name(op),
        "pass": op.pass_.value,
        "count": plain(op.count),
        "batch": batch,
        "m": m,
        "n": n,
        "k": k,
        **picked(op, "flops", "bytes_moved"),
        **picked(cost, *INTERVAL, "compute_s", "memory_s", "overhead_s", "network_s", "bound_by"),
        **{key: plain(details.get(key)) for key in TILE_KEYS},
        "residual": plain(cost.learned if {"residual", "own_rows"} & set(details) else None),
        "source": cost.stated_source.value,
    }


def problem_size(op: Operator) -> tuple[Any, Any, Any, Any]:
    """(batch, m, n, k) of a GEMM; attention as its score GEMM; rows and columns of a memory-bound kernel."""
    if isinstance(op, Gemm):
        return plain(op.batch), plain(op.m), plain(op.n), plain(op.k)
    if isinstance(op, GroupedGemm):
        return plain(op.groups), plain(op.rows), plain(op.n), plain(op.k)
    if isinstance(op, Attention):
        return plain(op.batch * op.num_heads), plain(op.seq_q), plain(op.seq_kv), plain(op.head_dim)
    if isinstance(op, MemoryBound):
        return None, plain(op.rows), plain(op.cols), None
    assert isinstance(op, Collective)
    return plain(op.group_size), None, None, None


def gemm_body(answer: GemmAnswer) -> JsonDict:
    """``gemm``: one operator, and all tiles considered, best first."""
    return {
        "gpu": answer.gpu.name,
        "dtype": answer.gemm.dtype.value,
        "layout": answer.gemm.layout.value,
        **operator_body(answer.gemm, answer.cost),
        "achieved_flops_per_s": plain(answer.gemm.flops / answer.cost.time_s),
        **picked(answer, "calibration", "fits", "peak_bytes"),
        "tiles": [record(tile) for tile in answer.alternatives],
        "assumptions": list(answer.assumptions),
    }


def collective_body(answer: CollectiveAnswer) -> JsonDict:
    """``collective``: one operator, and the link tiers that its group crosses."""
    op, cost = answer.collective, answer.cost
    return {
        "cluster": answer.cluster.name,
        "gpu": answer.cluster.gpu.name,
        "library": op.library.value,
        **picked(op, "group_size", "stride", "alone", "message_bytes"),
        **operator_body(op, cost),
        "busbw_bytes_per_s": plain(bus_bytes_per_s(op, cost)),
        "tiers": [
            {"name": tier.name, "link_bytes_per_s": tier.bytes_per_s, "members": members}
            for tier, members in zip(answer.cluster.tiers, answer.members, strict=True)
        ],
        "assumptions": list(answer.assumptions),
    }


def bus_bytes_per_s(op: Collective, cost: Cost) -> Floats:
    """Bus bandwidth as in nccl-tests: bytes that leave a device in a ring, over the time."""
    shares: Floats = volume(op.kind, np.asarray(op.group_size, dtype=np.float64))
    return shares * op.message_bytes / np.maximum(cost.time_s, 1e-30)


def lint_body(answer: Lint) -> JsonDict:
    """``lint``: findings, most severe first."""
    from sartor.report.lint_formats import worst_grade

    return {
        "model": model_body(answer.base),
        "workload": workload_body(answer.base),
        **fit_body(answer.base),
        "findings": [finding.to_dict() for finding in answer.findings],
        "worst_grade": worst_grade(answer.findings),
    }


def advise_body(answer: Advice) -> JsonDict:
    """``advise``: the baseline, findings, and candidates, best first."""
    found = answer.search
    lint = Lint(base=answer.base, findings=answer.findings)
    return {
        **lint_body(lint),
        "gpus": [gpu.name for gpu in answer.gpus],
        "baseline": totals_body(answer.base),
        "codesign": None if answer.codesign is None else record(answer.codesign),
        "candidates": [candidate_body(candidate) for candidate in found.candidates],
        "smallest_edit": None if found.smallest_edit is None else candidate_body(found.smallest_edit),
        "unsure": None if found.unsure is None else candidate_body(found.unsure),
        "minimax": None if found.minimax is None else candidate_body(found.minimax),
        "stability": [record(line) for line in found.stability],
        "front": [record(point) for point in found.front],
        "mixes": [record(mix) for mix in found.mixes],
        "single_edits": [record(edit) for edit in found.single_edits],
        **picked(found, "regret", "grid_size", "evaluated"),
        "assumptions": list(found.assumptions),
    }


def candidate_body(candidate: Any) -> JsonDict:
    return {
        "shape": plain(candidate.fields),
        "changed": {field: [plain(old), plain(new)] for field, (old, new) in candidate.changed.items()},
        **picked(candidate, "num_fields", "num_params", "params_change", "flops_change", *INTERVAL),
        **picked(candidate, "speedup", "speedup_low", "speedup_high"),
        **picked(candidate, "efficiency_gain", "efficiency_low", "efficiency_high"),
        **picked(candidate, "confidence", "per_gpu", "quality"),
    }


INTERVAL = ("time_s", "low_s", "high_s")
