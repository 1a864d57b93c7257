"""Recognize runs that do not pretrain a decoder, by program name and arguments, and refuse them with the reason."""

from __future__ import annotations

import re

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.launch.script import Command

PROGRAMS = (
    (r"t5", "an encoder-decoder (T5) has two stacks, and only decoders are priced"),
    (r"bert|biencoder|ict|orqa", "an encoder (BERT, retrieval) is not a decoder"),
    (
        r"vlm|vision|vit|dino|inpaint|multimodal|llava|mimo|flux|diffusion",
        "models with image or video input are not priced",
    ),
    (r"mamba|hybrid", "GPT arguments cannot describe state-space layers"),
    (r"retro", "retrieval inside the layers (RETRO) is not priced"),
    (
        r"infer\w*|generat\w*|serve\w*|server|chat|sampl\w*",
        "serving a model is not training; see sartor estimate --phase",
    ),
    (r"eval\w*|tasks?|zeroshot|squad|glue|race", "evaluating or fine-tuning on a task is not a pretraining step"),
    (r"grpo|ppo|rl|rlhf|dpo|reward|rollout", "reinforcement learning generates between its steps"),
    (
        r"convert\w*|checkpoint|preprocess\w*|tokeni[sz]e|merge|split|export|quanti[sz]e|prune|saver?|loader",
        "it trains nothing",
    ),
)
"""Words in a program's name, and why such a run is refused."""
ARGUMENTS = {
    "--decoder-num-layers": PROGRAMS[0][1],
    "--decoder-seq-length": PROGRAMS[0][1],
    "--bert-load": PROGRAMS[1][1],
    "--img-h": PROGRAMS[2][1],
    "--vision-pretraining": PROGRAMS[2][1],
    "--language-model-type": PROGRAMS[2][1],
    "--hybrid-override-pattern": PROGRAMS[3][1],
    "--hybrid-layer-pattern": PROGRAMS[3][1],
    "--is-hybrid-model": PROGRAMS[3][1],
    "--retro-project-dir": PROGRAMS[4][1],
    "--max-tokens-to-oom": PROGRAMS[5][1],
    "--inference-max-requests": PROGRAMS[5][1],
    "--skip-train": PROGRAMS[6][1],
    "--task": PROGRAMS[6][1],
    "--perform-rl-step": PROGRAMS[7][1],
}
"""Arguments that only such runs have."""
NEAREST = "a script that starts pretrain_gpt.py, torchtitan.train, or a causal language model's training program"


def check_pretraining(command: Command, name: str) -> None:
    """Raise `InputError` if the command's words show that it does not pretrain a decoder."""
    program = command.program.rsplit("/", 1)[-1].removesuffix(".py").lower()
    words = re.split(r"[_\-.]", program)
    reasons = [why for pattern, why in PROGRAMS for word in words if re.fullmatch(pattern, word)]
    given = {word.partition("=")[0] for word in command.arguments}
    reasons += [why for flag, why in ARGUMENTS.items() if flag in given]
    if reasons:
        shown = printable(command.program or name)
        raise InputError("launch", shown, f"must pretrain a decoder; {reasons[0]}", NEAREST)
