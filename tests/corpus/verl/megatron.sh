python3 -m verl.trainer.main_ppo --config-path=./config data.max_prompt_length=1024 data.max_response_length=1024 \
 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.strategy=megatron \
 actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \
 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
 trainer.n_gpus_per_node=8 trainer.nnodes=1
