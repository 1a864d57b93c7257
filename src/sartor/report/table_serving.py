"""``sartor serving`` and ``sartor deploy`` for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType

from sartor.answers.field import columns_of
from sartor.answers.serving import CHOICE, FRONT_POINT, LOAD, pools_text
from sartor.report.document import PageBlock, bullets_block, document_text, grid_block, opening, section
from sartor.report.fit_words import tight_text
from sartor.report.grid import field_grid
from sartor.report.plan_words import turn_lines
from sartor.report.words import count_text, interval_text, three_digits, unread_text
from sartor.units import format_bytes, format_change, format_seconds

if TYPE_CHECKING:
    from sartor.answers.serving import Choice, DeploymentAnswer, ServingAnswer
    from sartor.step.serving.served import Server, Shortage


def serving_view(answer: ServingAnswer) -> RenderableType:
    """Whether it fits, how fast it is under the largest load and why; one line per load, and the assumptions."""
    tokens = f"{count_text(int(answer.load.input_len), 'token')} in, {int(answer.load.output_len):,} out"
    served = f"{answer.reading.shape.name or 'model'} served on {_devices(answer)}, {tokens}"
    if not answer.fits:
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
            lines = [f"{served}: whether it fits is unknown; without what is not read, {most}.", unread]
        blocks = [opening([*lines, *_speed(answer), *turn_lines(answer.depends_on)]), section("Loads")]
        blocks += [grid_block(field_grid("Loads", columns, answer.loads))]
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
    return f"{room} beside {parts} and {kept} of its own: {counted}{whole}, or one of {answer.longest_tokens:,}."


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

_MOST_POINTS = 10
"""Points of a front that the terminal shows."""


def deploy_view(answer: DeploymentAnswer) -> RenderableType:
    """The cheapest deployment and why it is, the next kinds of layouts, and what speed per request costs."""
    best, question = answer.best, f"{answer.reading.shape.name or 'model'}, {_load_text(answer)}, {_goal_text(answer)}"
    if best is None:
        return document_text(
            [opening([f"{question}: no deployment.", *_out_of_reach(answer)], bad=True), _refused(answer)]
        )
    first = interval_text(best.ttft_s, *map(float, best.ttft_interval))
    each = interval_text(best.tpot_s, *map(float, best.tpot_interval))
    lines = [
        f"{question}: {_deployment_text(best)}, the {'cheapest' if best.usd_per_hour else 'fewest GPUs'} of "
        f"{count_text(answer.num_layouts, 'layout')}.",
        f"First token {first}, then a token in {each}: {best.deployment.likely:.0%} likely to meet both; "
        f"{best.deployment.output_tokens_per_s:,.0f} tokens/s{_money_text(best)}. {_BINDING[best.binding]}.",
        *_simpler_text(answer),
        *_unsure_text(answer, best),
    ]
    if unread := unread_text(answer.reading):
        lines.insert(1, unread)
    several = {
        column.name: len({column.text(choice) for choice in answer.choices}) > 1
        for column in columns_of(CHOICE)
        if column.name in ("gpu", "dtype", "kernels")
    }
    columns = [column for column in columns_of(CHOICE) if several.get(column.name, True)]
    front = answer.front[:: max(len(answer.front) // _MOST_POINTS, 1)]
    return document_text(
        [
            opening(lines),
            section("The cheapest of each layout"),
            grid_block(field_grid("Layouts", columns, answer.choices)),
            section(f"Speed of a request against throughput{_first_text(answer)}"),
            grid_block(field_grid("Front", columns_of(FRONT_POINT), front)),
            bullets_block("Start", best.commands),
            _refused(answer),
            bullets_block("Assumed", answer.assumptions),
        ]
    )


_BINDING = {
    "ttft_s": "More requests on a replica would break the first token's objective",
    "tpot_s": "More requests on a replica would break the objective per token",
    "probability": "With more requests on a replica the objectives would be less likely than asked",
    "memory": "Memory for keys and values limits a replica",
}


def _load_text(answer: DeploymentAnswer) -> str:
    load = answer.load
    lengths = f"{count_text(load.input_len, 'token')} in, {load.output_len:,} out"
    if load.users:
        return f"{count_text(load.users, 'request')} in flight of {lengths}"
    return f"{load.requests_per_s:g} requests/s of {lengths}" if load.requests_per_s else f"{lengths}, any load"


def _goal_text(answer: DeploymentAnswer) -> str:
    goal = answer.objective
    words = [
        f"{name} within {format_seconds(limit)}"
        for name, limit in (("first token", goal.ttft_s), ("token", goal.tpot_s))
        if math.isfinite(limit)
    ]
    likely = "" if goal.probability is None else f" with {goal.probability:.0%}"
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
    if not choice.usd_per_hour:
        return ""
    return (
        f", {choice.usd_per_hour:,.2f} USD per hour, {choice.usd_per_million_tokens:.3g} USD per 1M tokens of answers"
    )


def _simpler_text(answer: DeploymentAnswer) -> list[str]:
    if answer.simpler is None or answer.best is None:
        return []
    costs = [choice.usd_per_million_tokens or choice.deployment.num_devices for choice in (answer.simpler, answer.best)]
    return [f"Simpler: {_deployment_text(answer.simpler)} ({format_change(costs[0] / costs[1] - 1)} in cost)."]


def _unsure_text(answer: DeploymentAnswer, best: Choice) -> list[str]:
    """What could turn the answer: facts that were not stated, and what is known of these predictions."""
    words = []
    if best.deployment.layout.prefill and math.isfinite(answer.objective.ttft_s):
        words.append(
            "First tokens with servers for prompts were 57% off on published runs, mostly predicted too short."
        )
    if answer.unstated:
        usual = ", ".join(f"{name}={value}" for name, value in answer.unstated.items())
        compare = " ".join(f"--{name} {_COMPARED[name]}" for name in answer.unstated)
        words.append(f"Not stated: {usual}; `{compare}` compares.")
    return words


_COMPARED = {"dtype": "bf16,fp8", "kernels": "any"}


def _out_of_reach(answer: DeploymentAnswer) -> list[str]:
    """What could be met, of layouts that hold a request."""
    if not answer.front:
        return [f"No layout of up to {answer.most_devices} devices holds one request."]
    first, quick = min(answer.front, key=lambda point: point.ttft_s), answer.front[0]
    return [
        f"Of {count_text(answer.num_layouts, 'layout')} of up to {answer.most_devices} devices none does: a token "
        f"takes at least {format_seconds(1 / quick.tokens_per_s_per_request)} ({pools_text(quick.layout)}), the first "
        f"about {format_seconds(first.ttft_s)}; one that does both may take more devices (--most-devices)."
    ]


def _refused(answer: DeploymentAnswer) -> PageBlock:
    words = [f"{name}: {why}" for name, why in answer.refused.items()]
    return bullets_block("Not possible", words)
