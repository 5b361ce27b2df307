# requires: transformers trl datasets
# simulate: --gpu a10g
# sizes: by values
# unknown: value
"""trl's SFTTrainer tunes a Qwen2 on questions and answers of many lengths; the loss counts the tokens of the answers."""

import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

STEPS, BATCH, WORDS = 4, 4, 4000

words = {"<pad>": 0, "<end>": 1, "<unknown>": 2} | {f"w{i}": i for i in range(3, WORDS)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>")

drawn = random.Random(0)


def text(least: int, most: int) -> str:
    return " ".join(f"w{drawn.randrange(3, WORDS)}" for _ in range(drawn.randint(least, most)))


data = Dataset.from_list([{"prompt": text(10, 60), "completion": " " + text(10, 100)} for _ in range(STEPS * BATCH * 2)])
torch.manual_seed(0)
model = Qwen2ForCausalLM(Qwen2Config(
    vocab_size=WORDS, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=512, eos_token_id=1, pad_token_id=0, bos_token_id=None))
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        folder, per_device_train_batch_size=BATCH, gradient_accumulation_steps=2, max_steps=STEPS, bf16=True, max_length=160,
        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True)
    trainer = SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer)
    result = trainer.train()

assert result.global_step == STEPS
logged = [entry for entry in trainer.state.log_history if "loss" in entry]
assert len(logged) == STEPS
tokens = [entry["num_tokens"] for entry in logged]
assert tokens == sorted(tokens) and tokens[-1] > STEPS * BATCH * 2 * 20, tokens
assert all(p.device.type == "cuda" for p in model.parameters())
print(f"{STEPS} steps over {tokens[-1]:.0f} tokens")
