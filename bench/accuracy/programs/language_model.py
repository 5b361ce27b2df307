"""A language model of Hugging Face's transformers in training by AdamW, in single precision, with all that a tokenizer gives."""

import argparse

import torch
import transformers

MODELS = {
    "bert-base": lambda: transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=28996)),
    "bert-large": lambda: transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=28996, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)),
    "xlnet-base": lambda: transformers.XLNetForSequenceClassification(transformers.XLNetConfig(
        d_model=768, n_layer=12, n_head=12, d_inner=3072)),
    "xlnet-large": lambda: transformers.XLNetForSequenceClassification(transformers.XLNetConfig(
        d_model=1024, n_layer=24, n_head=16, d_inner=4096)),
    "gpt2-xl": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--length", type=int, default=512)
    options = parser.parse_args()
    with torch.device("cuda"):
        model = MODELS[options.model]()
    model.cuda().train()  # XLNet's weights are made on the host all the same
    classifies = options.model.startswith("xlnet")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    for _ in range(3):
        tokens = torch.randint(20000, (options.batch, options.length)).cuda()
        labels = torch.zeros(options.batch, dtype=torch.long).cuda() if classifies else tokens
        given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if not options.model.startswith("gpt2"):
            given["token_type_ids"] = torch.zeros_like(tokens)
        outputs = model(**given, labels=labels)  # there until the next step, as in the source's published programs
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


main()
