python run_script.py --model_recipe_name qwen3_30b_a3b --gpu h100 --num_gpus 16 --seq_length 4096 --global_batch_size 512 \
  --micro_batch_size 1 --tensor_model_parallel_size 1 --pipeline_model_parallel_size 1 --expert_model_parallel_size 8
