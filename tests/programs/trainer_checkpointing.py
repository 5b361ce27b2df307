# requires: transformers accelerate
# simulate: --gpu l4
# sizes: by values
# unknown: value
"""Hugging Face's Trainer trains a GPT-2 with gradient checkpointing and automatic mixed precision."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS, BATCH, LENGTH = 4, 8, 256


class Texts(Dataset):
    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 50257, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Memory(TrainerCallback):
    def __init__(self) -> None:
        self.allocated: list[int] = []

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.allocated.append(torch.cuda.memory_allocated())


model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6, n_positions=LENGTH))
memory = Memory()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=BATCH, max_steps=STEPS, gradient_checkpointing=True, bf16=True, learning_rate=1e-3,
        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=Texts(), callbacks=[memory])
    result = trainer.train()

assert result.global_step == STEPS
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
assert len(losses) == STEPS
assert all(p.grad is None or p.grad.shape == p.shape for p in model.parameters())
state = trainer.optimizer.optimizer.state
assert len(state) == len(list(model.parameters()))
assert all(one["exp_avg"].shape == p.shape for p, one in state.items())
assert len(set(memory.allocated[1:])) == 1, f"memory differs between steps: {memory.allocated}"
print(f"{STEPS} steps, {memory.allocated[-1] >> 20} MiB allocated after each")
