"""The names of Megatron-LM's command line arguments, and which of them do not affect a plan."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from sartor.launch.stated import Flags, shown_flag


@cache
def argument_names() -> frozenset[str]:
    """Every argument of Megatron-LM and Megatron-DeepSpeed; the file's head gives commits and dates."""
    text = files("sartor.launch").joinpath("megatron_arguments.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line.startswith("--"))


def left_over(flags: Flags) -> tuple[list[str], list[str], list[str]]:
    """A command's unread flags for display: flags unknown to Megatron (each with a similar known one), its own flags
    without a price, and names of its own flags without effect."""
    names = argument_names()
    unknown, unpriced, ignored = list[str](), list[str](), list[str]()
    for name in flags.left():
        if name not in names:
            unknown.append(shown_flag(name, flags.given[name], names))
        elif no_bearing(name):
            ignored.append(name)
        else:
            unpriced.append(shown_flag(name, flags.given[name]))
    return unknown, unpriced, ignored


def no_bearing(name: str) -> bool:
    """Whether a Megatron argument affects neither time nor memory. An unknown name may match too."""
    return NO_BEARING.match(name.replace("_", "-")) is not None


NO_BEARING = re.compile(
    r"--(no-)?(lr|min-lr|warmup|weight-decay|start-weight-decay|end-weight-decay|adam-|sgd-momentum|muon-|clip-grad|"
    r"init-method|embedding-init|seed|save|load(?!-teacher)|finetune|pretrained|ckpt|dist-ckpt|async-save|"
    r"use-dist-ckpt|auto-detect-ckpt|no-save|no-load|exit-|log-(?!optimizer)|logging|tensorboard|wandb|timing-log|"
    r"one-logger|app-tag|eval-|train-iters|train-samples|train-data|valid-data|test-data|data-(?!efficiency)|split$|"
    r"per-split|mock-data|num-workers|dataloader|num-dataset|reset-|eod-|create-attention|vocab-file|merge-file|"
    r"tokenizer|tiktoken|legacy-tokenizer|trust-remote|distributed-backend|distributed-timeout|rotary-(base|"
    r"interleaved|seq-len|scaling)|use-rope-scaling|rope-scaling|rope-type|norm-epsilon|apply-layernorm|profile|"
    r"use-pytorch-profiler|record-memory|memory-snapshot|loss-scale|initial-loss|min-loss|hysteresis|fp8-(margin|"
    r"interval|amax)|moe-(aux|z)-loss|moe-router-(load|dtype|score|pre|num-groups|group-topk|topk-scaling|bias|force|"
    r"fusion|padding)|moe-per-layer|mtp-loss|mscale|manual-gc|use-mcore-models|check-|calculate-per-token|rampup|"
    r"override-opt|use-checkpoint|attention-softmax|apply-query-key|disable-gloo|enable-ft|calc-ft|ft-|local-rank|"
    r"test-mode|skip-train|rerun|error-injection|non-persistent|replication|config-logger|"
    r"moe-permute-fusion|moe-use-legacy|untie|no-masked|no-bias|no-rope-fusion|create-moe|disable-straggler|straggler|"
    r"inprocess|full-validation|multiple-validation|empty-unused|disable-bf16|use-cpu-init|yaml-cfg|exit|"
    r"object-storage|spec|sft|decoupled|no-one-logger|enable-one|accumulate|bert|mask-prob|short-seq|sample-rate)"
)
"""Megatron's own arguments without a modelled effect on step time or memory."""
