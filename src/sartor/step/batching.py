"""A server under load: continuous batching in its steady state, from the price of a decoding step and of a prompt.

A fixed number of sequences is in flight: one that ends makes room for the next. A step decodes a token of every running
sequence and takes in prompts as they come, so between two tokens of a sequence lie one step and its share of the other
sequences' prompts. docs/concepts/serving.md has the formulas, their constants and how far off they are.
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
"""A first token waits for the pass over its prompt and for those before it; for so many gaps between others' tokens,
prompts among them (the step under way, those that the scheduler has already laid out, the one that takes the prompt
in, and the return of the token); and for tokenization and transport. Fitted with ``hidden_launches``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that a server sees; arrays are many loads."""

    concurrency: Ints
    """Sequences in flight."""
    input_len: Ints
    """Tokens of a prompt."""
    output_len: Ints
    """Tokens of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """What requests see and the server gives, where neither starts nor ends; arrays over loads."""

    running: Ints
    """Sequences of one copy that decode at once."""
    waiting: Floats
    """Requests of one copy that find no room in memory."""
    step: Estimate
    """One decoding step on one device."""
    prompt: Estimate
    """One pass over a prompt."""
    step_s: Floats
    """The step as it is replayed, some launches hidden."""
    tpot_s: Floats
    """Mean time between a sequence's tokens."""
    ttft_s: Floats
    """Mean time from a request to its first token."""
    ttft_log_sigma: float
    output_tokens_per_s: Floats
    """Of the whole server."""

    @property
    def tpot_log_sigma(self) -> Floats:
        """The operators' alone: it holds 84% of the published rows (lab/fit_serving.py)."""
        return self.step.log_sigma


def steady_state(
    server: Server,
    load: Load,
    known: Calibration | None = None,
    *,
    waves: float = math.inf,
    receive_every: Ints = 1,
) -> Steady:
    """What ``load`` sees of ``server``; arrays give arrays. Where not one sequence fits, its times are infinite.

    ``waves``: a benchmark of that many requests per sequence in flight sends the first of them all at once, so that
    its mean first token waits for half of those prompts in one of ``waves`` cases. ``receive_every``: decoding steps
    between looks for new requests (SGLang's ``--scheduler-recv-interval``), of which a request waits for half. Raises
    ``InputError`` where the model does not split.
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
    """What is known of the server's devices where its engine's kernels run."""
    return load_calibration(server.gpu, server.dtype).with_kernels(server.engine.name)


def first_token_s(prompts_s: Floats, tpot_s: Floats) -> Floats:
    return prompts_s + FIRST_TOKEN_STEPS * tpot_s + FIRST_TOKEN_S


def _queue(busy: Floats) -> Floats:
    """Requests' mean wait, in units of what one takes, for a server that is busy so much of its time (M/D/1)."""
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
    """Over one."""
    each_s: Floats
    """For each of as many as fill a step."""


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
    """The same where prompts run on ``prefill_workers`` copies of one server and answers on ``decode_workers`` of
    another: no prompt stands between two tokens, and the slower pool sets the pace. Keys and values cross one device's
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
"""In which the sequences of the decoding pool settle: to 1% on the published rows."""


def _moved_s(server: Server, load: Load) -> Floats:
    """One prompt's keys and values from pool to pool over one device's links."""
    lengths = np.atleast_1d(load.input_len)
    held = [kv_cache_bytes(server.shape, int(n), server.tp, server.cache.bytes) for n in lengths]
    link = own_links(server.gpu).tiers[0].bytes_per_s
    return np.reshape(held, np.shape(load.input_len)) / link


MOST_BUSY = 0.95
"""Share of the time that prompts may take in the queue's formula (M/D/1)."""


def replayed_s(server: Server, step: Estimate) -> Floats:
    """A decoding step replayed from a graph: without the launches that an engine hides."""
    hidden: Floats = 0.0
    for op, cost in zip(step.graph.operators, step.costs, strict=True):
        if isinstance(op, (MemoryBound, Attention, GroupedGemm)):
            hidden = hidden + np.minimum(cost.overhead_s, cost.time_s) * op.count
    replayed: Floats = step.time_s - server.engine.hidden_launches * hidden
    return replayed


def decoding(server: Server, load: Load, running: Ints, known: Calibration) -> Estimate:
    """One step of ``running`` sequences on each copy, halfway through their answers, replayed from a graph."""
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
