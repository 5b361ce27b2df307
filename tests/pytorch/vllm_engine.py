"""An engine of the real vLLM with a small Llama of random weights: vllm_engine.py FOLDER CYCLES. It captures graphs, sleeps and wakes.

Everything is vLLM's: the configuration, the executor, the worker, the model, its kernels and graphs. It generates nothing: on a
simulated GPU kernels compute no tokens, and the engine would wait for them.
"""

import json
import sys
from pathlib import Path

from vllm import LLM

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float16",
}


def engine(folder):
    (folder / "config.json").write_text(json.dumps(MODEL))
    return LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=128,
        max_num_seqs=2,
        gpu_memory_utilization=0.5,
        enable_sleep_mode=True,
        sleep_mode_backend="cachalot",
        sleep_mode_offload_cudagraph=True,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2]},
    )


def memory(worker):
    """Returns what a worker's heap holds, the tags that have memory, and those that sleep."""
    import cachalot
    import torch

    regions = cachalot.regions()
    tags = sorted({region.tag for region in regions if region.allocated_bytes})
    return torch.cuda.memory_reserved(), tags, sorted({region.tag for region in regions if region.is_asleep})


def check_sleep(llm):
    awake = llm.collective_rpc(memory)
    assert all(tags == ["kv_cache", "runtime", "weights"] and not asleep for _, tags, asleep in awake), awake
    llm.sleep(level=1)
    asleep = llm.collective_rpc(memory)
    assert all(after * 20 < before for (before, *_), (after, *_) in zip(awake, asleep, strict=True)), (awake, asleep)
    llm.wake_up(["weights"])
    assert all(tags == ["kv_cache"] for *_, tags in llm.collective_rpc(memory))
    llm.wake_up(["kv_cache"])
    assert not any(tags for *_, tags in llm.collective_rpc(memory))
    llm.sleep(level=2)
    llm.wake_up()


def check_cycles(llm, cycles):
    llm.sleep(level=1)
    llm.wake_up()
    held = llm.collective_rpc(memory)
    for cycle in range(cycles):
        llm.sleep(level=1)
        llm.wake_up()
        assert llm.collective_rpc(memory) == held, cycle


def main():
    llm = engine(Path(sys.argv[1]))
    check_sleep(llm)
    check_cycles(llm, int(sys.argv[2]))
    print(f"{sys.argv[2]} cycles of an engine")


if __name__ == "__main__":
    main()
