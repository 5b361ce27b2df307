"""`cachalot fit --engine`: the engine is run, and its log read. A stand-in for vLLM has the real one's log lines; the real engines run
in the stage `engines`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import world
from test_simulate import COMMAND, own_environment

sys.path.append(str(Path(__file__).resolve().parents[2] / "simulator" / "python"))
from cachalot_simulator import serve  # noqa: E402

pytestmark = [world.full_only, world.not_pages, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
STAND_IN = """
import logging, sys, torch
__version__ = "0.0.1"
logging.basicConfig(stream=sys.stderr, level=logging.INFO)
log = logging.getLogger("vllm").info

class SamplingParams:
    def __init__(self, **options): pass

class EngineArgs:
    def __init__(self, *, model, load_format, skip_tokenizer_init, tensor_parallel_size, max_model_len=4096, **options):
        self.is_wrong = options.pop("max_num_seqs", 0) == 3
        assert load_format == "dummy" and tensor_parallel_size == 1 and options == {"gpu_memory_utilization": 0.5}, options
        self.max_model_len = max_model_len

class LLMEngine:
    @classmethod
    def from_engine_args(cls, arguments, usage_context):
        assert usage_context == "a server"
        self = cls()
        self.weights = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        log("Model loading took 1.0 GiB memory and 0.1 seconds")
        if arguments.is_wrong:
            raise RuntimeError("The size of tensor a must match")
        free, total = torch.cuda.mem_get_info()
        blocks = (total // 2 - (total - free)) // (16 * 1024)
        if blocks < 1:
            log("ValueError: No available memory for the cache blocks. Based on this, the estimated maximum model length is 7. ")
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        self.cache = torch.empty(blocks * 16 * 1024, dtype=torch.uint8, device="cuda")
        log("Available KV cache memory: %.2f GiB", self.cache.nbytes / 2**30)
        log("GPU KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx",
            f"{16 * blocks:,}", f"{arguments.max_model_len:,}", 16 * blocks / arguments.max_model_len)
        return self

    def add_request(self, name, prompt, parameters):
        self.tokens = len(prompt["prompt_token_ids"])

    def has_unfinished_requests(self): return self.tokens > 0

    def step(self): self.tokens -= 1
"""


def fit(folder: Path, *options: str) -> subprocess.CompletedProcess:
    package = folder / "vllm"
    (package / "usage").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "inputs.py").write_text("TokensPrompt = dict\n")
    (package / "usage" / "usage_lib.py").write_text("class UsageContext:\n    OPENAI_API_SERVER = 'a server'\n")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    environment = own_environment() | {"CACHALOT_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")])
    command = [COMMAND, "fit", "--engine", "vllm", "--model", "config.json", "--gpu-memory-utilization", "0.5", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_a_run_of_the_engine_tells_what_its_log_says(tmp_path: Path) -> None:
    done = fit(tmp_path, "--gpu", "t4", "--json", "fit.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "fit.json").read_text())
    (result,) = report["results"]
    cache = result["kv_cache"]
    assert report["by"] == "a run of 0.0.1" and result["fits"]
    assert result["weights"]["bytes"] == 1 << 30 and cache["token_bytes"] == 1024
    assert cache["bytes"] == cache["tokens"] * 1024 and 5.5 < cache["bytes"] / 2**30 < 6.3
    by_arithmetic = json.loads(fit(tmp_path, "--gpu", "t4", "--by", "arithmetic", "--json", "-").stdout)
    assert by_arithmetic["by"] == "arithmetic" and by_arithmetic["results"][0]["kv_cache"]["token_bytes"] == 1024


def test_a_server_that_has_no_room_for_its_cache_does_not_fit(tmp_path: Path) -> None:
    done = fit(tmp_path, "--memory", "2GiB", "--by", "run", "--json", "fit.json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads((tmp_path / "fit.json").read_text())["results"]
    assert not result["fits"] and result["longest_context"] == 7
    assert "no: at most 7 tokens" in done.stdout


def test_an_engine_that_fails_for_another_reason_is_told(tmp_path: Path) -> None:
    done = fit(tmp_path, "--gpu", "t4", "--kv-cache-dtype", "fp8")  # the stand-in refuses it
    assert done.returncode == 2 and "vllm ended with an error: AssertionError: {" in done.stderr
    done = fit(tmp_path, "--gpu", "t4", "--max-num-seqs", "3")  # behind the weights
    assert done.returncode == 2 and "vllm ended with an error: RuntimeError: The size of tensor a must match" in done.stderr


@pytest.mark.skipif(os.environ.get("CACHALOT_TEST_ENGINES") != "installed", reason="the real vLLM is in the stage `engines`")
def test_the_real_vllm_fills_its_part_of_the_gpu_with_tokens(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}))
    command = [COMMAND, "fit", "--engine", "vllm", "--by", "run", "--model", "config.json", "--gpu", "h100", "--json", "fit.json"]
    done = subprocess.run(command, cwd=tmp_path, env=own_environment() | {"CACHALOT_PYTHON": sys.executable},
                          capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads((tmp_path / "fit.json").read_text())["results"]
    cache = result["kv_cache"]
    assert cache["bytes"] == cache["tokens"] * cache["token_bytes"], "by its own log, and by the report"
    others = sum(result[part]["bytes"] for part in ("weights", "activations", "graphs", "other"))
    assert 0.97 < (cache["bytes"] + others) / (0.92 * result["memory_bytes"]) <= 1.01 and result["fits"]


@pytest.mark.skipif(os.environ.get("CACHALOT_TEST_ENGINES") != "installed", reason="Transformers 5.20 is in the stage `engines`")
def test_the_real_transformers_batches_continuously(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}))
    results = {}
    for by in ("run", "arithmetic"):
        command = [COMMAND, "fit", "--engine", "transformers", "--by", by, "--model", "config.json", "--gpu", "h100", "--json", "-"]
        done = subprocess.run(command, cwd=tmp_path, env=own_environment() | {"CACHALOT_PYTHON": sys.executable},
                              capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        (results[by],) = json.loads(done.stdout)["results"]
    run, arithmetic = results["run"], results["arithmetic"]
    assert run["weights"]["bytes"] == arithmetic["weights"]["bytes"] and run["fits"]
    assert run["kv_cache"]["tokens"] == pytest.approx(arithmetic["kv_cache"]["tokens"], rel=0.03)


@pytest.mark.parametrize(("line", "lacks"), [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.04 GiB.", True),
    ("ValueError: No available memory for the cache blocks.", True),
    ("ValueError: To serve at least one request with the models's max seq len (131072), (16.0 GiB KV cache is needed, which is larger", True),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", True),
    ("MemoryError: Memory footprint 4 is more than available memory 3", True),
    ("ValueError: Invalid values: max_batch_tokens = 8192, num_sectors = -3", True),
    ("RuntimeError: index_copy_(): Source/destination tensor must have same slice shapes.", False),
    ("Exception: Capture cuda graph failed: 1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)", False),
])
def test_a_lack_of_memory_is_told_from_other_errors(line: str, lacks: bool) -> None:
    assert (serve.LACK.search(line) is not None) == lacks


def test_figures_are_the_largest_of_all_ranks() -> None:
    log = """
(Worker_TP0 pid=1) INFO 11-30 14:32:31 [gpu_worker.py:772] Available KV cache memory: 68.12 GiB
(Worker_TP0 pid=1) INFO [gpu_model_runner.py:5089] Model loading took 2.32 GiB memory and 9.824937 seconds
(Worker_TP1 pid=2) INFO [gpu_model_runner.py:5089] Model loading took 2.33 GiB memory and 9.824937 seconds
(EngineCore pid=3) INFO GPU KV cache size: 2,232,176 tokens, Maximum concurrency for 1,024 tokens per request: 2179.86x
INFO Free memory on device (77.89/79.11 GiB) on startup. Desired GPU memory utilization is (0.92, 72.78 GiB). Actual usage is 2.54 GiB for
consumed""".replace("for\nconsumed", "for consumed") + """ memory (weights + non-torch), 2.12 GiB for peak activation, and 0.32 GiB for CUDAGraph memory."""
    assert serve.figures_of(log, serve.VLLM) == {
        "kv_bytes": 68.12 * 2**30, "weights_bytes": 2.33 * 2**30, "tokens": 2232176, "max_model_len": 1024, "requests": 2179.86,
        "budget_bytes": 72.78 * 2**30, "consumed_bytes": 2.54 * 2**30, "activations_bytes": 2.12 * 2**30, "graphs_bytes": 0.32 * 2**30}
    log = """[TP0] Load weight end. elapsed=1.2 s, type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=75.30 GB, mem usage=2.40 GB.
[TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 2074485, K size: 31.65 GB, V size: 31.65 GB
[TP0] Capture target prefill CUDA graph end. elapsed=9.20 s, mem usage=2.84 GB. avail mem=9.00 GB.
[TP0] Capture target decode CUDA graph end. elapsed=5.69 s, mem usage=0.13 GB. avail mem=8.87 GB.
[TP0] max_total_num_tokens=2074485, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=4096, context_len=4096"""
    assert serve.figures_of(log, serve.SGLANG) == {
        "weights_bytes": 2.4 * 2**30, "tokens": 2074485, "kv_bytes": 31.65 * 2**30, "kv_more_bytes": 31.65 * 2**30, "graphs_bytes": 0.13 * 2**30,
        "graphs_more_bytes": 2.84 * 2**30, "max_model_len": 4096}
    assert serve.figures_of("Capture cuda graph end. Time elapsed: 9.2 s. mem usage=0.07 GB. avail mem=76.9 GB.", serve.SGLANG) == {
        "graphs_bytes": 0.07 * 2**30}
