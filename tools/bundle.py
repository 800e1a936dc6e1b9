"""Put a trained network into the package: measured anew, with its card, and with images for the docs.

    python tools/bundle.py runs/mnist-2 mnist generator --licence MIT
    python tools/bundle.py runs/celeba celeba generator --data celeba.tar --hold-out 500

The images are the generator's own samples and its loss curve, never the data.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch

from genprior.models.bundled import (
    FOLDER,
    has_bundled,
    load_classifier,
    load_encoder,
    load_generator,
    store_preconditioner,
)
from genprior.models.saved import add_facts
from genprior.report.sheets import contact_sheet
from genprior.training import data
from genprior.training.card import write_card
from genprior.training.quality import measure

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    """Read the command line, and write the network, its card and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("name", help="name in the package, for example mnist")
    parser.add_argument("role", choices=["generator", "classifier", "encoder"])
    parser.add_argument("--licence", help="licence of the weights; by default what the run says")
    parser.add_argument("--data", type=Path, help="images whose last ones were held out, for a generator of 64 x 64")
    parser.add_argument("--hold-out", type=int, default=500)
    words = parser.parse_args()
    target = FOLDER / f"{words.name}-{words.role}.safetensors"
    shutil.copyfile(words.run / f"{words.role}.safetensors", target)
    facts: dict[str, Any] = {} if words.licence is None else {"weights_licence": words.licence}
    if words.role == "generator":
        store_preconditioner(target)
        facts["quality"] = measured(words.name, target, words.data, words.hold_out)
        draw(words.name, target)
        shutil.copyfile(words.run / "curve.png", DOCS / f"{words.name}-curve.png")
    if words.role == "encoder":
        facts["quality"] = encoded(words.name, target, words.data, words.hold_out)
    add_facts(target, facts)
    write_card(target)


def measured(name: str, target: Path, source: Path | None, hold_out: int) -> dict[str, Any]:
    """The figures of the generator as it is in the package."""
    classifier = load_classifier("mnist") if name == "mnist" and has_bundled("mnist", "classifier") else None
    return measure(load_generator(target), unseen(name, source, hold_out), classifier)


def encoded(name: str, target: Path, source: Path | None, hold_out: int) -> dict[str, Any]:
    """How far G(E(x)) is from images x on which neither was trained, for the generator of the same name."""
    images, generator = unseen(name, source, hold_out), load_generator(name)
    with torch.no_grad():
        error = (generator(load_encoder(target)(images)) - images).square().mean()
    return {"G(E(x)) against x": {"pictures": len(images), "mean_squared_error": float(error)}}


def unseen(name: str, source: Path | None, hold_out: int) -> torch.Tensor:
    """Images that were not trained on."""
    known = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist}
    if name in known:
        return known[name]("test").batch(torch.arange(100))
    if source is None:
        raise SystemExit("--data is needed for this generator")
    everything = data.image_files(source)
    return everything.part(len(everything) - hold_out).batch(torch.arange(50))


def draw(name: str, target: Path) -> None:
    """A sheet of 64 samples for the docs."""
    generator = load_generator(target)
    with torch.no_grad():
        contact_sheet(generator(generator.sample_latent(64, seed=0)), DOCS / f"{name}-samples.png")


if __name__ == "__main__":
    main()
