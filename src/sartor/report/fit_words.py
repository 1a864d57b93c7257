"""The first lines of an answer: what was priced, whether it fits and what would make it fit, and how fast."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sartor.ask.complete import plan_sentence
from sartor.hardware.catalog import ACCELERATORS, GPUS
from sartor.hardware.cluster_catalog import CLUSTERS
from sartor.hardware.gpu import alignment_of
from sartor.model.plan import AXES
from sartor.model.workload import Phase
from sartor.plans.fixed import SWITCHED
from sartor.report.plan_words import (
    FILE_UNSAID,
    UNSAID,
    batches_text,
    cannot_run_text,
    devices_priced,
    divided_lines,
    first_plan_change,
    if_turned,
    money_text,
    room_words,
    subject_text,
    turn_lines,
    unpriced_text,
)
from sartor.report.words import (
    beyond_text,
    count_text,
    fitting,
    interval_text,
    longest_text,
    printable,
    unknown_fit,
    unread_text,
)
from sartor.rules.rule import WORTH_CHANGING, ragged
from sartor.run.fields import FIELDS, Origin
from sartor.step.footprint import FIT_PROBABILITY, usable_bytes
from sartor.units import GIB, format_bytes, format_change, format_count, format_seconds, format_share, room_text

if TYPE_CHECKING:
    from sartor.answers.estimate import ModelEstimate
    from sartor.plans.search import HeldPlan
    from sartor.rules.rule import Finding
    from sartor.step.serving.inference import Serving

NAMES = {
    "param_bytes": "weights",
    "grad_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "stash_bytes": "activations",
    "kv_cache_bytes": "KV cache",
    "workspace_bytes": "workspace",
}


def does_not_fit(answer: ModelEstimate) -> str:
    """``Does not fit: 1,380 GiB per device (KV cache 1,280 GiB, weights 16.4 GiB), h100_sxm can use 79.2 GiB. ...``"""
    serving, priced = answer.serving, answer.priced
    of = serving.memory if serving is not None else None if priced is None else priced.footprint
    sizes = {word: float(getattr(of, name, 0.0)) for name, word in NAMES.items()}
    largest = sorted(sizes, key=lambda word: -sizes[word])[:3]
    parts = ", ".join(f"{word} {format_bytes(sizes[word])}" for word in largest if sizes[word] > 0)
    gpu = printable(answer.question.gpu.name)
    peak, turns = format_bytes(answer.peak_bytes), answer.question.depends_on
    turned = if_turned(turns, fits=False, memory=peak, unsaid=_unsaid(answer))
    needs = f": {peak} per device ({parts}), but {gpu} has {_room(answer)} to fill."
    if answer.near_limit:
        needs = f": {_of_room(answer)} per device ({parts}); a plan must be {FIT_PROBABILITY:.0%} likely to."
    if turned != f", {peak}":
        needs = f"{turned}. {gpu} has {_room(answer)} to fill; largest are {parts}."
    unpriced = unpriced_text(turns)
    as_priced = ", as priced" if unpriced else ""
    hint = _would_fit(answer)
    if turns and not answer.would_fit:
        hint = hint.replace("Nothing that", "Nothing else that")
    verdict = "May not fit" if answer.near_limit else "Does not fit"
    return f"{verdict}{as_priced}{needs}{unpriced} {hint} Times are those of a device with enough memory."


def _unsaid(answer: ModelEstimate) -> str:
    return FILE_UNSAID if answer.question.run.states("launch") else UNSAID


def memory_words(answer: ModelEstimate) -> str:
    """``It does not fit, 89.3 GiB of 79.2 GiB.``, with the value that would turn it where that was not stated."""
    if answer.fits is not False:
        words = _fits(answer)
        return f"It {words}" if answer.fits else f"W{words[1:]}"
    turned = if_turned(answer.question.depends_on, fits=False, memory=_of_room(answer), unsaid=_unsaid(answer))
    return f"It {'may' if answer.near_limit else 'does'} not fit{turned}."


def _of_room(answer: ModelEstimate) -> str:
    """``61.2 GiB of 79.2 GiB, 98% likely to fit``; of inference without a probability."""
    held = answer.question.held
    if held is None:
        return f"{format_bytes(answer.peak_bytes)} of {_room(answer)}"
    reserved_bytes = 0.0 if answer.priced is None else float(answer.priced.footprint.reserved_bytes)
    return room_words(answer.peak_bytes, held.cluster, held.headroom, reserved_bytes)


def _room(answer: ModelEstimate) -> str:
    held, free = answer.question.held, answer.question.headroom
    return room_text(answer.usable_bytes, free if held is None else 1 - held.room_bytes / usable_bytes(held.cluster))


def _would_fit(answer: ModelEstimate) -> str:
    changes, held = answer.would_fit, answer.question.held
    if held is not None:
        return _plan_would_fit(answer, held)
    if not changes:
        return "Nothing that was tried would fit: use more devices, devices with more memory, or shorter sequences."
    return f"It would fit with {', or with '.join(map(_change, changes))}."


def _change(change: Mapping[str, int | str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in change.items())


def _plan_would_fit(answer: ModelEstimate, held: HeldPlan) -> str:
    """``It would fit with --zero-stage 2; `sartor plan` ...``; for a typical run, the whole command of `sartor
    estimate`, which takes every axis of a plan."""
    if of_plan := first_plan_change(f for f in answer.question.plan_findings if f.step_s is not None):
        return f"{of_plan} `{_command('plan', answer, held)}` compares all plans."
    if not answer.would_fit:
        finds = "tries all plans and says how many devices are enough"
        if answer.question.run.states("launch"):
            finds = "compares it with the best plan on these devices"
        return f"Nothing that was tried would fit: `{_command('plan', answer, held)}` {finds}."
    change = answer.would_fit[0]
    words = f"as `{_command('estimate', answer, held, change)}`" if held.assumed else f"with {_options(change)}"
    return f"It would fit {words}; `sartor plan` with the same model, cluster and sizes finds the fastest plan."


def _command(name: str, answer: ModelEstimate, held: HeldPlan, change: Mapping[str, int | str] | None = None) -> str:
    """The command about the same model, cluster and sizes; a ``change`` is of `sartor estimate`."""
    job, kept = held.job, held.kept_free
    cluster = _named("cluster", held.cluster.name, answer)
    options: dict[str, int | str] = {"cluster": cluster}
    if cluster == "CLUSTER.toml" and (change is not None or not answer.question.run.states("cluster")):
        options = {"cluster" if change is None else "gpu": _named("gpu", answer.question.gpu.name, answer)}
    if name == "plan" and answer.question.run.states("launch"):  # the file says the rest
        return printable(
            f"sartor plan {shlex.join(answer.question.reading.asked)} {_options(options | _optional(answer))}"
        )
    options |= {"num_devices": held.num_devices, "global_batch_size": job.global_batch_size, "seq_len": job.seq_len}
    options |= {"dtype": job.recipe.value} if job.recipe.value != "bf16" else {}
    options |= {} if kept is None else {"headroom": f"{kept:g}"}
    options |= {name: word for name, word in _optional(answer).items() if name not in FIELDS or name in OF_THE_RUN}
    if change is not None and answer.priced is not None:
        dims = answer.priced.plan.dims  # of a smaller split, where the model cannot run as requested
        split = {name: int(size) for name, size in (("tp", dims.tp), ("ep", dims.ep)) if int(size) > 1}
        options |= {"microbatch_size": held.axes["microbatch_size"], **split, **change}
    return printable(f"sartor {name} {shlex.join(answer.question.reading.asked)} {_options(options)}")


OF_THE_RUN = ("framework", "optimizer", "lora_rank", "lora_targets", "frozen_bits")
"""Options that say what run it is, whatever its plan."""


def _stated_command(name: str, answer: ModelEstimate) -> str:
    """Another command with what the user stated; the phase is the objective of `sartor advise`."""
    run = answer.question.run
    stated = _optional(answer)
    phase, gpu = run.get("phase"), _named("gpu", answer.question.gpu.name, answer)
    options = {} if phase == Phase.TRAIN.value else {"objective" if name == "advise" else "phase": phase}
    options |= {} if run.states("cluster") or gpu == "h100_sxm" else {"gpu": gpu}
    options |= stated | ({"cluster": _named("cluster", run.get("cluster"), answer)} if run.states("cluster") else {})
    words = f"sartor {name} {shlex.join(answer.question.reading.asked)} {_options(options)}"
    return printable(words.strip())


def _optional(answer: ModelEstimate) -> dict[str, int | str]:
    """What an option states, but for the device, the phase and what stands with the model."""
    beside = ("gpu", "phase", "launch")
    facts = answer.question.run.facts.items()
    return {n: fact.value for n, fact in facts if fact.source == "option" and n not in beside}


def _named(field: str, name: str, answer: ModelEstimate) -> str:
    """A device or cluster as an option takes it: a catalogue's name, or the file that stated it."""
    fact = answer.question.run.facts.get(field)
    if fact is not None and fact.source.endswith(".toml"):
        return fact.source
    catalogued = CLUSTERS.names() if field == "cluster" else (*GPUS.names(), *ACCELERATORS.names())
    return name if name in catalogued else f"{'CLUSTER' if field == 'cluster' else 'DEVICE'}.toml"


def _options(values: Mapping[str, int | str]) -> str:
    switches = values.keys() & SWITCHED.keys() - FIELDS.keys()
    fixed = ",".join(f"{name}={value}" for name, value in values.items() if name in switches)
    options = {name: value for name, value in values.items() if name not in switches}
    options |= {"fix": fixed} if fixed else {}
    return " ".join(_option(name.replace("_", "-"), value) for name, value in options.items())


def _option(name: str, value: object) -> str:
    return f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name} {value}"


def serving_words(answer: ModelEstimate, served: Serving) -> str:
    """Decoding and prefill in the usual serving metrics: tokens/s per device, bandwidth, cache, knee."""
    workload, memory = answer.question.workload, served.memory
    decodes = workload.phase is Phase.DECODE
    words = [
        f"{format_count(float(answer.tokens_per_s_per_device))} tokens/s per device",
        f"{format_share(served.bandwidth_utilization)} of HBM bandwidth",
        f"{format_share(float(answer.mfu))} of dense peak (MFU)",
    ]
    if decodes:
        words[0] = f"{format_seconds(float(answer.time_s))} per output token, {words[0]}"
    cache = format_bytes(float(memory.kv_cache_bytes_per_sequence))
    words.append(f"{format_bytes(answer.peak_bytes)} of {format_bytes(answer.usable_bytes)} filled")
    most = count_text(served.most_sequences, "sequence")
    words.append(f"KV cache {cache} per sequence, at most {most} of this length fit")
    if answer.question.engine is not None:
        room, tokens = format_bytes(float(memory.kv_room_bytes)), count_text(int(memory.kv_tokens), "token")
        longest = longest_text(served.longest_tokens, answer.question.workload.shape)
        has = f"{room} for it: {tokens}, or {longest}" if memory.kv_room_bytes > 0 else "no room for it"
        words.append(f"{answer.question.engine.name} has {has}")
    if decodes and served.knee is not None:
        words.append(
            f"beyond {count_text(served.knee, 'sequence')}, doubling the batch makes the GEMMs at least 1.5x as long"
        )
    return "; ".join(words)


CLOSE_BYTES = 2 * GIB
"""What an engine keeps besides weights and cache differs by as much between its releases and settings."""


def tight_text(spare_bytes: float, engine: str) -> str:
    """What qualifies ``fits`` where an engine's own buffers could take the memory to spare; else nothing."""
    if spare_bytes >= CLOSE_BYTES:
        return ""
    return f", only just: {format_bytes(spare_bytes)} to spare, and releases and settings of {engine} differ by as much"


def headline(answer: ModelEstimate, change: str = "") -> Iterator[str]:
    """``my-3b on 8 h100_sxm as dp 8, ZeRO 1, microbatch 2 (the fastest plan that fits): fits, 71 of 75.2 GiB.``, how
    long a step takes, what to change, and what would turn it."""
    question = answer.question
    what = "step" if question.held is not None else "pass"
    yield from divided_lines(answer, question.run, question.reading, devices_priced(answer), what)
    if stopped := cannot_run_text(answer.question.plan_findings):
        yield stopped
    yield f"{_subject(answer)}: {_fits(answer)}"
    lengths = {name: int(np.max(getattr(question.workload, name))) for name in ("seq_len", "context_len")}
    yield from beyond_text(question.workload.shape, **lengths)
    yield _speed(answer)
    of_plan = first_plan_change(answer.question.plan_findings)
    if of_plan and answer.fits is not False and answer.question.held is not None:
        yield f"{of_plan[:-1]} (`{_command('plan', answer, answer.question.held)}` compares all plans)."
        if change and not change.startswith("It cannot"):
            change = "" if change.startswith("No rule") else f"Of the shape: {change[0].lower()}{change[1:]}"
    if change and answer.fits:
        yield batches_text(answer.batches) + change
    if unread := unread_text(answer.question.reading):
        yield unread
    yield from turn_lines(answer.question.depends_on)


WORTH_TRYING = 0.01
"""Least share of the step for which a finding is a change to try."""
SAME_SIZE = 0.05
"""Largest change of the parameters, as a share, with which it still is the same model."""


def first_change(answer: ModelEstimate, findings: Sequence[Finding], *, further: bool = True) -> str:
    """The finding of the shape that costs most; with ``further``, the command that looks further."""
    if answer.cannot_run:
        return ""  # the first line says it, and what would run
    if blocking := cannot_run(findings):
        return blocking
    padding = _padding(answer) if further else ""
    fixes = [item for item in findings if item.fix and not item.remark and abs(item.params_change) <= SAME_SIZE]
    costly = [item for item in fixes if (item.gain_fraction or 0) >= WORTH_TRYING]
    if costly:
        first = max(costly, key=lambda item: (not item.doubt, item.gain_fraction or 0))
        fix = ", ".join(f"{name}={value}" for name, value in first.fix.items())
        of = "step" if answer.question.held is not None else "pass"
        size = f", {format_change(first.params_change)} parameters" if abs(first.params_change) >= WORTH_TRYING else ""
        saved = f"{format_share(first.gain_fraction or 0)} of the {of} ({first.rule}{size})"
        sure = (first.gain_fraction or 0) >= WORTH_CHANGING
        told = f"Change first: {fix}, which saves {saved}" if sure else f"Perhaps better: {fix}, by {saved}"
        if first.doubt:
            advise = f"`{_stated_command('advise', answer)}` tries other shapes"
            return f"Not worth it: {fix}, which would save {saved}: {first.doubt}; {advise}.{padding}"
        why = f"`{_stated_command('lint', answer)}` says why" if sure else ""
        why = why or f"`{_stated_command('advise', answer)}` judges shapes of this size"
        return f"{told}{f'; {why}' * further}.{padding}"
    tries = f"; `{_stated_command('advise', answer)}` tries other shapes"
    if any(answer.question.run.states(name) for name in ("launch", *AXES)) and answer.question.held is not None:
        tries = f"; `{_command('plan', answer, answer.question.held)}` tries other plans"
    return f"No rule proposes a change of the same size that saves 1%{tries * further}.{padding}"


def cannot_run(findings: Sequence[Finding]) -> str:
    """``It cannot run: num_heads=30 does not split over tp=4.``; empty if nothing keeps it from running."""
    errors = [finding for finding in findings if finding.gain_fraction is None and finding.grade.value == "error"]
    return " ".join(f"It cannot run: {printable(finding.message).rstrip('.')}." for finding in errors[:2])


def _padding(answer: ModelEstimate) -> str:
    """The sentence on a ragged vocabulary that a trainer nobody named pads: on another one it could cost time."""
    question, vocab_size = answer.question, int(answer.question.workload.shape.vocab_size)
    if question.held is None or question.run.states("framework") or question.held.job.shape.vocab_size == vocab_size:
        return ""
    if ragged(vocab_size, alignment_of(question.gpu, question.workload.dtype)) is None:
        return ""
    return (
        f" The trainer was not stated: this one pads the vocabulary of {vocab_size}; lint says what that size costs on"
        " one that does not."
    )


def _subject(answer: ModelEstimate) -> str:
    question = answer.question
    model = printable(question.reading.shape.name or "the model")
    if question.held is None:
        dims = question.dims
        degrees = " ".join(f"{name} {int(getattr(dims, name))}" for name in ("tp", "ep") if getattr(dims, name) > 1)
        many = int(dims.num_devices)
        return f"{model} on {many} {printable(question.gpu.name)}{f' as {degrees}' if degrees else ''}"
    model = subject_text(question.reading.shape.name, question.held.job)
    return f"{model} on {printable(plan_sentence(question.held))}{_chosen(answer)}"


def _chosen(answer: ModelEstimate) -> str:
    """How the plan was chosen, if not everything of it was stated."""
    run = answer.question.run
    if all(run.origin(name) is not Origin.SEARCHED for name in AXES):
        return ""
    stated = [name for name in AXES if run.states(name)]
    best = (
        "the leanest plan" if answer.fits is False else f"the fastest plan that fits{fitting(answer.question.reading)}"
    )
    dims, held = answer.question.dims, answer.question.held
    unsplit = [
        f"{name}={degree}" for name in ("tp", "ep") if held and (degree := getattr(dims, name)) > held.axes[name]
    ]
    why = f"; {' and '.join(unsplit)} cannot split the model" if unsplit else ""
    if (
        answer.fits is not False
        and held
        and run.origin("virtual_stages") is Origin.SEARCHED
        and held.axes["virtual_stages"] > 1
    ):
        why += "; `sartor plan` compares simpler ones"
    return f" ({best}{' with ' + ', '.join(stated) + ' as stated' if stated else ''}{why})"


def _fits(answer: ModelEstimate) -> str:
    if answer.fits is None:
        return f"{unknown_fit(answer.question.reading, _of_room(answer))}."
    if answer.fits:
        engine, turns, memory = answer.question.engine, answer.question.depends_on, _of_room(answer)
        memory += tight_text(answer.usable_bytes - answer.peak_bytes, engine.name) if engine is not None else ""
        turned = if_turned(turns, fits=True, memory=memory, unsaid=_unsaid(answer))
        return f"fits{turned}.{unpriced_text(turns)}"
    words = does_not_fit(answer)
    return words[0].lower() + words[1:]


def _speed(answer: ModelEstimate) -> str:
    question = answer.question
    time = interval_text(float(answer.time_s), float(answer.low_s), float(answer.high_s))
    peak = f"{format_share(float(answer.mfu))} of dense peak (MFU)"
    if question.held is not None:
        job = question.held.job
        peak += money_text(", ", answer.cost)
        return f"A step of {job.global_batch_size:,} x {job.seq_len:,} tokens takes {time}, {peak}."
    work = question.workload
    sequences = int(work.microbatch_size)
    if work.phase.value == "decode":
        batch = count_text(sequences, "sequence") if sequences == 1 else f"each of {sequences:,} sequences"
        return f"A token for {batch} of {int(work.context_len):,} takes {time}, {peak}."
    return f"A pass over {sequences:,} x {int(work.seq_len):,} tokens takes {time}, {peak}."
