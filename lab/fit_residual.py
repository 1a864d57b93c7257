"""Fit the residuals on top of the GEMM and attention formulas and write ``cost/correction/data/residual/``.

Development only (torch, pandas, pyarrow, the shared data):
``python lab/fit_residual.py SHARED [gpu.dtype | gpu.part ...]``, a part being context, generation or encoder;
``SHARED coverage`` adds the share inside held-out intervals where it was not recorded, ``SHARED streams`` the share of
bandwidth that decoding reaches.
Features and inference are those of ``sartor.cost``; rows and the held-out fifth of the weights (n, k) are those of
lab/fit_gemm.py. A network fitted on four fifths gives the recorded errors on the other fifth; the network written is
fitted on all rows. Borrowing: a device's rows are also predicted with a related device's coefficients and residual,
fitted without that device. Seeded; two runs on one machine write the same bytes.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_gemm import AMD_TUNED, Job, by_storage, judged_by_folds, table_job, tuned_job
from fit_kernels import AIC, _attention_op
from networks import bounds_of, network
from sartor.cost.correction import network as measured
from sartor.cost.correction.attention import (
    HEAD_STEP,
    PARTS,
    SHORTEST,
    SIZES,
    attention_features,
    attention_floor_s,
    launch_of,
    sizes_known,
)
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.correction.gemm_features import STEPS, table_features
from sartor.cost.correction.network import (
    FRAMEWORK,
    LIBRARY,
    PANEL,
    Residual,
    fingerprint,
    forward,
    residual_records,
    without_residuals,
)
from sartor.cost.gpu import gemm as cost_gemm
from sartor.cost.gpu.attention import attention_cost
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.cost.gpu.tiles import Problems, evaluate
from sartor.cost.price import least_s
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm
from teachers import OWN, taught, terms_of

OUT = Path(__file__).resolve().parent.parent / "src" / "sartor" / "cost" / "correction" / "data" / "residual"
WIDTH, LAYERS, EPOCHS, BATCH, RATE, DECAY = 80, 3, 150, 512, 6e-3, 0.1
SHORT = 8
KIN = {"context": (8.0, 3.3)}
"""How much wider a borrower's interval is if no related device was measured, for long and short kernels: 2.0 for both,
the median of 32 cases on Blackwell; prefill kernels differ most between devices and have the median of their 12."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Measured kernels of one device, with the formula's time by its own or a borrowed fit."""

    sizes: pd.DataFrame
    seconds: Any
    held_out: Any
    formula_s: Any
    floor_s: Any
    features: Any
    """(features, rows)."""
    large: Any
    """Whether m, n and k are at least 512; for attention: at least a million query-key pairs."""
    launch_s: float
    coefficients: Any
    source: str
    features_of: Callable[[dict[str, Any]], Any] | None = None
    """Function from other GEMM sizes (m, n, k) to their features on this device."""
    terms_of: Callable[[dict[str, Any]], Any] | None = None
    """The same to the formula's terms, for the teachers of large tables."""
    dense: bool = False
    """Its table has rows at every m, odd ones too: none are made up between them."""
    longer: bool = False
    """Its network learns for ``LONGER`` rounds, with large rows that teachers label besides."""
    own_lengths: bool = False
    """The network sees n and k as they are: tables of tuning runs."""
    menu: bool = False
    """It also sees the formula's whole menu: tables of tuning runs, small enough that this is fast."""
    folds: Any = None
    """Index of the row's fifth of the weights, for small tables where each fifth is held out in turn."""
    weight: Any = None
    """Sampling weight of a row."""
    steps: tuple[int, ...] = ()
    """Lengths of k by which the network sees remainders; empty: ``STEPS``."""
    libraries: tuple[str, ...] = ()
    """Libraries that the inputs name; ``sizes`` then has the index of each row's (-1: none of these)."""
    linear: Any = None
    """General cores: which rows are linear layers."""


def main(shared: Path, wanted: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    table = {key: dict(value) for key, value in residual_records().items()}
    trials: dict[str, Residual] = {}
    for name in wanted or DEFAULT:
        gpu, _, what = name.partition(".")
        rows = rows_of(shared, gpu, what, gpu)
        if rows.folds is not None:
            table[name] = record_of(gpu, what, *unseen(shared, gpu, rows, what))
        else:
            trials[name] = fit(gpu, rows, ~rows.held_out)
            table[name] = record_of(gpu, what, rows, predict(trials[name], rows))
        save(name, fit(gpu, rows, np.ones_like(rows.held_out)))
        write(table)
        print(name, "formula", table[name]["formula"], "residual", table[name]["held_out"], flush=True)
    for name, trial in trials.items():
        table[name] |= borrowed(shared, name, trial, table)
        write(table)


def unseen(shared: Path, gpu: str, rows: Rows, what: str) -> tuple[Rows, Any]:
    """Rows with the formula's time, and times with a network, both by fits that have not seen the row's weights."""
    formula_s, time_s = np.empty_like(rows.seconds), np.empty_like(rows.seconds)
    for out, c in judged_by_folds(job_of(shared, gpu, what)):
        trial = gemm_rows(shared, gpu, what, gpu, c)
        formula_s[out] = trial.formula_s[out]
        time_s[out] = predict(fit(gpu, trial, ~out), trial)[out]
    return replace(rows, formula_s=formula_s), time_s


def cover(shared: Path, wanted: list[str]) -> None:
    """Add the coverage to records of older fits without it, by repeating their held-out fit on the same rows."""
    import torch

    torch.set_num_threads(1)
    lacking = [name for name, record in residual_records().items() if "coverage" not in record and "moe" not in name]
    for name in wanted or lacking:
        gpu, _, what = name.partition(".")
        rows = rows_of(shared, gpu, what, gpu)
        found = coverage(predict(fit(gpu, rows, ~rows.held_out), rows), rows)
        measured._table.cache_clear()
        table = {key: dict(value) for key, value in residual_records().items()}  # may have changed in the meantime
        if table[name]["fingerprint"] == fingerprint(rows.coefficients):
            table[name]["coverage"] = found
            write(table)
        print(name, found, flush=True)


def streams(shared: Path) -> None:
    """Add ``stream_share`` to the records of decode kernels."""
    table = {key: dict(value) for key, value in residual_records().items()}
    for name in (each for each in table if ".generation" in each):
        gpu, _, what = name.partition(".")
        table[name]["stream_share"] = stream_share_of(gpu, rows_of(shared, gpu, what, gpu))
        print(name, table[name]["stream_share"], flush=True)
    write(table)


def record_of(gpu: str, what: str, rows: Rows, time_s: Any) -> dict[str, Any]:
    held, target, part = rows.held_out, np.log(rows.seconds / rows.formula_s), what.partition(".")[0]
    least, most = np.quantile(target, [0.001, 0.999])
    return {
        "gpu": gpu,
        **({"part": what} if part in PARTS else {"dtype": part}),
        "fingerprint": fingerprint(rows.coefficients),
        "source": rows.source,
        "date": datetime.date.today().isoformat(),
        "rows": len(rows.sizes),
        **({"own_lengths": True} if rows.own_lengths else {}),
        **({"lengths": lengths_of(rows.sizes)} if rows.own_lengths else {}),
        **({"menu": True} if rows.menu else {}),
        **({"steps": list(rows.steps)} if rows.steps else {}),
        **({"part": what.rpartition(".")[2], "libraries": list(rows.libraries)} if rows.libraries else {}),
        "formula": errors(rows.formula_s, rows, held),
        "held_out": errors(time_s, rows, held),
        **({"fitted_on": errors(time_s, rows, ~held)} if not held.all() else {}),
        "coverage": coverage(time_s, rows),
        **({"stream_share": stream_share_of(gpu, rows)} if part == "generation" else {}),
        **({"head_dims": head_dims_of(rows.sizes)} if part in ("context", "generation") else {}),
        "least": round(float(least), 4),
        "most": round(float(most), 4),
        "formula_log_sigma": rows.coefficients.log_sigma,
        **sigma_pair("", time_s, rows, held),
        **{
            f"kin_{key}": round(factor * value, 4)
            for factor, (key, value) in zip(
                KIN.get(part, (2.0, 2.0)), sigma_pair("", time_s, rows, held).items(), strict=True
            )
        },
    }


def lengths_of(sizes: pd.DataFrame, axes: str = "nk") -> list[list[int]]:
    """The n and k of a table."""
    return [sorted({int(length) for length in sizes[axis]}) for axis in axes]


def stream_share_of(gpu: str, rows: Rows) -> float:
    """Share of memory's bandwidth that decoding reaches on keys and values of more than eight times L2."""
    device, cached = load_gpu(gpu), _attention_op(rows.sizes, True).cached_bytes
    share = cached / (rows.seconds * device.hbm_bytes_per_s)
    return round(min(float(np.quantile(share[cached > 8 * device.l2_bytes], 0.95)), 1.0), 3)


def head_dims_of(sizes: pd.DataFrame) -> list[int]:
    """Head dimensions of the rows without a window, in the steps that networks see."""
    plain = sizes.head_dim[sizes.window == 0]
    return sorted({int(-(-dim // HEAD_STEP) * HEAD_STEP) for dim in plain})


def windows_of(sizes: pd.DataFrame) -> Any:
    """(head_dim, smallest, largest) sliding window of every head dimension that has windows."""
    spans = (
        sizes.reindex(columns=["head_dim", "window"]).query("window > 0").groupby("head_dim").window.agg(["min", "max"])
    )
    return spans.reset_index().to_numpy(dtype=np.float32)


def rows_of(shared: Path, gpu: str, what: str, owner: str) -> Rows:
    """Rows of ``gpu`` predicted with the coefficients of ``owner`` and the datasheet of ``gpu``."""
    part, _, framework = what.partition(".")
    if part in PARTS:
        return attention_rows(shared, gpu, part, owner, framework)
    return gemm_rows(shared, gpu, what, owner)


def gemm_rows(shared: Path, gpu: str, what: str, owner: str, c: GemmCoefficients | None = None) -> Rows:
    """Rows of a type, or with ``.tiled`` after it of its weights stored in tiles; with ``.library`` at the end for a
    network that is told which library ran, with ``.framework`` for one that is told the framework."""
    job, dtype = job_of(shared, gpu, what), DType(what.partition(".")[0])
    device, lender = load_gpu(gpu), load_calibration(load_gpu(owner))
    c = c or (lender.tiled if TILED in what else lender.gemm)[dtype]
    folds = job.rows.get("fold")
    name, tuned = f"{gpu}.{what}".removesuffix(NAMED), folds is not None
    libraries, index = libraries_of(job) if what.endswith((NAMED, EACH)) else ((), None)
    own_lengths, menu = name in OWN_LENGTHS, tuned
    steps = ONE_STEP if own_lengths and (libraries or name.endswith(TILED)) else ()
    learns = not libraries and (name in TAUGHT or not tuned)
    m, n, k = (job.rows[name].to_numpy(dtype=np.int64) for name in "mnk")
    gemm = Gemm(name="fit", m=m, n=n, k=k, dtype=dtype)
    machine = cost_gemm._machine(device, dtype, c, Clock.BOOST)
    arrays, shape = cost_gemm._problem(gemm, c)
    flat = Problems(**{key: np.broadcast_to(value, shape) for key, value in arrays.items()})

    def features_of(sizes: dict[str, Any]) -> Any:
        how: dict[str, Any] = {"own_lengths": own_lengths, "menu": menu, "libraries": len(libraries)}
        return table_features(sizes, machine, c, device, steps=steps or STEPS, **how)

    named = {} if index is None else {"library": index}
    return Rows(
        sizes=job.rows[["m", "n", "k"]].assign(**named),
        seconds=job.rows.us.to_numpy(dtype=np.float64) * 1e-6,
        held_out=job.rows.held_out.to_numpy() if folds is None else np.ones(len(job.rows), dtype=bool),
        folds=folds,
        weight=None if folds is None else job.rows.weight.to_numpy(),
        formula_s=evaluate(flat, machine, c, False)["time_s"],
        floor_s=least_s(gemm, device),
        features=features_of({"m": flat.m, "n": flat.n, "k": flat.k} | named),
        large=(m >= 512) & (n >= 512) & (k >= 512),
        launch_s=c.launch_s,
        coefficients=c,
        source=job.source,
        features_of=features_of,
        terms_of=terms_of(machine, c, dtype) if learns else None,
        own_lengths=own_lengths,
        menu=menu,
        libraries=libraries,
        steps=steps,
        dense=name in DENSE,
        longer=name in TAUGHT_LONGER,
    )


TILED, NAMED, EACH = ".tiled", f".{LIBRARY}", f".{FRAMEWORK}"

ONE_STEP = (128,)
"""The step of k in kernels' names. With 256 and 512 besides, weights of k = 2304 learn from those of 768, which are
slow (pre-shuffled fp8_block 7.3 for 6.9%, with the library known 6.2 for 5.8)."""

FEWEST_OF_A_LIBRARY = 20
"""Rows from which on a library is one of a network's inputs."""


def libraries_of(job: Job) -> tuple[tuple[str, ...], Any]:
    """Libraries with rows enough, and the index of each row's among them (-1: none)."""
    often = job.rows.library.value_counts()
    names = sorted(often.index[often >= FEWEST_OF_A_LIBRARY])
    index = {name: float(i) for i, name in enumerate(names)}
    return tuple(names), job.rows.library.map(lambda name: index.get(name, -1.0)).to_numpy(dtype=np.float64)


DENSE = ("mi355x.fp8_block", "mi355x.fp8_block.tiled")
"""Tuning tables with sweeps in which a third of all m are odd (data/amd_traces_logs.md)."""

OWN_LENGTHS = ("mi355x.bf16", "mi355x.fp8", "mi355x.fp8_block", "mi355x.fp8_block.tiled", "mi355x.mxfp4")
"""Tuning tables whose networks see n and k as they are: nearer to weights withheld (bf16 7.35 to 7.2%, fp8 6.4 to 5.8)
but for mxfp4 (7.1 to 7.6)."""

TAUGHT = ("mi355x.mxfp4",)
"""Those whose networks have teachers (bf16 7.5 to 7.2%, mxfp4 7.4 to 7.1); fp8 is as near without."""

TAUGHT_LONGER = ("gb200.bf16", "b300_sxm.bf16", "gb300.bf16")
"""Those furthest off on large products (lab/notebook/residual.md has both figures of each); others were not tried."""


@cache
def job_of(shared: Path, gpu: str, what: str) -> Job:
    if gpu not in AMD_TUNED:
        return table_job(shared, gpu, DType(what.removesuffix(EACH)), what.endswith(EACH))
    dtype, _, section = what.removesuffix(NAMED).partition(".")
    job = by_storage(tuned_job(shared, gpu, DType(dtype)))[section or "gemm"]
    return replace(job, rows=job.rows[job.rows.batch == 1].reset_index(drop=True))


KEYS = ["batch", "heads", "kv_heads", "head_dim", "window", "seq_q", "seq_kv"]


def attention_rows(shared: Path, gpu: str, part: str, owner: str, framework: str = "") -> Rows:
    """One target per shape: the median over versions of rows with flag 0, and over frameworks if none is named.
    Whole curves (same sizes except the sequence length) are held out, by the hash of lab/fit_kernels.py."""
    table = attention_table(shared)
    table = table[(table.gpu == gpu) & (table.phase == part)]
    table = table[table.framework == framework] if framework else table
    rows = table.groupby(KEYS, observed=True).latency_us.median().rename("us").reset_index()
    fits = rows.seq_kv > 1 if part == "generation" else rows.seq_q >= SHORTEST
    rows = rows[fits].reset_index(drop=True)
    curve = rows.heads * 7919 + rows.kv_heads * 104729 + rows.head_dim * 31 + rows.batch * 977 + rows.window
    device = load_gpu(gpu)
    known = without_residuals(load_calibration(load_gpu(owner)))
    c, peak = known.attention, peak_flops_per_s(device, DType.BF16)
    op = _attention_op(rows, part != "encoder")
    columns = {name: np.asarray(getattr(op, name), dtype=np.float64) for name in SIZES}
    return Rows(
        sizes=rows[KEYS],
        seconds=rows.us.to_numpy(dtype=np.float64) * 1e-6,
        held_out=(curve % 5 == 0).to_numpy(),
        formula_s=attention_cost(op, device, known, clock=Clock.BOOST).time_s,
        floor_s=attention_floor_s(part, columns, peak, device),
        features=attention_features(part, columns, peak, device, c),
        large=(1.0 * rows.batch * rows.heads * rows.seq_q * rows.seq_kv >= 1e6).to_numpy(),
        launch_s=launch_of(part, c),
        coefficients=c,
        source=f"data/measured/attention.parquet {AIC}, {gpu} {part} {framework}".rstrip(),
    )


@cache
def attention_table(shared: Path) -> pd.DataFrame:
    columns = ["gpu", "phase", "framework", *KEYS, "latency_us", "flag"]
    table = pd.read_parquet(shared / "data" / "measured" / "attention.parquet", columns=columns)
    return table[table.flag == 0]


def trained(z: Any, goal: Any, width: int, epochs: int, more: Sequence[tuple[Any, Any]] = ()) -> Any:
    """Train a network of ``LAYERS`` hidden layers from inputs (rows, inputs) to one number per row, from a small
    initial output. Each epoch adds one of the sets of rows in ``more``."""
    import torch

    parts: list[Any] = []
    for a, b in pairwise([z.shape[1], *[width] * LAYERS]):
        parts += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    net = torch.nn.Sequential(*parts, torch.nn.Linear(width, 1))
    with torch.no_grad():
        net[-1].weight.mul_(0.1)
        net[-1].bias.zero_()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    sets = [(torch.cat([z, a]), torch.cat([goal, b])) for a, b in more] or [(z, goal)]
    steps = max(1, len(sets[0][0]) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps, pct_start=0.15)
    for epoch in range(epochs):
        seen, wanted = sets[epoch % len(sets)]
        order = torch.randperm(len(seen))
        for i in range(steps):
            batch = order[i * BATCH : (i + 1) * BATCH]
            loss = torch.nn.functional.smooth_l1_loss(net(seen[batch])[:, 0], wanted[batch], beta=0.02)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net


def fit(gpu: str, rows: Rows, where: Any) -> Residual:
    """Fit ln(measured / formula) by least absolute error (smooth below 2%)."""
    import torch

    torch.manual_seed(0)
    x, y = rows.features[:, where], np.log(rows.seconds / rows.formula_s)[where]
    mean, scale = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True) + 1e-6

    def scaled(values: Any) -> Any:
        return torch.tensor(((values - mean) / scale).T.copy())

    z, gaps = scaled(x), between(rows, where)
    near = [(scaled(of(sizes)), goals) for of in (rows.features_of,) if of for sizes, goals, _ in gaps]
    target, more = lessons(rows, where, y, gaps, near, scaled)
    if rows.folds is None:
        torch.manual_seed(0)
        net = trained(z, tensor(target), WIDTH, LONGER if rows.longer else epochs_of(len(z)), more)
    else:
        torch.manual_seed(0)
        often = np.concatenate([rows.weight[where], gaps[0][2] * (not rows.dense)])
        net = small(z, tensor(target), often_with(often, len(z) + len(more[0][0])), more, rows.dense)
    linear = [part for part in net if isinstance(part, torch.nn.Linear)]
    layers = [(each.weight.detach().numpy(), each.bias.detach().numpy()[:, None]) for each in linear]
    seen = torch.cat([z, *(each for each, _ in near)]).numpy().T
    ends = seen.min(axis=1, keepdims=True), seen.max(axis=1, keepdims=True)
    return network(
        gpu,
        (mean, scale),
        ends,
        layers,
        bounds_of(y),
        own_lengths=rows.own_lengths,
        menu=rows.menu,
        steps=rows.steps,
        libraries=rows.libraries,
        windows=windows_of(rows.sizes[where]),
    )


def often_with(often: Any, rows: int) -> Any:
    """Sampling weights of measured rows and those between them, then of rows that teachers label: their mean."""
    import torch

    return torch.tensor(np.concatenate([often, np.full(rows - len(often), often.mean())]))


Gaps = list[tuple[dict[str, Any], Any, Any]]
"""Sets of GEMMs between the measured ones: sizes, ln(measured / formula) interpolated, sampling weights."""


def lessons(
    rows: Rows, where: Any, goal: Any, gaps: Gaps, near: Sequence[tuple[Any, Any]], scaled: Callable[[Any], Any]
) -> tuple[Any, list[tuple[Any, Any]]]:
    """Goals of the measured rows, and sets of other rows (inputs, goals): those between, and, for GEMM tables with
    thousands of rows, those that teachers label (lab/teachers.py)."""
    features, terms = rows.features_of, rows.terms_of
    if features is None or terms is None:
        return goal, [(inputs, tensor(goals)) for inputs, goals in near]

    def inputs_of(sizes: dict[str, Any]) -> Any:
        return np.concatenate([features(sizes), terms(sizes)])

    def train(inputs: Any, wanted: Any, more: Any) -> Any:
        if rows.folds is None:
            return trained(inputs, wanted, WIDTH, epochs_of(len(inputs)), more)
        often = np.concatenate([rows.weight[where], gaps[0][2]])
        return small(inputs, wanted, often_with(often, len(often)), more, rows.dense)

    sizes = {name: rows.sizes[name].to_numpy(dtype=np.float64)[where] for name in ("m", "n", "k")}
    own = OWN if rows.folds is None else 0.0
    target, sets = taught(inputs_of, (sizes, goal), gaps, train, own, rows.longer)
    return target, [(scaled(features(each)), tensor(goals)) for each, goals in sets]


def tensor(values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float32)


SMALL_WIDTH, SMALL_LAYERS, SMALL_BATCH, SMALL_RATE, SMALL_DECAY, NOISE = 32, 2, 256, 4e-3, 0.3, 0.2
"""Settings for tables with a few hundred rows. ``NOISE``: standard deviation of the noise added to the inputs."""


DENSE_NOISE, DENSE_DECAY = 0.3, 1.0
"""For tables with rows enough between: more noise in their place (unseen weights 8.8 to 6.6%; dips of 5% at 4% of rows
between, at 8% with the noise of others)."""

MOST_DRAWN = 6000
"""Most rows that one epoch of a small network draws."""


def small(z: Any, goal: Any, weight: Any, more: Sequence[tuple[Any, Any]], dense: bool) -> Any:
    """Like ``trained`` for tables in which one weight may have half of all rows: rows are sampled by ``weight`` (of the
    given rows, then of those in ``more``), with noise on the inputs."""
    import torch

    parts: list[Any] = []
    for a, b in pairwise([z.shape[1], *[SMALL_WIDTH] * SMALL_LAYERS]):
        parts += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    net = torch.nn.Sequential(*parts, torch.nn.Linear(SMALL_WIDTH, 1))
    with torch.no_grad():
        net[-1].weight.mul_(0.1)
        net[-1].bias.zero_()
    sets = [(torch.cat([z, a]), torch.cat([goal, b])) for a, b in more]
    count = min(len(weight), MOST_DRAWN)
    noise, decay = (DENSE_NOISE, DENSE_DECAY) if dense else (NOISE, SMALL_DECAY)
    steps, epochs = max(1, count // SMALL_BATCH), max(60, min(150, 300000 // count))
    optimizer = torch.optim.AdamW(net.parameters(), lr=SMALL_RATE, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, SMALL_RATE, total_steps=epochs * steps, pct_start=0.15)
    for epoch in range(epochs):
        inputs, wanted = sets[epoch % len(sets)]
        order = torch.multinomial(weight, count, replacement=True)
        for i in range(steps):
            batch = order[i * SMALL_BATCH : (i + 1) * SMALL_BATCH]
            seen = inputs[batch] + noise * torch.randn(len(batch), z.shape[1])
            loss = torch.nn.functional.smooth_l1_loss(net(seen)[:, 0], wanted[batch], beta=0.02)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net


LONGER = 300
"""Epochs of a network that is taught longer."""


def epochs_of(rows: int) -> int:
    """Number of epochs for a table of this many rows."""
    return max(EPOCHS, min(400, 3000000 // rows))


SETS = 12
"""Sets of interpolated rows; an epoch sees one of them."""


def between(rows: Rows, where: Any) -> Gaps:
    """GEMMs with m between the measured values: sizes, ln(measured / formula) interpolated between the two nearest
    measurements with the same weights, and sampling weights. Without them a network is arbitrary between measured
    values."""
    if rows.features_of is None:
        return []
    known = {"goal": np.log(rows.seconds / rows.formula_s), "drawn": np.ones_like(rows.seconds)}
    known |= {} if rows.weight is None else {"drawn": rows.weight}
    sizes = rows.sizes.assign(library=rows.sizes.get("library", 0.0), **known)[where]
    same = ["n", "k", "library"]
    sizes = sizes.sort_values([*same, "m"])
    m, goal, often = (sizes[name].to_numpy(dtype=np.float64) for name in ("m", "goal", "drawn"))
    i = np.flatnonzero((np.diff(sizes[same], axis=0) == 0).all(axis=1) & (np.diff(m) > 1))
    alike = {name: sizes[name].to_numpy(dtype=np.float64)[i] for name in same}
    random, found = np.random.default_rng(0), []
    for _ in range(SETS):
        drawn = np.round(m[i] * (m[i + 1] / m[i]) ** random.random(i.size))
        drawn = np.clip(drawn, m[i] + 1, m[i + 1] - 1)
        share = np.log(drawn / m[i]) / np.log(m[i + 1] / m[i])
        goals = (1 - share) * goal[i] + share * goal[i + 1]
        found.append(({"m": drawn} | alike, goals, (often[i] + often[i + 1]) / 2))
    return found


def predict(residual: Residual, rows: Rows) -> Any:
    count = len(rows.seconds)
    log_factor, trust = forward(residual, np.pad(rows.features, ((0, 0), (0, -count % PANEL)), mode="edge"))
    factor = np.exp(log_factor * trust, dtype=np.float64)[:count]
    if "window" in rows.sizes:
        sizes = {name: rows.sizes[name].to_numpy(dtype=np.float64) for name in ("head_dim", "window")}
        factor = np.where(sizes_known(residual, sizes), factor, 1.0)
    return np.maximum(rows.formula_s * factor, rows.floor_s)


def errors(time_s: Any, rows: Rows, where: Any) -> dict[str, float]:
    error = np.abs(time_s / rows.seconds - 1)
    out = {"rows": int(where.sum()), "mape": error[where].mean(), "median": np.median(error[where])}
    out |= {"p90": np.quantile(error[where], 0.9), "mape_large": error[where & rows.large].mean()}
    return {key: value if key == "rows" else round(float(value), 4) for key, value in out.items()}


def sigma_pair(prefix: str, time_s: Any, rows: Rows, where: Any) -> dict[str, float]:
    """Standard deviations that cover 80% of the rows: of kernels much longer than the launch, and of short ones."""
    error = np.abs(np.log(time_s / rows.seconds))
    small = rows.formula_s < SHORT * rows.launch_s
    parts = [where & part if (where & part).sum() >= 30 else where for part in (~small, small)]
    long, short = (most_of(error[part], rows, part) / 1.2816 for part in parts)
    return {f"{prefix}log_sigma": round(float(long), 4), f"{prefix}log_sigma_small": round(float(short), 4)}


def most_of(error: Any, rows: Rows, part: Any) -> float:
    """The error that 80% of these rows keep within, by their sampling weights: one weight may have a third of them."""
    if rows.weight is None:
        return float(np.quantile(error, 0.8))
    return float(np.quantile(error, 0.8, weights=rows.weight[part], method="inverted_cdf"))


def coverage(time_s: Any, rows: Rows) -> float:
    """Coverage of 80% intervals on held-out rows: intervals fitted on one half, tested on the other, both ways."""
    half = pd.util.hash_pandas_object(rows.sizes.drop(columns=_SWEPT, errors="ignore"), index=False) % 2 == 0
    small = rows.formula_s < SHORT * rows.launch_s
    inside = np.zeros(len(rows.sizes), dtype=bool)
    for side in (half.to_numpy(), ~half.to_numpy()):
        long, short = sigma_pair("", time_s, rows, rows.held_out & ~side).values()
        sigma = np.where(small, short, long)
        inside |= side & (np.abs(np.log(time_s / rows.seconds)) <= 1.2816 * sigma)
    often = None if rows.weight is None else rows.weight[rows.held_out]
    return round(float(np.average(inside[rows.held_out], weights=often)), 3)


_SWEPT = ["m", "seq_q", "seq_kv", "library"]


def borrowed(shared: Path, name: str, trial: Residual, table: dict[str, Any]) -> dict[str, Any]:
    """Errors of the coefficients and residual of ``name`` on other devices of its generation, on held-out weights."""
    gpu, _, what = name.partition(".")
    generation = load_gpu(gpu).generation
    found: dict[str, Any] = {}
    pairs = []
    for other in sorted(table):
        kin = other.partition(".")[0]
        if kin == gpu or not other.endswith(f".{what}") or load_gpu(kin).generation != generation:
            continue
        rows = rows_of(shared, kin, what, gpu)
        time_s = predict(trial, rows)
        before, after = errors(rows.formula_s, rows, rows.held_out), errors(time_s, rows, rows.held_out)
        found[kin] = {"formula": before["mape"], "mape": after["mape"], "median": after["median"]}
        pairs.append(sigma_pair("kin_", time_s, rows, rows.held_out))
    if not pairs:
        return {}
    sigma = {key: round(float(np.median([pair[key] for pair in pairs])), 4) for key in pairs[0]}
    print(name, "lent to", found, sigma, flush=True)
    return sigma | {"lent": found}


def save(name: str, residual: Residual) -> None:
    arrays: dict[str, Any] = {key: getattr(residual, key) for key in ("mean", "scale", "low", "high")}
    if residual.windows.size:
        arrays["windows"] = residual.windows
    for i, (weight, bias) in enumerate(residual.layers):
        arrays |= {f"weight_{i}": weight.astype(np.float16), f"bias_{i}": bias.astype(np.float16)}
    np.savez_compressed(OUT / f"{name}.npz", **arrays)


def write(table: dict[str, dict[str, Any]]) -> None:
    """Write the records, one line per fit, so that a new fit changes one line of the diff."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table))
    (OUT / "residuals.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")


DEVICES = (
    "a100_sxm",
    "h100_sxm",
    "h200_sxm",
    "b200_sxm",
    "gb200",
    "b300_sxm",
    "gb300",
    "rtx_pro_6000_server",
    "arc_pro_b60",
)

DEFAULT = [
    *(f"{gpu}.bf16" for gpu in DEVICES),
    *(f"{gpu}.{dtype}" for dtype in ("fp8", "fp8_block", "nvfp4") for gpu in DEVICES[1:-1]
      if not (gpu in ("h100_sxm", "h200_sxm") and dtype == "nvfp4")),
    "a100_sxm.int8", "arc_pro_b60.int8_wo",
    "mi355x.bf16", "mi355x.fp8", "mi355x.fp8_block", "mi355x.fp8_block.tiled", "mi355x.mxfp4",
    "mi308x.fp8", "mi300x.fp8_block",
    "mi355x.bf16.library", "mi355x.fp8_block.tiled.library", "mi355x.mxfp4.library", "mi308x.fp8_block.library",
    *(f"{gpu}.{part}" for part in PARTS for gpu in DEVICES
      if part != "encoder" or gpu not in ("a100_sxm", "arc_pro_b60")),
]  # fmt: skip


if __name__ == "__main__":
    if sys.argv[2:3] == ["coverage"]:
        cover(Path(sys.argv[1]), sys.argv[3:])
    elif sys.argv[2:3] == ["streams"]:
        streams(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
