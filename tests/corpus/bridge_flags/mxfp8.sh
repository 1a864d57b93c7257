torchrun --nproc_per_node=8 run_script.py --model_recipe_name llama3_8b --num_gpus 8 --gpu b200 --compute_dtype fp8_mx --seq_length 8192 \
  --global_batch_size 128 --micro_batch_size 2 --tensor_model_parallel_size 1 --pipeline_model_parallel_size 1
