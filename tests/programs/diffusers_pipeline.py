# requires: diffusers
# simulate: --gpu l4
# unknown: value
"""Trains a small UNet of diffusers to remove noise, and samples images with its DDPM and DDIM pipelines."""

import math

import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel, compute_snr

SIZE, STEPS = 32, 3


def main() -> None:
    torch.manual_seed(0)
    model = UNet2DModel(sample_size=SIZE, in_channels=3, out_channels=3, layers_per_block=1, norm_num_groups=8,
                        block_out_channels=(16, 32, 32), down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
                        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D")).cuda()
    noise_of = DDPMScheduler(num_train_timesteps=100)
    average = EMAModel(model.parameters(), decay=0.99)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 1, STEPS)
    for _ in range(STEPS):
        clean = torch.rand(4, 3, SIZE, SIZE, device="cuda") * 2 - 1
        noise = torch.randn_like(clean)
        times = torch.randint(0, 100, (4,), device="cuda")
        noisy = noise_of.add_noise(clean, noise, times)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            predicted = model(noisy, times, return_dict=False)[0]
        ratio = compute_snr(noise_of, times)
        weight = torch.minimum(ratio, torch.full_like(ratio, 5.0)) / ratio
        loss = ((predicted.float() - noise) ** 2).mean(dim=(1, 2, 3)).mul(weight).mean()
        assert predicted.shape == clean.shape and math.isfinite(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average.step(model.parameters())
    average.copy_to(model.parameters())
    model.eval()
    sampled = DDPMPipeline(model, noise_of)
    sampled.set_progress_bar_config(disable=True)
    images = sampled(batch_size=2, num_inference_steps=5, generator=torch.Generator("cuda").manual_seed(1)).images
    assert [image.size for image in images] == [(SIZE, SIZE)] * 2
    implicit = DDIMPipeline(model, DDIMScheduler.from_config(noise_of.config))
    implicit.set_progress_bar_config(disable=True)
    pixels = implicit(batch_size=3, num_inference_steps=4, eta=0.5, output_type="np").images
    assert pixels.shape == (3, SIZE, SIZE, 3) and 0 <= pixels.min() and pixels.max() <= 1
    assert list(noise_of.timesteps.tolist()) == [80, 60, 40, 20, 0]
    print(f"{STEPS} steps, 5 images")


main()
