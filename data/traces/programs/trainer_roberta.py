# simulate: --gpu h100
"""Trainer tunes RoBERTa-base on texts of varied lengths in mixed precision, with an evaluation after every fourth step."""

import random
import tempfile

import torch
import transformers

WORDS, STEPS = 50265, 12


class Texts(torch.utils.data.Dataset):
    """Token numbers and a label each; the lengths are spread as those of reviews are, up to the model's 512."""

    def __init__(self, count: int, seed: int) -> None:
        drawn = random.Random(seed)
        self.texts = [[drawn.randrange(4, WORDS) for _ in range(min(512, int(drawn.lognormvariate(5, 0.7)) + 8))]
                      for _ in range(count)]
        self.labels = [drawn.randrange(2) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.texts[index], "labels": self.labels[index]}


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    longest = max(len(one["input_ids"]) for one in examples)
    tokens = torch.full((len(examples), longest), 1)
    for row, one in zip(tokens, examples):
        row[:len(one["input_ids"])] = torch.tensor(one["input_ids"])
    labels = torch.tensor([one["labels"] for one in examples])
    return {"input_ids": tokens, "attention_mask": (tokens != 1).long(), "labels": labels}


def metrics(prediction: transformers.EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


model = transformers.RobertaForSequenceClassification(
    transformers.RobertaConfig(vocab_size=WORDS, max_position_embeddings=514, num_labels=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        folder, per_device_train_batch_size=16, per_device_eval_batch_size=64, gradient_accumulation_steps=2, max_steps=STEPS,
        eval_strategy="steps", eval_steps=4, bf16=True, learning_rate=2e-5, warmup_steps=2, logging_steps=4, save_strategy="no",
        report_to="none", disable_tqdm=True)
    transformers.Trainer(model, arguments, data_collator=collate, train_dataset=Texts(16 * 2 * STEPS, 23),
                         eval_dataset=Texts(300, 24), compute_metrics=metrics).train()
