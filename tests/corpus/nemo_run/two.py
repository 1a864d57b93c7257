from nemo.collections import llm


def small():
    return llm.llama3_8b.pretrain_recipe(name="a", num_nodes=1)


def large():
    return llm.llama3_70b.pretrain_recipe(name="b", num_nodes=8)
