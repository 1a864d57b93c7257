import nemo_run as run
from nemo.collections import llm


def made():
    recipe = llm.llama3_8b.pretrain_recipe(name="few", num_nodes=1, num_gpus_per_node=4)
    recipe.model.config.num_layers = 4
    recipe.data.micro_batch_size, recipe.data.global_batch_size = 1, 32
    recipe.data.seq_length = 8192
    for name, value in {"tensor_model_parallel_size": 1}.items():
        setattr(recipe.trainer.strategy, name, value)
    recipe.trainer.strategy.pipeline_model_parallel_size = 1
    return recipe


run.cli.main(llm.pretrain, default_factory=made)
