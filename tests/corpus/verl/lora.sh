python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 \
 actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha=32 \
 actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
 trainer.n_gpus_per_node=2
