#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
# One run of several that are told as "TP,PP,EP"; the overrides are collapsed onto one line.
MODEL=qwen3_30b_a3b
RECIPE="${RECIPE:-${MODEL}_pretrain_mxfp8_config}"
AGAIN="${AGAIN:-model.recompute_granularity=full model.recompute_method=uniform model.recompute_num_layers=1}"
LAYOUTS=("2,2,8" "1,4,8")
for LAYOUT in "${LAYOUTS[@]}"; do
    IFS=',' read -r TP PP EP <<< "$LAYOUT"
    OVERRIDES=" \
        train.global_batch_size=256 \
        train.micro_batch_size=1 \
        model.seq_length=4096 \
        model.tensor_model_parallel_size=$TP \
        model.pipeline_model_parallel_size=$PP \
        model.expert_model_parallel_size=$EP \
        logger.name=$([ "$TP" -gt 1 ] && echo split || echo whole) \
        $AGAIN
    "
    CMD="uv run python /opt/Megatron-Bridge/scripts/training/run_recipe.py"
    CMD="$CMD --recipe ${RECIPE}"
    CMD="$CMD $(echo "$OVERRIDES" | tr '\n' ' ' | sed 's/  \+/ /g')"
    srun --mpi=pmix bash -c "$CMD"
done
