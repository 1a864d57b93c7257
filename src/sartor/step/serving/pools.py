"""Prompts on servers of their own: two pools in steady state with a fixed number of requests in flight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import own_links
from sartor.step.serving.batching import FIRST_TOKEN_S, FIRST_TOKEN_STEPS, Array, Steady, calibration_of, steady
from sartor.step.serving.load import Load
from sartor.step.serving.passes import (
    DecodeSteps,
    amplified,
    decode_steps,
    decoding,
    first_token_log_sigma,
    full_log_sigma,
    prompt_passes,
)
from sartor.step.serving.served import Server, cache_bytes, capacity, holds
from sartor.units import Floats, Ints

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
    of another: no prompt delays decoding, and the slower pool limits throughput. Keys and values move over one device's
    links. Times are infinite if a pool has no memory for one sequence."""
    flight, answer = load.columns()
    passes = prompt_passes(prefill, load, known or calibration_of(prefill))
    known = known or calibration_of(decode)
    copies = decode.copies * decode_workers
    sequences = np.where(capacity(prefill, load.flat(load.input_len)) >= 1, holds(decode, load), 0)
    at_once = np.minimum(flight / copies, np.maximum(sequences, 1))
    prompt_s, each_s, moved_s = (
        np.broadcast_to(column, flight.shape) for column in (passes.alone_s, passes.full_s, _moved_s(decode, load))
    )
    pools = Pools(
        flight=flight,
        answer=answer,
        prompt_servers=prefill_workers * prefill.copies,
        prompt_s=prompt_s,
        each_s=each_s,
        moved_s=moved_s,
        steps=decode_steps(decode, load, float(at_once.max()), known),
        copies=copies,
        waves=waves,
    )
    running = pools.running(at_once)
    per_s, step_s = pools.per_s(running), pools.steps.at(running)
    own_s = pools.first_s(running)
    first_s = np.maximum(own_s, flight / per_s - (answer - 1) * step_s)
    column = np.maximum(np.ceil(running), 1).astype(np.int64).reshape(load.form)
    step = decoding(decode, load, column, known)
    share, pace = (first_s - own_s) * per_s / flight, load.flat(step.log_sigma)
    full = np.hypot(pace, full_log_sigma(share, pools.steps.slope(running)))
    waited = np.where(running < at_once, amplified(load.flat(passes.alone.log_sigma), share), full)
    return steady(
        decode,
        load,
        sequences,
        running * copies,
        np.maximum(flight - per_s * pools.request_s(running), 0.0),
        step,
        passes.alone,
        each_s,
        step_s,
        step_s,
        first_s,
        first_token_log_sigma(own_s, decode.engine.first_token_log_sigma, first_s - own_s, waited),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Two pools under many loads, as functions of the sequences that run on each copy of the decoding server."""

    flight: Array
    answer: Array
    prompt_servers: Ints
    prompt_s: Array
    """A pass over one prompt."""
    each_s: Array
    """Seconds per prompt of a server that is never idle."""
    moved_s: Array
    steps: DecodeSteps
    copies: Ints
    waves: float

    def per_s(self, running: Array) -> Array:
        """Requests whose answers end per second."""
        rate: Array = running * self.copies / (self.answer * self.steps.at(running))
        return rate

    def first_s(self, running: Array) -> Array:
        """Time to first token. A request meets what the other requests make a server's queue: those that prompts'
        servers have busy with all but one request per server (M/D/1)."""
        share = np.maximum(1 - self.prompt_servers / self.flight, 0.0)
        busy = np.minimum(self.per_s(running) * self.each_s / self.prompt_servers, 1.0) * share
        queue_s = self.each_s * busy / (2 * (1 - busy))
        first_s = (self.flight - 1) / 2 * self.each_s / self.prompt_servers / self.waves
        steps_s = FIRST_TOKEN_STEPS * self.steps.at(running)
        seconds: Array = self.prompt_s + queue_s + first_s + self.moved_s + steps_s + FIRST_TOKEN_S
        return seconds

    def request_s(self, running: Array) -> Array:
        """Time of a request that neither memory nor the prompts' servers hold up."""
        seconds: Array = self.first_s(running) + (self.answer - 1) * self.steps.at(running)
        return seconds

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
        per_s = self.per_s(running)
        taken = per_s * self.each_s <= self.prompt_servers
        fits: npt.NDArray[np.bool_] = taken & (per_s * self.request_s(running) <= self.flight)
        return fits


def _moved_s(server: Server, load: Load) -> Floats:
    """Seconds to move one prompt's keys and values between pools over one device's links."""
    lengths = np.atleast_1d(load.input_len)
    cache = [cache_bytes(server, int(n), 0) for n in lengths]
    link = own_links(server.gpu).tiers[0].bytes_per_s
    return np.reshape(cache, np.shape(load.input_len)) / link
