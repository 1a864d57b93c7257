"""The deployment that serves a model under a load and objectives at the least cost."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

import numpy as np

from sartor.answers.serving import SURE, Choice, DeploymentAnswer, ServedPoint, pools_text
from sartor.api.models import Model, read
from sartor.api.questions import crossing_note
from sartor.api.servers import covered, other_engines, served_in, served_run, server_of
from sartor.api.traffic import MOST_RECORDED, USUAL_LENGTH, recorded_requests, stated_request
from sartor.api.words import ClusterLike, GpuLike, cluster_or_usual, device_of, precision_of, size_of
from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, dated_price
from sartor.hardware.cluster_catalog import joined_devices, usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.interrupts import counted
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.serving import commands, left_to_do, pools_of
from sartor.model.lower.setting import check
from sartor.model.shape import TransformerShape
from sartor.model.workload import ModelReading, ParallelDims, too_long
from sartor.operators import DType
from sartor.options import with_options
from sartor.pareto import is_pareto
from sartor.run.fields import FIELDS, NOT_OF_DEPLOYMENTS, Run, RunOptions
from sartor.step.serving.batching import Steady
from sartor.step.serving.deploy import (
    Deployer,
    Deployment,
    LatencyGoal,
    PricedLayouts,
    ServerLayout,
    servers_of,
    with_pools,
    with_stages,
)
from sartor.step.serving.engines import ENGINES, Engine, engines_on
from sartor.step.serving.inference import WIDTHS
from sartor.step.serving.served import Load, Server, cut_block, near_uncut, padded, server_memory
from sartor.units import Floats, parse_seconds

MOST_DRAFTS = 16
"""Most tokens that a step drafts; engines' own recipes draft 1 to 8."""
MOST_DEVICES = 64
"""Default limit of a deployment's devices."""
SHOWN = 8
"""Layouts that an answer lists."""
MOST_EQUAL = 32
"""Layouts of the same cost that are looked at for the surest and fastest."""


class _Question(NamedTuple):
    """One device, precision and engine of a question, what its layouts are priced for, and the device's price."""

    deployer: Deployer
    server: Server
    where: Cluster
    widths: Sequence[int]
    experts: Sequence[int]
    notes: tuple[str, ...]
    others: tuple[tuple[Engine, Calibration], ...]
    """Engines that were not excluded, with their kernels."""
    fix: Mapping[str, int]
    """Sizes (`_SIZES`) that every layout has."""
    refused: dict[str, str]
    """Of the whole question, what cannot be and why."""


class DeployOptions(RunOptions, total=False):
    """What a deployment is asked besides the fields of a run."""

    traffic: str | Path | None
    cached: float
    draft_tokens: int
    acceptance: float | None
    most_usd_per_hour: float | None
    why_not: JsonMap | None


@with_options(DeployOptions, FIELDS, without=NOT_OF_DEPLOYMENTS)
def deploy(
    model: Model,
    gpu: GpuLike | Sequence[GpuLike] | None = None,
    *,
    requests_per_s: float = 0.0,
    users: int = 0,
    ttft_s: float = math.inf,
    tpot_s: float = math.inf,
    probability: float | None = None,
    percentile: float | None = None,
    input_len: int | Mapping[float, float] | None = None,
    output_len: int | Mapping[float, float] | None = None,
    most_devices: int = MOST_DEVICES,
    pools: bool = True,
    **options: Unpack[DeployOptions],
) -> DeploymentAnswer:
    """The cheapest deployment of ``model`` that meets objectives under a load.

    Parameters
    ----------
    model, gpu
        As in `serving`; several GPUs are compared. ``cluster``: instead of GPUs, the devices and price of one.
    requests_per_s, users
        The load: requests per second, or requests always in flight; neither: the most tokens per dollar.
    ttft_s, tpot_s
        Largest time to the first token and between tokens [s].
    probability
        With which both must hold; without it the predictions must.
    percentile
        Of the requests that must see both, such as 95; without it their means must.
    input_len, output_len
        Tokens of a prompt and of an answer, one number or quantiles: ``{50: 800, 95: 3000}``.
    traffic
        A CSV file of recorded requests, in place of lengths and rate.
    cached
        Share of prompts' tokens whose keys and values are kept from earlier requests.
    draft_tokens, acceptance
        Speculative decoding: tokens drafted a step, and the share of them that the model accepts.
    most_devices, most_usd_per_hour, pools
        Devices of the whole deployment, its cost [USD/h], and whether servers for prompts may stand beside others.
    why_not
        Sizes as of ``fix``: ``why_not`` of the answer is the cheapest deployment with them.
    **options
        As in `serving`. ``tp`` and ``ep`` are searched unless stated; ``dtype`` and ``kernels`` may be several, divided
        by commas, and ``kernels`` ``any``. ``fix`` keeps layouts with these sizes, by the names that `serving` has
        for them (``{"tp": 2, "prefill_workers": 1, "prefill_tp": 4}``): with all of them it prices what `serving` does.

    Returns
    -------
    DeploymentAnswer
        ``best``: layout, replicas, ``ttft_s``, ``tpot_s`` [s], probability, USD; ``choices``: the cheapest of every
        layout; ``front``: tokens/s per device over tokens/s per request.

    Raises
    ------
    InputError
        For what cannot be served, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> found = deploy("llama-3.1-8b", "h100", requests_per_s=10, tpot_s=0.02, most_devices=8)
    >>> found.best.tpot_s <= 0.02
    True
    """
    reading = read(model, options.get("set"))
    drafts = _drafts(options.pop("draft_tokens", 0), options.pop("acceptance", None))
    objective = _objective(ttft_s, tpot_s, probability, percentile)
    lengths = {name: size for name, size in (("input_len", input_len), ("output_len", output_len)) if size is not None}
    traffic = options.pop("traffic", None)
    request, per_s = _requests(traffic, lengths, options.pop("cached", 0.0), requests_per_s, users)
    _refuse_beyond(reading.shape, request, traffic)
    load = {"request": request, "requests_per_s": per_s, "users": size_of("users", users, 1, least=0)}
    refused: dict[str, str] = {}
    fix = _sizes_fixed(options.pop("fix", None) or {}, "fix", options)
    why_not = _sizes_fixed(options.pop("why_not", None) or {}, "why_not")
    most_usd_per_hour = options.pop("most_usd_per_hour", None)
    if most_usd_per_hour is not None and not most_usd_per_hour > 0:
        raise InputError("most_usd_per_hour", most_usd_per_hour, "must be USD per hour above 0", "10")
    questions = list(
        _questions(
            reading, _devices(gpu, options.pop("cluster", None)), options, {"objective": objective, **load}, refused
        )
    )
    questions = [question._replace(server=replace(question.server, **drafts), fix=fix) for question in questions]
    questions = _with_alike_caches(questions)
    most_devices = size_of("most_devices", most_devices, MOST_DEVICES)
    answer_of = partial(_answer, reading, most_devices=most_devices, most_usd_per_hour=most_usd_per_hour, pools=pools)
    answer = _with_others(answer_of(questions), answer_of, questions, why_not)
    caches = ",".join(dict.fromkeys(question.server.cache.value for question in questions))
    device = {} if gpu else {"gpu": questions[0].server.gpu.name}
    usual = {"dtype": questions[0].server.dtype.value, "kernels": questions[0].server.engine.name, "kv_dtype": caches}
    unstated = device | {name: word for name, word in usual.items() if options.get(name) is None}
    if traffic is None:
        unstated |= {name: str(USUAL_LENGTH) for name in ("input_len", "output_len") if name not in lengths}
    return replace(answer, refused=refused, unstated=unstated)


def _devices(gpu: GpuLike | Sequence[GpuLike] | None, cluster: ClusterLike | None = None) -> Sequence[Any]:
    """The devices of a question, each once, or the cluster; a name that there is not is refused before the search."""
    if cluster is not None:
        if gpu:
            raise InputError("cluster", str(cluster), "names the device, as --gpu does: give one of them")
        return [cluster_or_usual(cluster)[0]]
    gpus = list({str(device): device for device in gpu}.values()) if isinstance(gpu, list | tuple) else [gpu]
    for device in gpus:
        _ = device is None or device_of(device)  # type: ignore[arg-type]
    return gpus


def _with_others(
    answer: DeploymentAnswer,
    answer_of: Callable[[Sequence[_Question]], DeploymentAnswer],
    questions: Sequence[_Question],
    why_not: Mapping[str, int],
) -> DeploymentAnswer:
    """The answer with a surer deployment where the cheapest is doubtful and no probability was stated, and with the
    cheapest of the sizes of ``why_not``."""
    if answer.is_doubtful and answer.objective.probability is None:
        sure = replace(answer.objective, probability=SURE)
        surer = [q._replace(deployer=replace(q.deployer, objective=sure)) for q in questions]
        answer = replace(answer, surer=answer_of(surer).best)
    if why_not:
        answer = replace(answer, why_not=answer_of([q._replace(fix={**q.fix, **why_not}) for q in questions]))
    return answer


_GOALS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "ttft": ("ttft_s", partial(parse_seconds, "ttft")),
    "tpot": ("tpot_s", partial(parse_seconds, "tpot")),
    "rate": ("requests_per_s", float),
    **{name: (name, float) for name in ("percentile", "probability", "cached")},
    **{name: (name, int) for name in ("users", "input_len", "output_len", "most_devices")},
}
"""Words of the objective ``serve``: the parameter of `deploy` and how it is read."""


def served_goal(objective: str) -> JsonDict:
    """``serve:ttft=0.5,rate=20`` as parameters of `deploy`. Raises ``InputError``."""
    words = [word.partition("=") for word in objective.partition(":")[2].split(",") if word]
    try:
        return {_GOALS[name.strip()][0]: _GOALS[name.strip()][1](value) for name, _, value in words}
    except (KeyError, ValueError):
        must = f"must read serve:NAME=NUMBER,... with {', '.join(_GOALS)}"
        raise InputError("objective", objective, must, "serve:ttft=0.5,tpot=0.03,rate=20") from None


def _requests(
    traffic: str | Path | None, lengths: dict[str, Any], cached: float, requests_per_s: float, users: int
) -> tuple[Load, float]:
    """The requests, and how many come per second."""
    if requests_per_s and users:
        raise InputError("users", users, "states the load, as the requests per second do: give one of them", "")
    per_s = _rate(requests_per_s)
    if traffic is None:
        request = stated_request(lengths, cached)
    else:
        stated = {**lengths, "cached": cached, "requests_per_s": requests_per_s, "users": users}
        for name, value in stated.items():
            if value:
                raise InputError(name, str(value), "is in the traffic file: leave it out")
        request, per_s = recorded_requests(traffic)
    return replace(request, open=per_s > 0), per_s


def _answer(
    reading: ModelReading,
    questions: Sequence[_Question],
    *,
    most_devices: int,
    most_usd_per_hour: float | None,
    pools: bool,
) -> DeploymentAnswer:
    """The layouts of every device, precision and engine, ranked."""
    unpriced = tuple(dict.fromkeys(q.server.gpu.name for q in questions if q.where.price_usd_per_device_hour is None))
    priced = [
        (question, pair)
        for question in counted(questions, "pricing layouts")
        for pair in _priced(question, most_devices, pools=pools)
    ]
    load = questions[0].deployer
    ranked = sorted(_ranked(priced, most_devices, of_price=not unpriced), key=lambda entry: entry[0])
    offered, least_usd = len(ranked), None
    if most_usd_per_hour is not None:
        if unpriced:
            must = f"needs a price of {', '.join(unpriced)} (--price)"
            raise InputError("most_usd_per_hour", most_usd_per_hour, must)
        usd = [_usd_per_hour(entry) for entry in ranked]
        least_usd = min(usd, default=None)
        ranked = [entry for entry, hourly in zip(ranked, usd, strict=True) if hourly <= most_usd_per_hour]
    equal = sum(entry[0][0] <= ranked[0][0][0] * (1 + 1e-9) for entry in ranked)  # of them the surest, then the fastest
    cheapest = itertools.islice(_choices(ranked), max(SHOWN, min(equal, MOST_EQUAL)))
    choices = tuple(sorted(cheapest, key=partial(_order, load, of_price=not unpriced)))[:SHOWN]
    simple = _choices(entry for entry in ranked if _is_simple(entry[2].layouts[entry[3]]))
    servers = [(group.layouts[0].server.gpu, group.layouts[0].server.num_devices) for _, (_, group) in priced]
    most_load = max((_most_load(question, close, most_devices) for question, (_, close) in priced), default=0.0)
    most_likely = None if choices else _most_likely(priced, load.objective)
    return DeploymentAnswer(
        reading=reading,
        objective=load.objective,
        load=load,
        most_devices=most_devices,
        choices=choices,
        simpler=next(simple, None) if choices and not _is_simple(choices[0].deployment.layout) else None,
        front=tuple(_front([wide for _, (wide, _) in priced], load)),
        num_layouts=sum(len(close.layouts) for _, (_, close) in priced),
        most_load=most_load,
        most_likely=most_likely,
        least_usd_per_hour=None if choices else least_usd,
        rejected=_rejected(priced, offered, len(ranked)),
        would_meet={} if choices else _would_meet(priced, most_devices, most_load, most_likely, least_usd),
        unpriced=unpriced,
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *_assumed(questions, servers, unpriced, pools=pools),
        ),
    )


def _objective(ttft_s: float, tpot_s: float, probability: float | None, percentile: float | None) -> LatencyGoal:
    goal = LatencyGoal(
        ttft_s=_limit("ttft_s", ttft_s),
        tpot_s=_limit("tpot_s", tpot_s),
        probability=_within("probability", probability, 1, "0.9"),
        percentile=_within("percentile", percentile, 100, "95"),
    )
    if math.isinf(min(ttft_s, tpot_s)):
        for name, share in (("probability", probability), ("percentile", percentile)):
            if share is not None:
                raise InputError(name, share, "belongs to ttft or tpot: state one of them", "tpot=0.05")
    return goal


def _refuse_beyond(shape: TransformerShape, request: Load, traffic: str | Path | None) -> None:
    """Raise ``InputError`` for requests longer than the model's positions, which engines refuse."""
    prompt, answer, most = int(np.max(request.input_len)), int(np.max(request.output_len)), shape.max_positions
    longest = max(request.longest, prompt + answer)
    if too_long("", longest, shape):
        must = f"makes requests of up to {longest} tokens; {shape.name or 'the model'} takes at most {most}"
        if traffic is not None:
            raise InputError("traffic", str(traffic), must)
        kept = prompt if prompt < most and not request.longest else most // 2
        raise InputError(
            "output_len", answer, f"with input_len={prompt} {must}", f"input_len={kept} with {most - kept}"
        )


def _limit(name: str, seconds: float) -> float:
    if not seconds > 0:
        raise InputError(name, seconds, "must be seconds above 0", "0.5" if name == "ttft_s" else "0.05")
    return float(seconds)


def _within(name: str, share: float | None, whole: float, near: str) -> float | None:
    if share is not None and not 0 < share < whole:
        raise InputError(name, share, f"must be above 0 and below {whole}", near)
    return share


def _drafts(tokens: int, acceptance: float | None) -> dict[str, Any]:
    """Speculative decoding as a server has it; without it nothing."""
    tokens = size_of("draft_tokens", tokens, 0, least=0)
    if tokens > MOST_DRAFTS:
        raise InputError("draft_tokens", tokens, f"must be at most {MOST_DRAFTS}", "3")
    if (acceptance is None) != (tokens == 0):
        must = "goes with draft_tokens, and draft_tokens with it"
        raise InputError("acceptance", "none" if acceptance is None else acceptance, must, "0.7")
    return {"draft_tokens": tokens, "acceptance": _within("acceptance", acceptance, 1, "0.7")} if tokens else {}


def _rate(per_s: float) -> float:
    if not 0 <= per_s < math.inf:
        raise InputError("requests_per_s", per_s, "must be requests per second, 0 or more", f"{abs(per_s):g}")
    return float(per_s)


def _questions(
    reading: ModelReading,
    gpus: Sequence[GpuLike | Cluster | None],
    options: RunOptions,
    base: dict[str, Any],
    refused: dict[str, str],
) -> Iterator[_Question]:
    """Every device, precision and engine of the question; those that cannot be are ``refused`` where others can."""
    dtypes = str(options.get("dtype") or "").split(",")
    engines = str(options.get("kernels") or "").split(",")
    error: InputError | None = None
    any_left = False
    places = [(place.gpu, place) if isinstance(place, Cluster) else (place, None) for place in gpus]
    kinds = ((place, name) for place, word in itertools.product(places, engines) for name in _named(place[0], word))
    for ((gpu, cluster), kernels), dtype in itertools.product(kinds, dtypes):
        words: Any = {**options, "dtype": dtype or None, "kernels": kernels or None}
        try:
            run, device, own = served_run(reading, gpu, words)
            stated, engine, calibration = served_in(run, reading, device, own)
            server = replace(server_of(stated, reading, device, engine, 1), shape=reading.shape)
            check(padded(server.shape, server.tp), ParallelDims(tp=server.tp, ep=server.ep))
            where = (cluster or usual_cluster(device)).with_price(options.get("price"))
            any_left = True
            yield _Question(
                Deployer(calibration=calibration, **base),
                server,
                where,
                _fixed(run, "tp"),
                _fixed(run, "ep"),
                (*(precision_of(dtype, device)[1] if dtype else ()), *_other_network(cluster)),
                () if kernels else tuple(other_engines(stated, reading, device, own)),
                {},
                refused,
            )
        except InputError as caught:
            error = error or caught
            refused[" ".join(str(word) for word in (gpu, dtype, kernels) if word)] = str(caught)
    if not any_left and error is not None:
        raise error


def _other_network(cluster: Cluster | None) -> tuple[str, ...]:
    """A note where a cluster's nodes are joined otherwise than a device's usual ones are."""
    usual = None if cluster is None else usual_cluster(cluster.gpu)
    if cluster is None or usual is None or cluster.tiers[-1].bytes_per_s == usual.tiers[-1].bytes_per_s:
        return ()
    return (f"between nodes the network of {usual.name} is priced, not that of {cluster.name}",)


def _named(gpu: GpuLike | None, kernels: str) -> list[str]:
    """The engines that a word stands for: ``any`` for all that are built for the device."""
    if kernels != "any":
        return [kernels]
    return [engine.name for engine in (ENGINES.values() if gpu is None else engines_on(device_of(gpu)))]


def _with_alike_caches(questions: Sequence[_Question]) -> list[_Question]:
    """The questions with 16-bit keys and values in all where some engines' or precisions' own are 16-bit and others
    8-bit: what is compared then stores the same. (One that is stated, or the checkpoint's, is the same already.)"""
    narrow = [question.server.cache.bytes < 2 for question in questions]
    if all(narrow):
        return list(questions)
    alike = []
    for question, raised in zip(questions, narrow, strict=True):
        if raised:
            server, own = question.server, question.server.cache.value
            note = f"{server.engine.name} with keys and values in bf16, as the others: its own are {own} (--kv-dtype)"
            server = replace(server, engine=replace(server.engine, kv_dtype=DType.BF16))
            question = question._replace(server=server, notes=(*question.notes, note))
        alike.append(question)
    return alike


def _elsewhere(question: _Question, deployment: Deployment) -> tuple[tuple[Steady, ...], Floats]:
    """A replica under its load in the engines that the question leaves open, and the deviation of ln time per token
    that holds them, as `serving` has it."""
    layout, in_flight = deployment.layout, np.asarray([[deployment.in_flight]])

    def steady_on(calibration: Calibration) -> Steady:
        return replace(question.deployer, calibration=calibration).steady([layout], in_flight)

    there = []
    for engine, calibration in question.others:
        prefill = layout.prefill and replace(layout.prefill, engine=engine)
        moved = replace(layout, server=replace(layout.server, engine=engine), prefill=prefill)
        there.append(replace(question.deployer, calibration=calibration).steady([moved], in_flight))
    holding = tuple(steady for steady in there if np.all(np.isfinite(steady.tpot_s)))
    known = question.deployer.calibration
    return holding, covered(deployment.steady, holding, known, steady_on)


def _fixed(run: Run, name: str) -> Sequence[int]:
    return (run.get(name),) if name in run else WIDTHS if name == "tp" else ()


def _priced(question: _Question, most_devices: int, *, pools: bool) -> list[tuple[PricedLayouts, PricedLayouts]]:
    """Every layout of a device, precision and engine that holds a request: within one domain of fast links or, where
    none does, within the fewest such domains."""
    joined = min(joined_devices(question.server.gpu), most_devices)
    priced: list[tuple[PricedLayouts, PricedLayouts]] = []
    groups: list[list[ServerLayout]] = []
    while not priced and joined <= most_devices:
        groups = _layouts(question, joined, most_devices, pools=pools)
        priced = [pair for layouts in groups if (pair := question.deployer.priced(layouts))]
        joined *= 2
    if question.fix and not groups:
        words = ",".join(f"{name}={size}" for name, size in question.fix.items())
        raise InputError("fix", words, f"is no layout of up to {most_devices} devices", "tp=2")
    return priced


def _layouts(question: _Question, joined: int, most_devices: int, *, pools: bool) -> list[list[ServerLayout]]:
    """The layouts with the sizes that are fixed, those of the same servers together."""
    fix, server = question.fix, question.server
    widths = sorted({*question.widths, *(fix[name] for name in ("tp", "prefill_tp") if name in fix)})
    answers = servers_of(server, joined, widths, [fix["ep"]] if "ep" in fix else question.experts)
    servers = _uncut(question, answers)
    staged = with_stages(servers, joined_devices(server.gpu), most_devices)
    groups = [[ServerLayout(server=answering)] for answering in (*servers, *staged)]
    if pools:
        firsts = _uncut(question, servers_of(server, joined, widths, question.experts), "prefill_")
        pairs = itertools.product(question.deployer.first_servers(firsts), servers)
        groups += [with_pools(first, then, most_devices) for first, then in pairs]
    fixed = ([layout for layout in group if fix.items() <= _sizes(layout).items()] for group in groups)
    return [group for group in fixed if group]


def _uncut(question: _Question, servers: Sequence[Server], pool: str = "") -> list[Server]:
    """Of the servers with the sizes that are fixed, those that cut no block of weights with one scale; what the others
    cut is refused. Raises ``InputError`` where sizes that are stated leave none."""
    fix, names = question.fix, ("tp", "copies", "ep")
    fixed = [one for one in servers if all(fix.get(pool + n, getattr(one, n)) == getattr(one, n) for n in names)]
    cut = [cut_block(server) for server in fixed]
    kept = [server for server, why in zip(fixed, cut, strict=True) if not why]
    if fixed and not kept and (fix or question.widths != WIDTHS):
        raise InputError(f"{pool}tp", fixed[0].tp, cut[0], near_uncut(fixed[0]))
    for server, why in zip(fixed, cut, strict=True):
        if why and why not in question.refused.values():
            question.refused[f"{server.dtype.value} as {pools_text(ServerLayout(server=server))}"] = why
    return kept


_SIZES = ("tp", "copies", "ep", "pp", "decode_workers", "prefill_workers", "prefill_tp", "prefill_copies", "prefill_ep")
"""Sizes of a layout, by the names that `serving` has for them (it completes the last)."""


def _sizes(layout: ServerLayout) -> dict[str, int]:
    server, first = layout.server, layout.prefill
    prompts = (first.tp, first.copies, first.ep) if first else (0, 0, 0)
    workers = (layout.decode_workers, layout.prefill_workers)
    return dict(zip(_SIZES, (server.tp, server.copies, server.ep, server.pp, *workers, *prompts), strict=True))


def _sizes_fixed(fix: JsonMap, field: str, options: Any = MappingProxyType({})) -> dict[str, int]:
    """The sizes of ``--fix`` or ``--why-not``; one that ``options`` states too is refused if it differs."""
    for name in fix:
        if name not in _SIZES:
            raise InputError(field, name, "is not a size of a layout", ", ".join(_SIZES))
    numbers = {name: int(size) if str(size).isdecimal() else size for name, size in fix.items()}
    sizes = {name: size_of(name, size, 1, least=int(name != "prefill_workers")) for name, size in numbers.items()}
    for name, size in sizes.items():
        if (stated := options.get(name)) not in (None, size):
            raise InputError(field, f"{name}={size}", f"and {name}={stated} are two sizes: give one of them")
    return sizes


_Ranked = tuple[tuple[float, ...], _Question, PricedLayouts, int]


def _most_load(question: _Question, priced: PricedLayouts, most_devices: int) -> float:
    """The largest load, in requests in flight or per second as the question has it, that the devices take."""
    rows, best = np.arange(len(priced.layouts)), priced.best
    counts = np.array([most_devices // layout.num_devices for layout in priced.layouts])
    per_s = np.asarray(priced.steady.output_tokens_per_s)[rows, best] / question.deployer.output_len
    loads = priced.in_flight[rows, best] if question.deployer.users else per_s
    return float(np.where(priced.met.any(axis=1), counts * loads, 0.0).max())


def _ranked(
    priced: Sequence[tuple[_Question, tuple[PricedLayouts, PricedLayouts]]], most_devices: int, *, of_price: bool
) -> Iterator[_Ranked]:
    """The layouts that meet the objectives, with what they are ranked by: cost of the load (of a token, where there is
    none), then no pools, then no copies, then the time per token."""
    for question, (_, best) in priced:
        replicas, columns = question.deployer.replicas(best), best.best
        usd = question.where.price_usd_per_device_hour or 0.0 if of_price else 1.0
        loaded = bool(question.deployer.users or question.deployer.requests_per_s)
        for row, layout in enumerate(best.layouts):
            devices = int(replicas[row]) * layout.num_devices
            if not 0 < devices <= most_devices:
                continue
            rate, tpot_s = (
                float(np.asarray(figure)[row, columns[row]])
                for figure in (best.steady.output_tokens_per_s, best.steady.tpot_s)
            )
            cost = devices * usd if loaded else devices * usd / rate
            kinds = float(layout.prefill is not None), float(layout.server.copies > 1)
            yield (cost, *kinds, tpot_s), question, best, row


def _most_likely(
    priced: Sequence[tuple[_Question, tuple[PricedLayouts, PricedLayouts]]], objective: LatencyGoal
) -> tuple[ServerLayout, float] | None:
    """The layout that meets the objectives most likely, where they would be met if only the predictions had to."""
    predicted = replace(objective, probability=None)
    if objective.probability is None or not any(predicted.met(wide.steady).any() for _, (wide, _) in priced):
        return None
    likely = [objective.likely(wide.steady).max(axis=1) for _, (wide, _) in priced]
    group = int(np.argmax([row.max() for row in likely]))
    row = int(likely[group].argmax())
    return priced[group][1][0].layouts[row], float(likely[group][row])


_Priced = Sequence[tuple[_Question, tuple[PricedLayouts, PricedLayouts]]]


def _alone(goal: LatencyGoal) -> Iterator[tuple[str, LatencyGoal]]:
    """Each of the objectives as the only one."""
    yield "ttft_s", replace(goal, tpot_s=math.inf)
    yield "tpot_s", replace(goal, ttft_s=math.inf)


def _rejected(priced: _Priced, offered: int, affordable: int) -> dict[str, int]:
    """How many layouts do not meet an objective at any load, do not meet both at one, need too many devices for the
    load, or cost too much."""
    counts = Counter[str]()
    for question, (wide, _) in priced:
        alone = {name: goal.met(wide.steady).any(axis=1) for name, goal in _alone(question.deployer.objective)}
        for name, met in alone.items():
            counts[name] += int((~met).sum())
        counts["both at one load"] += int((alone["ttft_s"] & alone["tpot_s"] & ~wide.met.any(axis=1)).sum())
        counts["most_devices"] += int(wide.met.any(axis=1).sum())
    counts["most_devices"] -= offered
    counts["most_usd_per_hour"] = offered - affordable
    return {name: count for name, count in counts.items() if count > 0}


def _would_meet(
    priced: _Priced,
    most_devices: int,
    most_load: float,
    most_likely: tuple[ServerLayout, float] | None,
    least_usd: float | None,
) -> dict[str, float]:
    """Where nothing meets the objectives: fields, each with the value with which alone something would."""
    load = priced[0][0].deployer if priced else None
    if load is None:
        return {}
    if least_usd is not None:
        return {"most_usd_per_hour": least_usd}
    if most_load:
        wanted = load.users or load.requests_per_s
        name = "users" if load.users else "requests_per_s"
        return {"most_devices": math.ceil(most_devices * wanted / most_load), name: most_load}
    if most_likely is not None:
        return {"probability": most_likely[1]}
    found: dict[str, float] = {}
    wanted = load.users or load.requests_per_s * load.output_len
    for question, (wide, _) in priced:
        goal = replace(question.deployer.objective, probability=None)
        times = dict(zip(("ttft_s", "tpot_s"), wide.steady.quantile(goal.percentile), strict=True))
        devices = np.asarray([[layout.num_devices] for layout in wide.layouts])
        enough = np.ceil(wanted / np.maximum(wide.load, 1e-12)) * devices <= most_devices
        for name, other in _alone(goal):
            needed = "tpot_s" if name == "ttft_s" else "ttft_s"
            least = float(np.where(enough & other.met(wide.steady), times[needed], math.inf).min())
            found[needed] = min(found.get(needed, math.inf), least)
    return {name: seconds for name, seconds in found.items() if math.isfinite(seconds)}


def _usd_per_hour(entry: _Ranked) -> float:
    _, question, best, row = entry
    devices = int(question.deployer.replicas(best)[row]) * best.layouts[row].num_devices
    return devices * (question.where.price_usd_per_device_hour or 0.0)


def _order(load: Deployer, choice: Choice, *, of_price: bool) -> tuple[float, ...]:
    """The cheapest of the load (without one, of a token) first; at the same cost the surer by a tenth, then without
    pools, then without copies, then the surer by a hundredth, then the faster."""
    deployment, layout = choice.deployment, choice.deployment.layout
    cost = (choice.usd_per_hour or 0.0) if of_price else float(deployment.num_devices)
    cost = cost if load.users or load.requests_per_s else cost / deployment.output_tokens_per_s
    kinds = layout.prefill is not None, layout.server.copies > 1
    likely = float(deployment.likely)
    return (float(f"{cost:.9g}"), -round(likely, 1), *map(float, kinds), -round(likely, 2), choice.tpot_s)


def _lengths_text(request: Load) -> str:
    if not request.longest:
        return "all prompts and answers have the given lengths"
    spread = [math.sqrt(cv2) for cv2 in (request.prompt_cv2, request.answer_cv2)]
    return (
        f"prompts deviate by {spread[0]:.0%} and answers by {spread[1]:.0%} from these means, arrivals by "
        f"{math.sqrt(request.arrival_cv2):.0%}; the longest request has {request.longest:,} tokens"
    )


def _is_simple(layout: ServerLayout) -> bool:
    return layout.prefill is None and layout.server.copies == 1


def _choices(ranked: Iterator[_Ranked] | Sequence[_Ranked]) -> Iterator[Choice]:
    """The best of every kind of layout, the cheapest first."""
    seen = set()
    for _, question, best, row in ranked:
        layout = best.layouts[row]
        sizes = [(pool.tp, pool.copies, pool.ep, pool.pp) for pool in (layout.server, layout.prefill) if pool]
        kind = (layout.server.gpu.name, layout.server.dtype, layout.server.engine.name, *sizes)
        if kind in seen:
            continue
        seen.add(kind)
        deployment = question.deployer.deployed(best, row)
        binding, percentile = _binding(question.deployer, best, row), question.deployer.objective.percentile or 95
        elsewhere, tpot_log_sigma = _elsewhere(question, deployment)
        pool = pools_of(deployment)[-1]  # of answers
        started = replace(pool.server, engine=replace(pool.server.engine, max_num_seqs=pool.running))
        yield Choice(
            deployment=deployment,
            where=question.where,
            binding=binding,
            in_per_out=question.deployer.input_len / question.deployer.output_len,
            percentile=percentile,
            commands=commands(deployment, question.deployer.longest),
            to_do=tuple(left_to_do(deployment)),
            elsewhere=elsewhere,
            memory=server_memory(started),
            tpot_log_sigma=float(np.ravel(tpot_log_sigma)[0]),
        )


def _binding(deployer: Deployer, best: PricedLayouts, row: int) -> str:
    """What keeps a replica from taking more requests than those that meet the objectives: one of these, or memory."""
    in_flight = best.in_flight[row]
    after = np.flatnonzero(in_flight > in_flight[best.best[row]])
    if not after.size or best.met[row, after[0]]:
        return "max_num_seqs" if best.layouts[row].server.engine.max_num_seqs else "memory"
    limits = {"ttft_s": deployer.objective.ttft_s, "tpot_s": deployer.objective.tpot_s}
    seen = best.steady.quantile(deployer.objective.percentile)
    over = [
        name
        for time_s, (name, limit) in zip(seen, limits.items(), strict=True)
        if np.asarray(time_s)[row, after[0]] > limit
    ]
    return over[0] if over else "probability"


def _front(priced: Sequence[PricedLayouts], deployer: Deployer) -> Iterator[ServedPoint]:
    """Layouts and loads that no other beats in tokens/s per device and per request, of those where no request waits for
    room and the first token is in time; the fastest for a request first."""
    if not priced:
        return
    objective = deployer.objective
    places = [(wide, row, column) for wide in priced for row, column in np.ndindex(*wide.in_flight.shape)]
    rates = np.concatenate(
        [
            np.ravel(np.asarray(wide.steady.output_tokens_per_s) / [[layout.num_devices] for layout in wide.layouts])
            for wide in priced
        ]
    )
    seen = [wide.steady.quantile(objective.percentile) for wide in priced]
    first_s, tpot_s = (np.concatenate([np.ravel(pair[i]) for pair in seen]) for i in (0, 1))
    waiting = np.concatenate([np.ravel(_waiting(wide, deployer)) for wide in priced])
    in_time = np.flatnonzero((first_s <= max(objective.ttft_s, first_s.min())) & (waiting < 1))
    kept = in_time[is_pareto(np.stack([-rates[in_time], tpot_s[in_time]], axis=1))]
    _, first = np.unique(tpot_s[kept], return_index=True)  # layouts that are equal stand once
    for index in kept[first]:
        wide, row, column = places[index]
        yield ServedPoint(
            layout=wide.layouts[row],
            in_flight=int(wide.in_flight[row, column]),
            tokens_per_s_per_device=float(rates[index]),
            tokens_per_s_per_request=1 / float(tpot_s[index]),
            ttft_s=float(first_s[index]),
        )


def _waiting(priced: PricedLayouts, deployer: Deployer) -> Floats:
    """Requests that wait for room in memory or, where no time to the first token is stated, for each of the servers for
    prompts: beyond one, more in flight mostly wait."""
    steady, prompts = priced.steady, priced.layouts[0].prefill
    if prompts is None or math.isfinite(deployer.objective.ttft_s):
        return steady.waiting
    servers = np.array([[layout.prefill_workers * prompts.copies] for layout in priced.layouts])
    ttft_s, per_s = np.asarray(steady.ttft_s), np.asarray(steady.output_tokens_per_s) / deployer.output_len
    return np.asarray(np.maximum(steady.waiting, per_s * (ttft_s - ttft_s.min(axis=1, keepdims=True)) / servers))


def _assumed(
    questions: Sequence[_Question], servers: Sequence[tuple[Gpu, int]], unpriced: Sequence[str], *, pools: bool
) -> Iterator[str]:
    """What was assumed, in sentences; ``servers``: GPUs and devices of those that were priced."""
    names = dict.fromkeys(question.server.engine.name for question in questions)
    request, server = questions[0].deployer.request, questions[0].server
    yield f"served by {', '.join(names)}; {_lengths_text(request)}"
    if (recorded := request.recorded) is not None:
        first = f"the first {recorded.time_s.size:,}" if recorded.time_s.size == MOST_RECORDED else "all"
        yield f"first tokens wait as the recorded requests would ({first} of them, given to copies in turn)"
    elif request.arrival_cv2 == 1:
        yield "requests arrive independently of each other: in bursts the first token waits longer"
    if request.cached_len:
        yield f"{request.cached_len:,} tokens of a prompt are cached already; each request keeps them for itself"
    if server.draft_tokens:
        yield (
            f"{server.draft_tokens} tokens drafted per step by one more layer, {server.acceptance:g} of them right "
            f"after right ones: {server.tokens_per_step:.2f} tokens per step"
        )
    yield from dict.fromkeys(note for gpu, devices in servers for note in crossing_note(gpu, devices))
    yield "nothing is lost between replicas"
    yield "the model's shape is as it is; `sartor advise --objective serve:...` prices others of its size"
    yield from dict.fromkeys(note for question in questions for note in question.notes)
    if len({question.server.dtype for question in questions}) > 1:
        yield "narrower weights change answers: what that costs in quality is not judged"
    if pools:
        yield "servers for prompts and for answers are of one GPU type and precision, 1 to 4 of each in a replica"
    for question in {question.where.name: question for question in questions}.values():
        if question.where.price_usd_per_device_hour is not None:
            where = question.where
            source = dated_price(where.price_source, where.price_date)
            yield f"{question.server.gpu.name} at {where.price_usd_per_device_hour:g} USD per device-hour ({source})"
    if unpriced:
        yield f"devices are counted instead of money: no price of {', '.join(unpriced)} is known (--price states one)"
