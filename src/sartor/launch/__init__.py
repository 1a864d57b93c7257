"""Read launch files of Megatron-LM, NeMo, torchtitan, DeepSpeed, accelerate and MaxText, and write most of them."""
