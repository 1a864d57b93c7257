"""Degrees of parallelism of a workload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sartor.units import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelDims:
    """Degrees of parallelism, in devices. ``tp`` * ``pp`` * ``dp`` * ``cp`` devices in all; ``ep`` is within dp."""

    tp: Ints = 1
    pp: Ints = 1
    dp: Ints = 1
    cp: Ints = 1
    ep: Ints = 1
    sequence_parallel: bool = True
    """Norms, residuals and activations outside the tensor-parallel region are split over ``tp`` as well
    (Korthikanti et al. 2022): all-reduces become reduce-scatter plus all-gather."""

    @property
    def num_devices(self) -> Ints:
        """Devices in all. In inference ``dp`` is 1, and ``ep`` groups of ``tp`` devices share the experts."""
        return self.tp * self.pp * self.cp * np.maximum(self.dp, self.ep)
