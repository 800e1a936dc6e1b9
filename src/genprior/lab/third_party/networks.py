"""The networks as modules of our own, with the sizes that their weights have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]
_SLOPE = 0.01
"""Of the leaky ReLU in the encoder of Pulse2Pulse."""
_KERAS_EPSILON = 1e-3
"""Of batch normalisation in Keras."""


class FaceNetwork(nn.Module):
    """DCGAN: latents ``(B, latent, 1, 1)`` to images ``(B, channels, 64, 64)`` in [-1, 1].

    Five transposed convolutions with 4 x 4 kernels, the first from one pixel to 4 x 4, the others of stride 2; batch
    normalisation and ReLU between, tanh at the end.
    """

    def __init__(self, latent: int, widths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(latent, widths[0], 4, bias=False)]
        for inside, outside in itertools.pairwise(widths):
            layers += [nn.BatchNorm2d(inside), nn.ReLU(), nn.ConvTranspose2d(inside, outside, 4, 2, 1, bias=False)]
        self.main = nn.Sequential(*layers, nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        """Latents to images."""
        x: Tensor = self.main(z)
        return x


def face_network(weights: Weights) -> FaceNetwork:
    """The network whose sizes these weights have."""
    kernels = [value for value in weights.values() if value.ndim == 4]
    return FaceNetwork(kernels[0].shape[0], [kernel.shape[1] for kernel in kernels])


class GlitchNetwork(nn.Sequential):
    """Wasserstein GAN: latents ``(B, latent)`` to time series ``(B, length)``.

    A fully connected layer to a short series of ``widths[0]`` channels, then blocks that double its length: nearest
    neighbours, convolution to the next width, batch normalisation, ReLU; the last block is the convolution alone.

    The convolutions keep the length: with the padding "same" of Keras, a kernel of 18 gets 8 zeros on the left and 9 on
    the right.
    """

    def __init__(self, latent: int, start: int, widths: Sequence[int], kernel: int) -> None:
        layers: list[nn.Module] = [
            nn.Linear(latent, widths[0] * start),
            nn.ReLU(),
            nn.Unflatten(1, (widths[0], start)),
        ]
        left = (kernel - 1) // 2
        for inside, outside in itertools.pairwise(widths):
            layers += [
                nn.Upsample(scale_factor=2.0, mode="nearest"),
                nn.ConstantPad1d((left, kernel - 1 - left), 0.0),
                nn.Conv1d(inside, outside, kernel, bias=False),
                nn.BatchNorm1d(outside, eps=_KERAS_EPSILON),
                nn.ReLU(),
            ]
        super().__init__(*layers[:-2], nn.Flatten())


def glitch_network(found: Weights, label: int) -> tuple[GlitchNetwork, Weights]:
    """The network for one class, with its weights in torch's layout.

    Keras feeds the latent and an embedding of the class to one layer without bias. For a fixed class the part of the
    embedding is a constant: the bias of a layer of the latent alone.
    """
    table, dense = found["dense/vars/0"], found["dense_1/vars/0"]
    kernels = [found[f"{name}/vars/0"] for name in _numbered("conv1d", found)]
    widths = [kernels[0].shape[1], *(kernel.shape[2] for kernel in kernels)]
    latent, start = dense.shape[0] - table.shape[1], dense.shape[1] // widths[0]
    network = GlitchNetwork(latent, start, widths, kernels[0].shape[0])
    # Keras puts channels last: its features are numbered (time, channel), those of torch (channel, time).
    by_channel = dense.reshape(len(dense), start, widths[0]).transpose(1, 2).flatten(1)
    weights = {"0.weight": by_channel[:latent].T, "0.bias": table[label] @ by_channel[latent:]}
    convolutions = [name for name, part in network.named_children() if isinstance(part, nn.Conv1d)]
    normalisations = [name for name, part in network.named_children() if isinstance(part, nn.BatchNorm1d)]
    weights |= {f"{name}.weight": kernel.permute(2, 1, 0) for name, kernel in zip(convolutions, kernels, strict=True)}
    for name, keras in zip(normalisations, _numbered("batch_normalization", found), strict=True):
        parts = ("weight", "bias", "running_mean", "running_var")
        weights |= {f"{name}.{part}": found[f"{keras}/vars/{number}"] for number, part in enumerate(parts)}
        weights[f"{name}.num_batches_tracked"] = torch.tensor(0)
    return network, weights


class PulseNetwork(nn.Module):
    """Pulse2Pulse: noise ``(B, leads, length)`` to signals of the same shape in [-1, 1].

    A U-Net in one dimension with kernels of 25: six convolutions with strides shorten the signal 2500 times, nearest
    neighbours and six more convolutions bring it back. All of these but the first and the last also see what the encoder
    had at that length.
    """

    strides = (2, 5, 2, 5, 5, 5)
    factors = (5, 5, 5, 2, 5, 2)

    def __init__(self, leads: int, down: Sequence[int], kernel: int = 25) -> None:
        super().__init__()
        half = kernel // 2
        pairs = itertools.pairwise((leads, *down))
        self.down = nn.ModuleList(
            nn.Conv1d(*pair, kernel, stride, half) for pair, stride in zip(pairs, self.strides, strict=True)
        )
        inside = (down[5], 2 * down[4], 2 * down[3], 2 * down[2], 2 * down[1], down[0])
        outside = (*down[4::-1], leads)
        self.up = nn.ModuleList(nn.Conv1d(*pair, kernel, 1, half) for pair in zip(inside, outside, strict=True))

    def forward(self, z: Tensor) -> Tensor:
        """Noise to signals."""
        x, passed = z, []
        for layer in self.down:
            x = nn.functional.leaky_relu(layer(x), _SLOPE)
            passed.append(x)
        beside = (None, passed[4], passed[3], passed[2], passed[1], None)
        activations = (*[torch.relu] * 5, torch.tanh)
        for layer, factor, other, activation in zip(self.up, self.factors, beside, activations, strict=True):
            x = x if other is None else torch.cat((x, other), dim=1)
            x = activation(layer(nn.functional.interpolate(x, scale_factor=float(factor), mode="nearest")))
        return x


def pulse_network(found: Weights) -> tuple[PulseNetwork, Weights]:
    """The network, and those of the weights that it uses, under our names: the file also holds layers that are never run."""
    names = {f"down.{n}": f"conv_{n + 1}" for n in range(6)}
    names |= {f"up.{n}": f"deconv_{number}.conv1d" for n, number in enumerate((1, 2, 3, 5, 6, 7))}
    weights = {
        f"{ours}.{part}": found[f"{theirs}.{part}"] for ours, theirs in names.items() for part in ("weight", "bias")
    }
    kernels = [weights[f"down.{n}.weight"] for n in range(6)]
    return PulseNetwork(kernels[0].shape[1], [len(kernel) for kernel in kernels], kernels[0].shape[2]), weights


def _numbered(name: str, found: Weights) -> Iterator[str]:
    """Names of layers of one type, in their order: ``conv1d``, ``conv1d_1``, ..."""
    names = itertools.chain((name,), (f"{name}_{number}" for number in itertools.count(1)))
    return itertools.takewhile(lambda layer: f"{layer}/vars/0" in found, names)
