nemo llm pretrain --factory mixtral_8x7b trainer.num_nodes=4
