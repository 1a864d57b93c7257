"""How long a server's passes take: a decoding step, for any number of sequences between whole ones, and prompts.

Prompts that arrive in one step share it. By Little's law a request waits C/X - R for C requests in flight, X answers
per second and R seconds that a request takes once admitted. So the wait is as certain as the throughput, which depends
on the times of passes and on how many sequences memory holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.cost.price import Estimate
from sartor.model.workload import Phase
from sartor.step.serving.served import Load, Server, served_pass
from sartor.units import Floats, Ints

Array = npt.NDArray[np.float64]

COUNTS = np.unique(np.round(2.0 ** (np.arange(121) / 4)))
"""Sequences at which a step is priced: every number up to 8, then four from each power of two to the next."""


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """Seconds of a decoding step by the sequences it decodes, one column per load.

    Between two of ``COUNTS`` a step is linear, as the number that runs varies. A wider step takes no less than a
    narrower one, and one more sequence is never worse for tokens per second (a step with one row more than a tile
    holds): an engine would run fewer at once. With one sequence it is the price of that step.
    """

    seconds: Array

    def at(self, sequences: Array) -> Array:
        """Seconds with that many sequences for each load; below one as with one."""
        i = np.clip(np.searchsorted(COUNTS, sequences, side="right") - 1, 0, len(self.seconds) - 2)
        share = np.clip((sequences - COUNTS[i]) / (COUNTS[i + 1] - COUNTS[i]), 0.0, 1.0)
        column = np.arange(sequences.size)
        seconds: Array = (1 - share) * self.seconds[i, column] + share * self.seconds[i + 1, column]
        return seconds

    def slope(self, sequences: Array) -> Array:
        """d ln(seconds) / d ln(sequences), over the last tenth of the sequences."""
        slope: Array = np.log(self.at(sequences) / self.at(sequences / 1.1)) / np.log(1.1)
        return slope


def decode_steps(server: Server, load: Load, largest: float, calibration: Calibration) -> DecodeSteps:
    """Steps of up to ``largest`` sequences, each halfway through its answer."""
    counts = COUNTS[: max(int(np.searchsorted(COUNTS, largest)) + 1, 2)]
    both = np.stack([load.flat(load.input_len), load.flat(load.output_len)])
    lengths, where = np.unique(both, axis=1, return_inverse=True)
    where = where.ravel()
    running, length_index = (
        g.ravel() for g in np.meshgrid(counts.astype(np.int64), np.arange(lengths.shape[1]), indexing="ij")
    )
    loads = Load(concurrency=running, input_len=lengths[0, length_index], output_len=lengths[1, length_index])
    seconds = np.reshape(decoding(server, loads, running, calibration).time_s, (counts.size, lengths.shape[1]))
    per_sequence = np.minimum.accumulate(seconds / counts[:, None], axis=0)
    return DecodeSteps(np.maximum.accumulate(per_sequence * counts[:, None], axis=0)[:, where])


def decoding(server: Server, load: Load, running: Ints, calibration: Calibration) -> Estimate:
    """One step of ``running`` sequences on each copy, halfway through their answers, replayed from a graph. Behind an
    encoder a sequence's own tokens are those of the answer."""
    context_len = load.answered if server.encodes else load.middles
    return served_pass(server, server.workload(Phase.DECODE, running, load.prompts, context_len), calibration)


CHUNK = 8192
"""Tokens of prompts an engine takes into one step (TensorRT-LLM's and vLLM's default)."""


@dataclass(frozen=True, slots=True)
class PromptPasses:
    """Passes over the prompts of many loads."""

    alone: Estimate
    """A pass over one prompt."""
    each_s: Array
    """Seconds per prompt of a pass over ``COUNTS`` of them, or as many as a step takes in; never more than with
    fewer. One column per load."""

    @property
    def alone_s(self) -> Array:
        seconds: Array = self.each_s[0]
        return seconds

    @property
    def full_s(self) -> Array:
        """Seconds per prompt when a step is filled with prompts."""
        seconds: Array = self.each_s[-1]
        return seconds

    def shared_s(self, per_step: Array) -> Array:
        """Seconds per prompt where ``per_step`` arrive during a step, evenly: below one, each has a pass alone."""
        i = np.clip(np.searchsorted(COUNTS, per_step, side="right") - 1, 0, len(self.each_s) - 2)
        low, high = COUNTS[i], COUNTS[i + 1]
        share = np.clip((per_step - low) / (high - low), 0.0, 1.0)
        column = np.arange(per_step.size)
        pass_s = (1 - share) * low * self.each_s[i, column] + share * high * self.each_s[i + 1, column]
        ratio: Array = pass_s / ((1 - share) * low + share * high)
        return ratio


def prompt_passes(server: Server, load: Load, calibration: Calibration) -> PromptPasses:
    """Passes over one prompt of each load, up to ``CHUNK`` tokens of them together."""
    lengths, where = np.unique(load.flat(load.input_len), return_inverse=True)
    together = np.maximum(CHUNK // lengths, 1)
    rows = max(int(np.searchsorted(COUNTS, together.max())) + 1, 2)
    counts = np.minimum(COUNTS[:rows, None].astype(np.int64), together)
    time_s = prefilling(server, np.broadcast_to(lengths, counts.shape).ravel(), counts.ravel(), calibration).time_s
    per_prompt = np.minimum.accumulate(np.reshape(time_s, counts.shape) / counts, axis=0)
    return PromptPasses(prefilling(server, load.input_len, 1, calibration), per_prompt[:, where])


def prefilling(server: Server, input_len: Ints, together: Ints, calibration: Calibration) -> Estimate:
    """A pass over ``together`` prompts."""
    return served_pass(server, server.workload(Phase.PREFILL, together, input_len), calibration)


HELD_LOG_SIGMA = 0.16
"""Standard deviation of ln(ran / predicted) of the sequences that run where memory is full, by Little's law from the
measured times of 18 rows (data/end_to_end/serving.csv, one server, confidence B, 2026-11-28): from the median of its
size 0.17, from the 80% quantile 0.16. Engines keep other buffers, and limit how many run."""


def first_token_log_sigma(own_s: Floats, own: Floats, waited_s: Floats, waited: Floats) -> Floats:
    """Of the sum of two independent parts with ``own`` and ``waited`` as their own."""
    return np.hypot(own_s * own, waited_s * waited) / (own_s + waited_s)


def full_log_sigma(waiting_share: Floats, slope: Floats) -> Floats:
    """Of the wait where memory is full and ``waiting_share`` of all requests wait: how many run is uncertain.
    ``slope``: d ln R / d ln(running)."""
    return amplified(HELD_LOG_SIGMA, waiting_share, slope)


def amplified(log_sigma: Floats, waiting_share: Floats, slope: Floats = 0.0) -> Floats:
    """Of a wait C/X - R whose X deviates by ``log_sigma``: the fewer requests wait, the more. A logarithm, because a
    wait is never below 0."""
    return np.log1p(log_sigma * (1 / np.maximum(waiting_share, 1e-9) - slope))
