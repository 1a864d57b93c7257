nemo llm pretrain --factory qwen3_30b_a3b trainer.num_nodes=2 trainer.devices=8 trainer.strategy.tensor_model_parallel_size=1 \
  trainer.strategy.pipeline_model_parallel_size=1 trainer.strategy.expert_model_parallel_size=8 data.micro_batch_size=1 \
  data.global_batch_size=256 data.seq_length=4096
