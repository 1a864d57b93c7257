from nemo import lightning as nl
from nemo.collections import llm
from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed

plan = nl.MegatronStrategy(tensor_model_parallel_size=2, pipeline_model_parallel_size=2, sequence_parallel=True)
trainer = nl.Trainer(devices=8, num_nodes=1, strategy=plan, plugins=bf16_with_fp8_mixed())
data = llm.MockDataModule(seq_length=2048, micro_batch_size=2, global_batch_size=32)
llm.pretrain(model=llm.LlamaModel(llm.Llama31Config8B()), data=data, trainer=trainer)
