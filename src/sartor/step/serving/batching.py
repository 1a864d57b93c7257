"""Servers under load in steady state: continuous batching on one, or prompts on servers of their own.

The number of sequences in flight is fixed: one that ends makes room for the next. Each step decodes one token of every
running sequence and takes in prompts as they arrive, those of one step in one pass; while a request is in flight it
meets the prompt of every other one once. Formulas, constants and accuracy: docs/concepts/serving.md.

Prompts that arrive in one step share it. By Little's law a request waits C/X - R for C requests in flight, X answers
per second and R seconds that a request takes once admitted. So the wait is as certain as the throughput, which depends
on the times of passes and on how many sequences memory holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.price import Estimate
from sartor.hardware.cluster import own_links
from sartor.hardware.cluster_catalog import joined_devices, usual_cluster
from sartor.model.workload import Phase
from sartor.operators import DType
from sartor.step.serving.served import Load, Recording, Server, cache_bytes, capacity, holds, served_pass
from sartor.units import Floats, IntArray, Ints, plain, remembered, remembered_if_few, round_up

COUNTS = np.unique(np.round(2.0 ** (np.arange(121) / 4)))
"""Sequences at which a step is priced: every number up to 8, then four from each power of two to the next."""


@dataclass(frozen=True, slots=True)
class _DecodeSteps:
    """Seconds of a decoding step by the sequences it decodes, one column per load.

    Between two of ``COUNTS`` a step is linear, as the number that runs varies. A wider step takes no less than a
    narrower one, and one more sequence is never worse for tokens per second (a step with one row more than a tile
    holds): an engine would run fewer at once. With one sequence it is the price of that step.
    """

    seconds: Array
    log_sigma: Array
    """Of the operators' prices, interpolated alike."""
    server: Server

    def at(self, sequences: Array) -> Array:
        """Seconds with that many sequences for each load; below one as with one. Stages of a pipeline each run one of
        as many batches: a batch takes as many of the longest stage, and its activations are sent between them."""
        if self.server.pp == 1:
            return _between_counts(self.seconds, sequences)
        together = np.maximum(sequences / self.server.pp, 1.0)
        longest = self.server.pp / self.server.even_stages
        seconds = _between_counts(self.seconds, together) * np.where(sequences > 1, longest, 1.0)
        return np.asarray(seconds + (self.server.pp - 1) * _sent_s(self.server, together))

    def log_sigma_at(self, sequences: Array) -> Array:
        return _between_counts(self.log_sigma, sequences / self.server.pp)

    def slope(self, sequences: Array) -> Array:
        """d ln(seconds) / d ln(sequences), over the last tenth of the sequences."""
        slope: Array = np.log(self.at(sequences) / self.at(sequences / 1.1)) / np.log(1.1)
        return slope


def _between_counts(table: Array, sequences: Array) -> Array:
    """Entries of a table, whose rows are of ``COUNTS``, linear between two of them."""
    i = np.clip(np.searchsorted(COUNTS, sequences, side="right") - 1, 0, len(table) - 2)
    share = np.clip((sequences - COUNTS[i]) / (COUNTS[i + 1] - COUNTS[i]), 0.0, 1.0)
    column = np.arange(sequences.size)
    entries: Array = (1 - share) * table[i, column] + share * table[i + 1, column]
    return entries


PRICED_TOGETHER = 24
"""Of ``COUNTS``, six powers of two: so much longer than asked a table may be, and serves the loads of many layouts."""


def decode_steps(server: Server, load: Load, largest: float, calibration: Calibration) -> _DecodeSteps:
    """Steps of up to ``largest`` sequences, each halfway through its answer."""
    rows = min(round_up(max(int(np.searchsorted(COUNTS, largest)) + 1, 2), PRICED_TOGETHER), COUNTS.size)
    both = np.stack([load.flat(load.prompts), load.flat(_context(server, load))])
    lengths, where = np.unique(both, axis=1, return_inverse=True)
    seconds, log_sigma = _priced_steps(server, rows, lengths, calibration)
    return _DecodeSteps(seconds[:, where.ravel()], log_sigma[:, where.ravel()], server)


def _sent_s(server: Server, tokens: Floats) -> Floats:
    """Seconds to send the activations of a batch from one stage to the next: each device its share."""
    tiers = usual_cluster(server.gpu).tiers
    tier = tiers[0] if server.num_devices <= joined_devices(server.gpu) else tiers[-1]
    return tier.latency_s + tokens * int(server.shape.hidden_size) * DType.BF16.bytes / server.tp / tier.bytes_per_s


def _context(server: Server, load: Load) -> Ints:
    """Tokens before a decoding step, halfway through the answer. Behind an encoder a sequence's own are those of the
    answer."""
    return load.answered if server.encodes else load.middles


@remembered
def _priced_steps(server: Server, rows: int, lengths: IntArray, calibration: Calibration) -> tuple[Array, Array]:
    """Seconds and log sigma of the first ``rows`` of ``COUNTS``, a column for each pair of prompt and context."""
    counts = COUNTS[:rows]
    running, prompts, contexts = (
        np.broadcast_to(column, (rows, lengths.shape[1])).ravel()
        for column in (counts.astype(np.int64)[:, None], *lengths)
    )
    step = _decoded(server, running, prompts, contexts, calibration)
    seconds, log_sigma = (
        np.broadcast_to(column, running.shape).reshape(rows, -1) for column in (step.time_s, step.log_sigma)
    )
    seconds = seconds * (1 + server.draft_tokens / server.shape.num_layers)  # a draft is one layer's step
    per_sequence = np.minimum.accumulate(seconds / counts[:, None], axis=0)
    return np.maximum.accumulate(per_sequence * counts[:, None], axis=0), log_sigma


def _decoding(server: Server, load: Load, running: Array, calibration: Calibration) -> Estimate:
    """One step of as many sequences, in whole numbers, under every load."""
    sequences = np.maximum(np.ceil(running / server.pp), 1).astype(np.int64).reshape(load.form)
    return _decoded(server, sequences, load.prompts, _context(server, load), calibration)


def _decoded(server: Server, running: Ints, prompts: Ints, context_len: Ints, calibration: Calibration) -> Estimate:
    """One step of ``running`` sequences on each copy, replayed from a graph."""
    return served_pass(server, server.workload(Phase.DECODE, running, prompts, context_len), calibration)


CHUNK = 8192
"""Tokens of prompts an engine takes into one step (TensorRT-LLM's and vLLM's default)."""


@dataclass(frozen=True, slots=True)
class _PromptPasses:
    """Passes over the prompts of many loads."""

    alone: Estimate
    """A pass over one prompt."""
    each_s: Array
    """Seconds per prompt of a pass over ``COUNTS`` of them, or as many as a step takes in; never more than with
    fewer. One column per load."""
    server: Server
    chunks: Array
    """Passes that take in one prompt, which follow each other through the stages."""

    @property
    def alone_s(self) -> Array:
        through = (self.chunks + self.server.pp - 1) / (self.chunks * self.server.even_stages)
        return np.asarray(self.each_s[0] * np.minimum(through, 1.0))

    @property
    def full_s(self) -> Array:
        """Seconds of a stage per prompt when a step is filled with prompts."""
        return np.asarray(self.each_s[-1] / self.server.even_stages)

    def shared_s(self, per_step: Array) -> Array:
        """Seconds per prompt where ``per_step`` arrive during a step, evenly: below one, each has a pass alone."""
        i = np.clip(np.searchsorted(COUNTS, per_step, side="right") - 1, 0, len(self.each_s) - 2)
        low, high = COUNTS[i], COUNTS[i + 1]
        share = np.clip((per_step - low) / (high - low), 0.0, 1.0)
        column = np.arange(per_step.size)
        pass_s = (1 - share) * low * self.each_s[i, column] + share * high * self.each_s[i + 1, column]
        ratio: Array = pass_s / ((1 - share) * low + share * high) / self.server.even_stages
        return ratio


def prompt_passes(server: Server, load: Load, calibration: Calibration) -> _PromptPasses:
    """Passes over one prompt of each load, up to ``CHUNK`` tokens of them together."""
    lengths, where = np.unique(load.flat(load.input_len), return_inverse=True)
    lengths = lengths - load.cached_len
    together = np.maximum(CHUNK // lengths, 1)
    rows = max(int(np.searchsorted(COUNTS, together.max())) + 1, 2)
    counts = np.minimum(COUNTS[:rows, None].astype(np.int64), together)
    each_len = np.broadcast_to(lengths, counts.shape).ravel()
    time_s = prefilling(server, each_len, counts.ravel(), calibration, load.cached_len).time_s
    per_prompt = np.minimum.accumulate(np.reshape(time_s, counts.shape) / counts, axis=0)
    alone = prefilling(server, load.input_len - load.cached_len, 1, calibration, load.cached_len)
    return _PromptPasses(alone, per_prompt[:, where], server, np.ceil(lengths / CHUNK)[where])


@remembered_if_few
def prefilling(
    server: Server, input_len: Ints, together: Ints, calibration: Calibration, cached_len: int = 0
) -> Estimate:
    """A pass over ``together`` prompts of ``input_len`` tokens behind ``cached_len`` that are in the cache."""
    return served_pass(server, server.workload(Phase.PREFILL, together, input_len, cached_len), calibration)


APART_LOG_SIGMA = 1.0
"""Standard deviation of ln(measured / predicted) of the time to first token where prompts have servers of their own:
of SGLang's 59 published rows; it holds 75% of TensorRT-LLM's 83, which it has not seen (serving.csv, 2026-11-30)."""
HELD_LOG_SIGMA = 0.16
"""Standard deviation of ln(ran / predicted) of the sequences that run where memory is full, by Little's law from the
measured times of 18 rows (data/end_to_end/serving.csv, one server, confidence B, 2026-11-28): from the median of its
size 0.17, from the 80% quantile 0.16. Engines keep other buffers, and limit how many run."""


def _first_token_log_sigma(own_s: Floats, own: Floats, waited_s: Floats, waited: Floats) -> Floats:
    """Of the sum of two independent parts with ``own`` and ``waited`` as their own."""
    return np.hypot(own_s * own, waited_s * waited) / (own_s + waited_s)


def _full_log_sigma(waiting_share: Floats, slope: Floats) -> Floats:
    """Of the wait where memory is full and ``waiting_share`` of all requests wait: how many run is uncertain.
    ``slope``: d ln R / d ln(running)."""
    return _amplified(HELD_LOG_SIGMA, waiting_share, slope)


def _amplified(log_sigma: Floats, waiting_share: Floats, slope: Floats = 0.0) -> Floats:
    """Of a wait C/X - R whose X deviates by ``log_sigma``: the fewer requests wait, the more. A logarithm, because a
    wait is never below 0."""
    return np.log1p(log_sigma * (1 / np.maximum(waiting_share, 1e-9) - slope))


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
    price_step: Callable[[], Estimate] = field(repr=False)
    step_log_sigma: Floats
    prompt: Estimate = field(repr=False)
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
    ttft_deviation_s: Floats
    """Standard deviation among requests of what is no queue: of prompts' lengths, where in a step a request comes."""
    queue: Waits = field(repr=False)
    """Waits for the prompts before, which are part of the time to the first token."""
    tpot_deviation_s: Floats
    """Among requests: of the prompts that come between their tokens, and of how many run beside them."""

    @property
    def step(self) -> Estimate:
        """One decoding step on one device."""
        return self.price_step()

    def quantile(self, percentile: float | None) -> tuple[Floats, Floats]:
        """Times to the first token and per token that ``percentile`` of the requests have at most; None: the means.
        Those of requests are log-normal, with their mean and deviation; but waits in the queue are as `Waits` has
        them, independent of the rest."""
        if percentile is None:
            return self.ttft_s, self.tpot_s
        deviations = NormalDist().inv_cdf(percentile / 100)
        tpot_s = _log_normal(self.tpot_s, self.tpot_deviation_s, deviations)
        mean_s, form = np.asarray(self.ttft_s), np.shape(self.ttft_s)
        fits = np.isfinite(mean_s)
        rest_s = np.where(fits, mean_s - np.reshape(self.queue.mean_s, form), 1.0)
        rest = _log_normal(rest_s, self.ttft_deviation_s, deviations) - rest_s
        queue = np.where(fits, np.reshape(self.queue.beyond_mean_s(percentile / 100), form), 0.0)
        return plain(np.asarray(mean_s + np.copysign(np.hypot(queue, rest), queue + rest))), tpot_s

    @property
    def tpot_log_sigma(self) -> Floats:
        """The operators' uncertainty alone: its interval covers 87% of the published rows (lab/fit_serving.py)."""
        return self.step_log_sigma


def _log_normal(mean: Floats, deviation: Floats, deviations: float) -> Floats:
    """The quantile so many deviations above the median, of a log-normal distribution with this mean and deviation."""
    finite = np.where(np.isfinite(mean), mean, 1.0)
    square = np.log1p((deviation / finite) ** 2)
    quantile: Floats = plain(np.asarray(mean * np.exp(deviations * np.sqrt(square) - square / 2)))
    return quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waits of prompts for those before them, one entry per load: those of M/D/1 with this mean, whose prompts take
    ``lump_s`` (in G/G/1 times ``bursts``), or of recorded requests."""

    mean_s: Array
    lump_s: Array
    recorded: Recording | None = None
    every: Array | None = None
    """Of the recorded requests, how many a copy takes one of."""
    busy: Array | None = None
    """Share of the time that a copy of a prompts' server is busy."""

    def beyond_mean_s(self, share: float) -> Array:
        """What ``share`` of the requests wait at most, less the mean. The tail of M/D/1 is exponential: with busy B and
        a rate r per prompt where B (e^r - 1) = r, longer than x prompts waits (1 - B) / (B e^r - 1) e^(-r x)."""
        if self.recorded is not None and self.every is not None and self.busy is not None:
            at_most = self.recorded.waits(self.every, self.busy, share)
            return np.asarray((at_most - self.recorded.waits(self.every, self.busy)) * self.lump_s)
        lumps = np.where(np.isfinite(self.mean_s), self.mean_s, 1.0) / self.lump_s
        busy = np.clip(2 * lumps / (2 * lumps + 1), 1e-6, 1 - 1e-9)
        rate = np.minimum(2 * (1 - busy) / busy, 2 - 2 * np.log(busy))  # above the root, and convex: Newton falls to it
        for _ in range(NEWTON):
            rate = rate - (busy * np.expm1(rate) - rate) / (busy * np.exp(rate) - 1)
        tail = np.log((1 - busy) / (busy * np.exp(rate) - 1) / (1 - share)) / rate
        return np.asarray(np.maximum(tail, 0.0) * self.lump_s - self.mean_s)


NEWTON = 12
"""Newton steps to the decay of a queue's tail: from a bound that is at most twice the root, to the last digits."""


def steady_state(
    server: Server,
    load: Load,
    known: Calibration | None = None,
    *,
    waves: Floats = math.inf,
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
    answer = np.maximum(answer / server.tokens_per_step, 1.0)
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
    # a request meets each prompt once: for a stage's time or, in the batch that takes it in, for that of all stages
    met = others * prompt_s * (2 - 1 / server.pp)
    busy_s = np.minimum(bursts(load) * prompt_s * met / (2 * (answer * step_s + prompt_s)), met)
    queue = Waits(mean_s=busy_s, lump_s=bursts(load) * prompt_s)
    if load.recorded is not None:
        own_s = alone_s + FIRST_TOKEN_S

        def undisturbed_s(others: Array) -> Array:
            return own_s + (gaps + answer - 1) * steps.at(others + 1)

        queue, others, later = _replayed(load.recorded, server.copies, running, sequences, prompt_s, undisturbed_s)
        step_s, met = steps.at(others + 1), queue.mean_s + later * prompt_s
    queued_s = queue.mean_s + others / 2 * full_s / waves
    met_s = np.minimum(queued_s + gaps * others / answer * prompt_s, met)
    tpot_s = step_s + (met - met_s) / np.maximum(answer - 1, 1)
    first_s = alone_s + met_s + gaps * step_s + FIRST_TOKEN_S
    request_s = first_s + (answer - 1) * tpot_s
    met_later = np.maximum(met - met_s, 0.0) / prompt_s
    tpot_deviation_s = np.hypot(
        prompt_s * np.sqrt(met_later * (1 + load.prompt_cv2)) / np.maximum(answer - 1, 1),
        _swing(load, running * server.copies) * (steps.slope(running) * step_s + tpot_s - step_s),
    )
    room_s = (in_flight / running - 1) * request_s
    first_deviation_s = np.sqrt(
        gaps * others / answer * prompt_s**2
        + step_s**2 / 12
        + alone_s**2 * load.prompt_cv2
        + room_s**2 / np.maximum(flight - running * server.copies, 1.0)
    )
    step_log_sigma = steps.log_sigma_at(running)
    decoded = (answer - 1) * step_s  # with what it meets all of request_s but the scheduling of the first token, which
    # deviates as measured; passes deviate as their operators do
    passes_s = (alone_s + met) * load.flat(passes.alone.log_sigma) + decoded * step_log_sigma
    first = server.engine.first_token_log_sigma
    paced = np.hypot(passes_s, (request_s - alone_s - met - decoded) * first) / request_s
    slope = (met + (gaps * step_s + decoded) * steps.slope(running)) / request_s
    waited = np.hypot(paced, _full_log_sigma(1 - running / in_flight, slope))
    return _steady(
        server,
        load,
        sequences,
        running * server.copies,
        flight - running * server.copies,
        (partial(_decoding, server, load, running, known), step_log_sigma),
        passes.alone,
        prompt_s,
        step_s,
        tpot_s,
        (room_s + first_s, _first_token_log_sigma(first_s, first, room_s, waited), queue),
        (first_deviation_s, tpot_deviation_s),
    )


def _replayed(
    recorded: Recording,
    copies: int,
    running: Array,
    sequences: Ints,
    prompt_s: Array,
    undisturbed_s: Callable[[Array], Array],
) -> tuple[Waits, Array, Array]:
    """Recorded requests on servers of which each copy runs ``running`` on average: their waits, the sequences that run
    beside one, and the prompts that come while it is in flight. ``undisturbed_s``: a request's seconds with so many
    beside it, without the prompts of others. The rate is that at which Little's law holds; where one copy more or less
    would not do, they wait longer than they must."""

    def met(per_s: Array) -> tuple[Array, Array, Array, Array]:
        every = recorded.every(per_s * copies, copies)
        later, beside = recorded.followers(every, running)
        beside = np.minimum(beside, np.maximum(sequences - 1.0, 0.0))
        return every, recorded.waits(every, per_s * prompt_s), later, beside

    def taken_s(per_s: Array) -> Array:
        _, wait, later, beside = met(per_s)
        return np.asarray(undisturbed_s(beside) + (wait + later) * prompt_s)

    low, high = 1e-6 / prompt_s, 1 / prompt_s
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = middle * taken_s(middle) <= running
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    every, wait, later, beside = met(low)
    mean_s = wait * prompt_s + np.maximum(running / low - taken_s(low), 0.0)
    queue = Waits(mean_s=mean_s, lump_s=prompt_s, recorded=recorded, every=every, busy=low * prompt_s)
    return queue, beside, later


def _swing(load: Load, running: Array) -> Array:
    """Standard deviation of the number that runs, over that number, where requests come at a rate: of a queue with room
    for all (its variance is the mean's (1 + arrival_cv2) / 2 times, exact for Poisson)."""
    return np.sqrt(load.open * (1 + load.arrival_cv2) / 2 / np.maximum(running, 1.0))


def bursts(load: Load) -> float:
    """What arrivals and lengths multiply the wait of M/D/1 by (Kingman's and Allen and Cunneen's formula)."""
    return load.arrival_cv2 + load.prompt_cv2


def calibration_of(server: Server) -> Calibration:
    """The calibration of the server's GPU, with the kernels of its engine."""
    return load_calibration(server.gpu).with_kernels(server.engine.name)


def _steady(
    server: Server,
    load: Load,
    held: Ints,
    running: Array,
    waiting: Array,
    step: tuple[Callable[[], Estimate], Array],
    prompt: Estimate,
    each_prompt_s: Array,
    step_s: Array,
    tpot_s: Array,
    ttft: tuple[Array, Floats, Waits],
    deviations_s: tuple[Floats, Floats],
) -> Steady:
    """The columns in the form of ``load``; infinite times where not one sequence is held. ``ttft``: with its log sigma
    and queue; times per token are those of a step."""
    (flight, steps), (ttft_s, ttft_log_sigma, queue) = load.columns(), ttft
    fits, per_step = np.asarray(held) >= 1, server.tokens_per_step
    steps = np.maximum(steps / per_step, 1.0)
    tokens_per_s = np.where(fits, flight * steps * per_step / (ttft_s + (steps - 1) * tpot_s), 0.0)
    tpot_s, ttft_s = np.where(fits, tpot_s / per_step, np.inf), np.where(fits, ttft_s, np.inf)
    deviations = (
        np.broadcast_to(deviations_s[0], flight.shape),
        np.broadcast_to(deviations_s[1] / per_step, flight.shape),
    )
    columns = (running, waiting, each_prompt_s, step_s, step[1], tpot_s, ttft_s, tokens_per_s, *deviations)
    names = (
        "running waiting each_prompt_s step_s step_log_sigma tpot_s ttft_s output_tokens_per_s ttft_deviation_s "
        "tpot_deviation_s"
    )
    return Steady(
        price_step=step[0],
        prompt=prompt,
        queue=queue,
        ttft_log_sigma=plain(np.broadcast_to(ttft_log_sigma, flight.shape).reshape(load.form)),
        **{name: plain(column.reshape(load.form)) for name, column in zip(names.split(), columns, strict=True)},
    )


HALVINGS = 40
"""Halvings of the interval in which the number of running sequences is sought: 1e-12 of it."""


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
    of another: no prompt delays decoding, and the slower pool limits throughput. Times are infinite if a pool has no
    memory for one sequence."""
    flight, answer = load.columns()
    answer = np.maximum(answer / decode.tokens_per_step, 1.0)
    passes = prompt_passes(prefill, load, known or calibration_of(prefill))
    known = known or calibration_of(decode)
    copies = decode.copies * decode_workers
    sequences = np.where(capacity(prefill, load.flat(load.input_len)) >= 1, holds(decode, load), 0)
    at_once = np.minimum(flight / copies, np.maximum(sequences, 1))
    devices = prefill.num_devices * np.asarray(prefill_workers) + decode.num_devices * np.asarray(decode_workers)
    moved_s = np.maximum(_moved_s(prefill, load, devices), _moved_s(decode, load, devices))
    prompt_s, each_s, moved_s = (
        np.broadcast_to(column, flight.shape) for column in (passes.alone_s, passes.full_s, moved_s)
    )
    pools = _Pools(
        flight=flight,
        answer=answer,
        prompt_servers=prefill_workers * prefill.copies,
        prompt_s=prompt_s,
        each_s=each_s,
        moved_s=moved_s,
        steps=decode_steps(decode, load, float(at_once.max()), known),
        copies=copies,
        waves=waves,
        load=load,
    )
    running = pools.running(at_once)
    step_s = pools.steps.at(running)
    per_s = pools.per_s(running, step_s)
    queue = pools.queue(per_s)
    tpot_deviation_s = _swing(load, running * copies) * pools.steps.slope(running) * step_s
    own_s = pools.first_s(queue.mean_s, step_s)
    first_s = np.maximum(own_s, flight / per_s - (answer - 1) * step_s)
    share, pace = (first_s - own_s) * per_s / flight, pools.steps.log_sigma_at(running)
    queue = replace(queue, mean_s=queue.mean_s + first_s - own_s)
    full = np.hypot(pace, _full_log_sigma(share, pools.steps.slope(running)))
    waited = np.where(running < at_once, _amplified(load.flat(passes.alone.log_sigma), share), full)
    return _steady(
        decode,
        load,
        sequences,
        running * copies,
        np.maximum(flight - per_s * (own_s + (answer - 1) * step_s), 0.0),
        (partial(_decoding, decode, load, running, known), pace),
        passes.alone,
        each_s,
        step_s,
        step_s,
        (first_s, _first_token_log_sigma(own_s, APART_LOG_SIGMA, first_s - own_s, waited), queue),
        (np.sqrt(prompt_s**2 * load.prompt_cv2 + step_s**2 / 12), tpot_deviation_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pools:
    """Two pools under many loads, as functions of the sequences that run on each copy of the decoding server."""

    flight: Array
    answer: Array
    prompt_servers: Ints
    prompt_s: Array
    """A pass over one prompt."""
    each_s: Array
    """Seconds per prompt of a server that is never idle."""
    moved_s: Array
    """From the prompt's pass to the decoding server."""
    steps: _DecodeSteps
    copies: Ints
    waves: float
    load: Load

    def per_s(self, running: Array, step_s: Array) -> Array:
        """Requests whose answers end per second."""
        rate: Array = running * self.copies / (self.answer * step_s)
        return rate

    def first_s(self, queue_s: Array, step_s: Array) -> Array:
        """Time to first token."""
        first_s = (self.flight - 1) / 2 * self.each_s / self.prompt_servers / self.waves
        steps_s = FIRST_TOKEN_STEPS * step_s
        seconds: Array = self.prompt_s + queue_s + first_s + self.moved_s + steps_s + FIRST_TOKEN_S
        return seconds

    def queue(self, per_s: Array) -> Waits:
        """A request meets what the other requests make a server's queue: those that prompts' servers have busy with all
        but one request per server (M/D/1), or the recorded ones before it."""
        busy = np.minimum(per_s * self.each_s / self.prompt_servers, 1.0)
        if (recorded := self.load.recorded) is not None:
            every = recorded.every(per_s, self.prompt_servers)
            mean_s = recorded.waits(every, busy) * self.each_s
            return Waits(mean_s=mean_s, lump_s=self.each_s, recorded=recorded, every=every, busy=busy)
        busy = busy * np.maximum(1 - self.prompt_servers / self.flight, 0.0)
        lump_s = bursts(self.load) * self.each_s
        return Waits(mean_s=lump_s * busy / (2 * (1 - busy)), lump_s=lump_s)

    def running(self, largest: Array) -> Array:
        """Sequences that run on each copy: as many as the requests in flight keep there, with no more requests than
        the prompts' servers take in, and at most ``largest``."""
        low, high = np.zeros_like(largest), largest.astype(np.float64)
        fits = self._fits(high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            good = self._fits(middle)
            low, high = np.where(good, middle, low), np.where(good, high, middle)
        return np.where(fits, largest, low)

    def _fits(self, running: Array) -> npt.NDArray[np.bool_]:
        step_s = self.steps.at(running)
        per_s = self.per_s(running, step_s)
        taken = per_s * self.each_s <= self.prompt_servers
        request_s = self.first_s(self.queue(per_s).mean_s, step_s) + (self.answer - 1) * step_s
        fits: npt.NDArray[np.bool_] = taken & (per_s * request_s <= self.flight)
        return fits


def _moved_s(server: Server, load: Load, devices: Ints) -> Array:
    """Seconds to move one prompt's keys and values from or to each device of a server, over its own links if pools of
    so many devices are within one domain of them, else over the network."""
    lengths, where = np.unique(load.flat(load.input_len), return_inverse=True)
    cache = np.asarray([cache_bytes(server, int(n), 0) for n in lengths])[where.ravel()]
    near, far = own_links(server.gpu).tiers[0], usual_cluster(server.gpu).tiers[-1]
    return np.asarray(cache / np.where(devices > joined_devices(server.gpu), far.bytes_per_s, near.bytes_per_s))
