"""End-to-end inference and served models compared with published figures.

A row is a model, a plan and one measured time or rate. Its shape is built from the row's own columns, or taken from the
zoo if the row gives only a name; rows whose shape cannot be built are counted by reason. Modes and columns:
data/end_to_end/README.md. Interpretation of each mode: ``inference_modes.ASSUMED``.

A row is a model, a server and the latency its requests saw. Rows of one server are predicted together. Columns:
data/end_to_end/README.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.cost import Z80
from sartor.cost.gpu.rates import as_run
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import joined_devices
from sartor.interrupts import counted
from sartor.json_types import JsonDict, JsonMap, picked
from sartor.model.lower.setting import check
from sartor.model.workload import ParallelDims
from sartor.operators import DType
from sartor.records.rows import Unexpressed
from sartor.records.targets import known
from sartor.step.serving.batching import Steady, disaggregated, steady_state
from sartor.step.serving.engines import ENGINES
from sartor.step.serving.served import Load, Server
from sartor.units import Ints
from sartor.validate.accuracy import suspected, suspicion
from sartor.validate.answer import (
    check_any_predicted,
    errors_of,
    mean_or_none,
    rank_agreement,
    read_rows,
)
from sartor.validate.inference_modes import (
    ASSUMED,
    DTYPES,
    IMPOSSIBLE,
    TOO_FAST,
    InferenceRow,
    number_of,
    outcome,
    roofline_s,
    whole_of,
)
from sartor.validate.row_shapes import shape_of

Array = npt.NDArray[np.float64]

REQUIRED = ("mode", "model", "gpu", "weight_dtype")
GROUPS = ("mode", "gpu", "weight_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The result of ``sartor validate inference``."""

    data: str
    rows: tuple[InferenceRow, ...]
    group_by: tuple[str, ...]
    worst: int = 5
    assumed: Mapping[str, str] = field(default_factory=lambda: ASSUMED)
    """How each mode is interpreted."""
    table: str = "inference"


def validate_inference(data: str | Path, *, group_by: Sequence[str] = (), worst: int = 5) -> Inference:
    """One prediction per usable row. ``data`` is a CSV file or a folder with ``inference.csv``.

    Raises ``InputError`` if the file, its columns or all of its rows cannot be used.
    """
    path, rows = read_rows(data, "inference", REQUIRED, group_by)
    outcomes = tuple(outcome(row) for row in rows)
    check_any_predicted([row.reason for row in outcomes], path.name)
    return Inference(data=str(data), rows=outcomes, group_by=tuple(group_by) or GROUPS, worst=worst)


# ------------------------------------------------------------------------------------------- the answer


def inference_body(answer: Inference) -> JsonDict:
    """The JSON of the contract: groups, not_expressed, and how each mode was interpreted."""
    groups: dict[tuple[str, ...], list[InferenceRow]] = {}
    for row in answer.rows:
        groups.setdefault(tuple(row.words[name] for name in answer.group_by), []).append(row)
    modes = dict.fromkeys(row.words["mode"] for row in answer.rows)
    figures = [_group(answer, key, rows) for key, rows in sorted(groups.items())]
    return {
        "data": answer.data,
        "num_rows": len(answer.rows),
        "expressed": sum(not row.reason for row in answer.rows),
        "groups": figures,
        "not_expressed": dict(sorted(Counter(row.reason for row in answer.rows if row.reason).items())),
        "left_out": {},
        "remarks": [
            *(_bracket_remark(group) for group in figures if "bracket_width" in group),
            *(
                suspicion(" ".join(key), 1 + group["bias"], "the time", -3)
                for key, group in zip(sorted(groups), figures, strict=True)
                if group["bias"] is not None and suspected(1 + group["bias"], group["expressed"])
            ),
        ],
        "assumptions": {mode: answer.assumed[mode] for mode in modes if mode in answer.assumed},
    }


def _bracket_remark(group: JsonMap) -> str:
    times = f"{group['expressed'] - group['targets']} times with numbers of servers that no row states"
    return f"{group['mode']}: {times}: brackets over all, {group['bracket_width']:.2g} x wide (median)"


def _group(answer: Inference, key: tuple[str, ...], rows: Sequence[InferenceRow]) -> JsonDict:
    expressed = [row for row in rows if not row.reason]
    brackets = [row for row in expressed if row.bracket]
    good = [row for row in expressed if not row.bracket]
    inside = [abs(math.log(row.ratio)) <= Z80 * row.log_sigma for row in good or brackets]
    roofline = [abs(row.roofline_s / row.measured_s - 1) for row in good]
    width = [math.exp(2 * Z80 * row.log_sigma) for row in brackets]
    worst = sorted(good, key=lambda row: -abs(math.log(row.ratio)))[: answer.worst]
    return {
        "table": answer.table,
        **dict(zip(answer.group_by, key, strict=True)),
        "rows": len(rows),
        "targets": len(rows) - len(brackets),
        "expressed": len(expressed),
        **errors_of([row.ratio for row in good]),
        "coverage_80": mean_or_none(inside),
        "kendall_tau": rank_agreement([row.measured_s for row in good], [row.predicted_s for row in good]),
        "roofline_mape": mean_or_none(roofline),
        "calibration": ", ".join(sorted({row.calibration for row in good})) or None,
        "worst": [_case(row) for row in worst],
        **({"bracket_width": float(np.median(width))} if brackets else {}),
    }


def _case(row: InferenceRow) -> JsonDict:
    spread = math.exp(Z80 * row.log_sigma)
    names = ("mode", "model", "gpu", "weight_dtype", "batch", "isl", "osl", "tp")
    return {
        **{name: row.words[name] for name in names if row.words.get(name)},
        **picked(row, "batch", "measured_s", "predicted_s"),
        "low_s": row.predicted_s / spread,
        "high_s": row.predicted_s * spread,
        "ratio": row.ratio,
        "source": row.source,
        "largest_parts": ", ".join(f"{kind} {share:.0%}" for kind, share in [*row.parts.items()][:3]),
    }


def inference_charts(answer: Inference) -> list[JsonDict]:
    """Rows for the scatter plot; the modes share no size axis."""
    rows = [
        {"gpu": row.words["gpu"], "measured_s": row.measured_s, "predicted_s": row.predicted_s}
        for row in answer.rows
        if not row.reason and not row.bracket
    ]
    return [{"table": answer.table, "scatter": rows, "errors": []}]


SERVING_REQUIRED = ("mode", "model", "gpu", "weight_dtype", "framework", "concurrency", "isl", "osl")
SERVING_GROUPS = ("mode", "measure", "framework", "gpu")

WAVES = 10
"""Requests that a benchmark sends per sequence in flight."""


def received_every(server: Server, concurrency: Ints) -> Ints:
    """Decoding steps between checks for new requests, as the recipes of SemiAnalysis InferenceX start SGLang (their
    ``SCHEDULER_RECV_INTERVAL``, read 2026-11-25); other engines check in every step."""
    return np.where(np.asarray(concurrency) < 16, 10, 30) if server.engine.looks_late else 1


MOST_GPUS = 72
"""Most GPUs of rows that state how many servers they have (150 of data/end_to_end/serving.csv, read 2026-11-30), and of
the largest group of GPUs on one kind of links (GB200 NVL72)."""

SERVING_ASSUMED = {
    "serving_agg": f"as many sequences in flight as concurrency says, {WAVES} requests for each, the first sent at "
    "once; prompts and answers of isl and osl tokens; attention data parallel over attention_dp groups of tp devices, "
    "experts whole on ep of them; keys and values in 8 bits with TensorRT-LLM and on GPUs that multiply 4 bits; "
    "0.9 of the memory; SGLang looks for requests every 30 steps, 10 below 16 in flight; 16-bit weights where "
    "weight_dtype is empty; no speculative decoding",
    "serving_disagg": "as serving_agg, with prompts on prefill_workers and answers on decode_workers servers of "
    "their own (tp x dp devices each)",
    "serving_disagg_open": "as serving_disagg, where the numbers of servers are not given: no prediction but a bracket "
    f"over all numbers of both kinds on up to {MOST_GPUS} GPUs, where a mixture's tp may also be of a pool of several "
    "servers or of copies of attention, and 1 to 64 copies share the experts",
}


def validate_serving(data: str | Path, *, group_by: Sequence[str] = (), worst: int = 5) -> Inference:
    """Up to two predictions per usable row, one for each time it gives. ``data`` is a CSV file or a folder with
    ``serving.csv``. Raises ``InputError``."""
    path, rows = read_rows(data, "serving", SERVING_REQUIRED, group_by, also=("measure",))
    outcomes = tuple(_outcomes(rows))
    check_any_predicted([row.reason for row in outcomes], path.name)
    return Inference(
        data=str(data),
        rows=outcomes,
        group_by=tuple(group_by) or SERVING_GROUPS,
        worst=worst,
        assumed=SERVING_ASSUMED,
        table="serving",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One readable row."""

    words: Mapping[str, str]
    concurrency: int
    input_len: int
    output_len: int


def _outcomes(rows: Sequence[Mapping[str, str]]) -> Iterator[InferenceRow]:
    servers: dict[tuple[str, ...], list[_Asked]] = {}
    for row in rows:
        try:
            request = _asked(row)
        except Unexpressed as why:
            yield InferenceRow(words={**row, "measure": ""}, reason=str(why))
        else:
            servers.setdefault(_key(row), []).append(request)
    for rows_of_one in counted(list(servers.values()), "predicting servers"):
        yield from _of_server(rows_of_one)


POOLS = ("prefill", "decode")
POOL_SIZES = tuple(f"{pool}_{name}" for pool in POOLS for name in ("workers", "tp", "dp", "ep", "gpus"))
SHAPE = ("model", "L", "h", "a", "kv", "head_dim", "d_ff", "gated", "vocab", "experts", "topk", "moe_d_ff", "mla")
SERVER = (
    "mode",
    *POOL_SIZES,
    *SHAPE,
    "gpu",
    "weight_dtype",
    "gemm_quant",
    "framework",
    "tp",
    "ep",
    "attention_dp",
    "n_gpu",
)
"""Columns that identify a row's server."""


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in SERVER)


def _asked(row: Mapping[str, str]) -> _Asked:
    if row["mode"] not in SERVING_ASSUMED:
        raise Unexpressed(f"mode {row['mode'][:30]}: must be one of {', '.join(SERVING_ASSUMED)}")
    sizes = {name: whole_of(row, name) for name in ("concurrency", "isl", "osl")}
    low = next((name for name, value in sizes.items() if not 1 <= value <= MOST), "")
    if low:
        raise Unexpressed(f"{low} is not from 1 to {MOST}")
    if not any(row.get(name) for name in MEASURED):
        raise Unexpressed(f"neither {' nor '.join(MEASURED)} is given")
    for name in MEASURED:
        if row.get(name) and number_of(row, name) <= 0:
            raise Unexpressed(f"{name} is not above 0")
    return _Asked(words=row, concurrency=sizes["concurrency"], input_len=sizes["isl"], output_len=sizes["osl"])


MEASURED = ("tpot_ms", "ttft_ms")

MOST = 2**20
"""Largest number of sequences, and of tokens per sequence; a larger value has another unit."""


def server_of(row: Mapping[str, str], tp: str = "tp", copies: str = "attention_dp", ep: str = "ep") -> Server:
    """The row's server, with device counts from the named columns. Raises ``Unexpressed`` and ``InputError``."""
    engine = ENGINES.get(row["framework"].lower())
    if engine is None:
        raise Unexpressed(f"framework {row['framework'][:30]}: must be one of {', '.join(ENGINES)}")
    gpu = known(row["gpu"])
    dtype = DTYPES.get(row["weight_dtype"].lower()) if row["weight_dtype"] else gpu.default_dtype
    if dtype is None:
        raise Unexpressed(f"weight_dtype {row['weight_dtype'][:20]}: not one of {', '.join(DTYPES)}")
    if row.get("gemm_quant") == DType.FP8_BLOCK.value:
        dtype = DType.FP8_BLOCK
    dtype = as_run(dtype, gpu)
    engine = engine.at_release(row.get("framework_version", ""))
    if dtype.bytes < 2 and DType.NVFP4 in gpu.peak_flops_per_s:  # in InferenceX's recipes for such devices, recalled
        engine = replace(engine, kv_dtype=DType.FP8)
    split = Server(shape=shape_of(row), gpu=gpu, dtype=dtype, engine=engine, tp=whole_of(row, tp, 1))
    return replace(split, copies=whole_of(row, copies, 1), ep=whole_of(row, ep, 1))


def _limited(server: Server, load: Load) -> Server:
    """The server as a benchmark starts it, for no more sequences than it sends (InferenceX's scripts set
    ``--max-num-seqs`` to the concurrency, recalled)."""
    most = -(-int(np.max(load.concurrency)) // server.copies)
    return replace(server, engine=replace(server.engine, max_num_seqs=min(most, server.engine.step_rows(server.gpu))))


def _served(row: Mapping[str, str], load: Load) -> tuple[Server, Steady]:
    """The server that decodes for a row, and its steady state under many loads."""
    if row["mode"] == "serving_agg":
        server = _limited(server_of(row), load)
        if row.get("n_gpu") and server.num_devices != whole_of(row, "n_gpu"):
            raise Unexpressed("tp x attention_dp is not n_gpu")
        return server, steady_state(server, load, waves=WAVES, receive_every=received_every(server, load.concurrency))
    pools = [_limited(server_of(row, *(f"{pool}_{name}" for name in ("tp", "dp", "ep"))), load) for pool in POOLS]
    if lacking := [f"{pool}_workers" for pool in POOLS if not row.get(f"{pool}_workers")]:
        raise Unexpressed(f"{lacking[0]} is not given")
    workers = [whole_of(row, f"{pool}_workers") for pool in POOLS]
    for pool, server, count in zip(POOLS, pools, workers, strict=True):
        if row.get(f"{pool}_gpus") and server.num_devices * count != whole_of(row, f"{pool}_gpus"):
            raise Unexpressed(f"{pool}_workers x tp x dp is not {pool}_gpus")
    return pools[1], disaggregated(pools[0], workers[0], pools[1], workers[1], load, waves=WAVES)


def _open_sizes(row: Mapping[str, str], load: Load) -> list[tuple[Server, Steady]]:
    """The servers, and the steady states of all loads after each other, with every number of servers that fits in
    `MOST_GPUS`. Of servers for prompts powers of two and the ends: times move one way with their number between."""
    why: Unexpressed | InputError | None = None
    priced = []
    for words in _readings(row):
        try:
            first, then = (_limited(server_of(words, *(f"{p}_{n}" for n in ("tp", "dp", "ep"))), load) for p in POOLS)
            for pool in (first, then):
                check(pool.shape, ParallelDims(tp=pool.tp))
            ends = {MOST_GPUS, min(joined_devices(then.gpu), MOST_GPUS)}  # beyond the latter caches cross the network
            most = [(y, (end - y * then.num_devices) // first.num_devices) for y in range(1, MOST_GPUS) for end in ends]
            counts = {(x, y) for y, end in most for x in {min(2**k, end) for k in range(8)} if x > 0} or {(1, 1)}
            prompts, answers = np.repeat(np.array(sorted(counts)).T, np.size(load.concurrency), axis=1)
            flight, prompt, answer = (
                np.tile(sizes, len(counts)) for sizes in (load.concurrency, load.input_len, load.output_len)
            )
            many = Load(concurrency=flight, input_len=prompt, output_len=answer)
            priced.append((then, disaggregated(first, prompts, then, answers, many, waves=WAVES)))
        except (Unexpressed, InputError) as refused:
            why = why or refused
    if why is not None and not priced:
        raise why
    return priced


def _readings(row: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """What a row may mean that counts no servers: servers of its sizes; with experts, also those in a pool of ``tp``
    devices, as wide as splits the heads, alone or as copies of attention, or one device a copy."""
    yield dict(row)
    if not row.get("experts"):
        return
    tp = {pool: math.gcd(whole_of(row, f"{pool}_tp"), whole_of(row, "a", 1)) for pool in POOLS}
    for copies in (0, *(2**k for k in range(7))):
        split = {pool: (tp[pool], copies) if copies else (1, tp[pool]) for pool in POOLS}
        if all(math.prod(sizes) <= MOST_GPUS for sizes in split.values()):
            words = {
                pool: zip(("tp", "dp", "ep"), (*split[pool], math.prod(split[pool])), strict=True) for pool in POOLS
            }
            yield {**row, **{f"{pool}_{name}": str(size) for pool in POOLS for name, size in words[pool]}}


def _of_server(requests: Sequence[_Asked]) -> Iterator[InferenceRow]:
    flight, prompt, answer = np.array([(a.concurrency, a.input_len, a.output_len) for a in requests]).T
    load = Load(concurrency=flight, input_len=prompt, output_len=answer)
    words = requests[0].words
    is_open = words["mode"] == "serving_disagg" and not any(words.get(f"{pool}_workers") for pool in POOLS)
    try:
        served = _open_sizes(words, load) if is_open else [_served(words, load)]
    except (Unexpressed, InputError) as why:
        reason = str(why) if isinstance(why, Unexpressed) else f"{why.field}: {why.must}"
        yield from (InferenceRow(words={**a.words, "measure": ""}, reason=reason) for a in requests)
        return
    server = served[0][0]
    owner = load_calibration(server.gpu).owner(f"gemm.{server.dtype.value}")
    for name, (times, source) in _times([steady for _, steady in served], len(requests)).items():
        for i, request in enumerate(requests):
            if request.words.get(name):
                row = _row(request, name, *(column[:, i] for column in times))
                yield replace(row, calibration=owner, source=source)


def _times(settings: Sequence[Steady], loads: int) -> dict[str, tuple[Array, str]]:
    """Seconds, their deviations, rooflines and sequences that run, by measure, setting and load; and their source."""
    columns: dict[str, list[Array]] = {name: [] for name in MEASURED}
    for steady in settings:
        step, form = steady.step, np.shape(steady.tpot_s)
        for name, *parts in (
            ("tpot_ms", steady.tpot_s, steady.tpot_log_sigma, roofline_s(step), steady.running),
            ("ttft_ms", steady.ttft_s, steady.ttft_log_sigma, roofline_s(steady.prompt), steady.running),
        ):
            columns[name].append(np.array([np.broadcast_to(part, form).reshape(-1, loads) for part in parts]))
    sources = {"tpot_ms": settings[0].step.source.value, "ttft_ms": settings[0].prompt.source.value}
    return {name: (np.concatenate(columns[name], axis=1), source) for name, source in sources.items()}


def _row(request: _Asked, name: str, time_s: Array, sigma: Array, least_s: Array, running: Array) -> InferenceRow:
    """A measured time with its prediction or, of several settings, with the interval that spans all of theirs."""
    row = InferenceRow(words={**request.words, "measure": name.removesuffix("_ms")})
    fits = np.isfinite(time_s)
    if not fits.any():
        return replace(row, reason="weights and one sequence do not fit in memory")
    if is_bracket := len(time_s) > 1:
        row = replace(row, words={**row.words, "mode": "serving_disagg_open"})
    low, high = (time_s * np.exp(-Z80 * sigma))[fits].min(), (time_s * np.exp(Z80 * sigma))[fits].max()
    row = replace(
        row,
        measured_s=number_of(request.words, name) / 1e3,
        predicted_s=math.sqrt(low * high) if is_bracket else float(time_s[0]),
        log_sigma=math.log(high / low) / 2 / Z80 if is_bracket else float(sigma[0]),
        roofline_s=float(least_s[fits].min()),
        batch=round(float(running[fits][0])),
        bracket=is_bracket,
    )
    return replace(row, reason=TOO_FAST) if row.measured_s * IMPOSSIBLE < row.roofline_s else row
