"""How long a decoding step takes, for any number of sequences between whole ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration, Clock
from sartor.cost.price import Estimate, price
from sartor.model.workload import Phase, Workload
from sartor.operators import Attention, GroupedGemm, MemoryBound
from sartor.step.serving.load import Load
from sartor.step.serving.served import Server, served_graph
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
        found: Array = (1 - share) * self.seconds[i, column] + share * self.seconds[i + 1, column]
        return found

    def slope(self, sequences: Array) -> Array:
        """d ln(seconds) / d ln(sequences), over the last tenth of the sequences."""
        found: Array = np.log(self.at(sequences) / self.at(sequences / 1.1)) / np.log(1.1)
        return found


def decode_steps(server: Server, load: Load, most: float, known: Calibration) -> DecodeSteps:
    """Steps of up to ``most`` sequences, each halfway through its answer."""
    counts = COUNTS[: max(int(np.searchsorted(COUNTS, most)) + 1, 2)]
    both = np.stack([load.flat(load.input_len), load.flat(load.output_len)])
    each, where = np.unique(both, axis=1, return_inverse=True)
    where = where.ravel()
    running, at = (g.ravel() for g in np.meshgrid(counts.astype(np.int64), np.arange(each.shape[1]), indexing="ij"))
    loads = Load(concurrency=running, input_len=each[0, at], output_len=each[1, at])
    found = replayed_s(server, decoding(server, loads, running, known)).reshape(counts.size, each.shape[1])
    per_sequence = np.minimum.accumulate(found / counts[:, None], axis=0)
    return DecodeSteps(np.maximum.accumulate(per_sequence * counts[:, None], axis=0)[:, where])


def replayed_s(server: Server, step: Estimate) -> Array:
    """Seconds of a decoding step replayed from a graph, without the launches that the engine hides."""
    hidden: Floats = 0.0
    for op, cost in zip(step.graph.operators, step.costs, strict=True):
        if isinstance(op, (MemoryBound, Attention, GroupedGemm)):
            hidden = hidden + np.minimum(cost.overhead_s, cost.time_s) * op.count
    return np.asarray(step.time_s - server.engine.hidden_launches * hidden)


def decoding(server: Server, load: Load, running: Ints, known: Calibration) -> Estimate:
    """One step of ``running`` sequences on each copy, halfway through their answers, replayed from a graph. Behind an
    encoder a sequence's own tokens are those of the answer."""
    workload = Workload(
        shape=server.shape,
        phase=Phase.DECODE,
        microbatch_size=running,
        context_len=load.answered if server.encodes else load.middles,
        seq_len=load.prompts,
        dtype=server.dtype,
    )
    return price(served_graph(server, workload), server.gpu, known, clock=Clock.BOOST, details=False)
