"""Put a trained network into the package: measured anew, with its card, and with pictures for the docs.

    python tools/bundle.py runs/mnist-2 mnist generator --licence MIT
    python tools/bundle.py runs/celeba celeba generator --data celeba.tar --hold-out 500

The pictures are the generator's own samples and its loss curve, never the data.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch

from genprior.networks.bundled import FOLDER, has_bundled, load_classifier, load_generator
from genprior.networks.saved import add_facts
from genprior.report.sheets import contact_sheet
from genprior.training import data
from genprior.training.card import write_card
from genprior.training.quality import measure

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main() -> None:
    """Do it."""
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
        facts["quality"] = measured(words.name, target, words.data, words.hold_out)
        draw(words.name, target)
    add_facts(target, facts)
    write_card(target)
    if (words.run / "curve.png").is_file():
        shutil.copyfile(words.run / "curve.png", DOCS / f"{words.name}-{words.role}-curve.png")


def measured(name: str, target: Path, source: Path | None, hold_out: int) -> dict[str, Any]:
    """The figures of the file as it is in the package."""
    known = {"mnist": data.mnist, "fashion-mnist": data.fashion_mnist}
    if name in known:
        pictures = known[name]("test").batch(torch.arange(100))
    elif source is None:
        raise SystemExit("--data is needed for this generator")
    else:
        everything = data.image_files(source)
        pictures = everything.part(len(everything) - hold_out).batch(torch.arange(50))
    classifier = load_classifier("mnist") if name == "mnist" and has_bundled("mnist", "classifier") else None
    return measure(load_generator(target), pictures, classifier)


def draw(name: str, target: Path) -> None:
    """A sheet of 64 samples for the docs."""
    generator = load_generator(target)
    with torch.no_grad():
        contact_sheet(generator(generator.sample_latent(64, seed=0)), DOCS / f"{name}-samples.png")


if __name__ == "__main__":
    main()
