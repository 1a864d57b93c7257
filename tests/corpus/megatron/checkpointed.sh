#!/bin/bash
# A pretraining run that names the format of its checkpoints.
MODEL_ARGS=(--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --swiglu --ffn-hidden-size 5632
    --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights --max-position-embeddings 4096 --vocab-size 32000)
torchrun --nproc-per-node 8 pretrain_gpt.py "${MODEL_ARGS[@]}" --seq-length 4096 --micro-batch-size 2 \
    --global-batch-size 128 --bf16 --tensor-model-parallel-size 2 --use-distributed-optimizer \
    --ckpt-format torch_dist --async-save --ckpt-fully-parallel-load --save out
