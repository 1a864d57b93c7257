"""A server under load: time to first token, time between tokens, and throughput."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from sartor.answers.serving import ServingAnswer
from sartor.api.models import Model, read
from sartor.api.questions import (
    asked_run,
    crossing_note,
    device_note,
    in_engine,
    padding_note,
    released_note,
    released_run,
    reserve_note,
)
from sartor.api.words import GpuLike, of_frameworks, precision_of, refuse_on_a_chip, size_of, word_of
from sartor.ask.alternatives import turn_of_time
from sartor.cost.correction.attention import kernels_measured
from sartor.cost.correction.calibration import ANY, Calibration, load_calibration
from sartor.cost.uncertainty import covering
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import joined_devices, usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.launch.serving import StartedServer, read_servers
from sartor.model.lower import feasible
from sartor.model.lower.setting import check
from sartor.model.workload import AttentionKernel, ModelReading, ParallelDims, Phase, too_long
from sartor.model.zoo import model_entry
from sartor.options import with_options
from sartor.rules.rule import Grade
from sartor.run.fields import FIELDS, NOT_OF_SERVERS, OF_ONE_PASS, Origin, Run, RunOptions, Turn
from sartor.step.question import checked_skew
from sartor.step.serving.batching import FIRST_TOKEN_S, FIRST_TOKEN_STEPS, Steady, disaggregated, steady_state
from sartor.step.serving.engines import Engine, engines_on
from sartor.step.serving.inference import WIDTHS
from sartor.step.serving.served import (
    VOCABULARY_MULTIPLE,
    Load,
    Server,
    Shortage,
    capacity,
    cut_block,
    holds,
    longest_tokens,
    near_uncut,
    padded,
    server_memory,
    shortage,
    would_fit,
)
from sartor.units import Floats, IntArray

CONCURRENCY = (1, 4, 16, 64, 256)
"""Default numbers of sequences in flight."""


@with_options(RunOptions, FIELDS, without=NOT_OF_SERVERS)
def serving(
    model: Model | None = None,
    gpu: GpuLike | None = None,
    *,
    concurrency: int | Sequence[int] = CONCURRENCY,
    input_len: int = 1024,
    output_len: int = 1024,
    copies: int = 1,
    prefill_workers: int = 0,
    prefill_tp: int | None = None,
    prefill_copies: int = 1,
    prefill_ep: int | None = None,
    decode_workers: int = 1,
    **options: Unpack[RunOptions],
) -> ServingAnswer:
    """Latency and throughput of ``model`` served by continuous batching on ``tp * copies`` devices.

    Parameters
    ----------
    model, gpu
        As in `estimate`.
    concurrency
        Sequences always in flight, one number or several.
    input_len, output_len
        Tokens of a prompt and of an answer.
    copies
        Attention's data parallelism.
    prefill_workers, prefill_tp, prefill_copies, prefill_ep, decode_workers
        Prefill runs on that many separate servers (``prefill_tp * prefill_copies`` devices each, experts whole on
        ``prefill_ep`` of them) and decoding on ``decode_workers``; 0: one pool does both.
    **options
        The fields of a run, as in `estimate`: without ``tp`` the fewest devices that hold a sequence; ``ep`` devices
        hold whole experts each, the others split every expert; ``kernels`` is the serving framework. ``launch``: a file
        that starts servers of vLLM, SGLang or TensorRT-LLM (script, Dockerfile, manifest, values, YAML), or the folder
        that `deploy` wrote, for what is not stated; ``findings`` has what would not start or is not priced.

    Returns
    -------
    ServingAnswer
        ``steady``: first token ``ttft_s`` and each further token ``tpot_s`` [s] with 80% intervals, and tokens/s, for
        every concurrency, USD per million tokens with a ``price``; the most sequences that fit.

    Raises
    ------
    InputError
        For what cannot be served, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> serving("llama-3.1-8b", "h100", concurrency=32).steady.tpot_s > 0.005
    array([ True])
    """
    sizes = {"copies": copies, "prefill_workers": prefill_workers, "prefill_tp": prefill_tp}
    sizes |= {"prefill_copies": prefill_copies, "prefill_ep": prefill_ep, "decode_workers": decode_workers}
    lengths = {"concurrency": concurrency, "input_len": input_len, "output_len": output_len}
    if (launch := options.pop("launch", None)) is not None:
        return _launched(Path(launch), model, gpu, lengths, {**options, **sizes})
    if model is None:
        raise InputError("MODEL", "not given", "name the model to serve, or a file that starts it (launch)", "qwen3-8b")
    return _served(read(model, options.get("set")), gpu, lengths, sizes, options)


def _served(
    reading: ModelReading, gpu: GpuLike | None, lengths: JsonMap, sizes: JsonMap, options: RunOptions
) -> ServingAnswer:
    """The servers of these sizes under every load of these lengths."""
    load = Load(
        concurrency=_in_flight(lengths["concurrency"]),
        input_len=size_of("input_len", lengths["input_len"], 1024),
        output_len=size_of("output_len", lengths["output_len"], 1024),
    )
    prefill_workers, workers = sizes["prefill_workers"], size_of("decode_workers", sizes["decode_workers"], 1)
    run, device, own = served_run(reading, gpu, options)
    run, engine, calibration = served_in(run, reading, device, own)
    run, server = _completed(run, server_of(run, reading, device, engine, size_of("copies", sizes["copies"], 1)), load)
    prefill = _prefill_pool(server, sizes)
    for name, pool in (("tp", server), ("prefill_tp", prefill)):
        if pool is not None and (why := cut_block(pool)):
            raise InputError(name, pool.tp, why, near_uncut(pool))
    steady_in = partial(_steady, server, prefill, (prefill_workers, workers), load)
    steady, shortages = steady_in(engine, calibration), _shortages(server, prefill, load)
    elsewhere = {} if shortages else dict(_in_other_engines(run, reading, device, own, steady_in))
    return ServingAnswer(
        reading=reading,
        run=run,
        server=server,
        load=load,
        steady=steady,
        most_sequences=int(holds(server, load)[0]) * server.copies * workers,
        whole_sequences=int(capacity(server, *_longest(load))) * server.copies * workers,
        longest_tokens=longest_tokens(server),
        memory=server_memory(server),
        num_devices=server.num_devices * workers + (prefill.num_devices * prefill_workers if prefill else 0),
        prefill=prefill,
        prefill_workers=prefill_workers,
        decode_workers=workers,
        elsewhere=(holding := _holding(elsewhere)),
        tpot_log_sigma=covered(steady, holding.values(), calibration, partial(steady_in, engine)),
        depends_on=_turns(steady, elsewhere),
        shortages=shortages,
        would_fit=_change_that_fits(server, prefill, load),
        assumptions=(*reading.assumptions, *reading.notes, *_assumed(run, reading, server, load, calibration)),
    )


def _longest(load: Load) -> tuple[int, int]:
    """Tokens of the longest prompt and answer."""
    return int(np.max(load.input_len)), int(np.max(load.output_len))


_UNSTATED = {"copies": 1, "prefill_workers": 0, "prefill_copies": 1, "decode_workers": 1}


def _launched(
    path: Path, model: Model | None, gpu: GpuLike | None, lengths: JsonMap, options: JsonMap
) -> ServingAnswer:
    """The servers that a file starts, with what is stated instead of what it says."""
    pools = {role: [one for one in read_servers(path) if one.role == role] for role in ("prefill", "decode", "")}
    answers = pools["decode"] or pools[""]
    if not answers or any(len({str(one.stated()) for one in pool}) > 1 for pool in pools.values()):
        must = "must start servers for answers, and all of a kind alike"
        raise InputError("launch", str(path), must, "a file of each")
    main, firsts = answers[0], pools["prefill"]
    counts = [sum(one.count for one in pool) for pool in (answers, firsts)]
    name = model or main.model
    if name == "MODEL":
        raise InputError("MODEL", "not given", f"{path} does not name it: name it", "qwen3-8b")
    stated = main.stated()
    findings = [finding for one in (main, *firsts[:1]) for finding in one.findings]
    if not model and (known := _in_zoo(main.model)):
        said = f"{name} is priced as {known} of the zoo: name its config.json if it differs"
        name, findings = known, [*findings, ("info", "model", said)]
    if (whole := int(stated["copies"])) > 1 and read(name, options.get("set")).shape.moe_ffn is None:
        stated |= {"copies": 1, "ep": 1}
        findings.append(("info", "copies", f"a model without experts has {whole} whole servers of it: one is priced"))
    if firsts:
        first, together = firsts[0].stated(), math.gcd(*counts)
        stated |= {"prefill_workers": counts[1] // together, "decode_workers": counts[0] // together}
        stated |= {f"prefill_{name}": first.get(name, 1) for name in ("tp", "copies", "ep")}
    if main.values.keys() & {"drafts", "algorithm", "decoding"}:
        findings.append(("warn", "draft_tokens", "speculative decoding: priced without it (`sartor deploy` takes it)"))
    given = {name: value for name, value in options.items() if value not in (None, _UNSTATED.get(name))}
    if main.longest and sum(np.max(lengths[name]) for name in ("input_len", "output_len")) > main.longest:
        must = f"with input_len={lengths['input_len']} makes more than the {main.longest} tokens that {path} allows"
        raise InputError("output_len", lengths["output_len"], must, str(max(main.longest - lengths["input_len"], 1)))
    words: Any = {**lengths, **stated, **given}
    answer = serving(name, gpu or main.gpu or None, **words)
    if not (gpu or main.gpu):
        findings.append(("warn", "gpu", f"{path} does not name its GPU: priced on {answer.server.gpu.name} (--gpu)"))
    findings += _of_start(answer, main)
    return replace(answer, findings=tuple(sorted(findings, key=lambda row: -Grade(row[0]).severity)))


def _in_zoo(model: str) -> str:
    """The zoo's name of a checkpoint of the hub, of whose tuning the shape is the same; "" if there is none."""
    owner, _, name = model.rpartition("/")
    bare = re.sub(r"-(instruct|chat|it)$", "", name, flags=re.IGNORECASE)
    try:
        return bare if owner and not Path(model).exists() and model_entry(bare) else ""
    except InputError:
        return ""


def _of_start(answer: ServingAnswer, started: StartedServer) -> Iterator[tuple[str, str, str]]:
    """Whether the server starts as it is: its context, devices and steps."""
    server, engine = answer.server, answer.server.engine.name
    context = started.longest or server.shape.max_positions
    if engine == "vllm" and 0 < answer.longest_tokens < context:
        room = f"the cache holds {answer.longest_tokens:,} tokens of one sequence"
        refused = f"vllm refuses a context of {context:,}: --max-model-len {answer.longest_tokens}"
        yield "error", "--max-model-len", f"{room}, and {refused}"
    if started.devices not in (0, server.num_devices):
        yield "error", "resources", f"asks for {started.devices} GPUs and starts an engine on {server.num_devices}"
    inside = server.gpu.devices_per_node
    if server.num_devices > inside and not started.values.keys() & {"ray", "ray_of_copies", "nodes"}:
        spans = f"{server.num_devices} GPUs are more than the {inside} of a node, and no option joins nodes"
        yield "warn" if engine == "trtllm" else "error", "tp", spans
    if server.tp > joined_devices(server.gpu):
        yield "warn", "tp", f"tp={server.tp} crosses nodes: every layer waits for the network"
    seqs, tokens = server.engine.max_num_seqs, server.engine.step_tokens(server.gpu)
    if engine == "vllm" and seqs is not None and seqs > tokens:
        yield "error", "--max-num-seqs", f"vllm refuses {seqs:,} sequences in steps of {tokens:,} tokens"


def _prefill_pool(server: Server, sizes: JsonMap) -> Server | None:
    """A server for prompts alone, if there are any. Raises ``InputError`` for sizes of a pool that there is not."""
    tp, copies, ep = (sizes[f"prefill_{name}"] for name in ("tp", "copies", "ep"))
    if size_of("prefill_workers", sizes["prefill_workers"], 0, least=0):
        if server.pp > 1:
            raise InputError("pp", server.pp, "is priced in one pool, without servers for prompts of their own", "1")
        return _prefill(server, size_of("prefill_tp", tp, server.tp), size_of("prefill_copies", copies, 1), ep)
    _refuse_pools({name: sizes[name] for name in ("decode_workers", "prefill_tp", "prefill_copies", "prefill_ep")})
    return None


def _steady(
    server: Server,
    prefill: Server | None,
    workers: tuple[int, int],
    load: Load,
    engine: Engine,
    calibration: Calibration,
) -> Steady:
    """The steady state in an engine; ``workers`` of prompts and of answers."""
    server = replace(server, engine=engine)
    if prefill is None:
        return steady_state(server, load, calibration)
    return disaggregated(replace(prefill, engine=engine), workers[0], server, workers[1], load, calibration)


def _in_other_engines(
    run: Run, reading: ModelReading, gpu: Gpu, own: Calibration | None, steady_in: Callable[..., Steady]
) -> Iterator[tuple[str, Steady]]:
    """The steady state in every engine that was not excluded."""
    for engine, calibration in other_engines(run, reading, gpu, own):
        yield engine.name, steady_in(engine, calibration)


def other_engines(
    run: Run, reading: ModelReading, gpu: Gpu, own: Calibration | None
) -> Iterator[tuple[Engine, Calibration]]:
    """Engines that a question leaves open, besides the usual one."""
    for name in run.facts["kernels"].alternatives:
        yield served_in(run.with_(Origin.STATED, "", kernels=name), reading, gpu, own)[1:]


def covered(
    steady: Steady, elsewhere: Iterable[Steady], known: Calibration, steady_on: Callable[[Calibration], Steady]
) -> Floats:
    """The deviation of ln time per token; if other engines are plausible, with their kernels' too, operator by operator
    as `sartor.estimate` has it."""
    steps = [there.step for there in elsewhere]
    if not steps:
        return steady.tpot_log_sigma
    if kernels_measured(known):
        steps = [steady_on(known.with_kernels(ANY)).step, *steps]
    return covering(steady.step, steps).log_sigma


def _holding(elsewhere: Mapping[str, Steady]) -> dict[str, Steady]:
    """The engines that hold a sequence under every load: intervals cover their times."""
    return {name: there for name, there in elsewhere.items() if np.all(np.isfinite(there.tpot_s))}


def _turns(steady: Steady, elsewhere: Mapping[str, Steady]) -> tuple[Turn, ...]:
    """Engines that would change the time per token under the largest load, and those in which not a sequence fits."""
    lacking = [name for name in elsewhere if name not in _holding(elsewhere)]
    unfit = tuple(Turn(field="kernels", value=name, verdict="not one sequence fits", figures={}) for name in lacking)
    elsewhere = _holding(elsewhere)
    time_s = {name: float(np.ravel(there.tpot_s)[-1]) for name, there in elsewhere.items()}
    usual_s = float(np.ravel(steady.tpot_s)[-1])
    moved = (turn for name, seconds in time_s.items() for turn in turn_of_time("kernels", name, seconds, usual_s))
    return (*unfit, *moved)


def _in_flight(concurrency: int | Sequence[int]) -> IntArray:
    counts = [concurrency] if isinstance(concurrency, int) else list(concurrency)
    if not counts:
        raise InputError("concurrency", "[]", "must hold at least one number of sequences in flight", "32")
    return np.asarray([size_of("concurrency", count, 1) for count in counts])


def served_run(reading: ModelReading, gpu: GpuLike | None, options: RunOptions) -> tuple[Run, Gpu, Calibration | None]:
    """The run as it is stated, its device, and the user's own calibration."""
    for name, instead in OF_ONE_PASS.items():
        if (value := options.get(name)) is not None and value is not False:
            raise InputError(name, str(value), f"is of one pass; {instead}")
    run, device, _, own = asked_run(reading, gpu, {**options, "phase": Phase.DECODE.value, "price": None, "pp": None})
    usual_cluster(device).with_price(options.get("price"))  # refuses what is no price
    run = run.with_(Origin.STATED, "option", price=options.get("price"), pp=options.get("pp"))
    refuse_on_a_chip(device, "gpu", device.name, "serving frameworks run on GPUs")
    if reading.shape.encoder_only:
        raise InputError("model", reading.shape.name, "is encoder-only: it gives no tokens", "llama-3.1-8b")
    if reading.shape.traced is not None:
        must = "was traced at one length; serving needs a config.json"
        raise InputError("model", reading.shape.name, must, "llama-3.1-8b")
    return released_run(run.without("phase"), reading, device), device, own


def served_in(run: Run, reading: ModelReading, gpu: Gpu, own: Calibration | None) -> tuple[Run, Engine, Calibration]:
    """The run in its engine, with the engine's kernels. Raises ``InputError`` where a model's own code runs it."""
    run, engine, calibration = in_engine(run, reading.shape, gpu, own or load_calibration(gpu))
    if engine is None or calibration is None:
        must = "runs a model's own code and serves no requests"
        raise InputError("kernels", run.get("kernels"), must, " or ".join(each.name for each in engines_on(gpu)))
    return run, engine, calibration


def server_of(run: Run, reading: ModelReading, gpu: Gpu, engine: Engine, copies: int) -> Server:
    """The server that a run states, on one device where it states no number. Raises ``InputError`` for a type that the
    engine has no kernel for."""
    dtype, _ = precision_of(run.get("dtype"), gpu)
    if (instead := engine.instead_of(dtype, gpu)) is not dtype:
        raise InputError("dtype", dtype.value, engine.no_kernel(gpu), instead.value)
    return Server(
        shape=padded(reading.shape, run.get("tp", 1)),
        gpu=gpu,
        dtype=dtype,
        tp=run.get("tp", 1),
        copies=copies,
        ep=run.get("ep", 1),
        pp=_stages(run, reading, copies),
        engine=engine,
        attention_kernel=word_of(AttentionKernel, "attention", run.get("attention", AttentionKernel.FLASH.value)),
        routing_skew=checked_skew(run.get("routing_skew", 1.0), reading.shape),
        stored=reading.stored,
    )


def _stages(run: Run, reading: ModelReading, copies: int) -> int:
    """Stages of a pipeline, which engines do not combine with copies of attention. Raises ``InputError``."""
    stages, layers = size_of("pp", run.get("pp"), 1), reading.shape.num_layers
    if stages > layers:
        raise InputError("pp", stages, f"must be at most the {layers} layers of the model", str(layers))
    if stages > 1 < copies:
        raise InputError("pp", stages, f"is priced without copies of attention, and copies={copies}", "1")
    return stages


def _completed(run: Run, server: Server, load: Load) -> tuple[Run, Server]:
    """The run on the fewest tensor-parallel devices that hold a sequence, unless stated or none do."""
    settled = {"dtype": server.dtype.value, "attention": server.attention_kernel.value}
    run = run.with_(Origin.USUAL, "serving", **{name: value for name, value in settled.items() if name not in run})
    if "tp" not in run:
        prompt, answer = _longest(load)
        shape = padded(server.shape, VOCABULARY_MULTIPLE)
        splits = (replace(server, tp=tp, shape=shape) for tp in WIDTHS if tp * server.copies % server.ep == 0)
        able = (s for s in splits if feasible(shape, ParallelDims(tp=s.tp)) and not cut_block(s))
        fits = (s.tp for s in able if capacity(s, prompt, answer))
        if (tp := next(fits, None)) is None:
            run = run.with_(Origin.USUAL, "serving", tp=server.tp)
        else:
            run = run.with_(Origin.SEARCHED, "the fewest devices that hold a sequence", tp=tp)
            server = replace(server, tp=tp, shape=padded(server.shape, tp))
    _checked_experts(server)
    if "headroom" not in run:
        share = float(server.engine.utilization(server.gpu, server.tp, server.copies))
        run = run.with_(Origin.USUAL, "serving", headroom=round(1 - share, 9))
    return run, server


def _refuse_pools(sizes: Mapping[str, int | None]) -> None:
    """Reject sizes of separate pools where there are none."""
    for name, size in sizes.items():
        if size is not None and (size > 1 or name == "prefill_tp"):
            raise InputError(name, size, "is of separate pools, so prefill_workers must be 1 or more", "1")


def _checked_experts(server: Server) -> None:
    """Check that the experts split evenly over the server's devices."""
    moe, devices = server.shape.moe_ffn, server.stage_devices
    if moe is None:
        for name, value in (("ep", server.ep), ("copies", server.copies)):
            if value > 1:
                raise InputError(name, value, f"shares out experts, and {server.shape.name} has none", "1")
        return
    fits = [n for n in range(1, devices + 1) if devices % n == 0 and int(moe.num_experts) % n == 0]
    if server.ep not in fits:
        must = f"must divide tp x copies = {devices} and the {int(moe.num_experts)} experts"
        raise InputError("ep", server.ep, must, ", ".join(str(n) for n in fits))


def _prefill(server: Server, tp: int, copies: int, whole: int | None) -> Server:
    """The prefill server: like the other, with whole experts per device if its copies share them, unless stated."""
    ep = size_of("prefill_ep", whole, tp * copies if server.ep > 1 and copies > 1 else 1)
    pool, moe = replace(server, shape=padded(server.shape, tp), tp=tp, copies=copies, ep=ep), server.shape.moe_ffn
    if whole is None and moe is not None and int(moe.num_experts) % ep:
        fits = [n for n in range(1, copies) if int(moe.num_experts) % (tp * n) == 0]
        must = f"prefill_tp x prefill_copies must divide the {int(moe.num_experts)} experts"
        raise InputError("prefill_copies", copies, must, ", ".join(map(str, fits)))
    try:
        check(pool.shape, ParallelDims(tp=tp))
        _checked_experts(pool)
    except InputError as error:
        raise InputError(f"prefill_{error.field}", error.value, error.must, error.nearest) from None
    return pool


def _assumed(run: Run, reading: ModelReading, server: Server, load: Load, calibration: Calibration) -> Iterator[str]:
    """What was assumed, in sentences."""
    yield from device_note(run)
    yield from precision_of(None if run.origin("dtype") is Origin.USUAL else run.get("dtype"), server.gpu)[1]
    yield from released_note(run, reading.weights)
    if not run.states("tp") and server.tp > 1:
        yield f"tp={server.tp}: the fewest devices that hold a sequence (set --tp)"
    yield from padding_note(reading.shape, server.shape)
    yield from too_long("input_len + output_len", int(load.input_len) + int(load.output_len), reading.shape)
    if server.encodes:
        yield "prompts pass the encoder; the decoder begins with one token and attends to both"
    if not run.states("kernels"):
        others = " and ".join(run.facts["kernels"].alternatives)
        yield f"kernels={server.engine.name} (default)" + (f": intervals also cover {others}" if others else "")
    yield from crossing_note(server.gpu, server.num_devices)
    yield from _stored_words(server)
    yield reserve_note(server.engine, server.gpu)
    share = f"{float(server.engine.utilization(server.gpu, server.tp, server.copies)):.3g} of the memory"
    yield f"keys and values in {server.cache.value}; {share}; no speculative decoding; no cached prefixes"
    yield (
        f"the first token includes about {FIRST_TOKEN_STEPS:.0f} decoding steps of scheduling and "
        f"{1e3 * FIRST_TOKEN_S:.0f} ms of the client, fitted on benchmarks; an idle server may answer sooner"
    )
    yield "requests start and end at any time; all prompts and answers have the given lengths"
    yield from of_frameworks(calibration.kernels, calibration, server.dtype)


# -- a model that does not fit, or does not split --------------------------------------------------------------------


def _shortages(server: Server, prefill: Server | None, load: Load) -> tuple[Shortage, ...]:
    """What the servers lack that don't hold one sequence: those for prompts of their own, then those for answers."""
    prompt, answer = _longest(load)
    first = None if prefill is None else shortage(prefill, prompt)
    return tuple(each for each in (first, shortage(server, prompt, answer)) if each is not None)


def _change_that_fits(server: Server, prefill: Server | None, load: Load) -> dict[str, int | str]:
    """If a pool does not fit: wider servers with which all do. Empty if all fit or nothing tried does."""
    change: dict[str, int | str] = {}
    prompt, answer = _longest(load)
    for name, pool, tokens in (("tp", server, answer), ("prefill_tp", prefill, 0)):
        if pool is None or capacity(pool, prompt, tokens):
            continue
        wider = would_fit(replace(pool, shape=padded(pool.shape, VOCABULARY_MULTIPLE)), prompt, tokens)
        if not wider:
            return {}
        change[name] = wider["tp"]
    return change


def _stored_words(server: Server) -> Iterator[str]:
    """Which layers stay wider than the type says."""
    stored = server.engine.stored_types(server.shape, server.dtype, server.stored)
    if stored is None or server.stored is None:
        if stored is not None:
            yield "attention's projections in bf16, as in 4-bit mixtures of experts"
        return
    wide = [role.value.replace("_", " ") for role, size in stored.element_bytes if size > 1.5 * server.dtype.bytes]
    if wide:
        yield f"wider than {server.dtype.value} in the checkpoint: {', '.join(wide)}"
