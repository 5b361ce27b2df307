# requires: megatron.core
# simulate: --gpu a6000 --devices 2
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
# steps: 3
# bytes: parameters = 2 * 1067520
# bytes: gradients = 4 * 1067520
# bytes: optimizer state = 12 * 1067520
"""Trains a GPT of Megatron-Core whose layers are divided between two GPUs (tensor parallel), with its own optimizer."""

import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

PARTS, WIDTH, LAYERS, WORDS, LENGTH, BATCH, STEPS = 2, 256, 2, 1024, 64, 2, 3


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=PARTS)
    model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(num_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=4, tensor_model_parallel_size=PARTS,
                               params_dtype=torch.bfloat16, bf16=True, pipeline_dtype=torch.bfloat16, add_bias_linear=False,
                               gradient_accumulation_fusion=False, attention_dropout=0.0, hidden_dropout=0.0)
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=WORDS, max_sequence_length=LENGTH,
                     share_embeddings_and_output_weights=False).cuda().bfloat16()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16), [model])
    places = torch.arange(LENGTH, device="cuda").expand(BATCH, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)
    for _ in range(STEPS):
        model.zero_grad_buffer()
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
        losses = model(tokens, places, mask, labels=tokens)
        assert losses.shape == (BATCH, LENGTH)
        losses.mean().backward()
        finalize_model_grads([model])
        optimizer.step()
    divided = model.module.decoder.layers[0].self_attention.linear_qkv.weight
    assert divided.shape == (3 * WIDTH // PARTS, WIDTH)
    count = sum(p.numel() for p in model.parameters())
    if dist.get_rank() == 0:
        print(f"OK: {STEPS} steps of {count:,} parameters on each GPU")
    dist.destroy_process_group()


main()
