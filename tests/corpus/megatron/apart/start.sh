#!/bin/bash
# The model's sizes stand in a folder of their own.
here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${here}/sizes/small.inc"
torchrun --nproc_per_node 8 pretrain_gpt.py "${SIZES[@]}" --bf16 --seq-length 2048 --max-position-embeddings 2048 \
  --micro-batch-size 4 --global-batch-size 128 --tensor-model-parallel-size 2 --use-distributed-optimizer \
  --tokenizer-type NullTokenizer --vocab-size 32000
