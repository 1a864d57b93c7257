"""The journeys, each a page that reads from top to bottom: estimate, gemm, lint, advise, plan, design.

>>> import sartor
>>> advice = sartor.advise("examples/pythia-2.8b/config.json", gpu="a100")
>>> dict(advice.search.best_per_gpu["a100_sxm"].changed)["num_heads"]
(32, 20)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sartor.answers import Advice, DesignAnswer, GemmAnswer, LaunchAnswer, Lint, ModelEstimate, PlanAnswer, Question
from sartor.cost.cost import Source
from sartor.cost.estimate import estimate as estimate_graph
from sartor.cost.gemm import gemm_alternatives, gemm_cost
from sartor.errors import InputError
from sartor.hardware.calibration import Calibration, Clock, load_calibration
from sartor.hardware.calibration_file import load_own_calibration, read_calibration_file
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.hardware.gpu import Gpu
from sartor.interop.graph_json import is_graph, not_traced, read_traced
from sartor.interop.hub import fetch_config
from sartor.interop.huggingface import read_model
from sartor.model.edit import edit_fields
from sartor.model.lower import lower
from sartor.model.parallel import ParallelDims
from sartor.model.reading import ModelReading
from sartor.model.workload import AttentionKernel, Phase, Workload
from sartor.model.zoo import load_model
from sartor.operators import DType, Gemm, Layout
from sartor.units import GIB

if TYPE_CHECKING:
    from sartor.interop.launch_plan import LaunchFiles, LaunchReading
    from sartor.model.shape import TransformerShape
    from sartor.model.training import TrainingPlan
    from sartor.search.accelerator_space import AcceleratorSpace
    from sartor.search.joint_question import DesignQuestion
    from sartor.search.joint_result import Baseline, JointResult
    from sartor.search.joint_result import Progress as DesignProgress
    from sartor.search.joint_shapes import Search, ShapeDesign
    from sartor.search.plan_result import PricedPlan
    from sartor.search.plans import Progress
    from sartor.search.quality import QualityGuard

Model = str | Path | ModelReading
GpuLike = str | Path | Gpu
ClusterLike = str | Path | Cluster

LONGEST_BASELINE_S = 300.0
"""Of one way to search a design is compared with; these end by counts long before, so that they end the same way."""
DEFAULT_SEQ_LEN = 2048
DEFAULT_MICROBATCH = {Phase.TRAIN: 4, Phase.PREFILL: 1, Phase.DECODE: 8}
"""Sequences at once when nobody says: 8,192 tokens per device in training, as in the sweeps of arXiv 2401.14489."""


def ask(
    model: Model,
    gpu: GpuLike = "h100_sxm",
    *,
    phase: str = "train",
    seq_len: int | None = None,
    microbatch_size: int | None = None,
    context_len: int | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    attention: str = "flash",
    set: Mapping[str, Any] | None = None,
    calibration: str | Path | None = None,
) -> Question:
    """Read a model and a device and settle what is asked, saying each thing that was assumed.

    ``model`` is a config.json, its folder, a zoo name or ``org/name``; ``gpu`` a catalogue name or TOML file;
    ``set`` changes fields of the shape; ``calibration`` is a file of ``sartor calibrate``. Sizes are in sequences and
    tokens. Raises ``InputError``.
    """
    reading = read(model, set)
    device = _device(gpu)
    phase_ = _word(Phase, "phase", phase)
    if phase_ is Phase.DECODE and reading.shape.encoder_only:
        raise InputError("phase", "decode", "an encoder-only model does not decode", "train or prefill")
    traced = reading.shape.traced
    if traced is not None:  # what is not said is as it was traced
        dtype, seq_len = dtype or traced.dtype.value, seq_len or traced.seq_len
        microbatch_size = microbatch_size or traced.microbatch_size
    dtype_, dtype_notes = _precision(dtype, device)
    limit = reading.shape.max_positions or DEFAULT_SEQ_LEN
    seq = _size("seq_len", seq_len, min(DEFAULT_SEQ_LEN, limit))
    context = _size("context_len", context_len, seq if phase_ is Phase.DECODE else 0, least=0)
    batch = _size("microbatch_size", microbatch_size, DEFAULT_MICROBATCH[phase_])
    workload = Workload(
        shape=reading.shape,
        phase=phase_,
        microbatch_size=batch,
        seq_len=seq,
        context_len=context,
        dtype=dtype_,
        attention_kernel=_word(AttentionKernel, "attention", attention),
    )
    dims = ParallelDims(tp=_size("tp", tp, 1), pp=_size("pp", pp, 1), ep=_size("ep", ep, 1))
    given = {"microbatch_size": microbatch_size, "seq_len": seq_len}
    if phase_ is Phase.DECODE:
        given = {"microbatch_size": microbatch_size, "context_len": context_len}
    notes = tuple(f"{name}={getattr(workload, name)} (not given)" for name, value in given.items() if value is None)
    long = () if seq <= limit or not reading.shape.max_positions else (f"seq_len={seq} is beyond the model's {limit}",)
    return Question(
        reading=reading,
        workload=workload,
        dims=dims,
        gpu=device,
        calibration=_own(calibration, device),
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *dtype_notes,
            *notes,
            *long,
            *_fit_note(workload, dims, device, reading),
        ),
    )


def estimate(model: Model, gpu: GpuLike = "h100_sxm", **question: Any) -> ModelEstimate:
    """Where does the time go: every operator of one device's share, with its predicted time and interval.

    Keyword arguments are those of ``ask``. Raises ``InputError``.
    """
    return answer_question(ask(model, gpu, **question))


def answer_question(question: Question) -> ModelEstimate:
    """Lower the question's workload and price it on the question's device."""
    graph = lower(question.workload, question.dims)
    factor = question.reading.interval_factor
    found = estimate_graph(graph, question.gpu, question.calibration, sigma_factor=factor)
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
    device = _device(gpu)
    dtype_, _ = _precision(dtype, device)
    product = Gemm(
        name="gemm",
        m=_size("m", m, 1),
        n=_size("n", n, 1),
        k=_size("k", k, 1),
        batch=_size("batch", batch, 1),
        dtype=dtype_,
        layout=_word(Layout, "layout", layout),
    )
    known = _own(calibration, device) or load_calibration(device, dtype_)
    clock_ = _word(Clock, "clock", clock)
    return GemmAnswer(
        gemm=product,
        gpu=device,
        cost=gemm_cost(product, device, known, clock=clock_),
        alternatives=gemm_alternatives(product, device, known, clock=clock_),
    )


def lint(model: Model, gpu: GpuLike = "h100_sxm", *, allow: Sequence[str] = (), **question: Any) -> Lint:
    """Is anything wasteful: the rules a shape breaks on this device and what each costs, worst first."""
    from sartor.rules.rule import Context, run_rules

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
    from sartor.search.shapes import search_shapes

    names = [gpu] if isinstance(gpu, (str, Path, Gpu)) else list(gpu)
    if objective is not None:
        question["phase"] = objective
    checked = lint(model, names[0], **question)
    asked = checked.base.question
    gpus = (asked.gpu, *(_device(name) for name in names[1:]))
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


def plan(
    model: Model,
    cluster: ClusterLike = "dgx-h100",
    *,
    num_devices: int | Sequence[int] | None = None,
    global_batch_size: int,
    seq_len: int | None = None,
    fix: Mapping[str, Any] | None = None,
    top: int = 10,
    tokens: float = 1e12,
    set: Mapping[str, Any] | None = None,
    calibration: str | Path | None = None,
    progress: Progress | None = None,
    **job_words: Any,
) -> PlanAnswer:
    """How to spread a model's training over a cluster: the plan with the shortest predicted step that fits.

    ``cluster`` is a catalogue name, a TOML file or a ``Cluster``; ``num_devices`` one number or several (a search for
    each); ``fix`` holds axes to one value (``{"tp": 8, "recompute": "none"}``); ``tokens`` is the budget that is
    costed. Further words are those of ``training.question.training_job``: dtype, framework, optimizer, attention,
    context_parallel, routing_skew. Raises ``InputError``; where nothing fits, the answer says what would.
    """
    from sartor.search.plan_next import next_steps, roomier
    from sartor.search.plans import make_pricer, search_plans
    from sartor.training.question import training_job
    from sartor.training.run_cost import run_cost
    from sartor.training.stage_table import stage_table

    reading = read(model, set)
    where = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    counts = _device_counts(num_devices, where)
    where = where.reached(max(counts))
    own = _own_of(calibration, where)
    if (traced := reading.shape.traced) is not None:  # what is not said is as it was traced
        seq_len = seq_len or traced.seq_len
        job_words = {**job_words, "dtype": job_words.get("dtype") or traced.dtype.value}
    job, notes = training_job(
        reading.shape, where.gpus, global_batch_size=global_batch_size, seq_len=seq_len, **job_words
    )
    searches = tuple(
        search_plans(job, where.reached(n), n, fix, top=_size("top", top, 10), calibration=own, progress=progress)
        for n in counts
    )
    answer = PlanAnswer(
        reading=reading,
        job=job,
        cluster=where,
        searches=searches,
        assumptions=(*reading.assumptions, *reading.notes, *notes),
        source=_step_source(where, job.recipe.dtype, own),
        calibration=own,
    )
    best, where = answer.best, answer.search.cluster
    if best is None:
        return answer
    pricer = make_pricer(job, where, own)
    steps = (best.step_s, best.low_s, best.high_s)
    return replace(
        answer,
        cluster=where,
        stages=stage_table(job, best.plan, where, own),
        next_steps=next_steps(pricer, best),
        roomier=roomier(answer.search, pricer.limit_bytes),
        cost=run_cost(where, answer.search.num_devices, job.tokens_per_step, steps, tokens),
    )


def launch(answer: PlanAnswer, kind: str) -> tuple[LaunchFiles, PricedPlan]:
    """The files that start an answer's best plan under a trainer (megatron, torchtitan, deepspeed, accelerate), and the
    plan they hold: the fastest that the trainer can be told, where the very best cannot be (said in ``notes``).

    Raises ``InputError`` where no plan of the answer can be told, with the reason of the best one.
    """
    from sartor.interop.launch import launch_files, launch_kind
    from sartor.search.plan_variants import fallback

    word, best, reasons = launch_kind(kind), answer.best, list[InputError]()
    if best is None:
        raise InputError("--write", kind, "there is no plan to write: none fits")

    def can(plan: TrainingPlan) -> bool:
        try:
            launch_files(word, answer.job, plan, answer.cluster)
        except InputError as error:
            reasons.append(error)
            return False
        return True

    if can(best.plan):
        return launch_files(word, answer.job, best.plan, answer.cluster), best
    others = (*answer.search.top, *answer.front, *_within(answer, NO_DEGREE.get(word.value, ())))
    other = fallback(answer.job, answer.cluster, (best, *others), can, answer.calibration)
    if other is None:
        raise reasons[0]
    made = launch_files(word, answer.job, other.plan, answer.cluster)
    slower = f"{100 * (other.step_s / best.step_s - 1):.1f}%"
    note = f"the best plan cannot be told to {word.title} ({reasons[0]}): this one is predicted {slower} slower"
    return replace(made, notes=(note, *made.notes)), other


NO_DEGREE = {"deepspeed": ("pp", "cp", "ep"), "accelerate": ("pp", "ep")}
"""Degrees that a trainer's files cannot say: another search keeps to 1 of each where the best plan has more."""


def _within(answer: PlanAnswer, absent: Sequence[str]) -> tuple[PricedPlan, ...]:
    """The best plans with degrees ``absent`` at 1, of each ZeRO stage, as trainers differ in which they have."""
    from sartor.search.plans import search_plans

    asked = answer.search
    if any(asked.fixed.get(name, 1) != 1 for name in absent) or not absent:
        return ()
    stages = [asked.fixed["zero_stage"]] if "zero_stage" in asked.fixed else [0, 1, 2, 3]
    held = [{**asked.fixed, **dict.fromkeys(absent, 1), "zero_stage": stage} for stage in stages]
    found = [
        search_plans(answer.job, asked.cluster, asked.num_devices, h, calibration=answer.calibration) for h in held
    ]
    return tuple(plan for each in found for plan in each.top)


def lint_launch(
    path: str | Path,
    cluster: str | Path | Cluster,
    *,
    model: Model | None = None,
    num_devices: int | None = None,
    seq_len: int | None = None,
    allow: Sequence[str] = (),
    search: bool = True,
    calibration: str | Path | None = None,
) -> LaunchAnswer:
    """Price an existing launch on a cluster and say what is wasteful in it.

    ``path`` is a Megatron-LM script or file of arguments, torchtitan TOML, DeepSpeed JSON, accelerate YAML, or a folder
    with a ``launch.sh``; nothing in it is run. ``model`` where the file gives no sizes, ``num_devices`` and ``seq_len``
    where it does not say them (given ones win); ``search`` compares with the best plan of as many devices. Raises
    ``InputError``.
    """
    from sartor.interop.launch import read_launch
    from sartor.rules.plan.rule import PlanContext, best_remedy, lint_plan
    from sartor.search.plan_result import PricedPlan
    from sartor.search.plans import search_plans
    from sartor.training.footprint import usable_bytes
    from sartor.training.recipes import check_recipe
    from sartor.training.waterfall import waterfall

    shape = None if model is None else read(model).shape
    reading = read_launch(path, num_devices=num_devices or 0, shape=shape)
    job, plan = reading.job(shape, _size("seq_len", seq_len, 0) or None), reading.plan
    found = cluster if isinstance(cluster, Cluster) else load_cluster(cluster, reading.num_devices)
    for gpu in found.gpus:
        check_recipe(job.recipe, gpu)
    known = _own_of(calibration, found)
    best = search_plans(job, found, reading.num_devices, calibration=known, top=5) if search else None
    remedy = None
    if best is not None and best.best is not None:
        remedy = best_remedy(best.best.plan)
    context = PlanContext.of(job, plan, found, known, remedy)
    return LaunchAnswer(
        path=str(path),
        framework=reading.kind.value,
        job=job,
        cluster=found,
        priced=PricedPlan(plan=plan, step=context.step, footprint=context.footprint),
        fits=context.fits,
        usable_bytes=usable_bytes(found),
        memory=waterfall(job, plan, found),
        findings=lint_plan(context, allow=allow),
        unknown=reading.unknown,
        ignored=reading.ignored,
        assumptions=(*_instead(reading, shape, seq_len), *reading.assumptions),
        search=best,
        source=_step_source(found, job.recipe.dtype, known),
    )


def design(
    models: Model | Sequence[Model],
    *,
    num_devices: int,
    global_batch_size: int,
    seq_len: int | Sequence[int] | None = None,
    weights: Sequence[float] = (),
    space: str | Path | AcceleratorSpace = "published",
    hbm_gib: float | None = None,
    tensor_parallel: Sequence[int] = (1, 2, 4, 8),
    time_limit_s: float | None = None,
    tolerance: float = 0.0,
    baselines: bool = True,
    pareto: Sequence[str] = (),
    shapes: int = 0,
    fleet: Mapping[str, float] | None = None,
    set: Mapping[str, Any] | None = None,
    study: str | Path | None = None,
    executor: str = "serial",
    workers: int | None = None,
    progress: Callable[[DesignProgress], None] | None = None,
    **words: Any,
) -> DesignAnswer:
    """Which accelerator and plan go best together: the largest training throughput of a space, with its proof.

    ``space`` is a name (``sartor catalog spaces``), a TOML file or an ``AcceleratorSpace``; ``seq_len`` and ``weights``
    are one for all models or one each; ``hbm_gib`` limits the memory of a device. The search ends when nothing can be
    better by more than ``tolerance``, or after ``time_limit_s`` with the best so far and how much better there could
    be. ``study`` is a file that remembers every result, so that a search goes on where it ended; ``executor`` is
    ``serial``, ``local`` (processes) or a Dask scheduler's address. ``baselines``: price known chips and other ways to
    search beside it (a minute or two). ``pareto``: the front over area_mm2, power_w, hbm_bytes or usd. ``shapes``: so
    many shapes of the one model's size in its place, each on the whole space, against the chips of ``fleet`` (catalogue
    name or file -> weight) too. Further words are those of ``search.joint_ask.design_question``: area_mm2, power_w,
    energy_j_per_token, objective, mean, microbatch_sizes, recompute, area_model, wafer_usd, hbm_usd_per_gb. Raises
    ``InputError``; "no point fits" is an answer.
    """
    from sartor.engine.run import run_design
    from sartor.interop.space_file import load_space
    from sartor.search.joint_ask import design_models, design_question
    from sartor.search.joint_baselines import compare
    from sartor.search.joint_front import check_axes, proved_front

    names = [models] if isinstance(models, str | Path | ModelReading) else list(models)
    readings = tuple(read(name, set) for name in names)
    chosen = load_space(space) if isinstance(space, str | Path) else space
    asked, notes = design_models(
        [reading.shape for reading in readings], _size("num_devices", num_devices, 1), seq_len, weights, tensor_parallel
    )
    question = design_question(
        asked,
        chosen,
        num_devices=num_devices,
        global_batch_size=global_batch_size,
        hbm_bytes=None if hbm_gib is None else hbm_gib * GIB,
        **words,
    )
    limit_s = _seconds("time_limit_s", time_limit_s)
    axes = check_axes(pareto)
    if not 0 <= tolerance < 1:
        raise InputError("tolerance", tolerance, "must be a share from 0 to below 1", "0.01")
    result = run_design(
        question,
        chosen,
        time_limit_s=limit_s,
        tolerance=tolerance,
        study=study,
        executor=executor,
        workers=workers,
        on_progress=progress,
    )
    if baselines and result.best is not None and not result.interrupted:
        ways = compare(question, chosen, time_limit_s=min(LONGEST_BASELINE_S, limit_s))
        result = _compared(result, ways, progress)
    front = None
    if axes and result.best is not None and not result.interrupted:
        front = proved_front(question, chosen, axes, time_limit_s=limit_s, on_progress=progress)
    several = None
    if shapes and result.best is not None and not result.interrupted:
        by = partial(run_design, time_limit_s=limit_s, tolerance=tolerance, executor=executor, workers=workers)
        by = partial(by, study=study, scope=None, on_progress=progress)
        several = _by_shape(question, chosen, shapes, fleet or {}, by)
    return DesignAnswer(
        readings=readings,
        question=question,
        space=chosen,
        result=result,
        proved_front=front,
        shapes=several,
        assumptions=(
            *(
                f"{reading.shape.name}: {note}"
                for reading in readings
                for note in (*reading.assumptions, *reading.notes)
            ),
            *notes,
            *chosen.assumptions,
        ),
    )


def _instead(reading: LaunchReading, shape: TransformerShape | None, seq_len: int | None) -> list[str]:
    """What was given in place of what a launch says."""
    said = reading.parts.seq_len
    notes = [f"seq_len={seq_len} as asked; the file says {said}"] if seq_len and said not in (None, 0, seq_len) else []
    if shape is not None and reading.shape is not None:
        notes.append(f"the model is {shape.name or 'the one given'}, not the file's sizes")
    return notes


def _by_shape(
    question: DesignQuestion, space: AcceleratorSpace, count: int, fleet: Mapping[str, float], search: Search
) -> ShapeDesign:
    """``count`` shapes of the model's size in its place, on the space's chips and those of the fleet."""
    from sartor.hardware.accelerator_catalog import load_accelerator
    from sartor.search.joint_chips import NamedChip
    from sartor.search.joint_shapes import search_design_shapes, shape_variants

    model = question.models[0]
    gpus = [load_gpu(name) for name in ("a100_sxm", "h100_sxm")]
    variants = shape_variants(model.shape, model.seq_len, gpus, count)
    chips = []
    for name, weight in fleet.items():
        chip = load_accelerator(name)
        if not weight > 0:
            raise InputError("--fleet", f"{name}={weight:g}", "must have a weight above 0", f"{name}=1")
        chips.append((NamedChip(name=name, accelerator=chip, hbm_bytes=(float(chip.hbm_bytes),)), weight))
    return search_design_shapes(question, space, variants, chips, search=search)


def _compared(
    result: JointResult, ways: Iterator[Baseline], progress: Callable[[DesignProgress], None] | None
) -> JointResult:
    """The result with other ways to choose, as many as there are before Ctrl-C."""
    found: list[Baseline] = []
    try:
        for way in ways:
            found.append(way)
            if progress and result.trajectory:
                progress(replace(result.trajectory[-1], phase=f"baselines: {way.name}"))
    except KeyboardInterrupt:
        return replace(result, baselines=tuple(found), interrupted=True)
    return replace(result, baselines=tuple(found))


def read(model: Model, set: Mapping[str, Any] | None = None) -> ModelReading:
    """The model of a config.json (or its folder), a graph of ``sartor extract``, a zoo name or a hub id, with fields
    changed by ``set``.

    A path that exists wins over a zoo name; a model already read is taken as it is. Raises ``InputError``.
    """
    if isinstance(model, ModelReading):
        return _changed(model, set)
    text = str(model)
    path = Path(text)
    if is_graph(path):
        reading = read_traced(path)
    elif isinstance(model, Path) or text.endswith((".json", "/", "\\")) or _exists(path):
        reading = read_model(path)
    elif text.count("/") == 1:
        reading = read_model(fetch_config(text), name=text.rpartition("/")[2])
    else:
        shape = load_model(text)
        reading = ModelReading(shape=shape, notes=(f"from the zoo: sartor catalog models {text}",))
    return _changed(reading, set)


def _changed(reading: ModelReading, set: Mapping[str, Any] | None) -> ModelReading:
    if not set:
        return reading
    not_traced(reading, "--set")
    shape, notes = edit_fields(reading.shape, set)
    return replace(reading, shape=shape, assumptions=(*reading.assumptions, *notes))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _device_counts(given: int | Sequence[int] | None, cluster: Cluster) -> tuple[int, ...]:
    """Numbers of devices to plan for, each of which the cluster has."""
    total = cluster.total_devices
    if given is None and not total:
        raise InputError("num_devices", "not given", f"{cluster.name} has as many as asked for: say how many", "64")
    wanted = (total,) if given is None else (given,) if isinstance(given, int) else tuple(given)
    for count in wanted:
        _size("num_devices", count, 64)
        if total and count > total:
            raise InputError("num_devices", count, f"{cluster.name} has {total} devices", str(total))
    return tuple(dict.fromkeys(wanted))


def _step_source(cluster: Cluster, dtype: DType, own: Calibration | None) -> Source:
    """Calibrated where the device's own products and attention are, as they make most of a step."""
    known = [own if own and own.gpu == gpu.name else load_calibration(gpu, dtype) for gpu in cluster.gpus]
    both = {f"gemm.{dtype.value}", "attention"}
    return Source.CALIBRATED if all(both <= each.calibrated for each in known) else Source.ANALYTIC


def _seconds(field: str, value: float | None) -> float:
    """A time limit; none is infinite."""
    if value is None:
        return float("inf")
    if not 0 < value < 1e9:
        raise InputError(field, value, "must be a number of seconds above 0", "600")
    return float(value)


def _device(gpu: GpuLike) -> Gpu:
    return gpu if isinstance(gpu, Gpu) else load_gpu(str(gpu))


def _own(path: str | Path | None, gpu: Gpu) -> Calibration | None:
    return None if path is None else load_own_calibration(path, gpu)


def _own_of(path: str | Path | None, cluster: Cluster) -> Calibration | None:
    """The same for the device of a cluster that the file is of."""
    if path is None:
        return None
    named = read_calibration_file(path).gpu
    return _own(path, next((gpu for gpu in cluster.gpus if gpu.name == named), cluster.gpu))


def _word(enum: Any, field: str, word: str) -> Any:
    """A word as the member of an enum it names."""
    for member in enum:
        if member.value.lower() == str(word).lower():
            return member
    words = ", ".join(member.value for member in enum)
    raise InputError(field, word, f"must be one of {words}")


def _size(field: str, value: Any, default: int, *, least: int = 1) -> int:
    """A size in whole units, or its default."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**40:
        raise InputError(field, value, f"must be an integer from {least} to 2^40", str(default))
    return value


def _precision(dtype: str | None, gpu: Gpu) -> tuple[DType, tuple[str, ...]]:
    """The dtype asked for, if the device has it; bf16 (or fp16 on devices before bf16) when nobody asks."""
    if dtype is None:
        return gpu.default_dtype, (f"dtype={gpu.default_dtype.value} (not given)",)
    wanted: DType = _word(DType, "dtype", {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype, dtype))
    if not (wanted.weight_only or wanted in gpu.peak_flops_per_s):  # those run as 16-bit products
        known = ", ".join(d.value for d in gpu.peak_flops_per_s)
        raise InputError("dtype", wanted.value, f"{gpu.name} has no matrix rate for it", known)
    return wanted, ()


def _fit_note(workload: Workload, dims: ParallelDims, gpu: Gpu, reading: ModelReading) -> tuple[str, ...]:
    """Says when the states a device must hold exceed its memory: the times are then of a share that needs more devices.

    Training holds 16 bytes per parameter (ZeRO, Rajbhandari et al. 2020, sec. 3.1: 2 + 2 + 12), inference its weights.
    """
    per_param = 16 if workload.phase is Phase.TRAIN else workload.dtype.bytes
    held = reading.num_params * per_param / (int(dims.tp) * int(dims.pp))
    if held <= gpu.hbm_bytes:
        return ()
    what = "parameters, gradients and optimizer states" if workload.phase is Phase.TRAIN else "weights"
    return (
        f"{what} take {held / 2**30:,.0f} GiB per device and {gpu.name} has {gpu.hbm_bytes / 2**30:.0f}: "
        "times are those of one tensor-parallel rank doing all layers; spread it over more devices to run it",
    )
