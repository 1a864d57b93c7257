"""Launch files of Megatron-LM, torchtitan, DeepSpeed and accelerate: written and read."""
