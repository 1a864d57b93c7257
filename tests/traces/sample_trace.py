"""The trace in ``examples/gpt2``, on which the page opens too: made up, of a small GPT on an H100 whose attention is
not fused and whose data comes late. ``python tests/traces/sample_trace.py`` writes it again."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from traces.kineto_hand import Hand

REPO = Path(__file__).resolve().parents[2]
PATH = REPO / "examples" / "gpt2" / "trace.json.gz"
OF_PAGE = REPO / "src" / "sartor" / "web" / "static" / "example.json.gz"
BATCH, LENGTH, HIDDEN, HEADS, HEAD, FFN, VOCAB, LAYERS = 8, 1024, 1024, 16, 64, 4096, 50304, 4
TOKENS = BATCH * LENGTH
FLOPS_PER_US, BYTES_PER_US = 0.72e9, 2.4e6
"""What a kernel reaches here: 73% of an H100's dense peak in bf16, 72% of its memory bandwidth."""
GEMM, POINTWISE = "nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "void at::native::vectorized_elementwise_kernel<4, ...>"
SOFTMAX = "void at::native::(anonymous namespace)::softmax_warp_{}<c10::BFloat16, c10::BFloat16, float, 10, false>"
SCORES = ((BATCH * HEADS, LENGTH, HEAD), (BATCH * HEADS, HEAD, LENGTH))
VALUES = ((BATCH * HEADS, LENGTH, LENGTH), (BATCH * HEADS, LENGTH, HEAD))
SQUARE = ((BATCH * HEADS, LENGTH, LENGTH),)
LINEARS = ((HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, FFN), (FFN, HIDDEN))


def sample() -> bytes:
    """The trace, gzipped; the same bytes whenever it is made."""
    hand = Hand()
    for number in range(4):
        begin = hand.at
        hand.load(1500)
        for _ in range(LAYERS):
            _forward(hand)
        _linear(hand, HIDDEN, VOCAB)
        _pointwise(hand, "triton_red_fused__log_softmax_nll_loss", "aten::_log_softmax", TOKENS * VOCAB)
        _backward_linear(hand, HIDDEN, VOCAB)
        for _ in range(LAYERS):
            _backward(hand)
        weights = LAYERS * 12 * HIDDEN**2 + VOCAB * HIDDEN
        name = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4> >"
        hand.kernel("aten::_fused_adamw_", name, 28 * weights / BYTES_PER_US, dims=((HIDDEN, HIDDEN),))
        hand.mark(number, begin)
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    text = json.dumps({"deviceProperties": device, "traceEvents": hand.events}, separators=(",", ":"))
    return gzip.compress(text.encode(), mtime=0)


def _forward(hand: Hand) -> None:
    for inputs, outputs in LINEARS:
        _linear(hand, inputs, outputs)
        if outputs == 3 * HIDDEN:
            _product(hand, SCORES)
            _pointwise(hand, POINTWISE, "aten::mul", SQUARE[0][0] * LENGTH**2, SQUARE)
            _pointwise(hand, POINTWISE, "aten::masked_fill", SQUARE[0][0] * LENGTH**2, SQUARE)
            _pointwise(hand, SOFTMAX.format("forward"), "aten::_softmax", SQUARE[0][0] * LENGTH**2, SQUARE)
            _product(hand, VALUES)
        else:
            _pointwise(hand, "triton_poi_fused_add_gelu", "aten::add", TOKENS * outputs)


def _backward(hand: Hand) -> None:
    for inputs, outputs in reversed(LINEARS):
        if outputs == 3 * HIDDEN:
            _product(hand, VALUES)
            _product(hand, SCORES)
            back = SOFTMAX.format("backward")
            _pointwise(hand, back, "aten::_softmax_backward_data", SQUARE[0][0] * LENGTH**2, SQUARE)
            _pointwise(hand, POINTWISE, "aten::mul", SQUARE[0][0] * LENGTH**2, SQUARE)
            _product(hand, VALUES)
            _product(hand, VALUES)
        _backward_linear(hand, inputs, outputs)
        _pointwise(hand, "triton_poi_fused_add_gelu_backward", "aten::add", TOKENS * inputs)


def _linear(hand: Hand, inputs: int, outputs: int) -> None:
    _product(hand, ((TOKENS, inputs), (inputs, outputs)))


def _backward_linear(hand: Hand, inputs: int, outputs: int) -> None:
    _product(hand, ((TOKENS, outputs), (outputs, inputs)))
    _product(hand, ((outputs, TOKENS), (TOKENS, inputs)))


def _product(hand: Hand, dims: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    (*batch, m, k), n = dims[0], dims[1][-1]
    flops, elements = 2 * m * n * k, m * k + n * k + m * n
    times = batch[0] if batch else 1
    took = times * max(flops / FLOPS_PER_US, 2 * elements / BYTES_PER_US) + 4
    hand.kernel("aten::bmm" if batch else "aten::mm", GEMM, took, dims=dims)


def _pointwise(
    hand: Hand, kernel: str, operator: str, elements: int, dims: tuple[tuple[int, ...], ...] = ((TOKENS, HIDDEN),)
) -> None:
    hand.kernel(operator, kernel, 4 * elements / BYTES_PER_US + 3, dims=dims)


if __name__ == "__main__":
    for path in (PATH, OF_PAGE):
        path.write_bytes(sample())
