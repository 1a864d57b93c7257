"""Train a proxy model on bytes: AdamW with warm-up and cosine decay, same batches for every shape of a seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.bench.cases import StackRun
from sartor.bench.parity import Curve, Train
from sartor.bench.torch_stack import build_stack
from sartor.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

HELD_OUT = 0.1
"""Share of the text, at its end, held out from training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """The training recipe, the same for both shapes."""

    steps: int
    learning_rate: float = 1e-3
    warmup: float = 0.1
    points: int = 8
    """Number of loss evaluations, at steps that double."""
    eval_batches: int = 8


def trainer(
    torch: ModuleType,
    device: str,
    text: bytes,
    recipe: TrainRun,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Train:
    """A function that trains one shape with one seed. Raises ``InputError`` if the text is too short."""
    data = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).astype(np.int64))
    split = int(len(text) * (1 - HELD_OUT))

    def train(run: StackRun, seed: int) -> Curve:
        fewest = 10 * (run.seq_len + 2)
        if len(text) < fewest:
            raise InputError("text", f"{len(text)} bytes", f"must hold at least {fewest} bytes")
        torch.manual_seed(seed)
        model = build_stack(torch, run).to(device)
        _start_small(torch, model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.1, betas=(0.9, 0.95))
        rng = np.random.default_rng(seed)
        marks, losses, seconds = _marks(recipe), [], []
        for step in range(1, recipe.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * _schedule(step, recipe)
            started = time.perf_counter()
            _step(torch, model, optimizer, _batch(torch, data[:split], run, rng, device))
            _wait(torch, device)
            seconds.append(time.perf_counter() - started)
            if step in marks:
                losses.append(_held_out(torch, model, data[split:], run, recipe, device))
                progress(f"{run.name} seed {seed}", step, recipe.steps)
        return Curve(steps=marks, losses=tuple(losses), step_s=float(np.median(seconds)))

    return train


def _start_small(torch: ModuleType, model: Module) -> None:
    """Initialize weights with standard deviation 0.02, as GPT-2: a tied embedding must not start with large logits."""
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02)


def _marks(recipe: TrainRun) -> tuple[int, ...]:
    first = max(1, recipe.steps >> (recipe.points - 1))
    return tuple(sorted({round(x) for x in np.geomspace(first, recipe.steps, recipe.points)}))


def _schedule(step: int, recipe: TrainRun) -> float:
    warm = max(1.0, recipe.warmup * recipe.steps)
    if step <= warm:
        return step / warm
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(recipe.steps - warm, 1.0)))


def _batch(torch: ModuleType, data: Any, run: StackRun, rng: Any, device: str) -> Tensor:
    starts = rng.integers(0, len(data) - run.seq_len - 1, run.batch)
    return torch.stack([data[int(s) : int(s) + run.seq_len + 1] for s in starts]).to(device)


def _loss(torch: ModuleType, model: Module, batch: Tensor) -> Tensor:
    narrow = batch.device.type != "cpu"
    with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=narrow):  # weights stay in fp32
        logits = model(batch[:, :-1])
    flat = logits.float().reshape(-1, logits.shape[-1])
    return torch.nn.functional.cross_entropy(flat, batch[:, 1:].reshape(-1))


def _step(torch: ModuleType, model: Module, optimizer: Optimizer, batch: Tensor) -> None:
    model.train()
    _loss(torch, model, batch).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _held_out(torch: ModuleType, model: Module, data: object, run: StackRun, recipe: TrainRun, device: str) -> float:
    """Mean loss over fixed batches of held-out text, the same for every shape and seed."""
    model.eval()
    rng = np.random.default_rng(0)
    with torch.no_grad():
        losses = [float(_loss(torch, model, _batch(torch, data, run, rng, device))) for _ in range(recipe.eval_batches)]
    return sum(losses) / len(losses)


def _wait(torch: ModuleType, device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
