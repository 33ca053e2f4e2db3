"""A layer of a transformer, as the models of text and of images share it. Knows no model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STD = 0.02
"""Of initial weights (Radford et al. 2019)."""


class Layer(nn.Module):
    """Attention, then two linear layers with GELU; norms before them, shortcuts around them. [n, t, width] -> the same."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: where it is causal, a token sees itself and those before it."""
        x = x + self._drop(self._attend(self.norm1(x)))
        return x + self._drop(self.down(F.gelu(self.up(self.norm2(x)))))

    def _attend(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        query, key, value = self.inputs(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        chance = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=chance, is_causal=self.causal)
        out: Tensor = self.outputs(mixed.transpose(1, 2).reshape(n, length, width))
        return out

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


@torch.no_grad()
def initialise(model: nn.Module, layers: int) -> None:
    """Draw normal weights and set biases to zero; what adds to the shortcuts is smaller, for there are two in each layer."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d):
            module.weight.normal_(std=STD)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            module.bias.zero_()
    for module in model.modules():
        if isinstance(module, Layer):
            for linear in (module.outputs, module.down):
                linear.weight.div_(math.sqrt(2 * layers))
