"""A server under load: time to first token, time between tokens, and throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

import numpy as np

from sartor.answers.serving import ServingAnswer
from sartor.api.models import Model, read
from sartor.api.questions import (
    asked_run,
    crossing_note,
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
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.lower import feasible
from sartor.model.workload import AttentionKernel, ModelReading, ParallelDims, Phase, too_long
from sartor.options import with_options
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
    model: Model,
    gpu: GpuLike | None = None,
    *,
    concurrency: int | Sequence[int] = CONCURRENCY,
    input_len: int = 1024,
    output_len: int = 1024,
    copies: int = 1,
    prefill_workers: int = 0,
    prefill_tp: int | None = None,
    prefill_copies: int = 1,
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
    prefill_workers, prefill_tp, prefill_copies, decode_workers
        Prefill runs on that many separate servers (``prefill_tp * prefill_copies`` devices each) and decoding on
        ``decode_workers``; 0: one pool does both.
    **options
        The fields of a run, as in `estimate`: without ``tp`` the fewest devices that hold a sequence; ``ep`` devices
        hold whole experts each, the others split every expert; ``kernels`` is the serving framework.

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
    reading = read(model, options.get("set"))
    load = Load(
        concurrency=_in_flight(concurrency),
        input_len=size_of("input_len", input_len, 1024),
        output_len=size_of("output_len", output_len, 1024),
    )
    run, device, own = served_run(reading, gpu, options)
    run, engine, calibration = in_engine(run, reading.shape, device, own or load_calibration(device))
    if engine is None or calibration is None:
        must = "runs a model's own code and serves no requests"
        raise InputError("kernels", run.get("kernels"), must, " or ".join(each.name for each in engines_on(device)))
    run, server = _completed(run, server_of(run, reading, device, engine, size_of("copies", copies, 1)), load)
    workers = size_of("decode_workers", decode_workers, 1)
    prefill = _prefill_pool(server, prefill_workers, prefill_tp, prefill_copies, workers)
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
        whole_sequences=_whole(server, load) * server.copies * workers,
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


def _whole(server: Server, load: Load) -> int:
    """Sequences with their whole answers that one copy holds; of several lengths the longest."""
    return int(capacity(server, int(np.max(load.input_len)), int(np.max(load.output_len))))


def _prefill_pool(server: Server, workers: int, tp: int | None, copies: int, decode_workers: int) -> Server | None:
    """A server for prompts alone, if there are any. Raises ``InputError`` for sizes of a pool that there is not."""
    if size_of("prefill_workers", workers, 0, least=0):
        return _prefill(server, size_of("prefill_tp", tp, server.tp), size_of("prefill_copies", copies, 1))
    _refuse_pools({"decode_workers": decode_workers, "prefill_tp": tp, "prefill_copies": copies})
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
    for name in run.facts["kernels"].alternatives:
        stated = run.with_(Origin.STATED, "", kernels=name)
        _, engine, calibration = in_engine(stated, reading.shape, gpu, own or load_calibration(gpu))
        yield name, steady_in(engine, calibration)


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
    run, device, _, own = asked_run(reading, gpu, {**options, "phase": Phase.DECODE.value, "price": None})
    usual_cluster(device).with_price(options.get("price"))  # refuses what is no price
    run = run.with_(Origin.STATED, "option", price=options.get("price"))
    refuse_on_a_chip(device, "gpu", device.name, "serving frameworks run on GPUs")
    if reading.shape.encoder_only:
        raise InputError("model", reading.shape.name, "is encoder-only: it gives no tokens", "llama-3.1-8b")
    if reading.shape.traced is not None:
        must = "was traced at one length; serving needs a config.json"
        raise InputError("model", reading.shape.name, must, "llama-3.1-8b")
    return released_run(run.without("phase"), reading, device), device, own


def server_of(run: Run, reading: ModelReading, gpu: Gpu, engine: Engine, copies: int) -> Server:
    """The server that a run states, on one device where it states no number. Raises ``InputError`` for a type that the
    engine has no kernel for."""
    dtype, _ = precision_of(run.get("dtype"), gpu)
    if (instead := engine.instead_of(dtype, gpu)) is not dtype:
        must = f"{engine.name} has no kernel that multiplies it by itself on {gpu.name}"
        raise InputError("dtype", dtype.value, must, instead.value)
    return Server(
        shape=padded(reading.shape, run.get("tp", 1)),
        gpu=gpu,
        dtype=dtype,
        tp=run.get("tp", 1),
        copies=copies,
        ep=run.get("ep", 1),
        engine=engine,
        attention_kernel=word_of(AttentionKernel, "attention", run.get("attention", AttentionKernel.FLASH.value)),
        routing_skew=checked_skew(run.get("routing_skew", 1.0), reading.shape),
        stored=reading.stored,
    )


def _completed(run: Run, server: Server, load: Load) -> tuple[Run, Server]:
    """The run on the fewest tensor-parallel devices that hold a sequence, unless stated or none do."""
    settled = {"dtype": server.dtype.value, "attention": server.attention_kernel.value}
    run = run.with_(Origin.USUAL, "serving", **{name: value for name, value in settled.items() if name not in run})
    if "tp" not in run:
        prompt, answer = int(np.max(load.input_len)), int(np.max(load.output_len))
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
    moe, devices = server.shape.moe_ffn, server.num_devices
    if moe is None:
        for name, value in (("ep", server.ep), ("copies", server.copies)):
            if value > 1:
                raise InputError(name, value, f"shares out experts, and {server.shape.name} has none", "1")
        return
    fits = [n for n in range(1, devices + 1) if devices % n == 0 and int(moe.num_experts) % n == 0]
    if server.ep not in fits:
        must = f"must divide tp x copies = {devices} and the {int(moe.num_experts)} experts"
        raise InputError("ep", server.ep, must, ", ".join(str(n) for n in fits))


def _prefill(server: Server, tp: int, copies: int) -> Server:
    """The prefill server: like the other, with whole experts per device if its copies share them."""
    ep = tp * copies if server.ep > 1 and copies > 1 else 1
    moe, name = server.shape.moe_ffn, server.shape.name
    if moe is None and copies > 1:
        raise InputError("prefill_copies", copies, f"shares out experts, and {name} has none", "1")
    if moe is not None and int(moe.num_experts) % ep:
        fits = [n for n in range(1, copies) if int(moe.num_experts) % (tp * n) == 0]
        must = f"prefill_tp x prefill_copies must divide the {int(moe.num_experts)} experts"
        raise InputError("prefill_copies", copies, must, ", ".join(map(str, fits)))
    return replace(server, shape=padded(server.shape, tp), tp=tp, copies=copies, ep=ep)


def _assumed(run: Run, reading: ModelReading, server: Server, load: Load, calibration: Calibration) -> Iterator[str]:
    """What was assumed, in sentences."""
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
    prompt, answer = int(np.max(load.input_len)), int(np.max(load.output_len))
    first = None if prefill is None else shortage(prefill, prompt)
    return tuple(each for each in (first, shortage(server, prompt, answer)) if each is not None)


def _change_that_fits(server: Server, prefill: Server | None, load: Load) -> dict[str, int | str]:
    """If a pool does not fit: wider servers with which all do. Empty if all fit or nothing tried does."""
    change: dict[str, int | str] = {}
    prompt, answer = int(np.max(load.input_len)), int(np.max(load.output_len))
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
