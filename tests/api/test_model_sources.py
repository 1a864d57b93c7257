"""What a model can be: a path, a name, a Hugging Face configuration; anything else is refused as what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sartor import api
from sartor.api.models import read
from sartor.errors import InputError
from sartor.model.workload import ModelReading


@pytest.mark.parametrize(
    ("url", "nearest"),
    [("https://huggingface.co/foo/bar/resolve/main/config.json", "foo/bar"), ("https://example.org/config.json", "")],
)
def test_a_url_is_refused_as_one(url: str, nearest: str) -> None:
    with pytest.raises(InputError, match="not a URL") as found:
        read(url)
    assert (found.value.value, found.value.nearest) == (url, nearest)


CONFIG = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
CONFIG |= {"num_attention_heads": 4, "vocab_size": 1000, "_name_or_path": "someone/my-llama", "torch_dtype": "bfloat16"}


class Config:
    """As a ``transformers.PretrainedConfig``: its dictionary may hold values that are not JSON."""

    model_type = "llama"

    def to_dict(self) -> dict[str, Any]:
        return {**CONFIG, "id2label": {0: "a", 1: "b"}, "cache": Path("somewhere")}


RUN: dict[str, Any] = {"num_devices": 8, "global_batch_size": 8}
DOORS: dict[str, Callable[[Any], ModelReading]] = {
    "read": api.read,
    "ask": lambda model: api.ask(model, **RUN).reading,
    "estimate": lambda model: api.estimate(model, **RUN).question.reading,
    "lint": lambda model: api.lint(model, **RUN).base.question.reading,
    "advise": lambda model: api.advise(model, **RUN).base.question.reading,
    "plan": lambda model: api.plan(model, **RUN).reading,
    "serving": lambda model: api.serving(model).reading,
    "design": lambda model: api.design(
        model, num_devices=8, global_batch_size=8, space="phaze", time_limit=1e-3
    ).readings[0],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("model", [CONFIG, Config()], ids=["dictionary", "object"])
def test_a_hugging_face_configuration_is_a_model_at_every_door(door: str, model: Any) -> None:
    shape = DOORS[door](model).shape
    assert (shape.name, shape.hidden_size, shape.num_layers) == ("my-llama", 256, 4)


@pytest.mark.parametrize("model", [7, object()])
def test_what_is_no_model_is_refused_with_what_would_be(model: Any) -> None:
    with pytest.raises(InputError, match="must be a name, a path, or a Hugging Face configuration"):
        api.estimate(model)


def test_a_configuration_is_the_model_of_a_launch(tmp_path: Path) -> None:
    launch = tmp_path / "train.sh"
    launch.write_text("torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 8\n")
    answer = api.lint_launch(launch, "dgx-h100", model=Config(), num_devices=8, seq_len=512, search=False)
    assert answer.job.shape.hidden_size == 256
