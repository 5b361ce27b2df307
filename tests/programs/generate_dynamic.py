# requires: transformers
# simulate: --gpu l4
# unknown: value
# sizes: by values
"""A GPT-2 generates text with a growing cache: greedily, by sampling, by beams, and with several ways to stop."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria, StoppingCriteriaList

WORDS, END, BATCH, PROMPT = 2000, 7, 3, 12


class After(StoppingCriteria):
    """Each text ends after `length` tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.size(1) >= self.length, device=input_ids.device, dtype=torch.bool)


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_layer=4, n_embd=256, n_head=8, n_positions=256, bos_token_id=END,
                                   eos_token_id=END)).cuda().eval()
prompt = torch.randint(10, WORDS, (BATCH, PROMPT), device="cuda")
mask = torch.ones_like(prompt)
mask[0, :5] = 0
common = {"attention_mask": mask, "pad_token_id": END}

greedy = model.generate(prompt, max_new_tokens=24, min_new_tokens=24, do_sample=False, **common)
assert greedy.shape == (BATCH, PROMPT + 24)
assert torch.equal(greedy[:, :PROMPT], prompt)

sampled = model.generate(prompt, max_new_tokens=24, do_sample=True, temperature=0.8, top_k=50, top_p=0.95, repetition_penalty=1.1,
                         num_return_sequences=2, return_dict_in_generate=True, output_scores=True, **common)
assert sampled.sequences.shape == (BATCH * 2, PROMPT + 24)
assert len(sampled.scores) == sampled.sequences.size(1) - PROMPT
assert sampled.scores[0].shape == (BATCH * 2, WORDS)
assert int(sampled.sequences.min()) >= 0 and int(sampled.sequences.max()) < WORDS

beams = model.generate(prompt, max_new_tokens=16, num_beams=4, num_return_sequences=2, early_stopping=True, length_penalty=0.8,
                       return_dict_in_generate=True, output_scores=True, **common)
assert beams.sequences.shape == (BATCH * 2, PROMPT + 16), "no text ends early: its end is one token of many"
assert beams.sequences_scores.shape == (BATCH * 2,)

stopped = model.generate(prompt, max_new_tokens=64, min_new_tokens=20, do_sample=False,
                         stopping_criteria=StoppingCriteriaList([After(PROMPT + 20)]), **common)
assert stopped.shape == (BATCH, PROMPT + 20)

first = int(greedy[0, PROMPT])
ended = model.generate(prompt[:1], max_new_tokens=64, do_sample=False, eos_token_id=first, pad_token_id=END,
                       attention_mask=mask[:1])
assert ended.shape == (1, PROMPT + 1), "the first token of greedy decoding is an end here"
print(f"{greedy.size(1)} tokens greedily, {sampled.sequences.size(1)} by sampling, {beams.sequences.size(1)} by beams")
