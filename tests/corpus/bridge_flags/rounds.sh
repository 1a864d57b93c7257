#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
MODEL_NAME=gpt_oss_20b
CONFIGS=("2,4,4,1,True" "4,2,4,1,True")
SRUN="srun --mpi=pmix --container-image=$IMAGE"
for CONFIG in "${CONFIGS[@]}"; do
    IFS=',' read -r TP PP EP CP SP <<< "$CONFIG"
    OVERRIDES=" \
        model.seq_length=4096 \
        train.global_batch_size=128 \
        train.micro_batch_size=1 \
        model.tensor_model_parallel_size=$TP \
        model.pipeline_model_parallel_size=$PP \
        model.expert_model_parallel_size=$EP \
        model.context_parallel_size=$CP \
        model.sequence_parallel=$SP \
        checkpoint.save=/results/${MODEL_NAME}_tp${TP}"
    CMD="python /opt/Megatron-Bridge/scripts/training/run_recipe.py --recipe ${MODEL_NAME}_pretrain_config $OVERRIDES"
    $SRUN bash -c "$CMD"
done
