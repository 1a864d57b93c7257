"""The journeys of one device: estimate, gemm, lint, advise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sartor.answers import Advice, GemmAnswer, Lint, ModelEstimate, Question
from sartor.api.models import Model
from sartor.api.questions import ask
from sartor.api.words import (
    GpuLike,
    device_of,
    own_calibration,
    precision_of,
    refuse_on_a_chip,
    size_of,
    word_of,
)
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.price import gemm_mappings, operator_costs, price
from sartor.hardware.gpu import Gpu
from sartor.model.lower import lower
from sartor.model.lower.kernels import Kernels
from sartor.operators import Gemm, Layout
from sartor.read.graph_json import not_traced

if TYPE_CHECKING:
    from sartor.shapes.quality import QualityGuard


def estimate(model: Model, gpu: GpuLike = "h100_sxm", *, eager: bool = False, **question: Any) -> ModelEstimate:
    """Where does the time go: every operator of one device's share, with its predicted time and interval.

    ``eager``: as uncompiled PyTorch runs it, every elementwise step a kernel of its own that the host launches. Other
    keyword arguments are those of ``ask``. Raises ``InputError``.
    """
    asked = ask(model, gpu, **question)
    if eager:
        refuse_on_a_chip(asked.gpu, "eager", True, "a GPU's host launches kernel by kernel")
        asked = replace(asked, assumptions=(*asked.assumptions, EAGER))
    return answer_question(asked, eager=eager)


EAGER = "eager: memory-bound kernels wait for the host's launch, the launches of products hide behind them"


def answer_question(question: Question, *, eager: bool = False) -> ModelEstimate:
    """Lower the question's workload and price it on the question's device; ``eager`` as in ``estimate``."""
    graph = lower(question.workload, question.dims, Kernels(fused=not eager))
    factor = question.reading.interval_factor
    found = price(graph, question.gpu, question.calibration, sigma_factor=factor, eager=eager)
    return ModelEstimate(question=question, graph=graph, estimate=found)


def gemm(
    m: int,
    n: int,
    k: int,
    gpu: GpuLike = "h100_sxm",
    *,
    batch: int = 1,
    dtype: str | None = None,
    layout: str = "TN",
    clock: str = "boost",
    calibration: str | Path | None = None,
) -> GemmAnswer:
    """One product C[m,n] = A[m,k] B[k,n], and why it takes as long as it does.

    ``clock`` is ``boost`` (a short run, as benchmark tables time it) or ``sustained``; ``calibration`` is a file
    of ``sartor calibrate``. Raises ``InputError``.
    """
    device = device_of(gpu)
    dtype_, _ = precision_of(dtype, device)
    product = Gemm(
        name="gemm",
        m=size_of("m", m, 1),
        n=size_of("n", n, 1),
        k=size_of("k", k, 1),
        batch=size_of("batch", batch, 1),
        dtype=dtype_,
        layout=word_of(Layout, "layout", layout),
    )
    known = own_calibration(calibration, device) or load_calibration(device, dtype_)
    clock_ = word_of(Clock, "clock", clock)
    return GemmAnswer(
        gemm=product,
        gpu=device,
        cost=operator_costs([product], device, known, clock=clock_)[0],
        alternatives=gemm_mappings(product, device, known, clock=clock_),
        calibration="template" if device.accelerator else known.owner(f"gemm.{dtype_.value}"),
    )


def lint(model: Model, gpu: GpuLike = "h100_sxm", *, allow: Sequence[str] = (), **question: Any) -> Lint:
    """Is anything wasteful: the rules a shape breaks on this device and what each costs, worst first."""
    from sartor.rules.lint import run_rules
    from sartor.rules.rule import Context

    asked = ask(model, gpu, **question)
    not_traced(asked.reading, "lint")
    factor = asked.reading.interval_factor
    context = Context.of(asked.workload, asked.gpu, asked.dims, asked.calibration, sigma_factor=factor)
    base = ModelEstimate(question=asked, graph=context.baseline.graph, estimate=context.baseline)
    return Lint(base=base, findings=run_rules(context, allow=tuple(allow)))


def advise(
    model: Model,
    gpu: GpuLike | Sequence[GpuLike] = "h100_sxm",
    *,
    objective: str | None = None,
    params_tolerance: float = 0.01,
    freeze: Sequence[str] = (),
    top: int = 10,
    guard: QualityGuard | None = None,
    **question: Any,
) -> Advice:
    """What would be faster at the same size: findings, candidates best first, the smallest edit that pays.

    ``objective`` is the phase to be fast in (train, prefill or decode), also of the estimate. With several GPUs the
    first is the one estimated in detail; candidates carry a speedup on each. Raises ``InputError``.
    """
    from sartor.shapes.search import search_shapes

    names = [gpu] if isinstance(gpu, (str, Path, Gpu)) else list(gpu)
    if objective is not None:
        question["phase"] = objective
    checked = lint(model, names[0], **question)
    asked = checked.base.question
    gpus = (asked.gpu, *(device_of(name) for name in names[1:]))
    found = search_shapes(
        asked.workload,
        gpus,
        asked.dims,
        objective=asked.workload.phase,
        params_tolerance=params_tolerance,
        freeze=tuple(freeze),
        top=top,
        guard=guard,
        calibrations={asked.gpu.name: asked.calibration} if asked.calibration else None,
        sigma_factor=asked.reading.interval_factor,
    )
    best = found.smallest_edit or (found.candidates[0] if found.candidates else None)
    after = None
    if best is not None:
        reading = replace(asked.reading, shape=best.shape)
        workload = replace(asked.workload, shape=best.shape)
        after = answer_question(replace(asked, reading=reading, workload=workload))
    return Advice(base=checked.base, gpus=gpus, findings=checked.findings, search=found, after=after)
