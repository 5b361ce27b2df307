# requires: transformers trl datasets
# simulate: --gpu l40s
# unknown: value size
# sizes: by values
"""trl's GRPOTrainer trains a Qwen2 by rewards: it generates groups of answers, values them in Python, and learns from them."""

import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

STEPS, GROUP, WORDS, NEW = 2, 4, 1000, 16

words = {"<pad>": 0, "<end>": 1, "<unknown>": 2} | {f"w{i}": i for i in range(3, WORDS)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>",
                                    padding_side="left")
drawn = random.Random(0)
data = Dataset.from_list(
    [{"prompt": " ".join(f"w{drawn.randrange(3, WORDS)}" for _ in range(drawn.randint(5, 20)))} for _ in range(16)])
valued: list[int] = []


def reward(completions: list[str], **kwargs) -> list[float]:
    valued.append(len(completions))
    return [float(len(set(one.split()))) for one in completions]


torch.manual_seed(0)
model = Qwen2ForCausalLM(Qwen2Config(
    vocab_size=WORDS, hidden_size=256, intermediate_size=704, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=256, eos_token_id=1, pad_token_id=0, bos_token_id=None))
with tempfile.TemporaryDirectory() as folder:
    arguments = GRPOConfig(
        folder, per_device_train_batch_size=GROUP * 2, num_generations=GROUP, max_completion_length=NEW, max_steps=STEPS,
        bf16=True, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True)
    trainer = GRPOTrainer(model, reward, arguments, train_dataset=data, processing_class=tokenizer)
    result = trainer.train()

assert result.global_step == STEPS
assert valued == [GROUP * 2] * STEPS, valued
logged = [entry for entry in trainer.state.log_history if "reward" in entry]
assert len(logged) == STEPS
assert all(0 < entry["completions/mean_length"] <= NEW and entry["reward"] >= 0 for entry in logged)
print(f"{STEPS} steps, answers of {logged[-1]['completions/mean_length']:.1f} tokens")
