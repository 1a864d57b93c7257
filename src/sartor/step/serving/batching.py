"""A server under load: continuous batching in steady state, from the cost of one decoding step and of one prompt.

The number of sequences in flight is fixed: one that ends makes room for the next. Each step decodes one token of every
running sequence and takes in prompts as they arrive, those of one step in one pass; while a request is in flight it
meets the prompt of every other one once. Formulas, constants and accuracy: docs/concepts/serving.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.price import Estimate
from sartor.step.serving.load import Load
from sartor.step.serving.passes import decode_steps, decoding, first_token_log_sigma, full_log_sigma, prompt_passes
from sartor.step.serving.served import Server, holds
from sartor.units import Floats, Ints, plain

FIRST_TOKEN_STEPS = 6.1
FIRST_TOKEN_S = 0.009
"""The first token waits for the pass over its prompt and those queued before it, then ``FIRST_TOKEN_STEPS`` gaps
between other sequences' tokens (the running step, those already scheduled, the one that takes in the prompt, returning
the token), meeting no prompt twice, and ``FIRST_TOKEN_S`` for tokenization and transport. Fitted with
``hidden_launches``."""

Array = npt.NDArray[np.float64]


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
    """Seconds per prompt of a pass that several short ones share: those that arrive in one step, or, in a prompts'
    server, as many as a step takes in."""
    step_s: Floats
    """The decoding step replayed as a graph, with some launches hidden."""
    tpot_s: Floats
    """Mean time between a sequence's tokens."""
    ttft_s: Floats
    """Mean time from a request to its first token."""
    ttft_log_sigma: Floats
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
    """Latency and throughput under ``load``; arrays give arrays. Times are infinite if not one whole sequence fits.

    ``waves``: a benchmark of that many requests per sequence in flight starts by sending one request for each at once,
    so in one of ``waves`` cases the mean first token waits for half of those prompts. ``receive_every``: decoding steps
    between checks for new requests (SGLang's ``--scheduler-recv-interval``); a request waits for half of them. Raises
    ``InputError`` if the model cannot be split this way.
    """
    known = known or calibration_of(server)
    flight, answer = load.columns()
    sequences = holds(server, load)
    in_flight = flight / server.copies
    running = np.minimum(in_flight, np.maximum(sequences, 1))
    steps = decode_steps(server, load, float(running.max()), known)
    step_s = steps.at(running)
    passes = prompt_passes(server, load, known)
    others = np.maximum(running - 1, 0.0)
    alone_s, full_s = passes.alone_s, passes.full_s
    prompt_s = passes.shared_s(others / answer)
    gaps = FIRST_TOKEN_STEPS + (np.broadcast_to(receive_every, flight.shape) - 1) / 2
    queued_s = prompt_s * others * prompt_s / (2 * (answer * step_s + prompt_s)) + others / 2 * full_s / waves
    met_s = np.minimum(queued_s + gaps * others / answer * prompt_s, others * prompt_s)
    tpot_s = step_s + (others * prompt_s - met_s) / np.maximum(answer - 1, 1)
    first_s = alone_s + met_s + gaps * step_s + FIRST_TOKEN_S
    request_s = first_s + (answer - 1) * tpot_s
    room_s = (in_flight / running - 1) * request_s
    step = decoding(server, load, np.ceil(running).astype(np.int64).reshape(load.form), known)
    met, decoded = others * prompt_s, (answer - 1) * step_s  # a request meets each prompt once: all of request_s but
    # the scheduling of the first token, which deviates as measured; passes deviate as their operators do
    passes_s = (alone_s + met) * load.flat(passes.alone.log_sigma) + decoded * load.flat(step.log_sigma)
    first = server.engine.first_token_log_sigma
    paced = np.hypot(passes_s, (request_s - alone_s - met - decoded) * first) / request_s
    slope = (met + (gaps * step_s + decoded) * steps.slope(running)) / request_s
    waited = np.hypot(paced, full_log_sigma(1 - running / in_flight, slope))
    return steady(
        server,
        load,
        sequences,
        running * server.copies,
        flight - running * server.copies,
        step,
        passes.alone,
        prompt_s,
        step_s,
        tpot_s,
        room_s + first_s,
        first_token_log_sigma(first_s, first, room_s, waited),
    )


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
    ttft_log_sigma: Floats,
) -> Steady:
    """The columns in the form of ``load``; infinite times where not one sequence is held."""
    flight, answer = load.columns()
    fits = np.asarray(held) >= 1
    tokens_per_s = np.where(fits, flight * answer / (ttft_s + (answer - 1) * tpot_s), 0.0)
    tpot_s, ttft_s = np.where(fits, tpot_s, np.inf), np.where(fits, ttft_s, np.inf)
    columns = (running, waiting, each_prompt_s, step_s, tpot_s, ttft_s, tokens_per_s)
    names = ("running", "waiting", "each_prompt_s", "step_s", "tpot_s", "ttft_s", "output_tokens_per_s")
    return Steady(
        step=step,
        prompt=prompt,
        ttft_log_sigma=plain(np.broadcast_to(ttft_log_sigma, flight.shape).reshape(load.form)),
        **{name: plain(column.reshape(load.form)) for name, column in zip(names, columns, strict=True)},
    )
