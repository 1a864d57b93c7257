#!/bin/bash
TP=1
SP=true
if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" --sequence-parallel"
elif [ $SP = false ]; then
    sp_options=""
fi
options=" --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 4 --global-batch-size 256 --vocab-size 50304 --bf16 --tensor-model-parallel-size $TP"
run_cmd="torchrun --nproc_per_node 8 pretrain_gpt.py ${options} ${sp_options}"
run_cmd="$run_cmd | tee $LOG_FILE"
eval ${run_cmd}
