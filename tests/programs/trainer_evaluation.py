# requires: transformers accelerate
# simulate: --gpu t4
# sizes: by values
# unknown: value
"""Hugging Face's Trainer trains a text classifier on texts of many lengths, with accumulation, and evaluates it between steps."""

import tempfile

import numpy
import torch
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

CLASSES, WORDS, MAX_STEPS = 3, 3000, 6


class Texts(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(10, 120, (count,), generator=generator).tolist()
        self.texts = [torch.randint(5, WORDS, (length,), generator=generator) for length in lengths]
        self.classes = torch.randint(0, CLASSES, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.texts[index], "labels": self.classes[index]}


lengths: set[int] = set()


def collate(examples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    texts = [example["input_ids"] for example in examples]
    padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    lengths.add(padded.size(1))
    return {"input_ids": padded, "attention_mask": (padded != 0).long(), "labels": torch.stack([one["labels"] for one in examples])}


evaluated: list[tuple[int, ...]] = []


def metrics(prediction) -> dict[str, float]:
    evaluated.append(prediction.predictions.shape)
    assert numpy.isfinite(prediction.predictions).all()
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


torch.manual_seed(0)
model = DistilBertForSequenceClassification(
    DistilBertConfig(vocab_size=WORDS, dim=256, hidden_dim=1024, n_layers=3, n_heads=4, num_labels=CLASSES))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=8, per_device_eval_batch_size=16, gradient_accumulation_steps=2, max_steps=MAX_STEPS,
        eval_strategy="steps", eval_steps=2, logging_steps=1, fp16=True, save_strategy="no", report_to="none", disable_tqdm=True)
    trainer = Trainer(model, arguments, data_collator=collate, train_dataset=Texts(200, 0), eval_dataset=Texts(50, 1),
                      compute_metrics=metrics)
    result = trainer.train()

assert result.global_step == MAX_STEPS
assert evaluated == [(50, CLASSES)] * (MAX_STEPS // 2), evaluated
assert len(lengths) > 5
accuracies = [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
assert len(accuracies) == MAX_STEPS // 2 and all(0 <= one <= 1 for one in accuracies)
print(f"{MAX_STEPS} steps of two batches, {len(accuracies)} evaluations, {len(lengths)} lengths of batches")
