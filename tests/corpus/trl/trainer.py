# Sizes of its own, arguments from the command line, two rates tried in turn.
import argparse
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
given = parser.parse_args()
words = AutoTokenizer.from_pretrained("own/words")
sizes = LlamaConfig(
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=22,
    num_attention_heads=32,
    num_key_value_heads=4,
    vocab_size=32000,
)
for rate in (1e-4, 3e-4):
    model = LlamaForCausalLM(sizes)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=given.batch,
        gradient_accumulation_steps=2,
        bf16=True,
        learning_rate=rate,
        gradient_checkpointing=True,
    )
    Trainer(model=model, args=arguments, train_dataset=data).train()
