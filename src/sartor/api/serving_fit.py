"""What an engine changes so that a model can be split, and what would make a server hold a model that it does not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.model.shape import TransformerShape
from sartor.operators import DType
from sartor.step.serving.load import Load
from sartor.step.serving.served import Server, Shortage, capacity, shortage, would_fit
from sartor.units import round_up

VOCABULARY_MULTIPLE = 64
"""Engines pad an embedding to a multiple of this, and of the devices (vLLM's default, recalled)."""


def padded(shape: TransformerShape, tp: int) -> TransformerShape:
    """The shape with a vocabulary that ``tp`` devices split."""
    if shape.vocab_size % tp == 0:
        return shape
    return replace(shape, vocab_size=round_up(int(shape.vocab_size), math.lcm(VOCABULARY_MULTIPLE, tp)))


def padding_note(asked: TransformerShape, server: Server) -> tuple[str, ...]:
    taken = server.shape.vocab_size
    return () if taken == asked.vocab_size else (f"vocabulary of {asked.vocab_size} padded to {taken}, as engines do",)


def shortages(server: Server, prefill: Server | None, load: Load) -> tuple[Shortage, ...]:
    """What the servers lack that don't hold one sequence: those for prompts of their own, then those for answers."""
    prompt, answer = int(np.max(load.input_len)), int(np.max(load.output_len))
    first = None if prefill is None else shortage(prefill, prompt)
    return tuple(each for each in (first, shortage(server, prompt, answer)) if each is not None)


def change_that_fits(
    server: Server, prefill: Server | None, load: Load, released: DType | None
) -> dict[str, int | str]:
    """If a pool does not fit: the type in which the weights were released and, if they don't fit in it either, wider
    servers. Empty if all fit or nothing tried does."""
    if not shortages(server, prefill, load):
        return {}
    found: dict[str, int | str] = {}
    if released is not None:
        dtype = stored(released, server.gpu)
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


def stored(released: DType, gpu: Gpu) -> DType:
    """The type in which a device holds weights of the released type: its own if it multiplies in it, else weights of as
    many bits that are multiplied in 16."""
    if released in gpu.peak_flops_per_s:
        return released
    return DType.INT4_WO if released.bytes < 1 else DType.INT8_WO


def released_note(released: DType, gpu: Gpu) -> str:
    return f"the weights were released in {released.value}: dtype={stored(released, gpu).value} serves them so"
