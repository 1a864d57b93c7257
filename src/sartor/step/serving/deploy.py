"""The cheapest deployment of a served model: every layout of servers, priced under every load at once.

A layout is one server, or servers for prompts beside servers for answers; a deployment is some replicas of it. Each
layout's latencies are arrays over the requests in flight; the most that meets the objectives says how many replicas a
load takes. All layouts that can be built are priced, so the best is the best of them (a test enumerates).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Calibration
from sartor.model.lower import feasible
from sartor.model.workload import ParallelDims
from sartor.pareto import is_pareto
from sartor.step.run_cost import POWER_SHARE
from sartor.step.serving.batching import CHUNK, Steady, disaggregated, prompt_passes, steady_state
from sartor.step.serving.inference import WIDTHS
from sartor.step.serving.served import Load, Server, capacity, holds, padded
from sartor.units import BoolArray, Floats, IntArray

Array = npt.NDArray[np.float64]

WORKERS = tuple((x, y) for x in range(1, 5) for y in range(1, 5) if math.gcd(x, y) == 1)
"""Servers for prompts and for answers of a layout with pools."""
POINTS = 64
"""Numbers of requests in flight at which a layout is priced first, and again between the neighbours of the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyGoal:
    """What requests must see; infinite: not limited."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    probability: float | None = None
    """With which both must hold; None: both predictions do."""
    percentile: float | None = None
    """Of the requests that must see them; None: the mean does."""

    def likely(self, steady: Steady) -> Array:
        """Probability that both hold, if their errors were independent: both rise with slower kernels, so no less."""
        ttft_s, tpot_s = steady.quantile(self.percentile)
        ttft = _below(self.ttft_s, ttft_s, steady.ttft_log_sigma)
        return ttft * _below(self.tpot_s, tpot_s, steady.tpot_log_sigma)

    def met(self, steady: Steady) -> BoolArray:
        """Where the objectives are met."""
        if self.probability is not None:
            return self.likely(steady) >= self.probability
        ttft_s, tpot_s = steady.quantile(self.percentile)
        return np.asarray((ttft_s <= self.ttft_s) & (tpot_s <= self.tpot_s))


def _below(limit_s: float, seconds: Floats, log_sigma: Floats) -> Array:
    """Probability that times are at most a limit, where ln(measured / predicted) is normal."""
    with np.errstate(divide="ignore"):
        deviations = np.log(limit_s / np.asarray(seconds)) / np.maximum(log_sigma, 1e-9)
    return np.asarray(np.vectorize(_normal_cdf, otypes=[float])(deviations))


_normal_cdf = NormalDist().cdf


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLayout:
    """Servers that work together: one pool, or servers for prompts beside servers for answers."""

    server: Server
    prefill: Server | None = None
    prefill_workers: int = 0
    decode_workers: int = 1

    @property
    def num_devices(self) -> int:
        first = self.prefill.num_devices * self.prefill_workers if self.prefill else 0
        return first + self.server.num_devices * self.decode_workers

    def most_in_flight(self, load: Load) -> int:
        """Requests in flight beyond which more only wait: those in memory, and a step's prompts on their servers."""
        running = int(holds(self.server, load)[0]) * self.server.copies * self.decode_workers
        prompts = (
            max(CHUNK // int(load.input_len), 1) * self.prefill_workers * self.prefill.copies if self.prefill else 0
        )
        return running + prompts if running else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Replicas of a layout under a load, each with ``in_flight`` requests."""

    layout: ServerLayout
    in_flight: int
    replicas: int
    steady: Steady
    """One replica's, with that one load."""
    likely: float
    """Probability that the objectives hold."""
    most_in_flight: int
    """Requests in flight of a replica with which the objectives still hold."""
    most_at_once: int
    """Requests that a replica must have room for: the same or, as recorded bursts are more, all that memory holds."""
    output_tokens_per_s: float
    """Of all replicas, under the load."""

    @property
    def num_devices(self) -> int:
        return self.replicas * self.layout.num_devices

    @property
    def prompt_share(self) -> float:
        """Share of the devices' time that prompts take: their own servers', else what passes between decoding steps."""
        layout = self.layout
        if layout.prefill is not None:
            return layout.prefill.num_devices * layout.prefill_workers / layout.num_devices
        step_s, tpot_s = (float(np.ravel(seconds)[0]) for seconds in (self.steady.step_s, self.steady.tpot_s))
        return max(1 - step_s / (tpot_s * layout.server.tokens_per_step), 0.0)

    @property
    def joules_per_token(self) -> float:
        """Of the tokens of answers, at the devices' power limit as `sartor.plan` has it: an upper bound."""
        return self.num_devices * self.layout.server.gpu.tdp_w * POWER_SHARE / self.output_tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayouts:
    """Layouts of the same servers, in rows, each under several numbers of requests in flight."""

    layouts: tuple[ServerLayout, ...]
    in_flight: IntArray
    steady: Steady
    met: BoolArray
    """Where the objectives are met."""
    load: Floats
    """What a replica takes of the load: requests in flight or, if those are not stated, tokens per second."""

    @property
    def best(self) -> IntArray:
        """Per layout the column that takes the most load among those that meet the objectives."""
        return np.asarray(np.where(self.met, self.load, -1.0).argmax(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployer:
    """What every layout is priced for."""

    calibration: Calibration
    objective: LatencyGoal
    request: Load
    """One request: its lengths, and how they and arrivals vary."""
    requests_per_s: float = 0.0
    users: int = 0
    """The load: requests per second, or in flight; 0 of both: as much as a replica takes."""

    @property
    def input_len(self) -> int:
        return int(self.request.input_len)

    @property
    def output_len(self) -> int:
        return int(self.request.output_len)

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(self.request.longest, self.input_len + self.output_len)

    def priced(self, layouts: Sequence[ServerLayout]) -> tuple[PricedLayouts, PricedLayouts] | None:
        """Layouts of the same servers under loads up to all that they hold: ``POINTS`` of them evenly in logarithm, and
        then ever closer around those where the objectives begin to fail, until the replicas are certain (tokens per
        second never fall with more in flight). None if no request fits."""
        largest = np.asarray([layout.most_in_flight(self.request) for layout in layouts])
        prefill = layouts[0].prefill
        if not largest.all() or (prefill is not None and not int(capacity(prefill, self.input_len))):
            return None
        wide = close = self._at(
            layouts, np.geomspace(np.ones_like(largest), largest, POINTS, axis=1).round().astype(np.int64)
        )
        while self._is_open(close):
            rows, best = np.arange(len(layouts)), close.best
            low, high = close.in_flight[rows, best], close.in_flight[rows, np.minimum(best + 1, POINTS - 1)]
            close = self._at(layouts, np.linspace(low, high, POINTS, axis=1).astype(np.int64))
        return wide, close

    def _is_open(self, priced: PricedLayouts) -> bool:
        """Whether a load between those priced could take fewer replicas (of no load: give more tokens)."""
        rows, best = np.arange(len(priced.layouts)), priced.best
        after = np.minimum(best + 1, POINTS - 1)
        gaps = priced.in_flight[rows, after] - priced.in_flight[rows, best] > 1
        loaded = bool(self.users or self.requests_per_s)
        fewer = self._replicas_at(priced, after) < self._replicas_at(priced, best) if loaded else True
        return bool((priced.met.any(axis=1) & gaps & fewer).any())

    def _at(self, layouts: Sequence[ServerLayout], in_flight: IntArray) -> PricedLayouts:
        steady = self.steady(layouts, in_flight)
        load = in_flight if self.users else steady.output_tokens_per_s
        met = self.objective.met(steady)
        return PricedLayouts(layouts=tuple(layouts), in_flight=in_flight, steady=steady, met=met, load=load)

    def steady(self, layouts: Sequence[ServerLayout], in_flight: IntArray) -> Steady:
        """Latency and throughput of layouts of the same servers, each with a row of requests in flight."""
        load = replace(self.request, concurrency=in_flight)
        server, prefill = layouts[0].server, layouts[0].prefill
        if prefill is None:
            return steady_state(server, load, self.calibration)
        first, then = (
            np.repeat([getattr(layout, name) for layout in layouts], in_flight.shape[1])
            for name in ("prefill_workers", "decode_workers")
        )
        return disaggregated(prefill, first, server, then, load, self.calibration)

    def replicas(self, priced: PricedLayouts) -> IntArray:
        """Per layout the fewest replicas that meet the objectives under the load, 0 where none do; for no load one."""
        return np.where(priced.met.any(axis=1), self._replicas_at(priced, priced.best), 0)

    def _replicas_at(self, priced: PricedLayouts, columns: IntArray) -> IntArray:
        rows = np.arange(len(priced.layouts))
        if self.users:
            needed = self.users / priced.in_flight[rows, columns]
        else:
            most_per_s = np.asarray(priced.steady.output_tokens_per_s)[rows, columns] / self.output_len
            needed = self.requests_per_s / np.maximum(most_per_s, 1e-300)
        return np.maximum(np.ceil(needed - 1e-9), 1).astype(np.int64)

    def deployed(self, priced: PricedLayouts, row: int) -> Deployment:
        """A layout's fewest replicas, with the requests in flight that the load then keeps there."""
        layout, replicas = priced.layouts[row], int(self.replicas(priced)[row])
        in_flight = largest = int(priced.in_flight[row, priced.best[row]])
        if self.users:
            in_flight = math.ceil(self.users / replicas)
        elif self.requests_per_s:
            in_flight = self._least_in_flight(layout, largest, self.requests_per_s / replicas)
        steady = self.steady([layout], np.asarray([[in_flight]]))
        rate = replicas * float(np.ravel(steady.output_tokens_per_s)[0])
        load = self.requests_per_s * self.output_len or (self.users and rate * self.users / (in_flight * replicas))
        return Deployment(
            layout=layout,
            in_flight=in_flight,
            replicas=replicas,
            steady=steady,
            likely=float(self.objective.likely(steady)[0, 0]),
            most_in_flight=largest,
            most_at_once=layout.most_in_flight(self.request) if self.request.recorded else largest,
            output_tokens_per_s=load or rate,
        )

    def _least_in_flight(self, layout: ServerLayout, largest: int, per_s: float) -> int:
        """The fewest requests in flight, at most ``largest``, with which a replica answers ``per_s`` (Little)."""
        low, high = 0, largest
        while high - low > 1:
            tried = np.unique(np.linspace(low + 1, high, POINTS).astype(np.int64))
            rates = np.ravel(self.steady([layout], tried[None]).output_tokens_per_s) / self.output_len
            first = int(np.argmax(rates >= per_s)) if rates.max() >= per_s else tried.size - 1
            low, high = (int(tried[first - 1]) if first else low), int(tried[first])
        return high

    def first_servers(self, servers: Sequence[Server]) -> list[Server]:
        """Of servers for prompts, those that no other beats in devices, seconds of a prompt and prompts per second."""
        able = [server for server in servers if int(capacity(server, self.input_len))]
        passes = [prompt_passes(server, self.request, self.calibration) for server in able]
        points = [
            (server.num_devices, float(prompts.alone_s[0]), float(prompts.full_s[0]) / server.copies)
            for server, prompts in zip(able, passes, strict=True)
        ]
        return [server for server, best in zip(able, is_pareto(points), strict=True) if best] if able else []


STAGES = (2, 4, 8)
"""Pipeline stages that are tried, where the devices are more than one domain of fast links joins."""


def with_stages(servers: Sequence[Server], joined: int, most_devices: int) -> list[Server]:
    """The servers as stages of pipelines over more than ``joined`` devices; without copies and drafts, which engines
    don't combine with them."""
    stages = [replace(server, pp=pp) for server in servers for pp in STAGES if pp <= server.shape.num_layers]
    plain = [server for server in stages if server.copies == 1 and not server.draft_tokens and not server.encodes]
    return [server for server in plain if joined < server.num_devices <= most_devices]


def servers_of(
    server: Server, joined: int, widths: Sequence[int] = WIDTHS, experts: Sequence[int] = ()
) -> list[Server]:
    """Every server of up to ``joined`` devices: tensor parallelism of ``widths``, in a mixture copies of attention in
    powers of two, and experts all split or all whole (``experts``: only so)."""
    moe = server.shape.moe_ffn
    servers = []
    for tp, copies in itertools.product(widths, [2**i for i in range(joined.bit_length())] if moe else [1]):
        shape, devices = padded(server.shape, tp), tp * copies
        if server.engine.copies_are_devices and tp > 1 < copies:
            continue
        if devices > joined or not feasible(shape, ParallelDims(tp=tp, ep=copies)):
            continue
        for ep in experts or sorted({1, devices} if moe else {1}):
            if devices % ep == 0 and (moe is None or int(moe.num_experts) % ep == 0):
                servers.append(replace(server, shape=shape, tp=tp, copies=copies, ep=ep))
    return servers


def with_pools(first: Server, then: Server, most_devices: int) -> list[ServerLayout]:
    """The layouts with one server for prompts and another for answers: ``WORKERS`` of them."""
    layouts = [ServerLayout(server=then, prefill=first, prefill_workers=x, decode_workers=y) for x, y in WORKERS]
    return [layout for layout in layouts if layout.num_devices <= most_devices]
