#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
GPUS=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))
TP=2; PP=4
GBS=$((GPUS / (TP * PP) * 16))
srun torchrun --nnodes $SLURM_JOB_NUM_NODES --nproc_per_node $SLURM_GPUS_PER_NODE pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --bf16 \
  --micro-batch-size 1 --global-batch-size $GBS --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
