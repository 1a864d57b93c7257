ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \
  --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --colocate_all_models \
  --pretrain Qwen/Qwen2.5-7B --train_batch_size 128 --micro_train_batch_size 2 --rollout_batch_size 1024 \
  --prompt_max_len 1024 --generate_max_len 1024 --zero_stage 3 --bf16 --gradient_checkpointing --adam_offload
