python run_script.py --model_recipe_name llama3_70b --num_gpus 64 --global_batch_size 128 --micro_batch_size 1 \
  --tensor_model_parallel_size 4 --pipeline_model_parallel_size 4 --virtual_pipeline_model_parallel_size 5
