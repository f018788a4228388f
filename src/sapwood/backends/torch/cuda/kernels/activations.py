"""Gate activations and soft caps, inside other kernels."""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False

import triton
import triton.language as tl

# activations of a gate; True: the approximation of GELU by tanh, else SiLU
IS_GELU = {"silu": False, "swish": False, "gelu_pytorch_tanh": True}


@triton.jit
def open_gate(gate, up, gelu: tl.constexpr):
    """The activation of a gate times the other half of an MLP's inner row."""
    if gelu:  # x (1 + tanh(y)) / 2 is x sigmoid(2 y)
        near = 1.5957691216057308 * (gate + 0.044715 * (gate * gate * gate))  # 2 sqrt(2 / pi)
        made = gate * tl.sigmoid(near) * up
    else:
        made = gate * tl.sigmoid(gate) * up
    return made


@triton.jit
def soft_cap(x, cap: tl.constexpr):
    """The soft cap cap * tanh(x / cap); x itself if the cap is 0."""
    if cap > 0:
        x = cap * (2 * tl.sigmoid(x * (2 / cap)) - 1)
    return x
