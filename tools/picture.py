"""Make docs/what.png: six types of damage; what was given, what came back, the truth.

python tools/picture.py docs/what.png
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import genprior as gp
from genprior import samples
from genprior.report.sheets import grid

COUNT = 4
Case = tuple[Tensor, Tensor, Tensor]
"""Given (as an image), recovered, truth."""


def main(path: Path) -> None:
    """Solve the six problems and draw them."""
    figure = Figure(figsize=(12, 7.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    for part, (title, make) in zip(figure.subfigures(2, 3).flat, cases().items(), strict=True):
        part.suptitle(title, fontsize=13)
        axes = part.subplots(3, 1)
        for axis, label, images in zip(axes, ("given", "recovered", "truth"), make(), strict=True):
            sheet = grid(images, COUNT).numpy()
            axis.imshow(sheet.squeeze(-1) if sheet.shape[2] == 1 else sheet, cmap="gray", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            axis.set_frame_on(False)
            axis.set_ylabel(label, fontsize=11)
        print(title)
    figure.savefig(path, dpi=80)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # a third of the size


def cases() -> dict[str, Callable[[], Case]]:
    """A title and a problem for each panel."""
    G = gp.load_generator("mnist")
    digits, labels = samples.digits(COUNT)
    random = torch.Generator().manual_seed(0)

    def compressive() -> Case:
        A = gp.operators.Gaussian(100, G.signal_shape, seed=0)
        y = A(digits)
        code = y[:, :98].reshape(COUNT, 1, 7, 14)
        code = (code - code.amin()) / (code.amax() - code.amin())
        shown = torch.nn.functional.interpolate(code, size=(28, 28), mode="nearest")
        return shown, recovered(gp.Problem(G, loss=gp.LeastSquares(A, y))), digits

    def inpainting() -> Case:
        known = torch.rand(28, 28, generator=random) < 0.25
        A = gp.operators.Mask(known, G.signal_shape)
        return torch.where(known, digits, 0.45), recovered(gp.Problem(G, loss=gp.LeastSquares(A, A(digits)))), digits

    def deblurring() -> Case:
        A = gp.operators.Blur(2.0, G.signal_shape)
        y = A(digits) + 0.02 * torch.randn(digits.shape, generator=random)
        problem = gp.Problem(G, loss=gp.LeastSquares(A, y), on_latent=1e-3 * gp.SquaredL2())
        return y, recovered(problem), digits

    def salt_and_pepper() -> Case:
        hit = torch.rand(digits.shape, generator=random) < 0.25
        y = torch.where(hit, (torch.rand(digits.shape, generator=random) < 0.5).float(), digits)
        start = gp.load_encoder("mnist")(y).detach()  # one of the eight; a blank image is a minimum for a thin digit
        return y, recovered(gp.Problem(G, on_signal=gp.L1().around(y)), z0=start), digits

    def attack() -> Case:
        classifier, x = gp.load_classifier("mnist"), digits.clone()
        for _ in range(40):
            x.requires_grad_()
            (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(classifier(x), labels), x)
            x = (digits + (x.detach() + 0.02 * slope.sign() - digits).clamp(-0.2, 0.2)).clamp(0, 1)
        problem = gp.Problem(G, on_signal=gp.LInf().around(x.detach()), on_latent=gp.Ball(9.0))
        signal = recovered(problem, z0=gp.load_encoder("mnist")(x).detach())
        names = [classifier(p).argmax(dim=1).tolist() for p in (x, signal, digits)]
        print("attacked, recovered, true:", *names)
        return x.detach(), signal, digits

    def faces() -> Case:
        F = gp.load_generator("celeba")
        truth = F(0.7 * F.sample_latent(COUNT, seed=5)).detach()
        A = gp.operators.Downsample(4, F.signal_shape)
        y = A(truth)
        blocks = y.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
        return blocks, recovered(gp.Problem(F, loss=gp.LeastSquares(A, y)), steps=80), truth

    return {
        "100 random measurements": compressive,
        "3 of 4 pixels lost": inpainting,
        "blur and noise": deblurring,
        "salt and pepper (l1)": salt_and_pepper,
        "adversarial attack (l_inf)": attack,
        "a sixteenth of the resolution": faces,
    }


def recovered(problem: gp.Problem, steps: int = 150, z0: Tensor | None = None) -> Tensor:
    """Eight starts each, the best by objective."""
    return gp.solve(problem, stop=gp.MaxSteps(steps), restarts=8, seed=0, z0=z0).signal


if __name__ == "__main__":
    main(Path(sys.argv[1]))
