"""A server under load: time to first token, time between tokens, and throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sartor.answers.serving import ServingAnswer
from sartor.api.models import Model, read
from sartor.api.words import GpuLike, device_of, of_frameworks, own_calibration, precision_of, refuse_on_a_chip, size_of
from sartor.cost.correction.calibration import load_calibration
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.reading import ModelReading
from sartor.model.shape import TransformerShape
from sartor.model.workload import too_long
from sartor.operators import DType
from sartor.step.serving.batching import FIRST_TOKEN_S, FIRST_TOKEN_STEPS, steady_state
from sartor.step.serving.load import Load
from sartor.step.serving.pools import disaggregated
from sartor.step.serving.served import (
    ENGINES,
    USUAL_ENGINE,
    VOCABULARY_MULTIPLE,
    Engine,
    Server,
    Shortage,
    capacity,
    engines_on,
    holds,
    padded,
    shortage,
    would_fit,
)

CONCURRENCY = (1, 4, 16, 64, 256)
"""Default numbers of sequences in flight."""


def serving(
    model: Model,
    gpu: GpuLike = "h100_sxm",
    *,
    concurrency: int | Sequence[int] = CONCURRENCY,
    input_len: int = 1024,
    output_len: int = 1024,
    tp: int = 1,
    copies: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kernels: str | None = None,
    prefill_workers: int = 0,
    prefill_tp: int | None = None,
    prefill_copies: int = 1,
    decode_workers: int = 1,
    set: Mapping[str, int | str] | None = None,
    calibration: str | Path | None = None,
) -> ServingAnswer:
    """Latency and throughput of ``model`` served by continuous batching on ``tp * copies`` devices, with
    ``concurrency`` sequences always in flight.

    ``copies``: attention's data parallelism; ``ep`` devices hold whole experts each, the others split every expert;
    ``kernels`` is the serving framework. With ``prefill_workers``, prefill runs on that many separate servers
    (``prefill_tp * prefill_copies`` devices each) and decoding on ``decode_workers``. Raises ``InputError``.

    >>> found = serving("llama-3.1-8b", "h100", concurrency=32)
    >>> found.steady.tpot_s > 0.005
    array([ True])
    """
    reading, device = read(model, set), device_of(gpu)
    refuse_on_a_chip(device, "gpu", device.name, "serving frameworks run on GPUs")
    _serves_text(reading)
    numbers, notes = precision_of(dtype, device)
    released = None if dtype or not reading.weights else DType(reading.weights)
    engine = _engine(kernels, device)
    server = Server(
        shape=padded(reading.shape, size_of("tp", tp, 1)),
        gpu=device,
        dtype=numbers,
        tp=tp,
        copies=size_of("copies", copies, 1),
        ep=size_of("ep", ep, 1),
        engine=engine,
    )
    _checked_experts(server)
    asked = [concurrency] if isinstance(concurrency, int) else list(concurrency)
    if not asked:
        raise InputError("concurrency", "[]", "must hold at least one number of sequences in flight", "32")
    load = Load(
        concurrency=np.asarray([size_of("concurrency", each, 1) for each in asked]),
        input_len=size_of("input_len", input_len, 1024),
        output_len=size_of("output_len", output_len, 1024),
    )
    own = own_calibration(calibration, device)
    known = None if own is None else own.with_kernels(engine.name)
    held = int(holds(server, load)[0])
    workers = size_of("decode_workers", decode_workers, 1)
    if not size_of("prefill_workers", prefill_workers, 0, least=0):
        if workers > 1 or prefill_tp is not None or prefill_copies > 1:
            name = "decode_workers" if workers > 1 else "prefill_tp" if prefill_tp is not None else "prefill_copies"
            raise InputError(name, locals()[name], "is of separate pools, so prefill_workers must be 1 or more", "1")
        steady, prefill, devices = steady_state(server, load, known), None, server.num_devices
    else:
        wide = size_of("prefill_copies", prefill_copies, 1)
        prefill = _prefill(server, size_of("prefill_tp", prefill_tp, server.tp), wide)
        steady = disaggregated(prefill, prefill_workers, server, workers, load, known)
        devices = prefill.num_devices * prefill_workers + server.num_devices * workers
    return ServingAnswer(
        reading=reading,
        server=server,
        load=load,
        steady=steady,
        most_sequences=held * server.copies * workers,
        num_devices=devices,
        prefill=prefill,
        prefill_workers=prefill_workers,
        decode_workers=workers,
        shortages=_shortages(server, prefill, load),
        would_fit=_change_that_fits(server, prefill, load, released),
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *notes,
            *(() if released is None else (_released_note(released, device),)),
            *padding_note(reading.shape, server.shape),
            *_lengths(reading, load),
            *_assumed(server, kernels),
            *of_frameworks(engine.name, known or load_calibration(device), server.dtype),
        ),
    )


def _serves_text(reading: ModelReading) -> None:
    shape = reading.shape
    if shape.encoder_only:
        raise InputError("model", shape.name, "is encoder-only: it gives no tokens", "llama-3.1-8b")
    if shape.traced is not None:
        raise InputError("model", shape.name, "was traced at one length; serving needs a config.json", "llama-3.1-8b")


def _engine(kernels: str | None, gpu: Gpu) -> Engine:
    kernels = kernels or USUAL_ENGINE.name
    if kernels not in ENGINES:
        raise InputError("kernels", kernels, f"must be a serving framework: {', '.join(ENGINES)}", USUAL_ENGINE.name)
    engine = ENGINES[kernels]
    if not engine.runs_on(gpu):
        others = " or ".join(engine.name for engine in engines_on(gpu))
        raise InputError(
            "kernels", kernels, f"runs on {' and '.join(engine.vendors)} GPUs only, not on {gpu.name}", others
        )
    return engine


def _checked_experts(server: Server) -> None:
    """Check that the experts split evenly over the server's devices."""
    moe, devices = server.shape.moe_ffn, server.num_devices
    if moe is None:
        for name, value in (("ep", server.ep), ("copies", server.copies)):
            if value > 1:
                raise InputError(name, value, f"shares out experts, and {server.shape.name} has none", "1")
        return
    fits = [n for n in range(1, devices + 1) if devices % n == 0 and int(moe.num_experts) % n == 0]
    if server.ep not in fits:
        must = f"must divide tp x copies = {devices} and the {int(moe.num_experts)} experts"
        raise InputError("ep", server.ep, must, ", ".join(str(n) for n in fits))


def _prefill(server: Server, tp: int, copies: int) -> Server:
    """The prefill server: like the other, with whole experts per device if its copies share them."""
    ep = tp * copies if server.ep > 1 and copies > 1 else 1
    moe, name = server.shape.moe_ffn, server.shape.name
    if moe is None and copies > 1:
        raise InputError("prefill_copies", copies, f"shares out experts, and {name} has none", "1")
    if moe is not None and int(moe.num_experts) % ep:
        fits = [n for n in range(1, copies) if int(moe.num_experts) % (tp * n) == 0]
        must = f"prefill_tp x prefill_copies must divide the {int(moe.num_experts)} experts"
        raise InputError("prefill_copies", copies, must, ", ".join(map(str, fits)))
    return replace(server, shape=padded(server.shape, tp), tp=tp, copies=copies, ep=ep)


def _lengths(reading: ModelReading, load: Load) -> tuple[str, ...]:
    """Notes on the lengths: beyond the model's, and which of its towers take the prompt."""
    both = sum(stack.is_text for stack in reading.shape.stacks) > 1
    tokens = int(load.input_len) + int(load.output_len)
    towers = "prompts pass the encoder; the decoder begins with one token and attends to both"
    return (*too_long("input_len + output_len", tokens, reading.shape), *((towers,) if both else ()))


def _assumed(server: Server, kernels: str | None) -> tuple[str, ...]:
    joined = max(server.gpu.link_domain, server.gpu.devices_per_node)
    far = f"all {server.num_devices} devices joined by their own links (a node has {joined})"
    return (
        *((f"kernels={USUAL_ENGINE.name} (default)",) if kernels is None else ()),
        *((far,) if server.num_devices > joined else ()),
        *(("attention's projections in bf16, as in 4-bit mixtures of experts",) if server.wide_attention else ()),
        f"keys and values in {server.cache.value}; 0.9 of the memory; no speculative decoding; no cached prefixes",
        f"the first token includes about {FIRST_TOKEN_STEPS:.0f} decoding steps of scheduling and "
        f"{1e3 * FIRST_TOKEN_S:.0f} ms of the client, fitted on benchmarks; an idle server may answer sooner",
        "requests start and end at any time; all prompts and answers have the given lengths",
    )


# -- a model that does not fit, or does not split --------------------------------------------------------------------


def padding_note(asked: TransformerShape, runs: TransformerShape) -> tuple[str, ...]:
    """The note on a vocabulary that an engine pads."""
    taken = runs.vocab_size
    return () if taken == asked.vocab_size else (f"vocabulary of {asked.vocab_size} padded to {taken}, as engines do",)


def _shortages(server: Server, prefill: Server | None, load: Load) -> tuple[Shortage, ...]:
    """What the servers lack that don't hold one sequence: those for prompts of their own, then those for answers."""
    prompt, answer = int(np.max(load.input_len)), int(np.max(load.output_len))
    first = None if prefill is None else shortage(prefill, prompt)
    return tuple(each for each in (first, shortage(server, prompt, answer)) if each is not None)


def _change_that_fits(
    server: Server, prefill: Server | None, load: Load, released: DType | None
) -> dict[str, int | str]:
    """If a pool does not fit: the type in which the weights were released and, if they don't fit in it either, wider
    servers. Empty if all fit or nothing tried does."""
    if not _shortages(server, prefill, load):
        return {}
    found: dict[str, int | str] = {}
    if released is not None:
        dtype = _stored(released, server.gpu)
        found["dtype"] = dtype.value
        server, prefill = replace(server, dtype=dtype), None if prefill is None else replace(prefill, dtype=dtype)
    prompt, answer = int(np.max(load.input_len)), int(np.max(load.output_len))
    for name, pool, tokens in (("tp", server, answer), ("prefill_tp", prefill, 0)):
        if pool is None or capacity(pool, prompt, tokens):
            continue
        wider = would_fit(replace(pool, shape=padded(pool.shape, VOCABULARY_MULTIPLE)), prompt, tokens)
        if not wider:
            return {}
        found[name] = wider["tp"]
    return found


def _stored(released: DType, gpu: Gpu) -> DType:
    """The type in which a device holds weights of the released type: its own if it multiplies in it, else weights of as
    many bits that are multiplied in 16."""
    if released in gpu.peak_flops_per_s:
        return released
    return DType.INT4_WO if released.bytes < 1 else DType.INT8_WO


def _released_note(released: DType, gpu: Gpu) -> str:
    return f"the weights were released in {released.value}: dtype={_stored(released, gpu).value} serves them so"
