"""Small trained networks in numpy: a few dense layers cost less than a call of a tensor library.

A folder holds `config.json` (kind and training facts) and `model.safetensors`, matrices in 16
bits. Each network is a sequence of dense layers over standardised inputs; all but the last are
followed by an activation, and a residual network adds the output of each hidden layer that keeps
the width to its input.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.common.drafter_store import CONFIG, WEIGHTS, check_heads, choose
from sapwood.common.fingerprint import Fingerprint
from sapwood.core.array_types import FloatArray
from sapwood.errors import SapwoodError


def sigmoid(values: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), without overflow."""
    found: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * values))
    return found


def silu(values: FloatArray) -> FloatArray:
    """Input times its sigmoid."""
    return values * sigmoid(values)


def relu(values: FloatArray) -> FloatArray:
    """The positive part."""
    found: FloatArray = np.maximum(values, 0.0)
    return found


ACTIVATIONS: dict[str, Callable[[FloatArray], FloatArray]] = {"silu": silu, "relu": relu}


@dataclass(frozen=True)
class NumpyMlp:
    """A sequence of dense layers, float32."""

    weights: list[FloatArray]  # of each layer, [out, in]
    biases: list[FloatArray]  # of each layer, [out]
    mean: FloatArray  # of the inputs, [in]
    scale: FloatArray  # of the inputs, [in]
    activation: str = "relu"
    residual: bool = False  # hidden layers that keep the width add to their input

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Outputs [..., out] of inputs [..., in]."""
        act = ACTIVATIONS[self.activation]
        values: FloatArray = (np.asarray(inputs, np.float32) - self.mean) / self.scale
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            after = act(values @ weight.T + bias)
            values = values + after if self.residual and square(weight) else after
        last: FloatArray = values @ self.weights[-1].T + self.biases[-1]
        return last

    @property
    def width(self) -> int:
        """Numbers of one input."""
        return len(self.mean)

    def tensors(self, prefix: str) -> dict[str, FloatArray]:
        """Tensors by name, as they are stored; only the matrices are in 16 bits."""
        layers: dict[str, FloatArray] = {
            f"{prefix}.{index}.{name}": np.ascontiguousarray(value, kind)
            for name, values, kind in (
                ("weight", self.weights, np.float16),
                ("bias", self.biases, np.float32),
            )
            for index, value in enumerate(values)
        }
        return {**layers, f"{prefix}.mean": self.mean, f"{prefix}.scale": self.scale}

    @classmethod
    def of(
        cls, tensors: Mapping[str, FloatArray], prefix: str, activation: str, residual: bool
    ) -> "NumpyMlp":
        """A network from its stored tensors, as float32."""
        tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
        count = sum(name.startswith(f"{prefix}.") and name.endswith(".weight") for name in tensors)
        return cls(
            [tensors[f"{prefix}.{index}.weight"] for index in range(count)],
            [tensors[f"{prefix}.{index}.bias"] for index in range(count)],
            tensors[f"{prefix}.mean"],
            tensors[f"{prefix}.scale"],
            activation,
            residual,
        )


def square(weight: Any) -> bool:
    """True for a layer that keeps the width."""
    return bool(weight.shape[0] == weight.shape[1])


def random_mlp(
    widths: Sequence[int], seed: int, *, activation: str = "relu", residual: bool = False
) -> NumpyMlp:
    """A network with random weights and unscaled inputs; the last layer starts at zero."""
    noise = np.random.default_rng(seed)
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    weights = [noise.normal(0, np.sqrt(2 / inner), (outer, inner)) for outer, inner in shapes]
    weights[-1] = np.zeros(shapes[-1])
    if residual:
        # close to the identity, whatever the depth
        weights[:-1] = [0.1 * weight if square(weight) else weight for weight in weights[:-1]]
    return NumpyMlp(
        [weight.astype(np.float32) for weight in weights],
        [np.zeros(outer, np.float32) for outer, _ in shapes],
        np.zeros(widths[0], np.float32),
        np.ones(widths[0], np.float32),
        activation,
        residual,
    )


@dataclass(frozen=True)
class MlpBundle:
    """The networks of one trained part, and the facts it was trained with."""

    kind: str
    nets: dict[str, NumpyMlp]
    facts: dict[str, Any] = field(default_factory=dict)  # numbers and names, as JSON holds them

    def save(self, folder: Path) -> None:
        """Write config, then weights atomically, so that an incomplete bundle is never found."""
        from safetensors.numpy import save

        folder.mkdir(parents=True, exist_ok=True)
        shapes = {
            name: {"activation": net.activation, "residual": net.residual}
            for name, net in self.nets.items()
        }
        config = {"kind": self.kind, "nets": shapes, **self.facts}
        (folder / CONFIG).write_text(json.dumps(config, indent=1))
        tensors = {
            key: value
            for name, net in self.nets.items()
            for key, value in net.tensors(name).items()
        }
        draft = folder / f"{WEIGHTS}.tmp"
        draft.write_bytes(save(tensors))
        draft.replace(folder / WEIGHTS)


def load(
    weights: str,
    kind: str,
    model: str,
    fingerprint: Fingerprint | None = None,
    heads: Mapping[str, str] | None = None,
) -> MlpBundle:
    """The trained part in this folder, or the one found for the model.

    Where `heads` are given, the heads that a drafter uses, it must have been fitted to those.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    folder = choose(weights, kind, model, fingerprint)
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
        tensors = load_file(folder / WEIGHTS)
        nets = {
            name: NumpyMlp.of(tensors, name, **shape) for name, shape in config.pop("nets").items()
        }
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise SapwoodError(
            f"{folder} holds no trained {kind} that can be read; train it again"
        ) from error
    found = config.pop("kind", "")
    if found != kind:
        raise SapwoodError(
            f"{folder} holds a trained {found or 'something'}, not {kind}; name another folder"
        )
    fitted = config.get("about", {}).get("heads", {})
    if heads is not None:
        check_heads(folder, kind, model, fitted, heads)
    return MlpBundle(kind, nets, config)


def kind_in(folder: Path) -> str:
    """The kind of trained part in a folder, empty if there is none."""
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (OSError, ValueError):
        return ""
    return str(config.get("kind", "")) if isinstance(config, dict) else ""


def as_float32(state: Any) -> FloatArray:
    """A tensor of any device or library as a float32 numpy array."""
    if hasattr(state, "detach"):
        state = state.detach().float().cpu().numpy()
    found: FloatArray = np.asarray(state, np.float32)
    return found


def check_width(net: NumpyMlp, width: int, what: str) -> None:
    """Refuse inputs of another width than the network was trained on."""
    if net.width != width:
        raise SapwoodError(
            f"{what} was trained on {net.width} inputs and gets {width}; train it for this model"
        )
