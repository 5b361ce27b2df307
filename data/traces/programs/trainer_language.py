# simulate: --gpu h100
"""Trainer trains a LLaMA of 0.6 B parameters with checkpointed activations, and evaluates it after every second step."""

import random
import tempfile

import torch
import transformers

WORDS, STEPS, LONGEST = 32000, 6, 1536


class Texts(torch.utils.data.Dataset):
    def __init__(self, count: int, seed: int) -> None:
        drawn = random.Random(seed)
        self.lengths = [drawn.randint(200, LONGEST) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(3, WORDS, (self.lengths[index],), generator=torch.Generator().manual_seed(index))


def collate(texts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": tokens.masked_fill(tokens == 0, -100)}


model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=WORDS, hidden_size=1536, intermediate_size=4096, num_hidden_layers=16, num_attention_heads=24,
    num_key_value_heads=8, dtype=torch.bfloat16))
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=4, per_device_eval_batch_size=8, gradient_accumulation_steps=4, max_steps=STEPS,
        eval_strategy="steps", eval_steps=2, prediction_loss_only=True, bf16=True, gradient_checkpointing=True, logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True)
    transformers.Trainer(model, arguments, data_collator=collate, train_dataset=Texts(4 * 4 * STEPS, 25),
                         eval_dataset=Texts(30, 26)).train()
