"""``genprior defend``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from genprior._progress import Bar
from genprior.cli.flags import as_flags
from genprior.cli.machine import Machine
from genprior.cli.prior import INPUT, Prior
from genprior.cli.speech import print_json, print_lines

if TYPE_CHECKING:
    from genprior.jobs.defend import Record


@dataclass(frozen=True, kw_only=True)
class Defend(Machine, Prior):
    """Classify images that may be attacked: replace each by the nearest image of a generator, then classify it.

    Writes defended/ in the layout of the input, result.json with the class of every image before and after, report.html.
    This is not a proven defence: an attacker who knows the generator can defeat it.

    Example:
        genprior defend attacked/ --classifier mnist --generator mnist --out defended
        genprior defend digits.npy --labels labels.npy --classifier my_model.py:build --out defended
    """

    inputs: Annotated[tuple[str, ...], tyro.conf.Positional, INPUT]
    """Images (.png, .jpg, ...), arrays (.npy, .npz, .safetensors, .h5), shards of WebDataset (.tar), or folders of them;
    also by URL."""
    out: Path
    """Folder for defended/, result.json and report.html."""
    classifier: str = "mnist"
    """A bundled name, a file written by genprior train classifier, my_model.py:build, or a TorchScript file."""
    classifier_weights: Path | None = None
    """Weights for my_model.py:build: .safetensors, or .pt with a state dictionary."""
    labels: Path | None = None
    """A .npy file with the true class of every image; accuracies are then reported."""
    norm: Literal["linf", "l2"] = "linf"
    """Norm that defines the nearest image; most attacks are bounded in linf."""
    solver: Literal["admm", "auto", "adam", "gd"] = "admm"
    """Solver of the projection; admm has exact w steps and takes z steps with Adam."""
    steps: int = 300
    """Iterations."""
    restarts: int = 4
    """Starts per image; the worse ones are dropped early."""
    batch_size: int = 100
    """Images projected at once; limits the memory."""
    resize: bool = False
    """Crop and scale images of another size."""
    skip: bool = False
    """Leave out files that cannot be used, instead of refusing to start."""
    seed: int = 0
    """Seed of the starts."""
    json: bool = False
    """Print result.json instead of a summary."""

    def run(self) -> None:
        """Run the command."""
        from genprior.cli.threads import Watch  # noqa: PLC0415
        from genprior.defence.projection import Projection, named_solver  # noqa: PLC0415
        from genprior.jobs.defence_page import write_defence  # noqa: PLC0415
        from genprior.jobs.defend import defend_files, document  # noqa: PLC0415
        from genprior.models.foreign_classifiers import open_classifier  # noqa: PLC0415 - slow to import

        self.settle()
        opened = self.source().open(self.device)
        generator = opened.generator
        watch = Watch(fixed=self.threads is not None)
        watch.begin(generator)
        shape = generator.signal_shape
        classifier = open_classifier(self.classifier, self.classifier_weights, signal_shape=shape, device=self.device)
        projection = Projection(
            generator,
            self.norm,
            named_solver(self.solver, self.norm),
            self.steps,
            restarts=self.restarts,
            batch_size=self.batch_size,
            seed=self.seed,
        )
        visible = False if self.json else None
        with Bar("defended", visible=visible, every=60.0, counts=True, remaining=True) as bar:
            record = defend_files(
                classifier,
                projection,
                self.inputs,
                self.out,
                labels=self.labels,
                resize=self.resize,
                skip=self.skip,
                on_progress=watch.showing(bar.show),
            )
        write_defence(record, projection, self.out / "report.html")
        if self.json:
            print_json(document(record, projection))
        else:
            self._say(record, (*opened.notes, *record.notes))
        if failures := self._failures(record):
            raise ValueError("; ".join(failures))

    def _failures(self, record: Record) -> list[str]:
        """Why not every item is defended."""
        found: list[str] = []
        diverged = record.numbers["diverged"]
        if record.unreadable and not (self.skip and record.items):
            skipped = "; add --skip to leave them out" if record.items else ""
            reason = record.unreadable[0]["problem"]
            found.append(f"{len(record.unreadable)} of {record.total} items could not be read ({reason}){skipped}")
        if diverged:
            found.append(f"{diverged} of {record.total} projections diverged: run genprior check on the generator")
        return found

    def _say(self, record: Record, notes: Sequence[str]) -> None:
        lines = [
            (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
            for name, value in record.numbers.items()
        ]
        lines += [("note", as_flags(note)) for note in notes]
        lines += [("files", str(self.out / "defended")), ("report", str(self.out / "report.html"))]
        print_lines(lines)
