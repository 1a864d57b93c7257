"""Passes over prompts: how long they take where those that arrive in one step share them, and how certain the time to
first token is.

By Little's law a request waits C/X - R for C requests in flight, X answers per second and R seconds that a request
takes once admitted. So the wait is as certain as the throughput, which depends on the times of passes and on how many
sequences memory holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.price import Estimate, price
from sartor.model.workload import Phase, Workload
from sartor.step.serving.decode_steps import COUNTS
from sartor.step.serving.load import Load
from sartor.step.serving.served import Server, served_graph
from sartor.units import Floats, Ints

CHUNK = 8192
"""Tokens of prompts an engine takes into one step (TensorRT-LLM's and vLLM's default)."""

Array = npt.NDArray[np.float64]


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
        found: Array = self.each_s[0]
        return found

    @property
    def full_s(self) -> Array:
        """Seconds per prompt when a step is filled with prompts."""
        found: Array = self.each_s[-1]
        return found

    def shared_s(self, per_step: Array) -> Array:
        """Seconds per prompt where ``per_step`` arrive during a step, evenly: below one, each has a pass alone."""
        i = np.clip(np.searchsorted(COUNTS, per_step, side="right") - 1, 0, len(self.each_s) - 2)
        low, high = COUNTS[i], COUNTS[i + 1]
        share = np.clip((per_step - low) / (high - low), 0.0, 1.0)
        column = np.arange(per_step.size)
        pass_s = (1 - share) * low * self.each_s[i, column] + share * high * self.each_s[i + 1, column]
        found: Array = pass_s / ((1 - share) * low + share * high)
        return found


def prompt_passes(server: Server, load: Load, known: Calibration) -> PromptPasses:
    """Passes over one prompt of each load, up to ``CHUNK`` tokens of them together."""
    each, where = np.unique(load.flat(load.input_len), return_inverse=True)
    most = np.maximum(CHUNK // each, 1)
    rows = max(int(np.searchsorted(COUNTS, most.max())) + 1, 2)
    counts = np.minimum(COUNTS[:rows, None].astype(np.int64), most)
    time_s = prefilling(server, np.broadcast_to(each, counts.shape).ravel(), counts.ravel(), known).time_s
    per_prompt = np.minimum.accumulate(np.reshape(time_s, counts.shape) / counts, axis=0)
    return PromptPasses(prefilling(server, load.input_len, 1, known), per_prompt[:, where])


def prefilling(server: Server, input_len: Ints, together: Ints, known: Calibration) -> Estimate:
    """A pass over ``together`` prompts."""
    workload = Workload(
        shape=server.shape,
        phase=Phase.PREFILL,
        microbatch_size=together,
        seq_len=input_len,
        encodes=server.encodes,
        dtype=server.dtype,
    )
    return price(served_graph(server, workload), server.gpu, known, clock=Clock.BOOST, details=False)


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
