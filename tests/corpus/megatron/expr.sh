#!/bin/bash
#SBATCH -N 2
#SBATCH --gpus-per-node 8
NODES=${SLURM_NNODES:-1}
let WORLD=8*NODES
GBS=`expr $WORLD \\* 4`
torchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --bf16 --micro-batch-size 2 --global-batch-size $GBS --tensor-model-parallel-size 8
