"""``sartor serving`` as JSON and as a terminal table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from sartor.cost.intervals import interval_80
from sartor.json_types import JsonDict, picked
from sartor.report.table_estimate import notes, plain_table
from sartor.report.words import count_text, printable
from sartor.step.served import MEMORY_SHARE
from sartor.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from sartor.answers import ServingAnswer
    from sartor.step.served import Server, Shortage


def serving_body(answer: ServingAnswer) -> JsonDict:
    """``serving``: the server, and its latency and throughput under each load."""
    return {
        "model": {"name": answer.reading.shape.name, "assumptions": list(answer.assumptions)},
        "server": {
            **_server(answer.server),
            "kernels": answer.server.engine.name,
            "cache_dtype": answer.server.cache.value,
            "decode_workers": answer.decode_workers,
            "prefill_workers": answer.prefill_workers,
            "prefill": _server(answer.prefill) if answer.prefill else None,
            "num_devices": answer.num_devices,
        },
        "input_len": int(answer.load.input_len),
        "output_len": int(answer.load.output_len),
        "max_sequences": answer.most_sequences,
        "fits": answer.fits,
        "shortages": [_shortage(answer, each) for each in answer.shortages],
        "would_fit": dict(answer.would_fit),
        "loads": _loads(answer) if answer.fits else [],
    }


def _server(server: Server) -> JsonDict:
    return {
        "gpu": server.gpu.name,
        **picked(server, "dtype", "tp", "copies", "ep"),
    }


def _shortage(answer: ServingAnswer, lack: Shortage) -> JsonDict:
    sizes = picked(lack, "weight_bytes", "free_bytes", "sequence_bytes", "most_tokens")
    return {"server": _pool(answer, lack), **sizes}


def _loads(answer: ServingAnswer) -> list[JsonDict]:
    steady, concurrency = answer.steady, np.asarray(answer.load.concurrency)
    spread = [np.broadcast_to(each, concurrency.shape) for each in (steady.tpot_log_sigma, steady.ttft_log_sigma)]
    columns = {
        name: np.broadcast_to(getattr(steady, name), concurrency.shape)
        for name in ("running", "waiting", "step_s", "tpot_s", "ttft_s", "each_prompt_s", "output_tokens_per_s")
    }
    prompt_s = np.broadcast_to(steady.prompt.time_s, concurrency.shape)
    found = []
    for i, asked in enumerate(concurrency):
        at = {name: float(values[i]) for name, values in columns.items()}
        tpot, ttft = (interval_80(at[f"{n}_s"], s[i]) for n, s in zip(("tpot", "ttft"), spread, strict=True))
        request_s = at["ttft_s"] + (int(answer.load.output_len) - 1) * at["tpot_s"]
        found.append(
            {
                "concurrency": int(asked),
                "running": math.ceil(round(at["running"], 6)),
                "waiting": at["waiting"],
                "ttft_s": at["ttft_s"],
                "ttft_low_s": float(ttft[0]),
                "ttft_high_s": float(ttft[1]),
                "tpot_s": at["tpot_s"],
                "tpot_low_s": float(tpot[0]),
                "tpot_high_s": float(tpot[1]),
                "source": steady.step.source.value,
                "step_s": at["step_s"],
                "prompt_s": float(prompt_s[i]),
                "each_prompt_s": at["each_prompt_s"],
                "request_s": request_s,
                "requests_per_s": int(asked) / request_s,
                "output_tokens_per_s": at["output_tokens_per_s"],
                "output_tokens_per_s_per_device": at["output_tokens_per_s"] / answer.num_devices,
            }
        )
    return found


def serving_view(answer: ServingAnswer) -> RenderableType:
    """The server, one line per load, and the assumptions."""
    body = serving_body(answer)
    head = Text(f"{printable(answer.reading.shape.name or 'model')} served on {_devices(answer)}", style="bold")
    head.append(f"  {count_text(body['input_len'], 'token')} in, {body['output_len']:,} out", style="dim")
    rule = Rule(style="dim", characters="-")
    if not body["fits"]:
        wider = ", ".join(f"{name}={value}" for name, value in body["would_fit"].items())
        lacks = " ".join(_lacks(answer, each) for each in answer.shortages)
        words = lacks + (f" It would with {wider}." if wider else "")
        return Group(head, rule, Text(words, style="bold red"), *notes("Assumed", answer.assumptions))
    table = plain_table("in flight", "first token", "per token", "tokens/s", "per GPU")
    for each in body["loads"]:
        waits = f" ({_short(each['waiting'])} wait)" if each["waiting"] >= 1 else ""
        table.add_row(
            f"{_short(each['concurrency'])}{waits}",
            _with_interval(each, "ttft"),
            _with_interval(each, "tpot") if body["output_len"] > 1 else "-",
            f"{each['output_tokens_per_s']:,.0f}",
            f"{each['output_tokens_per_s_per_device']:,.0f}",
        )
    return Group(head, rule, table, Text(), Text(_reason(answer, body)), *notes("Assumed", answer.assumptions))


def _lacks(answer: ServingAnswer, lack: Shortage) -> str:
    pool = f" on the servers for {_pool(answer, lack)}" if answer.prefill else ""
    if lack.free_bytes <= 0:
        weights, room = (format_bytes(n) for n in (lack.weight_bytes, MEMORY_SHARE * lack.server.gpu.hbm_bytes))
        return f"Does not fit{pool}: the weights take {weights} per GPU, more than the {room} that a server fills."
    return (
        f"Does not fit{pool}: keys and values of one sequence of {count_text(lack.tokens, 'token')} take "
        f"{format_bytes(lack.sequence_bytes)} per GPU; the weights leave {format_bytes(lack.free_bytes)} free, "
        f"enough for at most {count_text(lack.most_tokens, 'token')}."
    )


def _pool(answer: ServingAnswer, lack: Shortage) -> str:
    return "prompts" if lack.server is answer.prefill else "answers"


def _devices(answer: ServingAnswer) -> str:
    found = _of(answer.server, answer.decode_workers if answer.prefill else 1)
    if answer.prefill:
        found = f"{_of(answer.prefill, answer.prefill_workers)} for prompts, {found} for answers"
    return f"{found}, {answer.server.dtype.value}, {answer.server.engine.name}"


def _of(server: Server, workers: int) -> str:
    widths = [
        f"tp={server.tp}",
        *([f"copies={server.copies}"] * (server.copies > 1)),
        *([f"ep={server.ep}"] * (server.ep > 1)),
    ]
    count = f"{workers} x " if workers > 1 else ""
    return f"{count}{server.num_devices} {server.gpu.name} ({', '.join(widths)})"


def _short(count: float) -> str:
    """A number of requests that leaves room for its line."""
    return f"{count:,.0f}" if count < 1e6 else format_count(count)


def _with_interval(each: JsonDict, name: str) -> str:
    low, high = (_brief(each[f"{name}_{end}_s"]) for end in ("low", "high"))
    return f"{_brief(each[f'{name}_s'])} ({low} to {high})"


def _brief(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 1e5 else f"{seconds:.2g} s"


def _reason(answer: ServingAnswer, body: JsonDict) -> str:
    """What makes up the time per token under the largest load, and how many sequences fit."""
    last = body["loads"][-1]
    between = 1 - last["step_s"] / last["tpot_s"]
    words = f"At {last['concurrency']:,} in flight a step takes {format_seconds(last['step_s'])}"
    if answer.prefill is None and math.isfinite(between) and between > 0:
        words += f"; prompts of other requests between two tokens are {between:.0%} of the time per token"
    most = count_text(body["max_sequences"], "sequence")
    return f"{words}. At most {most} fit in memory, each halfway through its answer."
