#!/bin/bash
cmd=$(cat <<- END
  cd /opt/work ; python scripts/performance/run_script.py \
    --model_family_name llama --model_recipe_name llama31_405b --gpu gb200 --num_gpus 128 --gpus_per_node 4 \
    --compute_dtype fp8_cs --seq_length 8192 --global_batch_size 64 --micro_batch_size 1 \
    --tensor_model_parallel_size 4 --pipeline_model_parallel_size 8 --virtual_pipeline_model_parallel_size 4
END
)
echo "$cmd" > one.sh
srun --ntasks-per-node=4 bash one.sh
