"""Heads that differ from BERT's: spans by pooled positions, summaries, wide answers."""

from __future__ import annotations

from typing import TypeAlias

from sartor.model.layer import Linear, Vectors
from sartor.read.families.parts import Head, num_labels, plain
from sartor.read.fields import Fields

OwnHead: TypeAlias = tuple[tuple[Linear, ...], tuple[Vectors, ...]] | None


def summary_head(f: Fields, head: Head, hidden: int) -> OwnHead:
    """XLM and FlauBERT: labels from the first token; answers by begin, end given begin, and whether there is one."""
    labels = num_labels(f)
    summary = plain("summary", hidden, labels, bias=True, rows=1)
    match head:
        case Head.SEQUENCE_CLASSIFICATION:
            return (summary,), ()
        case Head.MULTIPLE_CHOICE:
            return (summary, plain("logits", labels, 1, bias=True, rows=1)), ()
        case Head.QUESTION_ANSWERING if not f.architecture.endswith("Simple"):
            end = (plain("end_dense", 2 * hidden, hidden, bias=True), plain("end", hidden, 1, bias=True))
            answer = (plain("answer_dense", 2 * hidden, hidden, bias=True, rows=1), plain("answer", hidden, 1, rows=1))
            return (plain("start", hidden, 1, bias=True), *end, *answer), (Vectors(name="end_norm", fixed=2 * hidden),)
        case _:
            return None


def choice_without_dense(f: Fields, head: Head, hidden: int) -> OwnHead:
    """ConvBERT and RoFormer: a choice is scored directly from the first token."""
    return ((plain("classifier", hidden, 1, bias=True, rows=1),), ()) if head is Head.MULTIPLE_CHOICE else None


def unpooled_spans(f: Fields, head: Head, hidden: int) -> OwnHead:
    """LUKE pools only for sequence tasks."""
    match head:
        case Head.TOKEN_CLASSIFICATION:
            return (plain("classifier", hidden, num_labels(f), bias=True),), ()
        case Head.QUESTION_ANSWERING:
            return (plain("qa_outputs", hidden, 2, bias=True),), ()
        case _:
            return None


def wide_answers(f: Fields, head: Head, hidden: int) -> OwnHead:
    """BigBird: a feed-forward part before the answer's span."""
    if head is not Head.QUESTION_ANSWERING:
        return None
    width = f.size("intermediate_size")
    wide = (plain("qa_up", hidden, width, bias=True), plain("qa_down", width, hidden, bias=True))
    return (*wide, plain("qa_outputs", hidden, 2, bias=True)), (Vectors(name="qa_norm", fixed=2 * hidden),)


def averaged(f: Fields, head: Head, hidden: int) -> OwnHead:
    """EuroBERT: every token through the classifier, then the average."""
    if head is not Head.SEQUENCE_CLASSIFICATION:
        return None
    dense = plain("classifier_dense", hidden, hidden, bias=True)
    return (dense, plain("classifier", hidden, num_labels(f), bias=True)), ()


def question_aware(f: Fields, head: Head, hidden: int) -> OwnHead:
    """Splinter: begin and end of a span scored against the question token (arXiv 2101.00438)."""
    if head is not Head.QUESTION_ANSWERING and not f.architecture.endswith("ForPreTraining"):
        return None
    names = ("query_start", "query_end", "start", "end")
    dense = tuple(plain(f"{name}_transform", hidden, hidden, bias=True) for name in names)
    scores = (plain("start_score", hidden, hidden), plain("end_score", hidden, hidden))
    return (*dense, *scores), (Vectors(name="transform_norms", fixed=8 * hidden),)
