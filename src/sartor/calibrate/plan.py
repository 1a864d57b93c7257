"""What to measure on a device without measurements: the most informative GEMMs, as a table to fill in."""

from __future__ import annotations

from sartor.calibrate.fit import Products
from sartor.calibrate.samples import choose, grid
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict
from sartor.operators import DType

COLUMNS = ("gpu", "dtype", "batch", "m", "n", "k", "layout")


def plan_samples(gpu: Gpu, dtype: DType, count: int) -> Products:
    """The ``count`` most informative GEMMs of the grid, best first."""
    pool = grid(gpu, dtype)
    return pool.part(choose(pool, count))


def plan_rows(products: Products) -> list[JsonDict]:
    """One row per GEMM with the columns of a measurement table, except for the time."""
    shared = {"gpu": products.gpu.name, "dtype": products.dtype.value}
    columns = zip(products.batch, products.m, products.n, products.k, products.layouts, strict=True)
    return [
        shared | {"batch": int(b), "m": int(m), "n": int(n), "k": int(k), "layout": str(layout)}
        for b, m, n, k, layout in columns
    ]


def as_csv(products: Products) -> str:
    """The rows with a header line."""
    lines = [",".join(str(row[name]) for name in COLUMNS) for row in plan_rows(products)]
    return "\n".join([",".join(COLUMNS), *lines]) + "\n"


def plan_body(products: Products, path: str | None) -> JsonDict:
    """The JSON of ``sartor calibrate --plan``."""
    gpu, dtype = products.gpu.name, products.dtype.value
    return {"gpu": gpu, "dtype": dtype, "file": path, "plan": plan_rows(products)}
