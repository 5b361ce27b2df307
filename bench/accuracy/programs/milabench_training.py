"""A model in training as in milabench's benchmarks `huggingface` and `torchvision`."""

import argparse

import torch
import torchvision
import transformers

T5_SMALL = {"d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 6, "num_heads": 8, "vocab_size": 32128,
            "decoder_start_token_id": 0, "pad_token_id": 0}
WHISPER_TINY = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
                "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536}


def network(name: str) -> torch.nn.Module:
    if name == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig())
    if name == "t5":
        config = transformers.T5Config(**T5_SMALL)
        config._attn_implementation = "eager"  # T5 had no other in Transformers 4.49
        return transformers.T5ForConditionalGeneration(config)
    if name == "whisper":
        return transformers.WhisperForAudioClassification(transformers.WhisperConfig(**WHISPER_TINY))
    return torchvision.models.get_model(name)


def batch_of(name: str, batch: int) -> dict[str, torch.Tensor]:
    if name == "whisper":
        return {"input_features": torch.zeros(batch, 80, 3000), "labels": torch.zeros(batch, dtype=torch.long)}
    shape = (batch, 1024 if name == "t5" else 512)
    return {"input_ids": torch.randint(30000, shape), "labels": torch.randint(30000, shape)}


def train_transformer(model: torch.nn.Module, options: argparse.Namespace, scaler: torch.amp.GradScaler) -> None:
    """The benchmark never sets gradients to zero."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(3):
        inputs = {key: value.cuda() for key, value in batch_of(options.model, options.batch).items()}
        with torch.autocast("cuda", torch.float16, enabled=options.fp16):
            outputs = model(**inputs)
        loss = outputs.loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def train_classifier(model: torch.nn.Module, options: argparse.Namespace, scaler: torch.amp.GradScaler) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loss_of = torch.nn.CrossEntropyLoss()
    for _ in range(3):
        images = torch.empty(options.batch, 3, 224, 224)
        inputs = images.to("cuda", torch.float16 if options.fp16 else torch.float32)
        labels = torch.randint(1000, (options.batch,)).cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=options.fp16):
            loss = loss_of(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("bert", "t5", "whisper", "convnext_large", "regnet_y_128gf"), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--fp16", action="store_true")
    options = parser.parse_args()
    model = network(options.model).cuda()
    scaler = torch.amp.GradScaler("cuda", enabled=options.fp16)
    if options.model in ("bert", "t5", "whisper"):
        train_transformer(model, options, scaler)
    else:
        model.train()
        train_classifier(model, options, scaler)


main()
