python run_script.py --model_recipe_name llama3_8b --num_gpus $GPUS --seq_length 8192 --global_batch_size 64 --micro_batch_size 1 \
  --tensor_model_parallel_size 2 --pipeline_model_parallel_size 1
