# requires: vllm trl datasets
# races: of vLLM's warm-up, which drops results of which copies on another stream are under way
# simulate: --gpu h100
# unknown: size value
# bytes: parameters = 4 * 1_692_928 + 2 * (1_692_928 + 2 * 24 * 256)
# bytes: gradients = 4 * 1_692_928
# bytes: optimizer state = 2 * 4 * 1_692_928 + 21 * 4
# steps: 2
"""trl's GRPOTrainer trains a Llama by answers of a vLLM on the same GPU, which gives its memory back while the trainer uses it.

vLLM has a copy of the parameters in 16 bits, and rounds the words of both of its tables up to 1024.
"""

import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

STEPS, GROUP, WORDS, NEW = 2, 4, 1000, 16
LAYERS, HEADS, WIDTH = 2, 2, 64  # of the cache
PART = 0.3  # of the GPU is vLLM's

words = {"<pad>": 0, "<end>": 1, "<unknown>": 2} | {f"w{i}": i for i in range(3, WORDS)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>",
                                    padding_side="left")
drawn = random.Random(0)
data = Dataset.from_list(
    [{"prompt": " ".join(f"w{drawn.randrange(3, WORDS)}" for _ in range(drawn.randint(5, 20)))} for _ in range(16)])
valued: list[int] = []
used: list[int] = []


def reward(completions: list[str], **kwargs) -> list[float]:
    free, total = torch.cuda.mem_get_info()
    used.append(total - free)
    valued.append(len(completions))
    return [float(len(set(one.split()))) for one in completions]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=256, intermediate_size=512, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=HEADS, max_position_embeddings=256, eos_token_id=1, pad_token_id=0, bos_token_id=None))
    with tempfile.TemporaryDirectory() as folder:
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        arguments = GRPOConfig(
            folder, per_device_train_batch_size=GROUP * 2, num_generations=GROUP, max_completion_length=NEW, max_steps=STEPS,
            bf16=True, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_vllm=True,
            vllm_mode="colocate", vllm_enable_sleep_mode=True, vllm_gpu_memory_utilization=PART)
        trainer = GRPOTrainer(folder, reward, arguments, train_dataset=data, processing_class=tokenizer)
        result = trainer.train()

    assert result.global_step == STEPS
    assert valued == [GROUP * 2] * STEPS, valued
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == STEPS
    assert all(0 < entry["completions/mean_length"] <= NEW for entry in logged)
    config = trainer.vllm_generation.llm.llm_engine.vllm_config.cache_config
    cache = config.num_gpu_blocks * config.block_size * LAYERS * 2 * HEADS * WIDTH * torch.bfloat16.itemsize
    total = torch.cuda.mem_get_info()[1]
    assert 0.9 * PART < cache / total < PART, f"a cache of {cache:,} bytes, the GPU has {total:,}"
    assert max(used) < cache / 4, f"{used} bytes are used while the cache of {cache:,} sleeps"
    print(f"{STEPS} steps, answers of {logged[-1]['completions/mean_length']:.1f} tokens, a cache of {cache:,} bytes", flush=True)
