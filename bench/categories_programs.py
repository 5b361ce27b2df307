"""The programs of bench/categories.py: trainings, inference and failures of usual shapes, each of which says what its memory is for.

A program is a function of the truth that it fills in: see categories.Truth.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"
WIDTH, ROWS = 1536, 1024


def mlp(depth: int = 3) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor] | None = None) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (8, -1)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k.contiguous(), v.contiguous()]
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=len(x.shape) > 2 and x.shape[1] > 1)
                         .transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, depth: int = 3, width: int = 512, words: int = 8000, checkpoints: bool | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        self.checkpoints = checkpoints  # use_reentrant; None: none

    def forward(self, tokens: torch.Tensor, caches: list[list[torch.Tensor]] | None = None) -> torch.Tensor:
        x = self.embedding(tokens)
        for i, block in enumerate(self.blocks):
            if self.checkpoints is None:
                x = block(x, caches[i] if caches is not None else None)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpoints)
        return self.head(x)


def tokens_of(rows: int = 8, length: int = 128) -> torch.Tensor:
    return torch.randint(0, 8000, (rows, length), device=DEVICE)


def train(truth: Any, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Callable[[], torch.Tensor],
          loss_of: Callable[[torch.Tensor], torch.Tensor] = lambda output: output.float().pow(2).mean(), steps: int = 3) -> None:
    """The usual loop."""
    truth.says("parameters", model)
    for _ in range(steps):
        x = batch()
        truth.says("input", x)
        loss = loss_of(model(x))
        truth.saved(loss)
        optimizer.zero_grad()
        loss.backward()
        truth.gradients(model)
        optimizer.step()
        truth.state(optimizer)


def rows() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, device=DEVICE)


def word_loss(logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), torch.zeros(logits.shape[0] * logits.shape[1], dtype=torch.long, device=DEVICE))


def adam(truth: Any) -> None:
    model = mlp().cuda()
    train(truth, model, torch.optim.Adam(model.parameters()), rows)


def adam_fused(truth: Any) -> None:
    model = mlp().to(DEVICE)
    train(truth, model, torch.optim.AdamW(model.parameters(), fused=True), rows)


def adam_one_by_one(truth: Any) -> None:
    model = mlp().to(DEVICE)
    train(truth, model, torch.optim.Adam(model.parameters(), foreach=False), rows)


def sgd_momentum(truth: Any) -> None:
    model = mlp().cuda()
    train(truth, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True), rows)


def rmsprop(truth: Any) -> None:
    model = mlp().cuda()
    train(truth, model, torch.optim.RMSprop(model.parameters(), momentum=0.9, centered=True), rows)


def adagrad(truth: Any) -> None:
    model = mlp().cuda()
    optimizer = torch.optim.Adagrad(model.parameters())  # makes its state at once
    truth.state(optimizer)
    train(truth, model, optimizer, rows)


def half_of_cuda(truth: Any) -> None:
    model = mlp().cuda().half()
    train(truth, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: rows().half())


def bfloat16_to(truth: Any) -> None:
    model = mlp().to(DEVICE, torch.bfloat16)
    train(truth, model, torch.optim.AdamW(model.parameters()), lambda: rows().bfloat16())


def bfloat16_then_float(truth: Any) -> None:
    model = mlp().cuda().bfloat16()
    model = model.float()
    train(truth, model, torch.optim.Adam(model.parameters()), rows)


def made_on_device(truth: Any) -> None:
    with torch.device(DEVICE):
        model = mlp()
    train(truth, model, torch.optim.Adam(model.parameters()), rows)


def default_device(truth: Any) -> None:
    torch.set_default_device(DEVICE)
    model = mlp()
    train(truth, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), lambda: torch.randn(ROWS, WIDTH))


def meta_device(truth: Any) -> None:
    with torch.device("meta"):
        model = mlp()
    model.to_empty(device=DEVICE)
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    train(truth, model, torch.optim.Adam(model.parameters()), rows)


def lazy_modules(truth: Any) -> None:
    model = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU(), nn.LazyLinear(WIDTH)).cuda()
    model(rows())
    train(truth, model, torch.optim.Adam(model.parameters()), rows)


def state_dict_copied(truth: Any) -> None:
    file = io.BytesIO()
    torch.save(mlp().state_dict(), file)
    file.seek(0)
    state = torch.load(file, map_location=DEVICE)
    truth.says("parameters", state)
    model = mlp().cuda()
    model.load_state_dict(state)
    train(truth, model, torch.optim.Adam(model.parameters()), rows)


def state_dict_assigned(truth: Any) -> None:
    file = io.BytesIO()
    torch.save(mlp().state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        model = mlp()
    model.load_state_dict(torch.load(file, map_location=DEVICE), assign=True)
    train(truth, model, torch.optim.Adam(model.parameters()), rows)


def convolutions(truth: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    train(truth, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
          lambda: torch.randn(32, 3, 96, 96).to(DEVICE, non_blocking=True))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in [(3, 32), (32, 64)])
        self.up = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in [(64 + 64, 32), (32 + 32, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.down:
            x = F.silu(layer(x))
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        for layer in self.up:
            x = layer(torch.cat([F.interpolate(x, scale_factor=2), kept.pop()], 1))
        return x


def u_net(truth: Any) -> None:
    model = UNet().cuda()
    train(truth, model, torch.optim.AdamW(model.parameters()), lambda: torch.randn(16, 3, 96, 96, device=DEVICE))


def transformer(truth: Any) -> None:
    model = LanguageModel().cuda()
    train(truth, model, torch.optim.AdamW(model.parameters()), tokens_of, word_loss)


def encoder_of_torch(truth: Any) -> None:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 3).cuda()
    train(truth, model, torch.optim.Adam(model.parameters()), lambda: torch.randn(8, 128, 512, device=DEVICE))


def recurrent(truth: Any) -> None:
    model = nn.LSTM(512, 512, 2, batch_first=True).cuda()
    train(truth, model, torch.optim.Adam(model.parameters()), lambda: torch.randn(16, 64, 512, device=DEVICE),
          lambda output: output[0].pow(2).mean())


def mixed_precision(truth: Any) -> None:
    model = mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler()
    truth.says("parameters", model)
    for _ in range(3):
        x = rows()
        truth.says("input", x)
        with torch.autocast(DEVICE, torch.float16):
            loss = model(x).float().pow(2).mean()
        truth.saved(loss)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        truth.gradients(model)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        truth.state(optimizer)


def accumulated_gradients(truth: Any) -> None:
    model = mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    truth.says("parameters", model)
    for i in range(8):
        loss = model(rows()).pow(2).mean() / 4
        truth.saved(loss)
        loss.backward()
        truth.gradients(model)
        if i % 4 == 3:
            optimizer.step()
            truth.state(optimizer)
            optimizer.zero_grad()


def zeroed_gradients(truth: Any) -> None:
    model = mlp().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth.says("parameters", model)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=False)
        loss = model(rows()).pow(2).mean()
        truth.saved(loss)
        loss.backward()
        truth.gradients(model)
        optimizer.step()


def train_checkpointed(truth: Any, model: LanguageModel) -> None:
    """A loop that does not ask autograd what the blocks have saved, since it would compute that."""
    optimizer = torch.optim.AdamW(model.parameters())
    truth.says("parameters", model)
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, inputs: truth.says("activations", inputs))
    for _ in range(3):
        logits = model(tokens_of())
        loss = word_loss(logits)
        truth.saved(loss, until=logits)
        truth.says("activations", logits)
        optimizer.zero_grad()
        loss.backward()
        truth.gradients(model)
        optimizer.step()
        truth.state(optimizer)


def checkpointed(truth: Any) -> None:
    train_checkpointed(truth, LanguageModel(checkpoints=False).cuda())


def checkpointed_reentrant(truth: Any) -> None:
    train_checkpointed(truth, LanguageModel(checkpoints=True).cuda())


def inference(truth: Any) -> None:
    model = LanguageModel(6).cuda().eval()
    truth.says("parameters", model)
    with torch.no_grad():
        for _ in range(3):
            x = tokens_of(16)
            truth.says("input", x)
            model(x)


def half_inference(truth: Any) -> None:
    model = mlp(6).half().cuda().eval()
    truth.says("parameters", model)
    with torch.inference_mode():
        for _ in range(3):
            x = rows()
            halves = x.half()
            truth.says("input", x, halves)
            model(halves).softmax(-1)


def generation_with_cache(truth: Any) -> None:
    model = LanguageModel().cuda().eval()
    truth.says("parameters", model)
    past_key_values: list[list[torch.Tensor]] = [[] for _ in model.blocks]
    with torch.inference_mode():
        step = tokens_of(32, 256)
        for _ in range(8):
            step = model(step, past_key_values)[:, -1:].argmax(-1)
            truth.says("caches", past_key_values)


class KVCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(16, 8, 1024, 64, device=DEVICE))
        self.register_buffer("values", torch.zeros(16, 8, 1024, 64, device=DEVICE))


def setup_caches(model: LanguageModel) -> list[KVCache]:
    return [KVCache() for _ in model.blocks]


def static_cache(truth: Any) -> None:
    model = LanguageModel().cuda().eval()
    truth.says("parameters", model)
    caches = setup_caches(model)
    truth.says("caches", [list(each.buffers()) for each in caches])
    with torch.inference_mode():
        model(tokens_of(8, 256))


@contextlib.contextmanager
def runs_out_of_memory() -> Iterator[None]:
    """Requires that its body runs out of memory; otherwise the program fails."""
    try:
        yield
    except torch.OutOfMemoryError:
        return
    raise AssertionError("memory did not run out")


def out_of_memory_in_forward(truth: Any) -> None:
    torch.cuda.set_per_process_memory_fraction(800 * 2**20 / torch.cuda.mem_get_info()[1])
    model = LanguageModel(6).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(truth, model, optimizer, lambda: tokens_of(2), word_loss, 2)
    optimizer.zero_grad()
    x = tokens_of(96)
    truth.says("input", x)
    with runs_out_of_memory(), truth.saving():
        word_loss(model(x)).backward()


def out_of_memory_in_backward(truth: Any) -> None:
    model = mlp(4).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    train(truth, model, optimizer, lambda: torch.randn(64, WIDTH, device=DEVICE), steps=2)
    optimizer.zero_grad()
    x = torch.randn(8 * ROWS, WIDTH, device=DEVICE)
    truth.says("input", x)
    loss = model(x).pow(2).mean()
    truth.saved(loss)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 30 * 2**20) / torch.cuda.mem_get_info()[1])
    with runs_out_of_memory():
        loss.backward()


def out_of_memory_in_step(truth: Any) -> None:
    model = mlp(6).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    truth.says("parameters", model)
    loss = model(torch.randn(64, WIDTH, device=DEVICE)).pow(2).mean()
    truth.saved(loss)
    loss.backward()
    truth.gradients(model)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * 2**20) / torch.cuda.mem_get_info()[1])
    with runs_out_of_memory():
        optimizer.step()
    truth.state(optimizer)


def two_optimizers(truth: Any) -> None:
    generator, critic = mlp().cuda(), mlp(2).cuda()
    of_generator, of_critic = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    truth.says("parameters", generator, critic)
    for _ in range(3):
        made = generator(rows())
        loss = critic(rows()).mean() - critic(made.detach()).mean()
        truth.saved(loss, made)
        of_critic.zero_grad()
        loss.backward()
        truth.gradients(critic)
        of_critic.step()
        loss = critic(made).mean()
        truth.saved(loss)
        of_generator.zero_grad()
        loss.backward()
        truth.gradients(generator, critic)
        of_generator.step()
        truth.state(of_generator, of_critic)


def gradient_penalty(truth: Any) -> None:
    model = mlp(2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    truth.says("parameters", model)
    for _ in range(3):
        x = rows().requires_grad_()
        truth.says("input", x)
        output = model(x)
        truth.saved(output)
        slope, = torch.autograd.grad(output.sum(), x, create_graph=True)
        loss = output.mean() + (slope.norm(2, 1) - 1).pow(2).mean()
        truth.saved(loss)
        optimizer.zero_grad()
        loss.backward()
        truth.gradients(model)
        optimizer.step()
        truth.state(optimizer)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x.clone())
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        x, = ctx.saved_tensors
        return 2 * x * gradient


def function_of_ones_own(truth: Any) -> None:
    model = mlp().cuda()
    train(truth, model, torch.optim.Adam(model.parameters()), rows, lambda output: Squared.apply(output).mean())


def frozen_with_adapters(truth: Any) -> None:
    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a, self.b = nn.Linear(WIDTH, 32, bias=False), nn.Linear(32, WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.b(self.a(x))

    model = nn.Sequential(*(Adapted(nn.Linear(WIDTH, WIDTH)) for _ in range(8))).cuda()
    train(truth, model, torch.optim.AdamW(each for each in model.parameters() if each.requires_grad), rows)


def averaged_weights(truth: Any) -> None:
    model = mlp().cuda()
    average = copy.deepcopy(model)
    truth.says("parameters", average)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        train(truth, model, optimizer, rows, steps=1)
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters()):
                kept.lerp_(new, 0.01)


def target_network(truth: Any) -> None:
    online, target = mlp().cuda(), mlp().cuda()
    target.load_state_dict(online.state_dict())
    truth.says("parameters", online, target)
    replay = torch.zeros(4 * ROWS, WIDTH, device=DEVICE)
    truth.says("input", replay)
    optimizer = torch.optim.Adam(online.parameters())
    for _ in range(3):
        batch = replay[torch.randint(0, 4 * ROWS, (ROWS,), device=DEVICE)]
        with torch.no_grad():
            wanted = target(batch).amax(1)
        loss = F.smooth_l1_loss(online(batch).amax(1), wanted)
        truth.saved(loss)
        optimizer.zero_grad()
        loss.backward()
        truth.gradients(online)
        optimizer.step()
        truth.state(optimizer)


def tensors_without_modules(truth: Any) -> None:
    weights = [torch.randn(WIDTH, WIDTH, device=DEVICE, requires_grad=True) for _ in range(4)]
    truth.says("parameters", weights)
    for _ in range(3):
        x = rows()
        truth.says("input", x)
        for weight in weights:
            x = torch.relu(x @ weight)
        loss = x.mean()
        truth.saved(loss)
        loss.backward()
        truth.says("gradients", [weight.grad for weight in weights])
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1 * weight.grad
                weight.grad = None


def parameters_made_in_init(truth: Any) -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ParameterList(nn.Parameter(torch.empty(WIDTH, WIDTH, device=DEVICE).normal_()) for _ in range(4))
            self.register_buffer("scale", torch.ones(WIDTH, WIDTH, device=DEVICE))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for expert in self.experts:
                x = torch.tanh(x @ (expert * self.scale))
            return x

    model = Mixture()
    train(truth, model, torch.optim.Adam(model.parameters()), rows)


def sparse_embedding(truth: Any) -> None:
    model = nn.EmbeddingBag(40_000, 256, sparse=True, mode="sum").cuda()
    train(truth, model, torch.optim.SparseAdam(model.parameters()),
          lambda: torch.randint(0, 40_000, (4096, 16), device=DEVICE))


def features_kept(truth: Any) -> None:
    model = mlp().cuda().eval()
    truth.says("parameters", model)
    features: list[torch.Tensor] = []
    with torch.no_grad():
        for _ in range(6):
            x = rows()
            truth.says("input", x)
            features.append(model(x))
            truth.says("kept", features)


def losses_kept(truth: Any) -> None:
    model = mlp(2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth.says("parameters", model)
    outputs = []
    for _ in range(8):
        output = model(rows())
        outputs.append(output.detach())
        loss = output.pow(2).mean()
        truth.saved(loss)
        truth.says("kept", outputs[:-2])
        optimizer.zero_grad()
        loss.backward()
        truth.gradients(model)
        optimizer.step()


def evaluation_between(truth: Any) -> None:
    model = mlp().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    train(truth, model, optimizer, rows, steps=2)
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4 * ROWS, WIDTH, device=DEVICE)
            truth.says("input", x)
            model(x).argmax(-1).cpu()
    model.train()
    train(truth, model, optimizer, rows, steps=1)


def per_sample_gradients(truth: Any) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 16)).cuda()
    truth.says("parameters", model)
    parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss_of(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x.unsqueeze(0),)).pow(2).mean()

    gradients = torch.func.vmap(torch.func.grad(loss_of), (None, 0))(parameters, torch.randn(64, 256, device=DEVICE))
    truth.says("gradients", gradients)


def second_order_optimizer(truth: Any) -> None:
    model = mlp(2).cuda()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, history_size=3)
    truth.says("parameters", model)
    x = rows()
    truth.says("input", x)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        truth.saved(loss)
        loss.backward()
        truth.gradients(model)
        truth.state(optimizer)
        return loss

    for _ in range(2):
        optimizer.step(closure)
        truth.state(optimizer)


def memory_efficient_optimizer(truth: Any) -> None:
    model = mlp().cuda()
    train(truth, model, torch.optim.Adafactor(model.parameters()), rows)


def recorded_late(truth: Any) -> None:
    model = mlp().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    train(truth, model, optimizer, rows, steps=2)
    truth.record()
    truth.says("parameters", model)
    truth.state(optimizer)
    train(truth, model, optimizer, rows, steps=2)


def recorded_late_in_inference(truth: Any) -> None:
    model = mlp(6).cuda().eval()
    with torch.no_grad():
        model(rows())
        truth.record()
        truth.says("parameters", model)
        for _ in range(3):
            x = rows()
            truth.says("input", x)
            model(x)


def one_process(truth: Any) -> None:
    """A process group with one rank."""
    truth.is_distributed = True
    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)


def distributed_data_parallel(truth: Any) -> None:
    one_process(truth)
    inner = mlp().cuda()
    model = nn.parallel.DistributedDataParallel(inner, device_ids=[0], gradient_as_bucket_view=False)
    train(truth, model, torch.optim.AdamW(model.parameters()), rows)


def fully_sharded_flat(truth: Any) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    one_process(truth)
    model = FullyShardedDataParallel(LanguageModel().cuda(), device_id=0, use_orig_params=True)
    train(truth, model, torch.optim.AdamW(model.parameters()), tokens_of, word_loss)


def fully_sharded(truth: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    one_process(truth)
    model = LanguageModel().cuda()
    for module in [*model.blocks, model]:
        fully_shard(module)
        module.register_forward_hook(lambda module, inputs, output: truth.says("communication", list(module.parameters())))
    train(truth, model, torch.optim.AdamW(model.parameters()), tokens_of, word_loss)


PROGRAMS: list[Callable[[Any], None]] = [
    adam, adam_fused, adam_one_by_one, sgd_momentum, rmsprop, adagrad, half_of_cuda, bfloat16_to, bfloat16_then_float, made_on_device,
    default_device, meta_device, lazy_modules, state_dict_copied, state_dict_assigned, convolutions, u_net, transformer,
    encoder_of_torch, recurrent, mixed_precision, accumulated_gradients, zeroed_gradients, checkpointed, checkpointed_reentrant,
    inference, half_inference, generation_with_cache, static_cache, out_of_memory_in_forward, out_of_memory_in_backward,
    out_of_memory_in_step, two_optimizers, gradient_penalty, function_of_ones_own, frozen_with_adapters, averaged_weights,
    target_network, tensors_without_modules, parameters_made_in_init, sparse_embedding, features_kept, losses_kept,
    evaluation_between, per_sample_gradients, second_order_optimizer, memory_efficient_optimizer, recorded_late,
    recorded_late_in_inference, distributed_data_parallel, fully_sharded_flat, fully_sharded,
]


# Programs over libraries, which must be installed: a program imports what it needs.


def transformers_classifier(truth: Any) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(hidden_size=384, num_hidden_layers=4, num_attention_heads=6,
                                                     intermediate_size=1536)).to(DEVICE)
    train(truth, model, torch.optim.AdamW(model.parameters()), lambda: torch.randint(0, 30_000, (16, 128), device=DEVICE),
          lambda output: F.cross_entropy(output.logits, torch.zeros(16, dtype=torch.long, device=DEVICE)))


def transformers_trainer(truth: Any) -> None:
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Says(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            truth.says("parameters", model)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
            truth.gradients(model)

        def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any) -> None:
            truth.state(getattr(optimizer, "optimizer", optimizer))

    model = GPT2LMHeadModel(GPT2Config(n_embd=384, n_layer=4, n_head=6))
    words = [{"input_ids": torch.zeros(128, dtype=torch.long), "labels": torch.zeros(128, dtype=torch.long)} for _ in range(32)]
    with truth.saving(), tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, TrainingArguments(folder, per_device_train_batch_size=8, max_steps=3, report_to=[], save_strategy="no",
                                                   disable_tqdm=True), train_dataset=words, callbacks=[Says()])
        trainer.train()


def transformers_generation(truth: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=1024,
                                         vocab_size=8000)).half().to(DEVICE).eval()
    truth.says("parameters", model)
    step, cache = tokens_of(32, 512), None
    with torch.no_grad():
        for _ in range(6):
            output = model(step, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            truth.says("caches", [[layer.keys, layer.values] for layer in cache.layers])
            step = output.logits[:, -1:].argmax(-1)


def peft_adapters(truth: Any) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    model = get_peft_model(GPT2LMHeadModel(GPT2Config(n_embd=384, n_layer=6, n_head=6)), LoraConfig(r=16, target_modules=["c_attn"]))
    model = model.to(DEVICE)
    train(truth, model, torch.optim.AdamW(each for each in model.parameters() if each.requires_grad),
          lambda: torch.randint(0, 50_000, (8, 128), device=DEVICE), lambda output: output.logits.float().logsumexp(-1).mean())


def timm_vision_transformer(truth: Any) -> None:
    import timm

    model = timm.create_model("vit_tiny_patch16_224").cuda()
    train(truth, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), lambda: torch.randn(32, 3, 224, 224, device=DEVICE),
          lambda output: F.cross_entropy(output, torch.zeros(32, dtype=torch.long, device=DEVICE)))


def torchvision_resnet(truth: Any) -> None:
    import torchvision

    model = torchvision.models.resnet18().to(DEVICE, memory_format=torch.channels_last)
    train(truth, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), lambda: torch.randn(32, 3, 128, 128, device=DEVICE),
          lambda output: F.cross_entropy(output, torch.zeros(32, dtype=torch.long, device=DEVICE)))


def lightning_module(truth: Any) -> None:
    import logging

    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = mlp()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            truth.says("input", batch)
            return F.mse_loss(self.model(batch), batch)

        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            truth.says("parameters", self)
            truth.gradients(self)

        def on_train_batch_end(self, *_: Any) -> None:
            truth.state(self.optimizers().optimizer)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with truth.saving():
        module = Module()
        trainer = lightning.Trainer(max_steps=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                    enable_model_summary=False)
        trainer.fit(module, torch.utils.data.DataLoader(torch.randn(3 * ROWS, WIDTH), batch_size=ROWS))


def diffusers_u_net(truth: Any) -> None:
    from diffusers import UNet2DModel

    model = UNet2DModel(64, block_out_channels=(64, 128), down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                        up_block_types=("AttnUpBlock2D", "UpBlock2D")).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    truth.says("parameters", model)
    for _ in range(3):
        noise = torch.randn(4, 3, 64, 64, device=DEVICE)
        truth.says("input", noise)
        loss = F.mse_loss(model(noise, torch.zeros(4, dtype=torch.long, device=DEVICE)).sample, noise)
        truth.saved(loss)
        loss.backward()
        truth.gradients(model)
        optimizer.step()
        truth.state(optimizer)
        optimizer.zero_grad()


def graph_network(truth: Any) -> None:
    from torch_geometric.nn import GCNConv

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(512, 512), GCNConv(512, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(F.relu(self.first(x, edges)), edges)

    edges = torch.randint(0, 8000, (2, 40_000), device=DEVICE)
    model = Network().to(DEVICE)
    train(truth, model, torch.optim.Adam(model.parameters()), lambda: torch.randn(8000, 512, device=DEVICE))


def accelerated(truth: Any) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    model = mlp()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    truth.says("parameters", model)
    for _ in range(3):
        x = rows()
        truth.says("input", x)
        loss = model(x).pow(2).mean()
        truth.saved(loss)
        accelerator.backward(loss)
        truth.gradients(model)
        optimizer.step()
        truth.state(optimizer.optimizer)
        optimizer.zero_grad()


LIBRARY_PROGRAMS: list[Callable[[Any], None]] = [
    transformers_classifier, transformers_trainer, transformers_generation, peft_adapters, timm_vision_transformer,
    torchvision_resnet, lightning_module, diffusers_u_net, graph_network, accelerated,
]
