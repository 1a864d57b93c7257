#!/bin/bash
GPUS=$((2 * 8))
TP=2
PP=2
DP=$((${GPUS} / (${TP} * ${PP})))
FLAGS=" --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --fp8-format 'hybrid' --bf16 --micro-batch-size 2 --global-batch-size $((DP * 8)) --vocab-size 32000 \
  --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --untie-embeddings-and-output-weights"
run="torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py ${FLAGS} 2>&1 | tee log.txt"
eval $run
