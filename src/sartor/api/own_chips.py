"""Keys that the file of a user's own chip does not set: the defaults are listed among what was assumed, and the answer
says if another plausible value would change its time.

The private buffer of the tensor cores alone can change a step by a factor of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sartor.answers.estimate import ModelEstimate, Question
from sartor.hardware.accelerator_catalog import datasheet_of, ratio_to_default, template_value, with_key
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.run.run import Turn
from sartor.units import format_seconds

MOVES = 0.1
"""Smallest relative change of the time for which a value that was not stated is named above the answer."""


def template_words(*gpus: Gpu) -> tuple[str, ...]:
    """``my_chip: tensor_core_sram_kib=32, ... (defaults: its file does not set them)``, for chips whose file leaves
    out keys."""
    return tuple(
        f"{gpu.name}: {', '.join(_values(gpu))} (defaults: its file does not set them)"
        for gpu in gpus
        if gpu.template_keys
    )


def _values(gpu: Gpu) -> Iterator[str]:
    assert gpu.accelerator is not None
    for key in gpu.template_keys:
        value = template_value(gpu.accelerator, key)
        yield f"{key}={value if isinstance(value, str) else f'{value:g}'}"


def with_template_turns(
    question: Question, answer: ModelEstimate, price: Callable[[Question], ModelEstimate]
) -> Question:
    """The question of an answer with other plausible values of keys that the chip's file leaves out and that change
    the time by `MOVES`, the largest change first; ``price`` answers a question. A plausible value is as far from its
    default as a chip of the catalogue sets it."""
    chip, keys, time_s = question.gpu.accelerator, question.gpu.template_keys, float(answer.time_s)
    turns: list[Turn] = []
    for key in keys:
        if chip is None or (key == "num_links" and "link_gb_per_s" in keys):
            continue  # both are one rate
        default = template_value(chip, key)
        if isinstance(default, str):
            continue
        ratio, like = ratio_to_default(key)
        value = default * ratio
        changed = replace(datasheet_of(with_key(chip, key, value)), template_keys=keys)
        seconds = float(price(_on(question, changed)).time_s)
        compared = f" (default: {default:g}; {like} has {ratio:.3g} times its default)"
        turns += turn_of_time(key, int(value) if value == int(value) else value, seconds, time_s, compared)
    turns.sort(key=lambda turn: -abs(turn.figures["ratio"] - 1))
    return replace(question, depends_on=(*question.depends_on, *turns))


def turn_of_time(name: str, value: object, seconds: float, time_s: float, compared: str = "") -> list[Turn]:
    """A value of a field that was not stated, if it changes the time by `MOVES`."""
    if abs(seconds / time_s - 1) < MOVES:
        return []
    verdict = f"{format_seconds(seconds)} instead of {format_seconds(time_s)}{compared}"
    return [Turn(field=name, value=value, verdict=verdict, figures={"time_s": seconds, "ratio": seconds / time_s})]


def _on(question: Question, gpu: Gpu) -> Question:
    """The question on another chip, with the plan unchanged; a network that was assumed is the other chip's own."""
    held = question.held
    if held is None:
        return replace(question, gpu=gpu)
    cluster = held.cluster
    if question.run.states("cluster"):
        pools = tuple(replace(pool, gpu=gpu) if pool.gpu == question.gpu else pool for pool in cluster.others)
        cluster = replace(cluster, gpu=gpu if cluster.gpu == question.gpu else cluster.gpu, others=pools)
    else:
        cluster = usual_cluster(gpu).reached(held.num_devices)
    return replace(question, gpu=gpu, held=replace(held, cluster=cluster, searched=None))
