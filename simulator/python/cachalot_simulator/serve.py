"""Runs an inference engine with a model's config alone and says what memory its log tells: `cachalot fit --engine`.

    python -m cachalot_simulator.serve REQUEST.json ANSWER.json

The engine is the user's installation. Weights are dummies, prompts are numbers, and no tokenizer is needed. It loads the model,
sizes its cache, warms up and generates a few tokens. The request has the members of ServingQuestion (tools/serving/serving_fit.h);
null leaves the engine's default. The answer has `version`, `error` (the line that says why it ended; null), `lacks_memory` (it
ended because the memory is too little) and `figures`, each for the GPU with the most.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
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
    r"(?i)Capture (?!.*prefill).*graph end\..* mem usage=(?P<graphs_gib>[\d.]+) GB",
    r"(?i)Capture .*prefill.*graph end\..* mem usage=(?P<graphs_more_gib>[\d.]+) GB",
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


def run_vllm(request: dict[str, Any], model: str, figures: dict[str, float]) -> str:
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_COLOR": "0", "VLLM_LOGGING_LEVEL": "INFO", "HF_HUB_OFFLINE": "1"}
    import vllm
    from vllm.inputs import TokensPrompt
    from vllm.usage.usage_lib import UsageContext

    arguments = vllm.EngineArgs(
        model=model, load_format="dummy", skip_tokenizer_init=True, tensor_parallel_size=request["gpus"],
        **given(max_model_len=request["max_model_len"], gpu_memory_utilization=request["utilization"], kv_cache_dtype=request["kv_cache_dtype"],
                quantization=request["quantization"], max_num_seqs=request["max_num_seqs"], kv_cache_memory_bytes=request["kv_cache_bytes"]))
    # Batches of a server have other sizes than those of vllm.LLM.
    engine = vllm.LLMEngine.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)
    engine.add_request("0", TokensPrompt(prompt_token_ids=PROMPT), vllm.SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False))
    while engine.has_unfinished_requests():
        engine.step()
    return str(vllm.__version__)


def run_sglang(request: dict[str, Any], model: str, figures: dict[str, float]) -> str:
    import sglang

    engine = sglang.Engine(model_path=model, load_format="dummy", skip_tokenizer_init=True, tp_size=request["gpus"], log_level="info",
                           **given(context_length=request["max_model_len"], mem_fraction_static=request["utilization"],
                                   kv_cache_dtype=request["kv_cache_dtype"] and "fp8_e4m3", quantization=request["quantization"],
                                   max_running_requests=request["max_num_seqs"], max_total_tokens=request["kv_tokens"]))
    engine.generate(input_ids=[PROMPT], sampling_params={"max_new_tokens": TOKENS, "ignore_eos": True})
    engine.shutdown()
    return str(sglang.__version__)


def bytes_in(layer: Any) -> int:
    """Returns the bytes of the tensors of a layer's cache, which may be in dictionaries."""
    members = (member for value in vars(layer).values() for member in (value.values() if isinstance(value, dict) else (value,)))
    return sum(getattr(member, "nbytes", 0) for member in members)


def load_transformers(model: str) -> Any:
    """Returns the model with weights that are not set. Layers that are quantized are made as for a file of such weights."""
    import torch
    import transformers
    from transformers.quantizers import AutoHfQuantizer

    config = transformers.AutoConfig.from_pretrained(model)
    dtype = getattr(config, "dtype", None) or torch.bfloat16
    stored = getattr(config, "quantization_config", None)
    with torch.device("cuda" if stored is None else "meta"):
        shape = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if stored is not None:
        quantizer = AutoHfQuantizer.from_config(stored, pre_quantized=True)
        quantizer.validate_environment(device_map={"": "cuda"})
        quantizer.preprocess_model(model=shape)
        shape.to_empty(device="cuda").tie_weights()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return shape


def run_transformers(request: dict[str, Any], model: str, figures: dict[str, float]) -> str:
    """Continuous batching sizes its cache to the GPU. It has no room for states and latent vectors: requests to a model with these are
    read at once, at their full length, and one more token is generated for each."""
    import torch
    import transformers

    for option, value in {"--tensor-parallel": request["gpus"] > 1, "--kv-cache-dtype": request["kv_cache_dtype"],
                          "--quantization": request["quantization"]}.items():
        if value:
            raise ValueError(f"{option}: a run of Transformers has no such option; --by arithmetic counts it")
    torch.set_grad_enabled(False)
    shape = load_transformers(model)
    figures["weights_bytes"] = shape.get_memory_footprint()
    config = shape.config.get_text_config()
    figures["max_model_len"] = length = request["max_model_len"] or getattr(config, "max_position_embeddings", 1 << 20)
    options = transformers.GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1, return_dict_in_generate=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds <= {"full_attention", "sliding_attention"} and not getattr(config, "kv_lora_rank", None):
        blocks = request["kv_tokens"] and max(1, request["kv_tokens"] // transformers.ContinuousBatchingConfig.page_size)
        batching = transformers.ContinuousBatchingConfig(
            max_memory_percent=request["utilization"], max_requests_per_batch=request["max_num_seqs"], num_blocks=blocks)
        with shape.continuous_batching_context_manager(options, continuous_batching_config=batching) as manager:
            manager.add_request(PROMPT)
            result = manager.get_result(timeout=600)
            if result is None or result.error:
                raise RuntimeError(result and result.error or "no token was generated within 10 minutes")
            cache = manager.batch_processor.cache
            figures["kv_bytes"] = cache.num_sectors * cache.bytes_per_sector
    else:
        prompt = torch.ones(request["batch"], length, dtype=torch.int64, device="cuda")
        cache = shape.generate(prompt, generation_config=options, max_new_tokens=2, pad_token_id=0).past_key_values
        figures |= {"kv_bytes": sum(map(bytes_in, cache.layers)), "requests": request["batch"], "tokens": request["batch"] * length}
    peak = torch.cuda.max_memory_allocated()
    figures["activations_bytes"] = max(0, peak - figures["weights_bytes"] - figures["kv_bytes"])
    return str(transformers.__version__)


ENGINES: dict[str, tuple[Callable[[dict[str, Any], str, dict[str, float]], str], tuple[str, ...]]] = {
    "vllm": (run_vllm, VLLM), "sglang": (run_sglang, SGLANG), "transformers": (run_transformers, ())}


# Lines of engines whose memory is too little.
LACK = re.compile(r"out of memory|OutOfMemoryError|MemoryError|[Nn]ot enough memory|No available memory|KV cache is needed|num_sectors = (0|-)"
                  r"|(Raise|increase) --mem-fraction-static|larger than the available KV cache")


def error_in(log: str) -> str | None:
    """Returns the first line of the log that names an error."""
    found = re.search(r"((?:\w+\.)*\w*(?:Error|Exception): .+)", log)
    return found[1].strip() if found else None


def serve(request: dict[str, Any], answer_path: str) -> int:
    run, lines = ENGINES[request["engine"]]
    version, error = "", None
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        with open(request["model"], encoding="utf-8") as file:
            config = json.load(file)
        if request["quantization"] == "none":
            config.pop("quantization_config", None)
            request["quantization"] = None
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        with open(os.path.join(folder, "log.txt"), "w+", encoding="utf-8", errors="replace") as log:
            outputs = [os.dup(stream) for stream in (1, 2)]
            for stream in (1, 2):  # of the engine's processes as well
                os.dup2(log.fileno(), stream)
            try:
                version = run(request, folder, figures)
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
    found = LACK.search(text + error) if error is not None else None
    answer = {"version": version, "error": error and (error_in(text) or error), "lacks_memory": found is not None,
              "figures": figures | figures_of(text, lines)}
    with open(answer_path, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    return 0 if error is None else 1


if __name__ == "__main__":  # engines may spawn processes that import this module
    with open(sys.argv[1], encoding="utf-8") as request_file:
        sys.exit(serve(json.load(request_file), sys.argv[2]))
