"""Small models and spaces whose every point can be evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from sartor.designs.bounds import splits
from sartor.designs.candidates import candidates_of
from sartor.designs.point import Option, Point, ScheduleStore, evaluate_point
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.designs.space import AcceleratorSpace, space_from
from sartor.model.editing import edit_fields
from sartor.model.shape import TransformerShape
from sartor.model.training import Recompute
from sartor.model.zoo import load_model

SMALL_CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 4,
    "n_embd": 256,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 1024,
}
"""The config.json of a model whose search takes no time."""


def small_shape(num_layers: int = 4, hidden_size: int = 256, name: str = "small") -> TransformerShape:
    edits = {"num_layers": num_layers, "hidden_size": hidden_size, "num_heads": 4, "num_kv_heads": 4}
    edits |= {"ffn_hidden_size": 4 * hidden_size, "vocab_size": 1024}
    return edit_fields(load_model("gpt2-small"), edits)[0]


def question(**changes: Any) -> DesignQuestion:
    models = changes.pop("models", (DesignModel(name="small", shape=small_shape(), seq_len=128, widths=(1, 2)),))
    asked = {"num_devices": 8, "global_batch_size": 32, "microbatch_sizes": (1, 4), **changes}
    return DesignQuestion(models=models, **asked)


def small_space(**changes: Any) -> AcceleratorSpace:
    table = {
        "num_tensor_cores": [1, 4],
        "num_vector_cores": [1, 2],
        "array_rows": [16, 32],
        "array_cols": [32],
        "global_buffer_mib": [2],
        "hbm_gb": [0.02, 0.2],
    }
    return space_from({**table, **changes})


def every_option(asked: DesignQuestion, m: int) -> Iterator[Option]:
    for split in splits(asked, asked.models[m]):
        for recompute in asked.recomputes:
            yield Option(model=m, split=split, recompute=Recompute(recompute))


@cache
def _rates_of_all(kind: int | str) -> tuple[tuple[float, ...], ...]:
    """Sequences per second of every model on every point of the small space, by trying every option."""
    asked, space = (QUESTIONS[kind], SPACES[kind])
    candidates, _ = candidates_of(asked, space)
    store, rates = ScheduleStore(), []
    for index in range(len(candidates)):
        for h, hbm in enumerate(candidates.hbm_bytes[:, index]):
            options = tuple(x for m in range(len(asked.models)) for x in every_option(asked, m))
            chip, memory = candidates.accelerator(index), float(hbm)
            point = Point(index=index, accelerator=chip, hbm_bytes=memory, options=options, schedule_limit_s=3.2)
            rates.append((float(h), float(index), *evaluate_point(asked, point, store).rates))
    return tuple(rates)


def best_by_trying_all(kind: int | str, **changes: Any) -> float:
    """The best objective of all points of ``QUESTIONS[kind]`` with ``changes`` to objective or mean."""
    asked = replace(QUESTIONS[kind], **changes)
    candidates, _ = candidates_of(asked, SPACES[kind])
    rows = _rates_of_all(kind)
    return max(float(asked.together(np.array(rates))) / candidates.divisor[int(h), int(i)] for h, i, *rates in rows)


TWO = (
    DesignModel(name="wide", shape=small_shape(2, 512), seq_len=64, widths=(1, 2)),
    DesignModel(name="deep", shape=small_shape(6, 128), seq_len=256, widths=(1,), weight=2.0),
)
PLANS = {"zero_stages": (0, 1, 2, 3), "context_widths": (1, 2), "virtual_stages": (1, 2)}
"""Plans beyond the published ones."""
QUESTIONS = {1: question(), 2: question(models=TWO), "plans": question(**PLANS, microbatch_sizes=(1,))}
SPACES = {
    1: small_space(),
    2: small_space(num_vector_cores=[2], hbm_gb=[0.05]),
    "plans": small_space(num_vector_cores=[2], hbm_gb=[0.01, 0.02]),
}
"""By number of models, and for `PLANS`."""

__all__ = [
    "PLANS",
    "QUESTIONS",
    "SPACES",
    "best_by_trying_all",
    "every_option",
    "question",
    "small_shape",
    "small_space",
]
