"""Runs an inference engine with a model's config alone and says what memory its log tells: `cachalot fit --engine`.

    python -m cachalot_simulator.serve REQUEST.json ANSWER.json

The engine is the user's installation. Weights are dummies, prompts are numbers, and no tokenizer is needed. It loads the model,
sizes its cache, warms up and generates a few tokens. The request has the members of ServingQuestion (tools/serving/serving_fit.h);
null leaves the engine's default. The answer has `version`, `error` (the line that says why it ended; null) and `figures`, each for
the GPU with the most.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

PROMPT = list(range(1, 9))
TOKENS = 4  # to generate
GIB = 1 << 30

# The lines of the engines' logs. The names of groups are those of figures; "_gib" is a unit.
VLLM = (
    r"Model loading took (?P<weights_gib>[\d.]+) GiB",
    r"Available KV cache memory: (?P<kv_gib>[\d.]+) GiB",
    r"KV cache size: (?P<tokens>[\d,]+) tokens, Maximum concurrency for (?P<max_model_len>[\d,]+) tokens per request: (?P<requests>[\d.,]+)x",
    r"GPU memory utilization is \([\d.]+, (?P<budget_gib>[\d.]+) GiB\)\. Actual usage is (?P<consumed_gib>[\d.]+) GiB for consumed memory "
    r"\(weights \+ non-torch\), (?P<activations_gib>[\d.]+) GiB for peak activation, and (?P<graphs_gib>[\d.]+) GiB for CUDAGraph memory",
    r"estimated maximum model length is (?P<longest>\d+)",
)
SGLANG = (
    r"Load weight end\..* mem usage=(?P<weights_gib>[\d.]+) GB",
    r"KV Cache is allocated\..*#tokens: (?P<tokens>\d+), K size: (?P<kv_gib>[\d.]+) GB, V size: (?P<kv_more_gib>[\d.]+) GB",
    r"Capture cuda graph end\..* mem usage=(?P<graphs_gib>[\d.]+) GB",
    r"max_total_num_tokens=(?P<tokens>\d+).* context_len=(?P<max_model_len>\d+)",
)


def figures_of(log: str, lines: tuple[str, ...]) -> dict[str, float]:
    """Returns the largest value of each figure: ranks have lines of their own. Sizes are in bytes."""
    figures: dict[str, float] = {}
    for line in lines:
        for match in re.finditer(line, log):
            for name, text in match.groupdict().items():
                value = float(text.replace(",", "").rstrip("."))
                if name.endswith("_gib"):
                    name, value = name.removesuffix("_gib") + "_bytes", value * GIB
                figures[name] = max(figures.get(name, 0), value)
    return figures


def given(**options: Any) -> dict[str, Any]:
    """Returns the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def run_vllm(request: dict[str, Any], model: str) -> str:
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_COLOR": "0", "VLLM_LOGGING_LEVEL": "INFO", "HF_HUB_OFFLINE": "1"}
    import vllm
    from vllm.inputs import TokensPrompt

    engine = vllm.LLM(model, load_format="dummy", skip_tokenizer_init=True, tensor_parallel_size=request["gpus"],
                      **given(max_model_len=request["max_model_len"], gpu_memory_utilization=request["utilization"],
                              kv_cache_dtype=request["kv_cache_dtype"], quantization=request["quantization"],
                              max_num_seqs=request["max_num_seqs"], kv_cache_memory_bytes=request["kv_cache_bytes"]))
    few = vllm.SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    engine.generate([TokensPrompt(prompt_token_ids=PROMPT)], few, use_tqdm=False)
    return str(vllm.__version__)


def run_sglang(request: dict[str, Any], model: str) -> str:
    import sglang

    engine = sglang.Engine(model_path=model, load_format="dummy", skip_tokenizer_init=True, tp_size=request["gpus"], log_level="info",
                           **given(context_length=request["max_model_len"], mem_fraction_static=request["utilization"],
                                   kv_cache_dtype=request["kv_cache_dtype"], quantization=request["quantization"],
                                   max_running_requests=request["max_num_seqs"]))
    engine.generate(input_ids=[PROMPT], sampling_params={"max_new_tokens": TOKENS, "ignore_eos": True})
    engine.shutdown()
    return str(sglang.__version__)


def run_transformers(request: dict[str, Any], model: str) -> str:
    """The requests are read at once at their full length, and one more token is generated for each."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(model)
    length = request["max_model_len"] or config.get_text_config().max_position_embeddings
    dtype = getattr(config, "dtype", None) or torch.bfloat16
    with torch.device("cuda"), torch.inference_mode():
        shape = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        weights = torch.cuda.memory_allocated()
        prompt = torch.ones(request["batch"], length, dtype=torch.int64)
        before = torch.cuda.memory_allocated()
        cache = shape(prompt, use_cache=True, logits_to_keep=1).past_key_values
        kv_bytes = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
        peak = torch.cuda.max_memory_allocated()
        shape(prompt[:, :1], use_cache=True, past_key_values=cache)
    print(f"figures weights={weights} kv={kv_bytes} activations={max(0, peak - before - kv_bytes)} "
          f"tokens={request['batch'] * length} max_model_len={length}")
    return str(transformers.__version__)


TRANSFORMERS = (r"figures weights=(?P<weights_bytes>\d+) kv=(?P<kv_bytes>\d+) activations=(?P<activations_bytes>\d+) "
                r"tokens=(?P<tokens>\d+) max_model_len=(?P<max_model_len>\d+)",)
ENGINES: dict[str, tuple[Callable[[dict[str, Any], str], str], tuple[str, ...]]] = {
    "vllm": (run_vllm, VLLM), "sglang": (run_sglang, SGLANG), "transformers": (run_transformers, TRANSFORMERS)}


def error_in(log: str) -> str | None:
    """Returns the first line of the log that names an error."""
    found = re.search(r"((?:\w+\.)*\w*(?:Error|Exception): .+)", log)
    return found[1].strip() if found else None


def serve(request: dict[str, Any], answer_path: str) -> int:
    run, lines = ENGINES[request["engine"]]
    version, error = "", None
    with tempfile.TemporaryDirectory() as folder:
        model = request["model"]
        if os.path.isfile(model):
            shutil.copy(model, os.path.join(folder, "config.json"))
            model = folder
        with open(os.path.join(folder, "log.txt"), "w+", encoding="utf-8", errors="replace") as log:
            outputs = [os.dup(stream) for stream in (1, 2)]
            for stream in (1, 2):  # of the engine's processes as well
                os.dup2(log.fileno(), stream)
            try:
                version = run(request, model)
            except Exception as exception:
                error = f"{type(exception).__name__}: {exception}"
            for process in multiprocessing.active_children():  # Python would wait for those that an engine leaves
                process.terminate()
            sys.stdout.flush()
            for stream, output in zip((1, 2), outputs, strict=True):
                os.dup2(output, stream)
            log.seek(0)
            text = log.read()
    if error is not None:
        print(text[-2000:])
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump({"version": version, "error": error and (error_in(text) or error), "figures": figures_of(text, lines)}, file)
    return 0 if error is None else 1


if __name__ == "__main__":  # engines may spawn processes that import this module
    with open(sys.argv[1], encoding="utf-8") as request_file:
        sys.exit(serve(json.load(request_file), sys.argv[2]))
