"""The reference table's codes (models.csv, column rules_broken) in the words of our rules, raw: before pricing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from sartor.hardware.catalog import load_gpu
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Workload
from sartor.rules.rule import Context, Grade, Suspicion
from sartor.rules.shape import RULES

BY_NAME = {rule.name: rule for rule in RULES}


class Judge:
    """Our rules' conditions on one shape, asked at other splits and kernels without pricing anything."""

    def __init__(self, shape: TransformerShape, template: Context) -> None:
        self.context = replace(template, workload=replace(template.workload, shape=shape))

    def heard(
        self, rule: str, *, tp: int = 1, pp: int = 1, kernel: AttentionKernel = AttentionKernel.UNFUSED
    ) -> list[Suspicion]:
        workload = replace(self.context.workload, attention_kernel=kernel)
        asked = replace(self.context, workload=workload, dims=ParallelDims(tp=tp, pp=pp), runs_at=ParallelDims())
        return list(BY_NAME[rule].check(asked))

    def grades(self, *rules: str, tp: int = 1, **how: object) -> set[Grade]:
        return {s.grade for rule in rules for s in self.heard(rule, tp=tp, **how)}  # type: ignore[arg-type]

    def codes(self) -> set[str]:
        """The reference's codes that our rules' conditions amount to."""
        return set(self._codes())

    def _codes(self) -> Iterator[str]:
        vocab = self.grades("ragged_vocab")
        if Grade.ERROR in vocab:
            yield "V8"
        elif vocab:
            yield "V64"
        if self.grades("ragged_vocab", tp=8) and Grade.ERROR not in vocab:
            yield "V/8%64"
        head = self.grades("ragged_head_dim")
        if head:
            yield "HD8" if Grade.ERROR in head else "HD64"
        if self.heard("head_dim_64", kernel=AttentionKernel.FLASH):
            yield "HD128"
        if self.grades("ragged_hidden"):
            yield "H64"
        ffn = self.grades("ragged_ffn", "untuned_swiglu")
        if ffn & {Grade.ERROR, Grade.WARN}:
            yield "FF64"
        elif ffn:
            yield "FF128"
        if self.heard("ragged_experts") and any(
            s.field == "expert_ffn_hidden_size" for s in self.heard("ragged_experts")
        ):
            yield "MOEFF128"
        for tp in (2, 4, 8):
            if self.heard("unsplit_heads", tp=tp):
                yield f"TP{tp}:a"
            if self.grades("ragged_hidden", tp=tp):
                yield f"TP{tp}:h/t"
            if self.grades("ragged_ffn", "untuned_swiglu", tp=tp) & {Grade.ERROR, Grade.WARN}:
                yield f"TP{tp}:ff/t"
        if self.heard("replicated_kv_heads", tp=8):
            yield "KV8"
        if self.heard("uneven_pipeline", pp=4):
            yield "PP4"
        if self.heard("six_gpu_nodes", tp=6):
            yield "SIXGPU"


def template() -> Context:
    from sartor.model.zoo import load_model

    return Context.of(Workload(shape=load_model("gpt2-small"), microbatch_size=4, seq_len=1024), load_gpu("a100_sxm"))


def reference_codes(text: str) -> set[str]:
    """``'V8:E TP8:E(a+h/t) KV<8:I'`` -> ``{'V8', 'TP8:a', 'TP8:h/t', 'KV8'}``; grades are compared elsewhere."""
    out: set[str] = set()
    for word in text.split():
        name = word.split(":")[0]
        inner = re.search(r"\((.*)\)", word)
        if re.fullmatch(r"TP\d", name) and inner:
            out |= {f"{name}:{part}" for part in inner.group(1).split("+")}
        elif name in ("KV<8", "KV%8"):
            out.add("KV8")
        else:
            out.add(re.sub(r"[\d.]+$", "", name) if name.startswith("RATIO") else name)
    return out
