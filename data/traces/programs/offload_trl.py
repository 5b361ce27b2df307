# simulate: --gpu h100
"""trl's SFTTrainer tunes a Qwen2 of 0.5 B parameters, and a stream of its own moves activations to the host and back."""

import random
import tempfile

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS, STEPS, BATCH = 32000, 6, 4

words = {"<pad>": 0, "<end>": 1, "<unknown>": 2} | {f"w{i}": i for i in range(3, WORDS)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>")
drawn = random.Random(32)


def text(least: int, most: int) -> str:
    return " ".join(f"w{drawn.randrange(3, WORDS)}" for _ in range(drawn.randint(least, most)))


data = Dataset.from_list([{"prompt": text(50, 500), "completion": " " + text(50, 500)} for _ in range(STEPS * BATCH)])
model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
    vocab_size=WORDS, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
    num_key_value_heads=2, eos_token_id=1, pad_token_id=0, bos_token_id=None))
with tempfile.TemporaryDirectory() as folder:
    arguments = trl.SFTConfig(
        folder, per_device_train_batch_size=BATCH, max_steps=STEPS, bf16=True, max_length=1024, activation_offloading=True,
        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True)
    trl.SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer).train()
