"""A server under load: continuous batching in steady state, from the cost of one decoding step and of one prompt.

The number of sequences in flight is fixed: one that ends makes room for the next. Each step decodes one token of every
running sequence and takes in prompts as they arrive, so while a request is in flight it meets the prompt of every other
one once. Formulas, constants and accuracy: docs/concepts/serving.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.price import Estimate, price
from sartor.model.workload import Phase, Workload
from sartor.step.decode_steps import decode_steps, decoding
from sartor.step.served import Server, capacity, served_graph
from sartor.units import Floats, Ints, plain

CHUNK = 8192
"""Tokens of prompts an engine takes into one step (TensorRT-LLM's and vLLM's default)."""

FIRST_TOKEN_STEPS = 6.1
FIRST_TOKEN_S = 0.009
"""The first token waits for the pass over its prompt and those queued before it, then ``FIRST_TOKEN_STEPS`` gaps
between other sequences' tokens (the running step, those already scheduled, the one that takes in the prompt, returning
the token), meeting no prompt twice, and ``FIRST_TOKEN_S`` for tokenization and transport. Fitted with
``hidden_launches``."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load on a server; arrays describe many loads."""

    concurrency: Ints
    """Sequences in flight."""
    input_len: Ints
    """Tokens of a prompt."""
    output_len: Ints
    """Tokens generated per request."""

    @property
    def middle(self) -> Ints:
        """Tokens of a sequence halfway through its answer."""
        return self.input_len + self.output_len // 2

    def columns(self) -> tuple[Array, Array, npt.NDArray[np.int64]]:
        """``concurrency``, ``output_len`` and ``middle`` of every load, as flat arrays of one length."""
        found = np.broadcast_arrays(self.concurrency, self.output_len, self.middle)
        flight, answer, middle = (np.atleast_1d(each).ravel() for each in found)
        return flight.astype(np.float64), answer.astype(np.float64), middle.astype(np.int64)

    @property
    def form(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(np.shape(n) for n in (self.concurrency, self.input_len, self.output_len)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Latency that requests see and throughput of the server, in steady state; arrays over loads."""

    running: Floats
    """Sequences that decode at once on the whole server."""
    waiting: Floats
    """Requests that wait because memory is full or the prompts' servers are."""
    step: Estimate
    """One decoding step on one device."""
    prompt: Estimate
    """One pass over a prompt."""
    each_prompt_s: Floats
    """Seconds per prompt of a prompts' server that is never idle: several short ones share a pass. In a server of
    both kinds, of one alone."""
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
        """The operators' uncertainty alone: its interval covers 87% of the published rows (lab/fit_serving.py)."""
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
    flight, answer, middle = load.columns()
    held = capacity(server, middle)
    asked = flight / server.copies
    running = np.minimum(asked, np.maximum(held, 1))
    step_s = decode_steps(server, middle, float(running.max()), known).at(running)
    prompts = prompts_of(server, load, known)
    prompt_s, each_s = (np.broadcast_to(each, flight.shape) for each in (prompts.alone.time_s, prompts.each_s))
    gaps = FIRST_TOKEN_STEPS + (np.broadcast_to(receive_every, flight.shape) - 1) / 2
    others = np.maximum(running - 1, 0.0)
    queued_s = prompt_s * others * prompt_s / (2 * (answer * step_s + prompt_s)) + others / 2 * each_s / waves
    met_s = np.minimum(queued_s + gaps * others / answer * prompt_s, others * prompt_s)
    tpot_s = step_s + (others * prompt_s - met_s) / np.maximum(answer - 1, 1)
    first_s = prompt_s + met_s + gaps * step_s + FIRST_TOKEN_S
    room_s = (asked / running - 1) * (first_s + (answer - 1) * tpot_s)
    return steady(
        server,
        load,
        held,
        running * server.copies,
        flight - running * server.copies,
        decoding(server, middle_of(load), np.ceil(running).astype(np.int64).reshape(load.form), known),
        prompts.alone,
        prompt_s,
        step_s,
        tpot_s,
        room_s + first_s,
    )


def middle_of(load: Load) -> Ints:
    """``Load.middle`` in the form of all its loads."""
    return np.broadcast_to(load.middle, load.form)


def calibration_of(server: Server) -> Calibration:
    """The calibration of the server's GPU, with the kernels of its engine."""
    return load_calibration(server.gpu).with_kernels(server.engine.name)


def steady(
    server: Server,
    load: Load,
    held: Ints,
    running: Array,
    waiting: Array,
    step: Estimate,
    prompt: Estimate,
    each_prompt_s: Array,
    step_s: Array,
    tpot_s: Array,
    ttft_s: Array,
) -> Steady:
    """The columns in the form of ``load``; infinite times where not one sequence is held."""
    flight, answer, _ = load.columns()
    fits = np.asarray(held) >= 1
    tpot_s, ttft_s = np.where(fits, tpot_s, np.inf), np.where(fits, ttft_s, np.inf)
    tokens_per_s = flight * answer / (ttft_s + (answer - 1) * tpot_s)
    found = (running, waiting, each_prompt_s, step_s, tpot_s, ttft_s, tokens_per_s)
    names = ("running", "waiting", "each_prompt_s", "step_s", "tpot_s", "ttft_s", "output_tokens_per_s")
    return Steady(
        step=step,
        prompt=prompt,
        ttft_log_sigma=server.engine.first_token_log_sigma,
        **{name: plain(each.reshape(load.form)) for name, each in zip(names, found, strict=True)},
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


def prefilling(server: Server, load: Load, together: Ints, known: Calibration) -> Estimate:
    """A pass over ``together`` prompts."""
    workload = Workload(
        shape=server.shape,
        phase=Phase.PREFILL,
        microbatch_size=together,
        seq_len=load.input_len,
        dtype=server.dtype,
    )
    return price(served_graph(server, workload), server.gpu, known, clock=Clock.BOOST, details=False)
