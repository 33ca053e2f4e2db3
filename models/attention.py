"""A transformer layer, shared by the models of text and of images. Knows no model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STD = 0.02
"""Standard deviation of initial weights (Radford et al. 2019)."""


class Layer(nn.Module):
    """A pre-norm transformer layer: attention, then two linear layers with GELU, each with a residual connection. Shape [n,
    t, width] -> the same."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer. If it is causal, a token attends to itself and to earlier tokens only."""
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
    """Draw normal weights and set biases to zero. The weights of layers that feed a residual connection are divided by
    sqrt(2 * layers), because each layer has two."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d):
            module.weight.normal_(std=STD)
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            module.bias.zero_()
    for module in model.modules():
        if isinstance(module, Layer):
            for linear in (module.outputs, module.down):
                linear.weight.div_(math.sqrt(2 * layers))
