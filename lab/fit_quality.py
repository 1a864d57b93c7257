"""The law of loss with size, tokens, depth and width on Gemstones (``src/sartor/shapes/loss_law.toml``), with a
bootstrap over models. Reads reference/quality.csv of the shared data; ``tests/shapes/test_loss_law.py`` holds the whole
law against studies it was not fitted on.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

SHARED = Path(os.environ.get("SARTOR_SHARED", "../shared"))
START = [1.9, np.log(0.45), 0.3, np.log(0.2), 0.33, 0.7, 0.15]
LOW, HIGH = [0, -5, 0.05, -5, 0.1, 0, 0], [3, 3, 1, 3, 1, 5, 5]


def rows(table: str) -> list[dict[str, str]]:
    """Gemstones' rows of one table (``cool_end`` or ``hot``)."""
    with (SHARED / "reference" / "quality.csv").open(encoding="utf-8") as file:
        gems = [row for row in csv.DictReader(file) if row["source"].startswith("Gemstones")]
    return [row for row in gems if table in row["table_or_figure"]]


def fitted(data: list[dict[str, str]]) -> tuple[Any, float]:
    """Parameters (constant, log of the size's and tokens' coefficients with their exponents, depth, narrowness) and
    the root of the mean squared error [nats]."""
    names = ("model_params", "tokens", "layers", "hidden_size", "value")
    params, tokens, layers, hidden, loss = (np.array([float(row[name]) for row in data]) for name in names)

    def misses(p: Any) -> Any:
        of_size, of_tokens = np.exp(p[1]) * (params / 1e9) ** -p[2], np.exp(p[3]) * (tokens / 1e11) ** -p[4]
        return p[0] + of_size + of_tokens + p[5] / layers + p[6] * layers / hidden - loss

    best = least_squares(misses, START, bounds=(LOW, HIGH))
    return best.x, float(np.sqrt(np.mean(best.fun**2)))


def main() -> None:
    """Print the fits after cooldown and at a constant rate, and the bootstrap of the former."""
    for table in ("cool_end", "hot"):
        (constant, a, alpha, b, beta, depth, narrow), rmse = fitted(rows(table))
        print(
            f"{table}: {constant:.2f} + {np.exp(a):.2f} (N/1e9)^-{alpha:.2f} + {np.exp(b):.2f} (D/1e11)^-{beta:.2f} + "
            f"{depth:.2f} / layers + {narrow:.2f} layers / hidden; off by {rmse:.4f} nats"
        )
    data, rng = rows("cool_end"), np.random.default_rng(0)
    models = sorted({row["model_params"] for row in data})
    draws = []
    for _ in range(100):
        drawn = rng.choice(models, len(models))
        draws.append(fitted([row for name in drawn for row in data if row["model_params"] == name])[0][5:])
    for name, values in zip(("depth", "narrowness"), np.percentile(draws, [10, 90], axis=0).T, strict=True):
        print(f"{name}: 80% of bootstraps {values[0]:.2f} to {values[1]:.2f}")


if __name__ == "__main__":
    main()
