from nemo.collections import llm

tuned = llm.llama31_8b.finetune_recipe(name="t", num_nodes=1, num_gpus_per_node=2, peft_scheme="lora")
tuned.trainer.strategy.tensor_model_parallel_size = 1
tuned.trainer.strategy.pipeline_model_parallel_size = 1
tuned.data.seq_length, tuned.data.micro_batch_size, tuned.data.global_batch_size = 2048, 1, 16
