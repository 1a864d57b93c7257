"""``sartor serving`` and ``sartor deploy`` for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType

from sartor.answers.field import Field, Fields, columns_of, number, text
from sartor.answers.serving import CHOICE, FRONT_POINT, LOAD, SURE, pools_text
from sartor.hardware.cluster import price_text
from sartor.report.document import (
    Document,
    PageBlock,
    Place,
    bullets_block,
    document_page,
    document_text,
    figure_block,
    grid_block,
    opening,
    section,
)
from sartor.report.fit_words import tight_text
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns
from sartor.report.grid import field_grid
from sartor.report.plan_words import turn_lines
from sartor.report.words import (
    beyond_text,
    change_text,
    count_text,
    interval_text,
    longest_text,
    printable,
    short_change,
    three_digits,
    unknown_fit,
    unread_text,
)
from sartor.units import format_bytes, format_change, format_count, format_seconds

if TYPE_CHECKING:
    from sartor.answers.advice import Advice
    from sartor.answers.serving import Choice, DeploymentAnswer, ServedShape, ServingAnswer
    from sartor.step.serving.served import Server, Shortage


def serving_view(answer: ServingAnswer) -> RenderableType:
    """Whether it fits, how fast it is under the largest load and why; one line per load, and the assumptions."""
    tokens = f"{count_text(int(answer.load.input_len), 'token')} in, {int(answer.load.output_len):,} out"
    served = f"{answer.reading.shape.name or 'model'} served on {_devices(answer)}, {tokens}"
    if answer.fits is False:
        wider = ", ".join(f"{name}={value}" for name, value in answer.would_fit.items())
        lacks = " ".join(_lacks(answer, lack) for lack in answer.shortages)
        blocks = [opening([served, lacks + (f" It would with {wider}." if wider else "")], bad=True)]
    else:
        several = int(answer.load.output_len) > 1
        columns = [column for column in columns_of(LOAD) if several or not column.name.startswith("tpot")]
        if not any(load.waits for load in answer.loads):
            columns = [column for column in columns if column.name != "running"]
        most = f"at most {count_text(answer.most_sequences, 'sequence')} in memory, each halfway through its answer"
        lines = [f"{served}: {_fits(answer)}; {most}.", _cache(answer)]
        if unread := unread_text(answer.reading):
            lines = [f"{served}: {unknown_fit(answer.reading, most)}.", unread]
        tokens_each = int(np.max(answer.load.input_len)) + int(np.max(answer.load.output_len))
        lines[1:1] = beyond_text(answer.reading.shape, **{"input_len + output_len": tokens_each})
        blocks = [opening([*lines, *_speed(answer), *turn_lines(answer.depends_on)]), section("Loads")]
        blocks += [grid_block(field_grid("Loads", columns, answer.loads))]
    errors = [
        f"Does not start as the file has it: {message}." for grade, _, message in answer.findings if grade == "error"
    ]
    read = [f"{grade}: {message}" for grade, _, message in answer.findings if grade != "error"]
    blocks = [*([opening(errors, bad=True)] if errors else []), *blocks, bullets_block("Of the file", read)]
    return document_text([*blocks, bullets_block("Assumed", answer.assumptions)])


def _fits(answer: ServingAnswer) -> str:
    """``fits``, or that it does only just, where the room for keys and values could vanish."""
    room, one = float(answer.memory.kv_room_bytes), max(answer.whole_sequences, 1)
    return f"fits{tight_text(room - room / one, answer.server.engine.name)}"


def _cache(answer: ServingAnswer) -> str:
    """``vllm has 8.1 GiB per GPU for keys and values beside 55.1 GiB of weights and 7.7 GiB of its own: ...``"""
    memory, load = answer.memory, answer.load
    length = int(np.max(load.input_len)) + int(np.max(load.output_len))
    room, tokens = format_bytes(float(memory.kv_room_bytes)), int(memory.kv_tokens)
    parts = f"{format_bytes(float(memory.param_bytes))} of weights"
    kept = format_bytes(float(memory.workspace_bytes) + float(memory.context_bytes))
    whole = f"{count_text(answer.whole_sequences, 'sequence')} of {length:,}"
    counted = f"{count_text(tokens, 'token')}, " if tokens else ""
    each = " of each copy" if answer.server.copies > 1 or answer.decode_workers > 1 else ""
    room = f"{answer.server.engine.name} has {room} per GPU for keys and values{each}"
    longest = longest_text(answer.longest_tokens, answer.reading.shape)
    return f"{room} beside {parts} and {kept} of its own: {counted}{whole}, or {longest}."


def _lacks(answer: ServingAnswer, lack: Shortage) -> str:
    pool = f" on the servers for {answer.pool_of(lack)}" if answer.prefill else ""
    engine = lack.server.engine.name
    if lack.free_bytes <= 0:
        weights, short = format_bytes(lack.weight_bytes), format_bytes(-lack.free_bytes)
        return (
            f"Does not fit{pool}: weights of {weights} per GPU and what {engine} keeps for a step are {short} too much."
        )
    return (
        f"Does not fit{pool}: keys and values of one sequence of {count_text(lack.tokens, 'token')} take "
        f"{format_bytes(lack.sequence_bytes)} per GPU; {engine} has {format_bytes(lack.free_bytes)} for them, "
        f"enough for at most {count_text(lack.most_tokens, 'token')}."
    )


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
        *([f"pp={server.pp}"] * (server.pp > 1)),
    ]
    count = f"{workers} x " if workers > 1 else ""
    return f"{count}{server.num_devices} {server.gpu.name} ({', '.join(widths)})"


def _speed(answer: ServingAnswer) -> list[str]:
    """Latencies and throughput under the largest load, and what makes up its time per token beside the smallest."""
    least, last = answer.loads[0], answer.loads[-1]
    first = interval_text(last.ttft_s, last.ttft_low_s, last.ttft_high_s)
    each = f", then a token in {interval_text(last.tpot_s, last.tpot_low_s, last.tpot_high_s)}"
    several, rate = int(answer.load.output_len) > 1, f"{last.output_tokens_per_s:,.0f} tokens/s in all"
    load = f"At {last.concurrency:,} in flight"
    if last.waits:
        limited = answer.server.engine.max_num_seqs == answer.most_sequences
        why = "" if answer.prefill else " for one to end" if limited else " for room in memory"
        run = f"{last.running:,} run{'s' if last.running == 1 else ''} at once"
        load = f"Of {last.concurrency:,} requests {run} and {last.waiting:,.0f} wait{why}:"
    lines = [f"{load} the first token takes {first}{each if several else ''}: {rate}."]
    between = 1 - last.step_s / last.tpot_s
    words = f"A step of {last.running:,} takes {format_seconds(last.step_s)}"
    if answer.prefill is None and math.isfinite(between) and between > 0:
        words += f"; prompts of other requests between two tokens are {between:.0%} of the time per token"
    if least.running < last.running and several:
        words += f". With {least.concurrency:,} in flight a token takes {format_seconds(least.tpot_s)}"
    if last.usd_per_million_tokens is not None:
        price = f"at {answer.run.get('price'):.2f} per device-hour (stated)"
        lines.append(f"{three_digits(last.usd_per_million_tokens)} USD per 1M tokens of answers {price}.")
    return [*lines, f"{words}."]


# -- deployments -------------------------------------------------------------------------------------------------------

Numbers = npt.NDArray[np.float64]

_MOST_POINTS = 10
"""Points of a front that the terminal shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFront:
    """The front of a deployment: tokens/s per device over tokens/s of a request, and the chosen deployment's."""

    title: str
    layouts: tuple[str, ...]
    gpus: tuple[str, ...]
    per_request: Numbers
    per_device: Numbers
    in_flight: npt.NDArray[np.int64]
    best: tuple[float, float] | None


def front_points(answer: DeploymentAnswer) -> ServedFront:
    """The figure's record."""
    front, best = answer.front, answer.best
    names = {point.layout.server.gpu.name for point in front}
    alone = f"; no GPU is ahead of {printable(*names)} at any speed" if len(names) == 1 else ""
    chosen = best and (1 / best.tpot_s, best.deployment.output_tokens_per_s / best.deployment.num_devices)
    return ServedFront(
        title=f"A faster request costs throughput{_first_text(answer)}{alone}",
        layouts=tuple(pools_text(point.layout) for point in front),
        gpus=tuple(point.layout.server.gpu.name for point in front),
        per_request=np.array([point.tokens_per_s_per_request for point in front]),
        per_device=np.array([point.tokens_per_s_per_device for point in front]),
        in_flight=np.array([point.in_flight for point in front], dtype=np.int64),
        best=chosen or None,
    )


def draw_served_front(points: ServedFront, frame: Frame = FILE) -> Chart:
    """Layouts and loads that no other beats, with the chosen deployment as it runs under the load."""
    sheet = Sheet.of(frame)
    x = sheet.x("request:Q", "tokens/s of a request", 6, zero=True, nice=True)
    names = sorted(set(points.gpus))
    y = sheet.y("device:Q", "tokens/s per GPU", zero=True)
    tips = sheet.hover(
        "layout:N", "gpu:N", ("request:Q", "of a request", ".3g"), ("device:Q", "per GPU", ".4g"), "load:N"
    )
    rows = columns(
        layout=points.layouts, request=points.per_request, device=points.per_device, gpu=points.gpus,
        load=[f"{count:,} in flight" for count in points.in_flight.tolist()],
    )  # fmt: skip
    edge = sheet.rows(rows)
    line = edge.mark_line(color=sheet.theme.ink, strokeWidth=1.2, opacity=0.7).encode(x=x, y=y)
    marks = edge.mark_point(filled=True, size=60, opacity=0.9)
    colours = [sheet.theme.series[i % len(sheet.theme.series)] for i in range(len(names))]
    layers = [line, marks.encode(x=x, y=y, tooltip=tips, color=sheet.colour("gpu", names, colours))]
    if points.best:
        star = sheet.rows([{"request": points.best[0], "device": points.best[1], "layout": "chosen, at this load"}])
        best = star.mark_point(color=sheet.theme.vermillion, filled=True, size=130, shape="diamond", opacity=1)
        words = star.mark_text(align="left", dx=10, color=sheet.theme.vermillion, fontWeight="bold", fontSize=12)
        layers += [best.encode(x=x, y=y, tooltip=sheet.hover("layout:N")), words.encode(x=x, y=y, text="layout:N")]
    return sheet.finish(sheet.alt.layer(*layers), points.title, height=320)


def deploy_view(answer: DeploymentAnswer) -> RenderableType:
    """The cheapest deployment and why it is, the next kinds of layouts, and what speed per request costs."""
    return document_text(_deploy_blocks(answer))


def deploy_page(answer: DeploymentAnswer) -> str:
    """The offline page. Raises ``MissingExtraError`` without the extra ``report``."""
    records = {"front": front_points(answer)} if answer.front else {}
    name = answer.reading.shape.name or "model"
    words = f"{_load_text(answer)}, {_goal_text(answer)}"
    return document_page(
        Document(title=name, question=words, command="deploy", blocks=_deploy_blocks(answer), records=records)
    )


def _deploy_blocks(answer: DeploymentAnswer) -> list[PageBlock]:
    best, lines = answer.best, deploy_lines(answer)
    if best is None:
        return [opening(lines, bad=True), bullets_block("", lines[1:], Place.PAGE), _refused(answer)]
    front = answer.front[:: max(len(answer.front) // _MOST_POINTS, 1)]
    return [
        opening(lines),
        bullets_block("", lines, Place.PAGE),
        figure_block("front"),
        section(layouts_title(answer)),
        grid_block(field_grid("Layouts", _columns(CHOICE, answer.choices), answer.choices)),
        section(f"Speed of a request against throughput{_first_text(answer)}"),
        grid_block(field_grid("Front", _columns(FRONT_POINT, front), front)),
        bullets_block("Start", [*best.commands, *best.notes()]),
        _refused(answer),
        bullets_block("Assumed", answer.assumptions),
    ]


def deploy_lines(answer: DeploymentAnswer) -> list[str]:
    """The answer in sentences, what was asked first; why nothing meets it where nothing does."""
    best, question = answer.best, f"{answer.reading.shape.name or 'model'}, {_load_text(answer)}, {_goal_text(answer)}"
    if best is None:
        return [f"{question}: no deployment.", *_out_of_reach(answer), *_why_not_text(answer)]
    first = interval_text(best.ttft_s, *map(float, best.ttft_interval))
    each = interval_text(best.tpot_s, *map(float, best.tpot_interval))
    unread, recorded = unread_text(answer.reading), answer.load.request.recorded
    return [
        f"{question}: {_deployment_text(best)}, the {'cheapest' if answer.of_price else f'fewest {answer.unit}'} of "
        f"{count_text(answer.num_layouts, 'layout')}{_unpriced_text(answer)}"
        f"{f'; {unknown_fit(answer.reading)}' if unread else ''}.",
        *([unread] if unread else []),
        *_doubtful_text(answer, best),
        f"First token {first}, then a token in {each}; for {best.percentile:g}% of requests within "
        f"{' and '.join(map(format_seconds, best.quantiles_s))}{_likely_text(answer, best)}; "
        f"{best.deployment.output_tokens_per_s:,.0f} tokens/s{_money_text(best)}. A replica takes "
        f"{count_text(best.deployment.most_in_flight, 'request')} in flight{' on average' * bool(recorded)}: "
        f"{_BINDING[best.binding]}.",
        _memory_text(best),
        *_simpler_text(answer),
        *_why_not_text(answer),
        *_unsure_text(answer, best),
    ]


def layouts_title(answer: DeploymentAnswer) -> str:
    """What the table of layouts ranks them by."""
    return "The cheapest of each layout" if answer.of_price else f"The fewest {answer.unit} of each layout"


def _columns(fields: Fields, records: Sequence[object]) -> list[Field]:
    """The columns of a table, without a device, precision or engine that all have."""
    alike = ("gpu", "dtype", "kernels", "cache_dtype")
    return [
        column
        for column in columns_of(fields)
        if column.name not in alike or len({column.text(record) for record in records}) > 1
    ]


_BINDING = {
    "ttft_s": "with more, the first token would be late",
    "tpot_s": "with more, tokens would be late",
    "probability": "with more, the objectives would be less likely than asked",
    "memory": "its memory has room for no more",
    "max_num_seqs": "as many as --max-num-seqs",
}


def _likely_text(answer: DeploymentAnswer, best: Choice) -> str:
    limits = [limit for limit in (answer.objective.ttft_s, answer.objective.tpot_s) if math.isfinite(limit)]
    return (
        f": {_share_text(best.deployment.likely)} likely to meet {'both' if limits[1:] else 'this'}" if limits else ""
    )


def _doubtful_text(answer: DeploymentAnswer, best: Choice) -> list[str]:
    """That the best is more likely to miss the objectives, and the cheapest that surely meets them."""
    if not answer.is_doubtful:
        return []
    miss = f"It is more likely to miss the objectives than to meet them ({_share_text(best.deployment.likely)} likely)"
    if answer.objective.probability is not None:
        return [f"{miss}."]
    if (sure := answer.surer) is None:
        return [f"{miss}; no layout of up to {answer.most_devices} devices meets them with {SURE:.0%}."]
    share, money = _share_text(sure.deployment.likely), ""
    if sure.usd_per_hour and sure.usd_per_million_tokens:
        money = f" at {sure.usd_per_hour:,.2f} USD per hour, {three_digits(sure.usd_per_million_tokens)} per 1M tokens"
    return [f"{miss}; the cheapest that is {SURE:.0%} likely to: {_deployment_text(sure)}{money} ({share})."]


def _unpriced_text(answer: DeploymentAnswer) -> str:
    return f" (no price of {printable(*answer.unpriced)} is known)" if answer.unpriced else ""


def _share_text(share: float) -> str:
    return f"{share:.0%}" if 0.01 <= share < 0.995 else "over 99%" if share > 0.5 else "under 1%"


def _per_s(rate: float) -> str:
    return f"{three_digits(rate)} {'request' if rate == 1 else 'requests'}/s"


def _load_text(answer: DeploymentAnswer) -> str:
    load = answer.load
    lengths = f"{count_text(load.input_len, 'token')} in, {load.output_len:,} out"
    if load.users:
        return f"{count_text(load.users, 'request')} in flight of {lengths}"
    return f"{_per_s(load.requests_per_s)} of {lengths}" if load.requests_per_s else f"{lengths}, any load"


def _goal_text(answer: DeploymentAnswer) -> str:
    goal = answer.objective
    words = [
        f"{name} within {format_seconds(limit)}"
        for name, limit in (("first token", goal.ttft_s), ("token", goal.tpot_s))
        if math.isfinite(limit)
    ]
    likely = f" for {goal.percentile:g}% of requests" if goal.percentile else ""
    likely += "" if goal.probability is None else f" with {100 * goal.probability:g}%"
    return (" and ".join(words) or "no objective stated") + likely


def _first_text(answer: DeploymentAnswer) -> str:
    limit = answer.objective.ttft_s
    return f", first token within {format_seconds(limit)}" if math.isfinite(limit) else ""


def _deployment_text(choice: Choice) -> str:
    deployment = choice.deployment
    layout = deployment.layout
    replicas = f"{deployment.replicas} replicas of " if deployment.replicas > 1 else ""
    kind = f"{layout.server.dtype.value}, {layout.server.engine.name}"
    return f"{deployment.num_devices} {layout.server.gpu.name} as {replicas}{pools_text(layout)} ({kind})"


def _money_text(choice: Choice) -> str:
    kwh = f"at most {three_digits(choice.kwh_per_million_tokens)} kWh"
    if not choice.usd_per_hour or not choice.usd_per_year:
        return f", {kwh} per 1M tokens of answers"
    token, year = three_digits(choice.usd_per_million_tokens or 0), format_count(choice.usd_per_year)
    hour = f"{choice.usd_per_hour:,.2f} USD per hour ({year} a year)"
    apart = [three_digits(choice.usd_per_million_tokens_in or 0), three_digits(choice.usd_per_million_tokens_out or 0)]
    token = f"{token} USD and {kwh} per 1M tokens of answers (by time {apart[0]} USD per 1M in and {apart[1]} out)"
    return f", {hour}, {token}{_price_text(choice)}"


def _price_text(choice: Choice) -> str:
    """`` at 6.88 per device-hour (2025, old)``; empty without a price."""
    usd, source, date = (getattr(choice.where, f"price_{name}") for name in ("usd_per_device_hour", "source", "date"))
    return f" at {printable(price_text(usd, source, date, brief=True))}" if usd else ""


def _memory_text(best: Choice) -> str:
    """``Keys and values in bf16: 324,000 tokens a replica, 40.1 GiB; 15.9 GiB of weights per GPU; ...``"""
    server, tokens = best.deployment.layout.server, best.kv_tokens
    room = f"{count_text(tokens, 'token')} a replica, {format_bytes(best.kv_bytes)}"
    return (
        f"Keys and values in {server.cache.value}: {room if tokens else format_bytes(best.kv_bytes)}, beside "
        f"{format_bytes(float(best.memory.param_bytes))} of weights per GPU; {best.utilization:.3g} of memory, "
        f"{count_text(best.step_tokens, 'token')} a step."
    )


def _simpler_text(answer: DeploymentAnswer) -> list[str]:
    if answer.simpler is None or answer.best is None:
        return []
    simple, best = (
        (answer.of_price and choice.usd_per_million_tokens)
        or choice.deployment.num_devices / (1 if answer.unit == "GPUs" else choice.deployment.output_tokens_per_s)
        for choice in (answer.simpler, answer.best)
    )
    likely = _likely_text(answer, answer.simpler).removeprefix(": ")
    change = f"{format_change(simple / best - 1)} in {answer.unit}{', ' * bool(likely)}{likely}"
    return [f"Simpler: {_deployment_text(answer.simpler)} ({change})."]


def _why_not_text(answer: DeploymentAnswer) -> list[str]:
    """The cheapest with the sizes that were asked about against the best, term by term."""
    if answer.why_not is None:
        return []
    other, best = answer.why_not.best, answer.best
    if other is None:
        return [f"The sizes of --why-not: none. {' '.join(_out_of_reach(answer.why_not))}"]
    there = f"The cheapest with the sizes of --why-not is {_deployment_text(other)}"
    if best is None:
        return [f"{there}."]

    def terms(choice: Choice) -> list[str]:
        made = choice.deployment
        return [
            count_text(made.num_devices, "GPU"),
            *([f"{choice.usd_per_hour:,.2f} USD per hour"] if choice.usd_per_hour else []),
            f"first token {format_seconds(choice.ttft_s)}",
            f"a token in {format_seconds(choice.tpot_s)}",
            *filter(None, [_likely_text(answer, choice).removeprefix(": ")]),
            f"{count_text(made.most_in_flight, 'request')} in flight of a replica ({_BINDING[choice.binding]})",
        ]

    if other.deployment.layout == best.deployment.layout:
        return [f"{there}: the best itself."]
    return [f"{there}: {', '.join(terms(other))}. The best: {', '.join(terms(best))}."]


def _unsure_text(answer: DeploymentAnswer, best: Choice) -> list[str]:
    """What could turn the answer: facts that were not stated, and what is known of these predictions."""
    words = []
    if best.deployment.layout.prefill and math.isfinite(answer.objective.ttft_s):
        words.append(
            "First tokens with servers for prompts were 57% off on published runs, mostly later than predicted (1.8 "
            "times in the median): their interval is what is known."
        )
    if answer.unstated:
        usual = ", ".join(f"{name}={value}" for name, value in answer.unstated.items())
        compare = " ".join(
            f"--{name} any" if name == "kernels" else f"--dtype {','.join(dict.fromkeys([word, 'fp8']))}"
            for name, word in answer.unstated.items()
            if name in ("kernels", "dtype")
        )
        traffic = "; `--traffic FILE` takes recorded requests" if "input_len" in answer.unstated else ""
        words.append(f"Not stated: {usual}{f'; `{compare}` compares' if compare else ''}{traffic}.")
    return words


def _out_of_reach(answer: DeploymentAnswer) -> list[str]:
    """Why nothing does: no layout holds a request, none meets the objectives, or the devices cannot take the load."""
    load = answer.load
    if not answer.front:
        refused = " and can be started (not possible: below)" if answer.refused else ""
        return [f"No layout of up to {answer.most_devices} devices holds one request{refused}."]
    if answer.least_usd_per_hour:
        return [f"What meets the objectives costs at least {answer.least_usd_per_hour:,.2f} USD per hour."]
    if answer.most_load:
        most = f"{answer.most_load:,.0f} requests in flight" if load.users else _per_s(answer.most_load)
        return [f"{answer.most_devices} devices take at most {most} (--max-devices)."]
    if answer.most_likely and (wanted := answer.objective.probability):
        layout, share = answer.most_likely
        return [
            f"None of {count_text(answer.num_layouts, 'layout')} of up to {answer.most_devices} devices meets the "
            f"objectives with {100 * wanted:g}%, though the predictions of some do: {pools_text(layout)} "
            f"({layout.server.dtype.value}, {layout.server.engine.name}) is likeliest to, with {_share_text(share)} at "
            f"its best load."
        ]
    first, quick = min(answer.front, key=lambda point: point.ttft_s), answer.front[0]
    return [
        f"None of {count_text(answer.num_layouts, 'layout')} of up to {answer.most_devices} devices does, at any load: "
        f"a token takes at least {format_seconds(1 / quick.tokens_per_s_per_request)} ({pools_text(quick.layout)}), "
        f"the first about {format_seconds(first.ttft_s)}.",
        *[
            f"The predictions of some meet --{name.removesuffix('_s')} {1.005 * seconds:.3g} in its place: even odds."
            for name, seconds in answer.would_meet.items()
        ],
    ]


def _refused(answer: DeploymentAnswer) -> PageBlock:
    words = [f"{name}: {why}" for name, why in answer.refused.items()]
    return bullets_block("Not possible", words)


# -- shapes ------------------------------------------------------------------------------------------------------------


def served_blocks(advice: Advice) -> list[PageBlock]:
    """What the model's deployment costs, which shape of its size serves best, and every shape that was tried."""
    usual, *others = advice.served
    answer = usual.deployment
    question = f"{answer.reading.shape.name or 'model'}, {_load_text(answer)}, {_goal_text(answer)}"
    best = answer.best
    here = f"{_deployment_text(best)}, {_cost_text(usual)}{_price_text(best)}" if best else "no deployment"
    searched = f"{advice.search.evaluated:,} of this size"
    lines = [
        f"{question}: as it is {here}.",
        *([] if answer.best else _out_of_reach(answer)),
        _best_shape_text(usual, others),
        f"Priced: the model and, of {searched}, {count_text(len(others), 'shape')} that surely gain most in the "
        "decoding step or the prompt of this deployment; without servers for prompts only."
        if others
        else f"Looked at: {searched}; without servers for prompts only.",
        *(_unsure_text(answer, answer.best) if answer.best else ()),
    ]
    most = f"most {'requests' if answer.load.users else 'requests/s'} on {answer.most_devices} devices"
    columns = (
        text("changed", "shape", path=lambda shape: short_change(shape.changed) if shape.changed else "as it is"),
        text("deployment", "deployment", path=_shape_text),
        text("first", "first token", path=lambda shape: _seconds_text(shape, "ttft_s")),
        text("token", "per token", path=lambda shape: _seconds_text(shape, "tpot_s")),
        text("cost", "cost", path=_cost_text),
        number("most_load", most, path="deployment.most_load", form=three_digits),
        text(
            "loss", "loss", path=lambda shape: f"{shape.loss.nats:+.3f}" if shape.loss else "", help="expected [nats]"
        ),
    )
    return [
        opening(lines, bad=advice.infeasible),
        bullets_block("", lines, Place.PAGE),
        section("Shapes of this size, the cheapest first"),
        grid_block(field_grid("Shapes", columns, advice.served)),
        bullets_block("Assumed", answer.assumptions, Place.REST),
    ]


def _best_shape_text(usual: ServedShape, others: Sequence[ServedShape]) -> str:
    """The cheapest other shape against the model's; at the same cost, what more it takes."""
    best = min(others, key=lambda shape: shape.cost, default=usual)
    made, loss = best.deployment, f"; expected change of the loss {best.loss.nats:+.3f} nats" if best.loss else ""
    cheaper = best.cost[0] / usual.cost[0] - 1 if made.best and usual.deployment.best else 0.0
    more = made.most_load / usual.deployment.most_load - 1 if usual.deployment.most_load else 0.0
    takes = f"on {made.most_devices} devices it takes {more:+.1%} load"
    if made.best is not None and (cheaper < -0.001 or usual.deployment.best is None):
        saved = f" ({format_change(cheaper)})" if cheaper else ""
        change = change_text(best.changed)
        return f"Change {change}: {_deployment_text(made.best)}, {_cost_text(best)}{saved}; {takes}{loss}."
    if usual.deployment.best is None:
        return "None of the other shapes meets the objectives either."
    keep = f"Keep this shape: none of {count_text(len(others), 'other')} costs less at this load."
    keep = keep if others else "Keep this shape: no other of its size surely gains in the decoding step or the prompt."
    return keep if more < 0.001 or made.best is None else f"{keep} With {change_text(best.changed)} {takes}{loss}."


def _shape_text(shape: ServedShape) -> str:
    return _deployment_text(shape.deployment.best) if shape.deployment.best else "none meets the objectives"


def _seconds_text(shape: ServedShape, name: str) -> str:
    return format_seconds(getattr(shape.deployment.best, name)) if shape.deployment.best else ""


def _cost_text(shape: ServedShape) -> str:
    """``323k USD a year``; of no stated load ``0.5 USD per 1M tokens``; without prices ``3 GPUs``."""
    best, load = shape.deployment.best, shape.deployment.load
    if best is None:
        return ""
    if best.usd_per_year is None or best.usd_per_million_tokens is None:
        return count_text(best.deployment.num_devices, "GPU")
    if load.users or load.requests_per_s:
        return f"{format_count(best.usd_per_year)} USD a year"
    return f"{three_digits(best.usd_per_million_tokens)} USD per 1M tokens"
