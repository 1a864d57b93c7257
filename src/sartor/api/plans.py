"""Training on a cluster: plan it, write its launch files, and lint an existing launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Unpack

from sartor.answers.field import Answer, Fields
from sartor.answers.plan import WRITTEN, LaunchAnswer, PlanAnswer
from sartor.api.models import Model, config_text, read
from sartor.api.questions import checked_words, network_words, stated_run, with_margin
from sartor.api.words import (
    ClusterLike,
    cluster_or_usual,
    device_counts,
    own_calibration_of,
    refuse_on_a_chip,
    size_of,
)
from sartor.ask.alternatives import template_words, weighed
from sartor.ask.complete import as_option, complete, settled_job, size_words, stated_axes, usual_batch, with_plan
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import USUAL_CLUSTER
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.plan import LaunchFile, LaunchFiles, launch_kind
from sartor.model.plan import AXES
from sartor.model.workload import settled_seq_len
from sartor.options import with_options
from sartor.plans.space import axes_of
from sartor.run.fields import FIELDS, Origin, Run, TrainingOptions, check_names
from sartor.step.footprint import usable_bytes
from sartor.step.results import step_source
from sartor.step.trainers import check_device, record_named

if TYPE_CHECKING:
    from sartor.answers.advice import Advice
    from sartor.answers.estimate import ModelEstimate
    from sartor.cost.correction.calibration import Calibration
    from sartor.hardware.gpu import Gpu
    from sartor.launch.plan import LaunchReading
    from sartor.model.training import TrainingJob, TrainingPlan
    from sartor.model.workload import ModelReading
    from sartor.plans.fixed import JobChoice
    from sartor.plans.next import WhyNot
    from sartor.plans.result import PlanSearch, PricedPlan
    from sartor.plans.search import Progress
    from sartor.step.run_cost import RunCost


@with_options(TrainingOptions, FIELDS)
def plan(
    model: Model,
    cluster: ClusterLike | None = None,
    *,
    num_devices: int | Sequence[int] | None = None,
    top: int = 10,
    tokens: float = 1e12,
    why_not: Mapping[str, int | str] | None = None,
    simple: bool = False,
    write: str | None = None,
    price: float | None = None,
    progress: Progress | None = None,
    **options: Unpack[TrainingOptions],
) -> PlanAnswer:
    """How to spread a model's training over a cluster: the plan with the shortest predicted step that fits.

    Parameters
    ----------
    model
        As in `sartor.estimate`.
    cluster
        A catalogue name, a TOML file or a ``Cluster``; a device's name or file stands for its usual cluster. Without it
        the usual one, named among what was assumed.
    num_devices
        Devices of the whole plan, one number or several (a search for each); without it the fewest nodes on which a
        plan fits.
    top
        Most plans in the answer.
    tokens
        Training budget [tokens] whose time and cost are computed.
    why_not
        Axes of a plan to compare with the best one.
    simple
        Search only plans of data and tensor parallelism.
    write
        A trainer: search only plans that its launch files can express.
    price
        USD per device and hour; without it the cluster's.
    progress
        Called with the number of structures priced so far and in total.
    **options
        The fields of a run; an axis of the plan is held at that value. ``fix`` states axes and switches of the
        trainer, ``{"tp_overlap": "on"}``; in a plan ``any`` takes the fastest setting of a switch.

    Returns
    -------
    PlanAnswer
        ``best``: the plan with its step [s], 80% interval and memory [bytes]; ``search.top``, its stages, next steps,
        and ``cost`` of the budget. If no plan fits, ``best`` is None and the answer says what would make one fit.

    Raises
    ------
    InputError
        For what cannot be searched, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> answer = plan("gpt2", "dgx-h100", num_devices=8, global_batch_size=64, zero_stage=1)
    >>> answer.best.step_s < 1
    True
    """
    from sartor.plans.search import search_plans

    check_names(options, TrainingOptions)
    reading = read(model, options.get("set"))
    fix, compared = _split_fix(_simple(options.get("fix")) if simple else options.get("fix") or {})
    whole, of_device = cluster_or_usual(cluster)
    whole, network = whole.with_price(price), _network(cluster, whole, of_device=of_device)
    own = own_calibration_of(options.get("calibration"), whole)
    run = Run(facts={}).with_(*_origin(cluster, of_device=of_device), cluster=whole.name)
    num_devices = num_devices[0] if isinstance(num_devices, Sequence) and len(num_devices) == 1 else num_devices
    one_count = num_devices if isinstance(num_devices, int) else None
    held = {"fix": fix, "num_devices": one_count}
    run = stated_run(run, reading, {**options, **held, "price": price})
    headroom, top = run.get("headroom"), size_of("top", top, 10)
    search = partial(search_plans, top=top, calibration=own, progress=progress, headroom=headroom)
    named = [name for name in AXES if options.get(name) is not None]

    def searched(run: Run) -> PlanAnswer:
        counts, run = _counts(num_devices, run, reading, whole, own)
        found = _searched(run, reading, whole, network, counts, compared, write, named, search)
        return _explained(_with_open(*found), tokens, why_not, headroom)

    most = max(num_devices) if isinstance(num_devices, Sequence) else num_devices
    return _that_divides(searched, run, reading, {**options, **held, "num_devices": most, "cluster": whole})


def _split_fix(fix: Mapping[str, int | str]) -> tuple[dict[str, int | str], dict[str, int | str]]:
    """What is held at a value, and the switches of which every setting is compared."""
    from sartor.plans.fixed import ANY

    compared = {name: word for name, word in fix.items() if str(word).strip().lower() == ANY}
    return {name: word for name, word in fix.items() if name not in compared}, compared


def _that_divides(searched: Callable[[Run], PlanAnswer], run: Run, reading: ModelReading, words: JsonMap) -> PlanAnswer:
    """The answer of a search or, where the degrees that a run states (``words``) do not divide the model, that of the
    largest smaller split that does, with what would divide instead."""
    from sartor.api.questions import completed_question
    from sartor.api.shapes import divided_estimate

    instead: ModelEstimate | None = None
    try:
        return searched(run)
    except InputError as error:
        if error.field.removeprefix("fix ") in ("tp", "ep"):
            with suppress(InputError):  # refused for another reason
                instead = divided_estimate(completed_question(reading, None, words, splits=True), None, words)
        if instead is None:
            raise
    degrees = {name: instead.question.run.get(name) for name in ("tp", "ep") if run.states(name)}
    answer = searched(run.with_(Origin.IMPLIED, "splits the model", **degrees))
    return replace(answer, cannot_run=instead.cannot_run, divided=instead.divided)


def _origin(cluster: ClusterLike | None, *, of_device: bool) -> tuple[Origin, str]:
    """The origin of a cluster; ``of_device``: it is the usual one of a device that was named."""
    if cluster is None or of_device:
        return Origin.USUAL, "the device's usual cluster" if of_device else "the usual cluster"
    return Origin.STATED, "option"


def _searched(
    run: Run,
    reading: ModelReading,
    whole: Cluster,
    network: Sequence[str],
    counts: Sequence[int],
    compared: Mapping[str, int | str],
    write: str | None,
    named: Sequence[str],
    search: partial[PlanSearch],
) -> tuple[PlanAnswer, Sequence[str]]:
    """The plans with the fastest setting of the switches that are ``compared``, and what it closes; errors call axes
    ``named`` as options."""
    from sartor.plans.fixed import ANY, SWITCHED, job_choices, searched_settings
    from sartor.plans.search import no_plan_error

    where, own = whole.reached(max(counts)), search.keywords["calibration"]
    job, run, notes = settled_job(run, reading, where, launch_kind(write).value if write else "")
    compared = {**dict.fromkeys(searched_settings(job, run, stated_axes(run)), ANY), **compared}
    choices, axes = job_choices(job, where.gpus, compared)
    fixed = {**stated_axes(run), **axes}
    try:
        found = [tuple(search(choice.job, whole, n, fixed=fixed) for n in counts) for choice in choices]
        at = min(range(len(choices)), key=lambda i: _step_s(found[i][-1]))
        errors = [no_plan_error(each) for each in found[at]]
        if None not in errors:
            raise errors[-1]  # type: ignore[misc]
    except InputError as error:
        raise as_option(error, named) from None
    job, searches = choices[at].job, found[at]
    answer = PlanAnswer(
        reading=reading,
        run=_with_best(run, searches[-1]),
        job=job,
        cluster=where,
        searches=searches,
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *notes,
            *network,
            *size_words(run, job),
            *_compared(choices, found, at),
            *template_words(*where.gpus),
        ),
        source=step_source(where, job.recipe.dtype, own),
        calibration=own,
        writer=launch_kind(write).title if write else "",
    )
    return answer, (*choices[at].said, *(("framework", *SWITCHED) if write else ()))  # written files say them


def _with_open(answer: PlanAnswer, closed: Sequence[str]) -> PlanAnswer:
    """The answer with what stays open of its best plan or, where none fits, of the leanest."""
    search = answer.search
    best = search.best or (search.tightest and search.tightest.leanest)
    if not best:
        return answer
    limit_bytes = (1 - search.headroom) * usable_bytes(search.cluster)
    of_plan = (answer.reading.shape, answer.job, best.plan, search.cluster, answer.calibration)
    open_run = weighed(answer.run, *of_plan, limit_bytes=limit_bytes, closed=closed)
    spread = replace(best, spread=open_run.spread)

    def among(plans: tuple[PricedPlan, ...]) -> tuple[PricedPlan, ...]:
        return tuple(spread if each == best else each for each in plans)

    known = replace(search, best=search.best and spread, top=among(search.top), front=among(search.front))
    searches = tuple(known if each is search else each for each in answer.searches)
    return replace(answer, searches=searches, run=open_run.run, depends_on=open_run.turns)


def _with_best(run: Run, search: PlanSearch) -> Run:
    if search.best is None:
        return run
    return with_plan(run, axes_of(search.best.plan), "the fastest plan that fits")


def _network(cluster: ClusterLike | None, whole: Cluster, *, of_device: bool) -> tuple[str, ...]:
    """What was assumed of the network: the usual cluster where none was stated, or that of a device."""
    if cluster is None:
        return (f"cluster={USUAL_CLUSTER}: none was stated (usual; set --cluster)",)
    if not of_device:
        return ()
    return network_words(whole) or (f"cluster={whole.name}: the usual one of {whole.gpu.name} (set --cluster)",)


def _counts(
    num_devices: int | Sequence[int] | None,
    run: Run,
    reading: ModelReading,
    cluster: Cluster,
    calibration: Calibration | None,
) -> tuple[tuple[int, ...], Run]:
    """The numbers of devices to plan for, and the run with a batch: what is not stated as `sartor estimate` completes
    it."""
    if num_devices is None and not cluster.total_devices:
        finished = complete(run, reading, cluster, calibration).run
        count = int(finished.get("num_devices"))
        run = run.with_(finished.origin("num_devices"), finished.facts["num_devices"].source, num_devices=count)
        counts: tuple[int, ...] = (count,)
    else:
        counts = device_counts(num_devices, cluster)
    if "global_batch_size" not in run:
        length = run.get("seq_len") or settled_seq_len(None, reading.shape)[0]
        batch = usual_batch(length, max(counts), run.get("microbatch_size", 1))
        run = run.with_(Origin.USUAL, "a usual step of 4M tokens", global_batch_size=batch)
    return counts, run


def _step_s(search: PlanSearch) -> float:
    return search.best.step_s if search.best else math.inf


def _compared(choices: Sequence[JobChoice], found: Sequence[Sequence[PlanSearch]], at: int) -> tuple[str, ...]:
    """Which switches were set, and how much slower the best plan is with each other setting tried."""
    words, best_s = choices[at].words, _step_s(found[at][-1])
    others = [
        f"{c.words} " + (f"{_step_s(f[-1]) / best_s - 1:+.1%}" if f[-1].best else "does not fit")
        for c, f in zip(choices, found, strict=True)
        if c is not choices[at] and not _same(found[at][-1], f[-1])
    ]
    if others and not math.isfinite(best_s):
        return (f"no setting of {len(choices)} has a plan that fits: {words}; {'; '.join(others)}",)
    if others:
        return (f"{words} is the fastest setting; {'; '.join(others)}",)
    return ()


def _same(best: PlanSearch, search: PlanSearch) -> bool:
    """Whether a setting has no effect on the best plan."""
    return bool(best.best and search.best and best.best.plan == search.best.plan and _step_s(best) == _step_s(search))


def _explained(
    answer: PlanAnswer, tokens: float, why_not: Mapping[str, int | str] | None, headroom: float | None
) -> PlanAnswer:
    """The answer with details of its best plan: stages, next steps, costs, and why not another plan."""
    from sartor.plans.next import divided_batches, next_steps, roomier, simpler
    from sartor.plans.search import make_pricer
    from sartor.step.stage_table import stage_table

    best, search = answer.best, answer.search
    if best is None:
        return answer
    job, own, where = answer.job, answer.calibration, search.cluster
    pricer = make_pricer(job, where, own, headroom=headroom)
    costs = tuple(_cost(job, where, each, tokens) for each in answer.searches)
    asked = None if why_not is None else beside_best(search, why_not, own)
    return replace(
        answer,
        cluster=where,
        stages=stage_table(job, best.plan, where, own),
        next_steps=next_steps(pricer, best),
        batches=divided_batches(job, where, best, search.fixed, own, search.headroom),
        roomier=roomier(search, usable_bytes(where)),
        simpler=simpler(search, own),
        cost=_cost(job, where, search, tokens),
        costs=costs,
        why_not=asked,
    )


SIMPLE = {"pp": 1, "cp": 1, "ep": 1}
"""Axes held at one for plans of data and tensor parallelism only."""


def _simple(fix: Mapping[str, int | str] | None) -> dict[str, int | str]:
    for name, value in SIMPLE.items():
        if str((fix or {}).get(name, value)) != str(value):
            must = f"simple allows only data and tensor parallelism, so {name}={value}"
            raise InputError(f"fix {name}", (fix or {})[name], must, f"{name}={value}, or leave out simple")
    return {**(fix or {}), **SIMPLE}


def _cost(job: TrainingJob, cluster: Cluster, search: PlanSearch, tokens: float) -> RunCost | None:
    """Cost of a token budget under a search's best plan; None if no plan fits."""
    from sartor.step.run_cost import run_cost

    best = search.best
    if best is None:
        return None
    return run_cost(job, cluster, search.num_devices, (best.step_s, best.low_s, best.high_s), tokens)


def beside_best(search: PlanSearch, asked: Mapping[str, int | str], calibration: Calibration | None) -> WhyNot | None:
    """The fastest plan with the axes ``asked`` (or why there is none), compared with the best plan of a search. Raises
    ``InputError``."""
    from sartor.plans.fixed import job_choices
    from sartor.plans.next import why_not

    choices, axes = job_choices(search.job, search.cluster.gpus, asked)
    found = [why_not(replace(search, job=each.job), axes, calibration) for each in choices]
    other = min((each for each in found if each), key=lambda w: w.plan.step_s if w.plan else math.inf, default=None)
    words = ",".join(
        [*([choices[0].words] if len(choices) == 1 and choices[0].said else []), other.asked if other else ""]
    )
    return other and replace(other, asked=words.strip(","))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WrittenLaunch(Answer, LaunchFiles):
    """The launch files of a plan, and the plan in them."""

    fields: ClassVar[Fields] = WRITTEN
    priced: PricedPlan


def refuse_launch(gpu: Gpu, field: str, trainer: str) -> None:
    """Raise ``InputError`` where no launch files of a trainer (the value of ``field``) start it on such devices."""
    refuse_on_a_chip(gpu, field, trainer, "launch files start a framework on GPUs")
    check_device(record_named(launch_kind(trainer).value), gpu, field, trainer, "leave it out")


def launch(answer: PlanAnswer, trainer: str, trainer_version: str = "") -> WrittenLaunch:
    """The files that start an answer's best plan: the fastest that the trainer can run, if it cannot run the best.

    Parameters
    ----------
    answer
        What `sartor.plan` returns.
    trainer
        ``megatron``, ``megatron-bridge``, ``torchtitan``, ``deepspeed`` or ``accelerate``.
    trainer_version
        Its release; without it the newest that is known.

    Returns
    -------
    WrittenLaunch
        ``files``, each with ``name`` and ``text``; ``priced``: the plan in them [s, bytes]; ``notes`` say where it is
        not the best.

    Raises
    ------
    InputError
        If the trainer can run no plan of the answer, with the reason for the best one.

    Examples
    --------
    >>> answer = plan("gpt2", "dgx-h100", num_devices=8, global_batch_size=64)
    >>> [file.name for file in launch(answer, "megatron").files]
    ['launch.sh']
    """
    from sartor.launch.files import checked, launch_files
    from sartor.plans.search import search_plans
    from sartor.step.footprint import footprint
    from sartor.step.question import within_files
    from sartor.step.step import step

    word, best, asked = launch_kind(trainer), answer.best, answer.search
    refuse_launch(answer.cluster.gpu, "trainer", trainer)
    if best is None or answer.cannot_run:
        why = f"as stated it cannot run: {answer.cannot_run}" if answer.cannot_run else "none fits"
        raise InputError("trainer", trainer, f"there is no plan to write: {why}")

    def price(job: TrainingJob, plan: TrainingPlan) -> tuple[float, float]:
        where, own = asked.cluster, answer.calibration
        return float(step(job, plan, where, own).step_s), float(footprint(job, plan, where).device_bytes)

    def written(job: TrainingJob, plan: TrainingPlan) -> LaunchFiles:
        made = launch_files(word, job, plan, answer.cluster, trainer_version)
        return checked(made, job, plan, price, (1 - asked.headroom) * usable_bytes(asked.cluster))

    try:
        return WrittenLaunch.holding(written(answer.job, best.plan), priced=best)
    except InputError as error:
        reason = error
    job = within_files(answer.job, word.value)
    if job.trainer == answer.job.trainer:  # the search already covered every plan this trainer can run
        raise reason
    other = search_plans(
        job,
        asked.cluster,
        asked.num_devices,
        asked.fixed,
        calibration=answer.calibration,
        headroom=asked.headroom,
    ).best
    if other is None:
        raise reason
    made = written(job=job, plan=other.plan)
    slower = f"{100 * max(other.step_s / best.step_s - 1, 0):.1f}%"
    note = f"{word.title} cannot run the best plan ({reason}): this one is predicted {slower} slower"
    return WrittenLaunch.holding(replace(made, notes=(note, *made.notes)), priced=other)


@with_options(TrainingOptions, FIELDS)
def advised_launch(
    advice: Advice, model: Model, trainer: str, trainer_version: str = "", **options: Unpack[TrainingOptions]
) -> WrittenLaunch:
    """The files that start the shape which an advice recommends, with the fastest plan of it that fits and the trainer
    can run, and its config.json.

    Parameters
    ----------
    advice
        From `advise`. Without a faster shape the files are those of the model as it is, and a note says so.
    model
        As the advice was asked for.
    trainer, trainer_version
        As in `launch`.
    **options
        As the advice was asked for.

    Returns
    -------
    WrittenLaunch
        The files, and the price of their plan.

    Raises
    ------
    InputError
        If the advice is not about training, or as `launch` does.

    Examples
    --------
    >>> from sartor.api import advise
    >>> advised_launch(advise("gpt2", "a100"), "gpt2", "megatron").files[0].name
    'launch.sh'
    """
    held = advice.base.question.held
    if held is None:
        must = "launch files start a training run: use the objective train"
        raise InputError("trainer", trainer, must, "--objective train")
    reading, found = advice.base.question.reading, advice.search
    best = found.smallest_edit or next(iter(found.candidates), None)
    shape = best.shape if best else reading.shape
    if best and "vocab_size" not in best.changed:  # the trainer pads it
        shape = replace(shape, vocab_size=read(model, options.get("set")).shape.vocab_size)
    stated: JsonDict = {
        name: word for name, word in options.items() if name not in ("set", "framework") and word is not None
    }
    run: JsonDict = {"global_batch_size": held.job.global_batch_size, "seq_len": held.job.seq_len, **stated}
    framework = options.get("framework") or launch_kind(trainer).value
    run |= {"framework": framework, "write": trainer, "num_devices": held.num_devices}
    answer = plan(replace(reading, shape=shape), held.cluster, **run)
    made = launch(answer, trainer, trainer_version)
    notes: tuple[str, ...] = (
        () if best else ("no shape of this size is surely faster: these are the files of the model as it is",)
    )
    try:
        config = [LaunchFile(name="config.json", text=config_text(model, shape))]
    except InputError as error:
        config, notes = [], (*notes, f"no config.json is written: {error}")
    return replace(made, files=(*made.files, *config), notes=(*notes, *made.notes))


@with_options(TrainingOptions, FIELDS)
def lint_launch(
    launch: str | Path,
    cluster: ClusterLike | None = None,
    *,
    model: Model | None = None,
    num_devices: int | None = None,
    price: float | None = None,
    allow: Sequence[str] = (),
    search: bool = True,
    **options: Unpack[TrainingOptions],
) -> LaunchAnswer:
    """Price an existing launch on a cluster and report what is wasteful in it.

    Parameters
    ----------
    launch
        A Megatron-LM script or file of arguments, torchtitan TOML, DeepSpeed JSON, accelerate YAML, or a folder with a
        ``launch.sh``; nothing in it is run.
    cluster
        As in `plan`.
    model, num_devices
        What the file lacks, or says otherwise: the model as in `sartor.estimate`, and the devices of the whole run.
    price
        USD per device and hour; without it the cluster's.
    allow
        Names or codes of rules to leave out.
    search
        Compare with the best plan on the same number of devices.
    **options
        The fields of a run. They win over the file, and the answer says so.

    Returns
    -------
    LaunchAnswer
        ``priced``: the plan's step [s], 80% interval and memory [bytes]; ``fits``, ``findings``, ``cost``, and what of
        the file was not understood.

    Raises
    ------
    InputError
        For a file that cannot be read or run, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> written = launch(plan("gpt2", "dgx-h100", num_devices=8, global_batch_size=64), "megatron")
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "launch.sh").write_text(written.files[0].text)
    ...     lint_launch(f"{folder}/launch.sh", "dgx-h100", search=False).fits
    True
    """
    from sartor.api.logged_plan import launched_on
    from sartor.launch.files import read_launch
    from sartor.launch.options import origin_words, with_origins
    from sartor.plans.search import checked_headroom, usual_headroom

    check_names(options, TrainingOptions)
    if model is None and options.get("set"):
        raise InputError("set", str(options["set"]), "changes sizes of MODEL, and the launch says the model's", "MODEL")
    beside = None if model is None else read(model, options.get("set"))
    shape = None if beside is None else beside.shape
    run = with_margin(Run.stated(**checked_words({**options, "num_devices": num_devices, "price": price})))
    reading = read_launch(launch, num_devices=num_devices or 0, shape=shape, run=run)
    whole, of_device = cluster_or_usual(cluster)
    whole = whole.with_price(price)
    for name in ("seq_len", "global_batch_size"):
        size_of(name, options.get(name), 1)
    stated, plan, where, assumptions = launched_on(reading, run, shape, whole)
    headroom = run.get("headroom")
    answer = _linted_launch(
        reading,
        run,
        stated,
        plan,
        where,
        own_calibration_of(options.get("calibration"), where),
        usual_headroom(where) if headroom is None else checked_headroom(headroom),
        search=search,
        allow=allow,
    )
    usual = _network(cluster, whole, of_device=of_device)
    run = with_origins(answer.run, reading, answer.job, plan, Path(launch).name)
    run = run.with_(*_origin(cluster, of_device=of_device), cluster=whole.name)
    words = origin_words(run, answer.job, assumptions)
    fits = beside.known(bool(answer.fits)) if beside else answer.fits
    return replace(
        answer, path=str(launch), run=run, reading=beside, fits=fits, assumptions=(*usual, *assumptions, *words)
    )


def _linted_launch(
    reading: LaunchReading,
    run: Run,
    stated: TrainingJob,
    plan: TrainingPlan,
    where: Cluster,
    calibration: Calibration | None,
    headroom: float,
    *,
    search: bool,
    allow: Sequence[str],
) -> LaunchAnswer:
    """The price of a launch on its cluster, the best plan beside it, and what the rules find."""
    from sartor.api.logged_plan import open_launch
    from sartor.plans.result import PricedPlan
    from sartor.plans.search import search_plans
    from sartor.plans.space import broken, running
    from sartor.rules.plan import lint_plan
    from sartor.rules.plan.rule import PlanContext, best_remedy
    from sartor.step.question import within_files
    from sartor.step.stage_table import waterfall

    job = within_files(stated, reading.kind.value)  # advice only names what such a file can express
    find = partial(search_plans, calibration=calibration, top=5, headroom=headroom)
    best = find(job, where, reading.num_devices) if search else None
    limit_bytes = (1 - headroom) * usable_bytes(where)
    open_run = open_launch(reading, run, job, plan, where, calibration, limit_bytes=limit_bytes)
    context = PlanContext(
        job=job,
        plan=plan,
        cluster=where,
        calibration=calibration,
        best=best_remedy(best.best.plan, plan) if best and best.best else None,
        headroom=headroom,
        own_margin=run.own_margin,
        broken=broken(stated, plan),
        runs=running(stated, job, plan),
        batch_follows=reading.parts.global_batch_size is None and "global_batch_size" not in run,
        unpriced=tuple(turn.field for turn in open_run.turns if turn.of_memory),
    )
    findings = lint_plan(context, allow=allow)
    return LaunchAnswer(
        path="",
        framework=reading.kind.value,
        job=job,
        cluster=where,
        priced=PricedPlan(plan=plan, step=context.step, footprint=context.footprint, spread=open_run.spread),
        fits=context.fits,
        runs=all(finding.rule != "cannot_run" for finding in findings),
        run=open_run.run,
        usable_bytes=usable_bytes(where),
        headroom=headroom,
        own_margin=run.own_margin,
        memory=waterfall(job, plan, where),
        findings=findings,
        unknown=reading.unknown,
        unpriced=reading.unpriced,
        depends_on=open_run.turns,
        ignored=reading.ignored,
        assumptions=(),
        search=best,
        source=step_source(where, job.recipe.dtype, calibration),
    )
