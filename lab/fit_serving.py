"""Fit the constants of serving engines on published rows and compute errors on models that the fit has not seen.

``make lab FIT=fit_serving`` reads end_to_end/serving.csv: aggregated rows of confidence B with all sequences in memory.
Three numbers are fitted: the share of launches that TensorRT-LLM's replayed steps hide, and the steps and delay of a
first token (``step/served.py``, ``step/batching.py``). Printed: the constants that ship, then for each model left out
the constants fitted on the others, its errors, and the share of its rows inside the 80% interval.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from sartor.cost.cost import Z80
from sartor.step.serving import batching
from sartor.step.serving.batching import steady_state
from sartor.step.serving.engines import ENGINES
from sartor.step.serving.served import Load
from sartor.validate.answer import read_rows
from sartor.validate.inference import SERVING_REQUIRED, WAVES, received_every, server_of

SHIPPED = np.array(
    [
        ENGINES["trtllm"].hidden_launches,
        batching.FIRST_TOKEN_STEPS,
        batching.FIRST_TOKEN_S,
    ]
)
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Published times, and the inputs of their predictions."""

    model: NDArray[np.str_]
    engine: NDArray[np.str_]
    tpot_s: Array
    ttft_s: Array
    fixed_s: Array
    """Time per token with all launches."""
    hidden_s: Array
    """Part of it that launches of small kernels take."""
    waited_s: Array
    """Time until a first token: prompt passes that it waits for, and steps until the engine schedules it."""
    gap_s: Array
    """Time between two tokens, while a first token is awaited."""
    tpot_sigma: Array
    ttft_sigma: Array

    def predicted(self, constants: Array) -> tuple[Array, Array]:
        hidden, steps, delay_s = constants
        share = np.where(self.engine == "trtllm", hidden, 0.0)
        return self.fixed_s - share * self.hidden_s, self.waited_s + steps * self.gap_s + delay_s


def main(data: Path) -> None:
    rows = collected(data)
    print(f"{rows.model.size} rows; shipped: {words(SHIPPED)}; fitted on all: {words(fitted(rows, rows.model != ''))}")
    print(f"{'left out':16} {'constants of the others':46} {'TPOT':>6} {'inside':>6} {'TTFT':>6} {'inside':>6}")
    errors: dict[str, list[float]] = {"tpot": [], "ttft": []}
    for name in dict.fromkeys(rows.model):
        out = rows.model == name
        constants = fitted(rows, ~out)
        cells = []
        for measure, time_s in zip(("tpot", "ttft"), rows.predicted(constants), strict=True):
            ratio = (time_s / getattr(rows, f"{measure}_s"))[out]
            inside = np.abs(np.log(ratio)) <= Z80 * getattr(rows, f"{measure}_sigma")[out]
            errors[measure] += list(np.abs(ratio - 1))
            cells.append(f"{np.mean(np.abs(ratio - 1)):6.1%} {np.mean(inside):6.0%}")
        print(f"{name:16} {words(constants):46} {' '.join(cells)}")
    print("all, each left out: " + ", ".join(f"{name} {np.mean(found):.1%}" for name, found in errors.items()))


def words(constants: Array) -> str:
    hidden, steps, delay_s = constants
    return f"hidden {hidden:.2f}, {steps:.1f} steps, {delay_s * 1e3:.0f} ms"


def fitted(rows: Rows, chosen: NDArray[np.bool_]) -> Array:
    """Constants by least absolute deviation of the logarithms, smooth below 10%."""

    def off(constants: Array) -> Array:
        tpot, ttft = rows.predicted(constants)
        known = chosen & (rows.engine != "sglang")
        return np.log(np.concatenate([(tpot / rows.tpot_s)[chosen], (ttft / rows.ttft_s)[known]]))

    bounds = ([0, 0, 0], [1, 20, 0.2])
    found = least_squares(off, np.array([0.3, 2.0, 0.02]), bounds=bounds, loss="soft_l1", f_scale=0.1)
    return np.asarray(found.x)


def collected(data: Path) -> Rows:
    """Every usable row; rows of one server are priced together."""
    _, rows = read_rows(data, "serving", SERVING_REQUIRED)
    found = [columns for group in _servers(rows) for columns in _of_server(group)]
    names, *numbers = zip(*found, strict=True)
    model, engine = np.asarray(names).T
    return Rows(model=model, engine=engine, **dict(zip(NUMBERS, map(np.asarray, numbers), strict=True)))


NUMBERS = ("tpot_s", "ttft_s", "fixed_s", "hidden_s", "waited_s", "gap_s", "tpot_sigma", "ttft_sigma")
SAME = ("model", "gpu", "weight_dtype", "framework", "tp", "ep", "attention_dp")


def _servers(rows: list[dict[str, str]]) -> Iterator[list[Mapping[str, str]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in rows:
        if row["mode"] == "serving_agg" and row["confidence"] == "B" and row["concurrency"]:
            groups.setdefault(tuple(row[name] for name in SAME), []).append(row)
    yield from groups.values()


def _of_server(rows: list[Mapping[str, str]]) -> Iterator[tuple[object, ...]]:
    server = server_of(rows[0])
    named = {"concurrency": "concurrency", "input_len": "isl", "output_len": "osl"}
    load = Load(**{name: np.asarray([int(row[word]) for row in rows]) for name, word in named.items()})
    engines = [replace(server.engine, hidden_launches=share) for share in (0.0, 1.0)]
    none, every = (steady_state(replace(server, engine=engine), load, waves=WAVES) for engine in engines)
    late = received_every(server, load.concurrency)
    shipped = steady_state(server, load, waves=WAVES, receive_every=late)
    others = np.maximum(np.asarray(shipped.running) / server.copies - 1, 0)
    gap_s = shipped.step_s + others / load.output_len * np.asarray(shipped.each_prompt_s)
    waited_s = shipped.ttft_s - batching.FIRST_TOKEN_STEPS * gap_s - batching.FIRST_TOKEN_S
    for i, row in enumerate(rows):
        if shipped.waiting[i] or not np.isfinite(shipped.tpot_s[i]):
            continue
        yield ((row["model"], server.engine.name), float(row["tpot_ms"]) / 1e3, float(row["ttft_ms"]) / 1e3,
               none.tpot_s[i], none.step_s[i] - every.step_s[i], waited_s[i], gap_s[i],
               shipped.tpot_log_sigma[i], shipped.ttft_log_sigma[i])  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
