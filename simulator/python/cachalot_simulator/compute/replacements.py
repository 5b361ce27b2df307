"""CPU functions for operations that have kernels for CUDA alone, or for more types there. The arguments are those of the
operation; types that the CPU does not compute with come as float32.

Attention is computed by its definition, without dropout. Its logarithm of the sum of exponentials is padded as the CUDA
kernels pad it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

EFFICIENT_ROWS = 32  # logsumexp of the memory-efficient kernel has a multiple of this number of queries

batch_norm = torch.ops.aten.native_batch_norm
batch_norm_backward = torch.ops.aten.native_batch_norm_backward


def cudnn_batch_norm(input: Tensor, weight: Tensor, bias: Tensor | None, running_mean: Tensor | None,
                     running_var: Tensor | None, training: bool, momentum: float, epsilon: float) -> Any:
    values = batch_norm(input, weight, bias, running_mean, running_var, training, momentum, epsilon)
    return (*values, torch.empty(0, dtype=torch.uint8, device="cpu"))


def cudnn_batch_norm_backward(input: Tensor, grad: Tensor, weight: Tensor, running_mean: Tensor | None,
                              running_var: Tensor | None, mean: Tensor, scale: Tensor, epsilon: float, reserve: Tensor) -> Any:
    return batch_norm_backward(grad, input, weight, running_mean, running_var, mean, scale, True, epsilon, [True] * 3)


class Attention:
    """Scaled dot-product attention of tensors [batch, heads, length, width]."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, is_causal: bool,
                 scale: float | None) -> None:
        if dropout:
            raise ValueError("dropout inside attention is not computed")
        self.query, self.key, self.value = query.float(), key.float(), value.float()
        self.scale = query.size(-1) ** -0.5 if scale is None else scale
        scores = self.query @ self.key.transpose(-2, -1) * self.scale
        if bias is not None:
            scores = scores + bias
        if is_causal:
            scores = scores + torch.full(scores.shape[-2:], float("-inf"), device="cpu").triu(1)
        self.log_sum = torch.logsumexp(scores, -1)
        self.weights = torch.softmax(scores, -1)

    def forward(self) -> Tensor:
        return self.weights @ self.value

    def backward(self, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of query, key, value and bias."""
        grad = grad.float()
        of_weights = grad @ self.value.transpose(-2, -1)
        of_scores = self.weights * (of_weights - (of_weights * self.weights).sum(-1, keepdim=True))
        of_query = of_scores @ self.key * self.scale
        of_key = of_scores.transpose(-2, -1) @ self.query * self.scale
        return of_query, of_key, self.weights.transpose(-2, -1) @ grad, of_scores


def flash_attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
                    return_debug_mask: bool = False, *, scale: float | None = None) -> Any:
    attention = Attention(query, key, value, None, dropout_p, is_causal, scale)
    return attention.forward(), attention.log_sum


def flash_attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sum: Tensor,
                             starts_q: Any, starts_k: Any, most_q: int, most_k: int, dropout_p: float, is_causal: bool,
                             seed: Any, offset: Any, *, scale: float | None = None) -> Any:
    return Attention(query, key, value, None, dropout_p, is_causal, scale).backward(grad)[:3]


def efficient_attention(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
                        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None) -> Any:
    attention = Attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    padding = -query.size(-2) % EFFICIENT_ROWS
    log_sum = torch.nn.functional.pad(attention.log_sum, (0, padding)) if compute_log_sumexp else attention.log_sum[..., :0]
    return attention.forward(), log_sum


def efficient_attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
                                 out: Tensor, log_sum: Tensor, seed: Any, offset: Any, dropout_p: float,
                                 mask: list[bool], is_causal: bool = False, *, scale: float | None = None) -> Any:
    return Attention(query, key, value, attn_bias, dropout_p, is_causal, scale).backward(grad)


def cudnn_attention(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
                    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
                    scale: float | None = None) -> Any:
    attention = Attention(query, key, value, attn_bias, dropout_p, is_causal, scale)
    return attention.forward(), attention.log_sum.unsqueeze(-1)


def cudnn_attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sum: Tensor,
                             seed: Any, offset: Any, attn_bias: Tensor | None, starts_q: Any, starts_k: Any, most_q: int,
                             most_k: int, dropout_p: float, is_causal: bool, *, scale: float | None = None) -> Any:
    return Attention(query, key, value, attn_bias, dropout_p, is_causal, scale).backward(grad)[:3]


def embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
                  sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
                  padding_idx: int = -1) -> Any:
    """The CPU's kernel leaves out which bag each index is in, and how many a bag has, where it does not need them."""
    results = torch.ops.aten._embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
                                            include_last_offset, padding_idx)
    bags = torch.searchsorted(offsets, torch.arange(len(indices), dtype=offsets.dtype, device="cpu"), right=True) - 1
    counts = torch.bincount(bags[indices != padding_idx], minlength=len(offsets))
    return results[0], bags.to(indices.dtype), counts.to(indices.dtype), results[3]


def histc(values: Tensor, bins: int = 100, least: float = 0, most: float = 0) -> Tensor:
    """The CPU's kernel takes real numbers alone."""
    counts = torch.ops.aten.histc(values if values.is_floating_point() else values.double(), bins, least, most)
    return counts.to(values.dtype)


REPLACEMENTS = {
    "aten::histc": histc,
    "aten::_embedding_bag": embedding_bag,
    "aten::cudnn_batch_norm": cudnn_batch_norm,
    "aten::cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "aten::_scaled_dot_product_flash_attention": flash_attention,
    "aten::_scaled_dot_product_flash_attention_backward": flash_attention_backward,
    "aten::_scaled_dot_product_efficient_attention": efficient_attention,
    "aten::_scaled_dot_product_efficient_attention_backward": efficient_attention_backward,
    "aten::_scaled_dot_product_cudnn_attention": cudnn_attention,
    "aten::_scaled_dot_product_cudnn_attention_backward": cudnn_attention_backward,
}
