#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
export HF_HOME=/scratch/hf
accelerate launch --num_processes 4 -m axolotl.cli.train mistral.yml --micro_batch_size=4
