"""What a row of a table gets wrong is its reason for being left out, never a guess."""

from __future__ import annotations

import pytest

from sartor.validate.training_rows import _training_case
from validate.training_rows_made import made

WRONG = [("h", "1.5"), ("dp", "1.5"), ("pp", "0"), ("tp", "0"), ("vocab", "-1"), ("mbs", "0"), ("recompute", "abc")]


@pytest.mark.parametrize(("column", "word"), WRONG)
def test_a_row_that_cannot_be_is_left_out_with_its_reason(column: str, word: str) -> None:
    case = _training_case(made(**{column: word}))
    assert case.job is None
    assert case.reason.startswith(column), case.reason


def test_a_row_as_published_is_a_question() -> None:
    assert _training_case(made()).job is not None
    assert _training_case(made(recompute="mlp+attn_out")).job is not None
