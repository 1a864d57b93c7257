python scripts/performance/setup_experiment.py --account a --partition p --gpu h100 --model_family_name llama \
  --model_recipe_name llama3_8b --num_gpus 8 --compute_dtype bf16 --seq_length 8192 --global_batch_size 128 --micro_batch_size 1 \
  --tensor_model_parallel_size 1 --pipeline_model_parallel_size 1 --context_parallel_size 2
