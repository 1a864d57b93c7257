import argparse

from nemo.collections import llm

parser = argparse.ArgumentParser()
parser.add_argument("--wide", action="store_true")
parser.add_argument("--tp", type=int)
parser.add_argument("--batch", type=int, default=128)
args = parser.parse_args()
made = llm.llama3_8b.pretrain_recipe(name="b", num_nodes=1, num_gpus_per_node=8)
made.data.global_batch_size = args.batch
made.data.micro_batch_size = 2 if args.wide else 1
made.trainer.strategy.tensor_model_parallel_size = args.tp
made.trainer.strategy.pipeline_model_parallel_size = 1
made.data.seq_length = 8192
