"""Fit the GEMM formula to a few measurements: maximum a posteriori around coefficients that are already good.

The formula is ``cost.gpu.tiles`` itself. The unknowns are logarithms of its coefficients, each with a standard
deviation about the start (a related GPU's fit or a generation's assumptions), so ten rows already help and two hundred
settle most. Errors are those of ln(predicted / measured), with a loss that is linear for outliers. Levenberg-Marquardt
on numeric derivatives; the same rows and start give the same coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.gpu import gemm as product_cost
from sartor.cost.gpu.tiles import Problems, evaluate
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict
from sartor.operators import DType, Gemm, Layout
from sartor.units import FloatArray, Floats

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """GEMMs of one dtype on one device; one entry each. ``layouts`` holds ``Layout`` names."""

    gpu: Gpu
    dtype: DType
    batch: Index
    m: Index
    n: Index
    k: Index
    layouts: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return int(self.m.size)

    def part(self, where: Floats) -> Products:
        sizes = {name: getattr(self, name)[where] for name in ("batch", "m", "n", "k", "layouts")}
        return replace(self, **sizes)

    @property
    def flops(self) -> FloatArray:
        flops: FloatArray = np.float64(2) * self.batch * self.m * self.n * self.k
        return flops

    @property
    def misaligned(self) -> bool:
        """Whether any operand's contiguous length may be off 64 bytes."""
        step = max(1, int(64 / self.dtype.bytes))
        return bool(((self.k % step != 0) | (self.n % step != 0)).any())


def seconds(products: Products) -> Callable[[GemmCoefficients], FloatArray]:
    """Predicted seconds of every product at boost clock, as a function of the coefficients."""
    parts = []
    for layout in sorted(set(products.layouts.tolist())):
        where = np.flatnonzero(products.layouts == layout)
        sizes = {name: getattr(products, name)[where] for name in ("batch", "m", "n", "k")}
        parts.append((where, Gemm(name="fit", dtype=products.dtype, layout=Layout[layout], **sizes)))

    def predict(c: GemmCoefficients) -> FloatArray:
        machine = product_cost._machine(products.gpu, products.dtype, c, Clock.BOOST)
        out = np.empty(len(products))
        for where, product in parts:
            arrays, shape = product_cost._problem(product, c)
            flat = Problems(**{name: np.broadcast_to(value, shape) for name, value in arrays.items()})
            out[where] = evaluate(flat, machine, c, details=False)["time_s"]
        return out

    return predict


# ------------------------------------------------------------------------------------------- what may move

SCALARS: dict[str, tuple[float, float, float]] = {
    "feed_bytes_per_clock": (0.4, 8, 400),
    "step_s": (0.5, 1e-8, 4e-6),
    "wave_s": (0.7, 1e-8, 8e-6),
    "tile_s": (0.5, 1e-8, 8e-6),
    "launch_s": (0.7, 3e-7, 1e-4),
    "split_s": (0.5, 1e-7, 2e-5),
    "split_rate": (0.5, 0.3, 30),
    "write_cost": (0.3, 1, 4),
    "hbm_share": (0.2, 0.1, 1.0),
    "overlap": (0.5, 0.005, 1),
    "l2_share": (0.7, 0.001, 1),
    "max_split": (0.5, 2, 64),
    "throttle": (0.7, 1e-3, 0.6),
    "throttle_s": (0.7, 5e-5, 2e-2),
}
"""Coefficient: standard deviation of its logarithm about the start, lower bound, upper bound. The bounds are those of
lab/fit_gemm.py; the deviations are about the spread of the packaged fits between generations (2026-11-21)."""

QUANTIZE = {
    "quantize_s": (0.7, 1e-8, 2e-5),
    "quantize_bytes": (0.5, 0.01, 60),
    "pack_tn": (0.7, 0.01, 100),
    "pack_nn": (0.7, 0.01, 100),
    "pack_nt": (0.7, 0.01, 100),
    "pack_columns": (0.5, 16, 4096),
    "fresh_cost": (0.7, 0.01, 100),
    "stream_k_cost": (0.7, 1e-3, 0.6),
    "stream_k_fills": (0.7, 0.01, 60),
}
"""Fitted only if the start has them: low-bit GEMMs timed with a quantizing kernel, libraries that repack operands or
deal steps evenly."""

SHARE_SD, TILE_SD, PENALTY_SD = 0.25, 0.1, 0.5
"""Standard deviations of: a factor on all tiles' shares of peak, each tile's own share, the alignment penalties."""

GREATEST_SHARE = 1.1
NOISE = 0.05
"""Error of ln(time) that costs as much as moving a coefficient by one standard deviation; linear loss beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknowns:
    """The coefficients that may move from ``start``, as one vector in standard deviations (0 is the start)."""

    start: GemmCoefficients
    names: tuple[str, ...]
    sd: FloatArray
    low: FloatArray
    high: FloatArray
    penalties: bool

    @classmethod
    def of(cls, start: GemmCoefficients, *, penalties: bool, freedom: float = 1.0) -> Unknowns:
        """Coefficients whose start lies outside their bounds (an engine without tiles) are kept fixed."""
        spans = [(name, *span) for name, span in (SCALARS | QUANTIZE).items() if _inside(getattr(start, name), span)]
        x = [np.log(getattr(start, name)) for name, *_ in spans]
        tiles, steps = len(start.tiles), 2 * int(penalties)
        sd = [*(span[1] for span in spans), SHARE_SD, *[TILE_SD] * tiles, *[PENALTY_SD] * steps]
        low = [
            *(np.log(span[2]) - log_value for span, log_value in zip(spans, x, strict=True)),
            *[-2.0] * (1 + tiles + steps),
        ]
        high = [
            *(np.log(span[3]) - log_value for span, log_value in zip(spans, x, strict=True)),
            *[1.0] * (1 + tiles + steps),
        ]
        widths = freedom * np.asarray(sd)
        names = tuple(name for name, *_ in spans)
        bounds = np.asarray(low) / widths, np.asarray(high) / widths
        return cls(start=start, names=names, sd=widths, low=bounds[0], high=bounds[1], penalties=penalties)

    def coefficients(self, z: FloatArray) -> GemmCoefficients:
        """The coefficients that the vector ``z`` stands for."""
        factor = np.exp(z * self.sd)
        scalars: JsonDict = {name: float(getattr(self.start, name) * factor[i]) for i, name in enumerate(self.names)}
        head = len(self.names)
        shares = factor[head] * factor[head + 1 : head + 1 + len(self.start.tiles)]
        tiles = tuple(
            (m, n, min(GREATEST_SHARE, float(share * f)))
            for (m, n, share), f in zip(self.start.tiles, shares, strict=True)
        )
        steps: JsonDict = {}
        if self.penalties:
            read, written = factor[-2:]
            steps["input_penalty"] = tuple(float(v * read) for v in self.start.input_penalty)
            steps["output_penalty"] = tuple(float(v * written) for v in self.start.output_penalty)
        return replace(self.start, tiles=tiles, **scalars, **steps)


def _inside(value: float, span: tuple[float, float, float]) -> bool:
    return span[1] <= value <= span[2]


# ------------------------------------------------------------------------------------------- the search


def fit(
    products: Products, measured_s: FloatArray, start: GemmCoefficients, *, freedom: float = 1.0, rounds: int = 30
) -> GemmCoefficients:
    """Coefficients that explain ``measured_s`` [seconds] best without straying from ``start``.

    ``freedom`` scales how far each may move; ``rounds`` is the maximum number of iterations.
    """
    unknowns = Unknowns.of(start, penalties=products.misaligned, freedom=freedom)
    log_s = _log_seconds(products, unknowns)
    target = np.log(measured_s)
    z = np.clip(np.zeros(unknowns.sd.size), unknowns.low, unknowns.high)
    error = log_s(z) - target
    damping = 1.0
    for _ in range(rounds):
        jacobian = _sensitivities(log_s, z, unknowns, error + target)
        before, moved = _objective(error, z), False
        while damping < 1e6 and not moved:
            trial = np.clip(z + _step(jacobian, error, z, damping), unknowns.low, unknowns.high)
            trial_error = log_s(trial) - target
            moved = _objective(trial_error, trial) < before
            damping = damping / 3 if moved else damping * 4
        if not moved:
            break
        z, error = trial, trial_error
        if before - _objective(error, z) < 1e-3 * before:
            break
    return unknowns.coefficients(z)


def _log_seconds(products: Products, unknowns: Unknowns) -> Callable[[FloatArray], FloatArray]:
    """ln(predicted seconds) of every product as a function of the unknowns."""
    predict = seconds(products)
    return lambda z: np.log(predict(unknowns.coefficients(z)))


def _sensitivities(
    log_s: Callable[[FloatArray], FloatArray], z: FloatArray, unknowns: Unknowns, base: FloatArray
) -> FloatArray:
    """d ln(seconds) / d unknown [GEMMs, unknowns]. Steps of 2% are large enough to smooth over the formula's kinks."""
    columns = []
    for i, sd in enumerate(unknowns.sd):
        step = 0.02 / sd
        step = -step if z[i] + step > unknowns.high[i] else step
        moved = z.copy()
        moved[i] += step
        columns.append((log_s(moved) - base) / step)
    return np.stack(columns, axis=1)


def _objective(error: FloatArray, z: FloatArray) -> float:
    scaled = error / NOISE
    return float(2 * (np.sqrt(1 + scaled**2) - 1).sum() + (z**2).sum())


def _step(jacobian: FloatArray, error: FloatArray, z: FloatArray, damping: float) -> FloatArray:
    """Damped Gauss-Newton step with the loss's weights and the prior."""
    weight = 1 / np.sqrt(1 + (error / NOISE) ** 2) / NOISE**2
    normal = (jacobian.T * weight) @ jacobian + (1 + damping) * np.eye(z.size)
    step: FloatArray = np.asarray(-np.linalg.solve(normal, jacobian.T @ (weight * error) + z), dtype=np.float64)
    return step


def packaged_seconds(products: Products) -> FloatArray:
    """Seconds of every product, predicted with the packaged calibration of the device."""
    return packaged(products)[0]


def packaged(products: Products) -> tuple[FloatArray, FloatArray]:
    """Seconds of every product by the device's packaged calibration, and standard deviations of their logarithms."""
    known_of = load_calibration(products.gpu)
    out = np.empty((2, len(products)))
    for layout in sorted(set(products.layouts.tolist())):
        where = np.flatnonzero(products.layouts == layout)
        sizes = {name: getattr(products, name)[where] for name in ("batch", "m", "n", "k")}
        product = Gemm(name="gemm", dtype=products.dtype, layout=Layout[layout], **sizes)
        cost = product_cost.gemm_cost(product, products.gpu, known_of, clock=Clock.BOOST)
        out[:, where] = cost.time_s, cost.log_sigma
    return out[0], out[1]
