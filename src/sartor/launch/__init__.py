"""Read and write launch files of Megatron-LM, torchtitan, DeepSpeed, accelerate and MaxText."""
