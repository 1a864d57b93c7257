import nemo_run as run
from nemo.collections import llm

GPUS = 8


def texts(batch: int = 64, micro: int = 1, length: int = 4096):
    return run.Config(
        llm.PreTrainingDataModule, paths=["a"], seq_length=length, global_batch_size=batch, micro_batch_size=micro
    )


def ours(nodes: int = 1, gpus: int = 4):
    made = llm.llama31_8b.pretrain_recipe(name="ours", num_nodes=nodes, num_gpus_per_node=gpus)
    made.data = texts(batch=GPUS * 8)
    made.trainer.strategy.tensor_model_parallel_size = 4
    made.trainer.strategy.pipeline_model_parallel_size = 1
    made.trainer.strategy.sequence_parallel = True
    if GPUS > 4:
        made.model.config.recompute_granularity = "full"
    return made


if __name__ == "__main__":
    run.run(ours(nodes=2, gpus=GPUS))
