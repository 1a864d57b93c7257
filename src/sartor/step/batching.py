"""A server under load: continuous batching in steady state, from the cost of one decoding step and of one prompt.

The number of sequences in flight is fixed: one that ends makes room for the next. Each step decodes one token of every
running sequence and takes in prompts as they arrive, so two tokens of a sequence are separated by one step and a share
of the other sequences' prompts. Formulas, constants and accuracy: docs/concepts/serving.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sartor.cost.collective.tiers import own_links
from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.price import Estimate, price
from sartor.model.workload import Phase, Workload
from sartor.operators import Attention, GroupedGemm, MemoryBound
from sartor.step.inference import kv_cache_bytes
from sartor.step.served import Server, capacity, served_graph
from sartor.units import Floats, Ints, ceil_div, plain

CHUNK = 8192
"""Tokens of prompts an engine takes into one step (TensorRT-LLM's and vLLM's default)."""

FIRST_TOKEN_STEPS = 6.1
FIRST_TOKEN_S = 0.009
"""The first token waits for the pass over its prompt and those queued before it, then ``FIRST_TOKEN_STEPS`` gaps
between other sequences' tokens (the running step, those already scheduled, the one that takes in the prompt, returning
the token), and ``FIRST_TOKEN_S`` for tokenization and transport. Fitted with ``hidden_launches``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load on a server; arrays describe many loads."""

    concurrency: Ints
    """Sequences in flight."""
    input_len: Ints
    """Tokens of a prompt."""
    output_len: Ints
    """Tokens generated per request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Latency that requests see and throughput of the server, in steady state; arrays over loads."""

    running: Ints
    """Sequences that decode at once on one copy of the model."""
    waiting: Floats
    """Requests per copy that wait because memory is full."""
    step: Estimate
    """One decoding step on one device."""
    prompt: Estimate
    """One pass over a prompt."""
    step_s: Floats
    """The decoding step replayed as a graph, with some launches hidden."""
    tpot_s: Floats
    """Mean time between a sequence's tokens."""
    ttft_s: Floats
    """Mean time from a request to its first token."""
    ttft_log_sigma: float
    output_tokens_per_s: Floats
    """Throughput of the whole server."""

    @property
    def tpot_log_sigma(self) -> Floats:
        """The operators' uncertainty alone: its interval covers 84% of the published rows (lab/fit_serving.py)."""
        return self.step.log_sigma


def steady_state(
    server: Server,
    load: Load,
    known: Calibration | None = None,
    *,
    waves: float = math.inf,
    receive_every: Ints = 1,
) -> Steady:
    """Latency and throughput under ``load``; arrays give arrays. Times are infinite if not one sequence fits.

    ``waves``: a benchmark of that many requests per sequence in flight starts by sending one request for each at once,
    so in one of ``waves`` cases the mean first token waits for half of those prompts. ``receive_every``: decoding steps
    between checks for new requests (SGLang's ``--scheduler-recv-interval``); a request waits for half of them. Raises
    ``InputError`` if the model cannot be split this way.
    """
    known = known or calibration_of(server)
    asked = ceil_div(load.concurrency, server.copies)
    held = capacity(server, load.input_len + load.output_len // 2)
    running = np.minimum(asked, held)
    step, prompts = decoding(server, load, np.maximum(running, 1), known), prompts_of(server, load, known)
    step_s, prompt_s = replayed_s(server, step), prompts.alone.time_s
    with np.errstate(divide="ignore", invalid="ignore"):
        cycle_s = load.output_len * step_s + running * prompt_s
        queue_s = prompt_s * _queue(running * prompt_s / cycle_s) + (asked - 1) / 2 * prompts.each_s / waves
        room_s = (asked - running) / running * cycle_s
    tpot_s = step_s + (running - 1) / load.output_len * prompt_s
    first_s = room_s + first_token_s(prompt_s + queue_s, tpot_s) + (receive_every - 1) / 2 * tpot_s
    return _steady(server, load, held < 1, running, asked - running, step, prompts.alone, step_s, tpot_s, first_s)


def calibration_of(server: Server) -> Calibration:
    """The calibration of the server's GPU, with the kernels of its engine."""
    return load_calibration(server.gpu, server.dtype).with_kernels(server.engine.name)


def first_token_s(prompts_s: Floats, tpot_s: Floats) -> Floats:
    return prompts_s + FIRST_TOKEN_STEPS * tpot_s + FIRST_TOKEN_S


def _queue(busy: Floats) -> Floats:
    """Mean wait in the queue, in service times, of a server with utilization ``busy`` (M/D/1)."""
    return busy / (2 * (1 - np.minimum(busy, MOST_BUSY)))


def _steady(
    server: Server,
    load: Load,
    none: Ints,
    running: Ints,
    waiting: Floats,
    step: Estimate,
    prompt: Estimate,
    step_s: Floats,
    tpot_s: Floats,
    ttft_s: Floats,
) -> Steady:
    tpot_s, ttft_s = np.where(none, np.inf, tpot_s), np.where(none, np.inf, ttft_s)
    return Steady(
        running=plain(running),
        waiting=plain(waiting),
        step=step,
        prompt=prompt,
        step_s=plain(step_s),
        tpot_s=plain(tpot_s),
        ttft_s=plain(ttft_s),
        ttft_log_sigma=server.engine.first_token_log_sigma,
        output_tokens_per_s=plain(load.concurrency * load.output_len / (ttft_s + (load.output_len - 1) * tpot_s)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Passes over prompts."""

    alone: Estimate
    """A pass over one prompt."""
    each_s: Floats
    """Seconds per prompt when a step is filled with prompts."""


def prompts_of(server: Server, load: Load, known: Calibration) -> Prompts:
    together = np.maximum(CHUNK // np.asarray(load.input_len), 1)
    alone, full = (prefilling(server, load, n, known) for n in (1, together))
    return Prompts(alone=alone, each_s=np.minimum(alone.time_s, full.time_s / together))


def disaggregated(
    prefill: Server,
    prefill_workers: Ints,
    decode: Server,
    decode_workers: Ints,
    load: Load,
    known: Calibration | None = None,
    *,
    waves: float = math.inf,
) -> Steady:
    """`steady_state` with prompts on ``prefill_workers`` copies of one server and decoding on ``decode_workers`` copies
    of another: no prompt delays decoding, and the slower pool limits throughput. Keys and values move over one device's
    links."""
    held = capacity(decode, load.input_len + load.output_len // 2) * decode.copies * decode_workers
    prompts = prompts_of(prefill, load, known or calibration_of(prefill))
    prompt_s, most_per_s = prompts.alone.time_s, prefill_workers * prefill.copies / prompts.each_s
    moved_s = _moved_s(decode, load)
    known, per_s = known or calibration_of(decode), np.zeros(())
    running = np.minimum(load.concurrency, held)
    for _ in range(ROUNDS):
        each = np.maximum(ceil_div(np.ceil(running).astype(np.int64), decode.copies * decode_workers), 1)
        step = decoding(decode, load, each, known)
        step_s = replayed_s(decode, step)
        queue_s = prompt_s * _queue(per_s / most_per_s) + (load.concurrency - 1) / 2 / most_per_s / waves
        first_s = first_token_s(prompt_s + moved_s + queue_s, step_s)
        per_s = np.minimum(load.concurrency / (first_s + load.output_len * step_s), most_per_s)
        running = np.minimum(per_s * load.output_len * step_s, np.maximum(held, 1))
        per_s = running / (load.output_len * step_s)
    first_s = np.maximum(first_s, load.concurrency / per_s - load.output_len * step_s)
    waiting = np.maximum(load.concurrency - running - per_s * first_s, 0.0)
    return _steady(decode, load, held < 1, each, waiting, step, prompts.alone, step_s, step_s, first_s)


ROUNDS = 8
"""Fixed-point iterations for the sequences in the decoding pool; converges to 1% on the published rows."""


def _moved_s(server: Server, load: Load) -> Floats:
    """Seconds to move one prompt's keys and values between pools over one device's links."""
    lengths = np.atleast_1d(load.input_len)
    held = [kv_cache_bytes(server.shape, int(n), server.tp, server.cache.bytes) for n in lengths]
    link = own_links(server.gpu).tiers[0].bytes_per_s
    return np.reshape(held, np.shape(load.input_len)) / link


MOST_BUSY = 0.95
"""Cap on the utilization in the queueing formula (M/D/1)."""


def replayed_s(server: Server, step: Estimate) -> Floats:
    """Seconds of a decoding step replayed from a graph, without the launches that the engine hides."""
    hidden: Floats = 0.0
    for op, cost in zip(step.graph.operators, step.costs, strict=True):
        if isinstance(op, (MemoryBound, Attention, GroupedGemm)):
            hidden = hidden + np.minimum(cost.overhead_s, cost.time_s) * op.count
    replayed: Floats = step.time_s - server.engine.hidden_launches * hidden
    return replayed


def decoding(server: Server, load: Load, running: Ints, known: Calibration) -> Estimate:
    """One step of ``running`` sequences on each copy, halfway through their output, replayed from a graph."""
    workload = Workload(
        shape=server.shape,
        phase=Phase.DECODE,
        microbatch_size=running,
        context_len=load.input_len + load.output_len // 2,
        dtype=server.dtype,
    )
    return _priced(server, workload, known)


def prefilling(server: Server, load: Load, together: Ints, known: Calibration) -> Estimate:
    """A pass over ``together`` prompts."""
    workload = Workload(
        shape=server.shape,
        phase=Phase.PREFILL,
        microbatch_size=together,
        seq_len=load.input_len,
        dtype=server.dtype,
    )
    return _priced(server, workload, known)


def _priced(server: Server, workload: Workload, known: Calibration) -> Estimate:
    return price(served_graph(server, workload), server.gpu, known, clock=Clock.BOOST, details=False)
