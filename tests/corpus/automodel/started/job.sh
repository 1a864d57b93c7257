#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks-per-node 1
#SBATCH --gpus-per-node=8
torchrun --nproc-per-node=8 --nnodes=2 finetune.py -c llama.yaml --step_scheduler.local_batch_size 2
