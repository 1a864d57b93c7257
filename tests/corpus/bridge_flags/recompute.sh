python run_script.py --model_recipe_name llama3_70b --num_gpus 32 --seq_length 8192 --global_batch_size 64 --micro_batch_size 1 \
  --tensor_model_parallel_size 4 --pipeline_model_parallel_size 2 --recompute_num_layers 8
