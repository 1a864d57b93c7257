ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"working_dir": "/work"}' \
  -- python3 -m openrlhf.cli.train_ppo_ray \
  --actor_num_nodes 1 --actor_num_gpus_per_node 8 --ref_num_nodes 1 --ref_num_gpus_per_node 8 \
  --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --colocate_all_models --advantage_estimator group_norm \
  --pretrain meta-llama/Llama-3.1-8B --remote_rm_url /work/score.py --n_samples_per_prompt 4 \
  --micro_train_batch_size 4 --train_batch_size 128 --prompt_max_len 1024 --generate_max_len 1024 \
  --zero_stage 3 --bf16 --packing_samples --gradient_checkpointing --adam_offload
