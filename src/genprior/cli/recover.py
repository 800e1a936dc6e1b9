"""``genprior recover`` and ``genprior denoise``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from genprior._progress import Bar, duration
from genprior.cli.flags import words_of_recover
from genprior.cli.prior import INPUT, Prior
from genprior.cli.speech import print_json, print_lines, print_text, say_error
from genprior.cli.workers import Workers, set_aside

_ONE_OF = tyro.conf.create_mutex_group(required=True)
"""The operator or the forward model."""
_NAMED = 5
"""Most items that are named on the terminal."""

if TYPE_CHECKING:
    from genprior.engines import Engine
    from genprior.jobs.outcome import Outcome
    from genprior.jobs.settings import Recovery


@dataclass(frozen=True, kw_only=True)
class Common(Workers, Prior):
    """Options of both commands."""

    inputs: Annotated[tuple[str, ...], tyro.conf.Positional, INPUT]
    """Images (.png, .jpg, ...), arrays (.npy, .npz, .safetensors, .h5; one array of a file: scans.npz:images), signals (.wav,
    .csv with a column for each channel), shards of WebDataset (.tar), or folders; also by URL: https://, s3://, gs://, with
    ranges, shard-{000000..000099}.tar."""
    out: Path
    """Folder for recovered/, result.json and report.html. The same command with the same folder resumes the job."""
    labels: Path | None = None
    """A .npy file with one class per item, for a conditional generator."""
    loss: Literal["l2", "l1", "linf"] = "l2"
    """l2 by default; l1 for salt-and-pepper noise, linf for bounded noise (both only for whole images)."""
    box: tuple[float, float] | None = None
    """Bounds on the signal's values, for example 0 1; only with loss l2."""
    latent_ball: float | None = None
    """Largest norm of the latent."""
    deviation: float | Literal["auto"] | None = None
    """Weight of a deviation from the generator's range, w = G(z) + Psi v, on the l1 norm of v; auto: chosen for each item by
    held-out measurements. By default there is none, unless a --basis is given: then auto."""
    basis: str | None = None
    """Basis Psi in which the deviation is sparse: identity, dct, wavelet, haar, db2 to db10. By default the identity."""
    solver: str = "auto"
    """auto, exact-admm, linearized-admm, quasi-newton, levenberg-marquardt, lbfgs, adam, gradient-descent,
    projected-gradient. All with default steps. The paper's step sizes of the two ADMM solvers are available in Python only."""
    restarts: int | None = None
    """Starts per item, side by side; the worse ones are dropped early. By default as many as pay: one, and more for items
    that end far worse than the others."""
    start: Path | None = None
    """A file of genprior train encoder: its guess is one more candidate for the start of each item."""
    time: float | None = None
    """Seconds for the whole job, by the clock on the wall, with any number of workers."""
    steps: int | None = None
    """Largest number of steps per batch; 1000 if no time is given either."""
    patience: int | None = None
    """Steps without progress after which an item stops; by default 100 or 200, depending on the solver."""
    settle_after: int = 20
    """Steps in which an item near a minimum must still gain 0.1% of its objective; otherwise it counts as settled. 0: items go
    on until they have converged, in a third more time where images lie outside of the generator's range."""
    batch_size: int = 64
    """Items solved at once; limits the memory."""
    simulate: bool = False
    """Inputs are undamaged: simulate their measurements, and report the true error."""
    noise: float = 0.0
    """Standard deviation of the simulated noise; by default the noise level, if that is given."""
    noise_level: float | None = None
    """Standard deviation of the noise in the measurements, in their units. With it the generator's latent distribution counts
    too, the more the noisier the data (loss l2). Otherwise the noise is estimated after the fit, and said."""
    compare: bool = False
    """Also recover by lasso and total variation, which need no generator: report and result.json show whether it helps."""
    resize: bool = False
    """Crop and scale images of another size."""
    skip: bool = False
    """Leave out files that cannot be used, instead of refusing to start."""
    seed: int = 0
    """Seed of starts and simulated noise."""
    shard: str | None = None
    """3/16: solve every 16th batch from the third on, as one task of a job array; genprior gather puts the shards together."""
    dry_run: bool = False
    """Solve one batch, say how long the job would take, write nothing."""
    json: bool = False
    """Print result.json instead of a summary."""

    def job(self, operator: str) -> Recovery:
        """As the library takes it."""
        from genprior.jobs.settings import Recovery  # noqa: PLC0415 - slow to import

        self.settle()
        own = {field.name for field in fields(self)} - {"inputs"}
        shared = {field.name: getattr(self, field.name) for field in fields(Recovery) if field.name in own}
        own_words = {"operator": operator, "start": None if self.start is None else str(self.start)}
        return Recovery(inputs=self.inputs, source=self.source(self.labels), **shared | own_words)

    def carry_out(self, operator: str) -> None:
        """Run the job, or a part of it, show its progress, print a summary."""
        job, engine = self.job(operator), self.chosen()
        if self.dry_run and self.shard is not None:
            raise ValueError("--dry-run is for the whole job: leave out --shard")
        if self.dry_run:
            self._foresee(job, engine)
        elif self.shard is not None:
            self._solve_shard(job, engine, self.shard)
        else:
            self._recover(job, engine)

    def _recover(self, job: Recovery, engine: Engine | None) -> None:
        from genprior.jobs.recover import recover  # noqa: PLC0415

        watch = self.watch()
        with self._kept(), self._bar("recovered") as bar:
            outcome = recover(
                job, watch.showing(bar.show), words=words_of_recover(), engine=engine, on_begin=watch.begin
            )
        report_of(outcome, self.out, json=self.json, skip=self.skip)

    def _solve_shard(self, job: Recovery, engine: Engine | None, text: str) -> None:
        from genprior.jobs.shards import Shard, recover_shard  # noqa: PLC0415

        shard = Shard.of(text)
        watch = self.watch()
        with self._kept(), self._bar(f"shard {shard}") as bar:
            part = recover_shard(job, shard, watch.showing(bar.show), engine=engine, on_begin=watch.begin)
        if self.json:
            print_json({"shard": str(shard), **asdict(part)})
            return
        print_lines(
            [
                (f"shard {shard}", f"{part.items} of {part.total} items, in {part.elapsed:.1f} s"),
                ("next", f"when all shards are solved, genprior gather {self.out}"),
            ]
        )

    def _foresee(self, job: Recovery, engine: Engine | None) -> None:
        from genprior.jobs.forecast import forecast  # noqa: PLC0415

        watch = self.watch()
        with self._bar("one batch") as bar:
            found = forecast(job, watch.showing(bar.show), engine=engine, on_begin=watch.begin)
        if self.json:
            print_json(asdict(found) | {"seconds": found.seconds})
            return
        each = f"{found.batch_seconds:.3g} s for one of {found.batch_items} items"
        begun = [("begun", f"{self.out} holds this job already: finished batches are not repeated")]
        print_lines(
            [
                ("would solve", f"{found.items} items in {found.batches} batches ({each})"),
                ("workers", f"{found.workers}, if all are as fast as this process"),
                (
                    "time",
                    f"about {duration(found.seconds)}" + ("" if found.limit is None else ", by its limit at most"),
                ),
                *(begun if found.begun else []),
                ("written", f"nothing: without --dry-run the results go to {self.out}"),
            ]
        )

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """After an interruption or a fault: what was finished is not lost."""
        from genprior.jobs.ledger import begun  # noqa: PLC0415

        try:
            yield
        except (KeyboardInterrupt, OSError, RuntimeError):
            if begun(self.out):
                say_error(f"finished batches are kept in {self.out}: the same command resumes the job")
            raise

    def _bar(self, label: str) -> Bar:
        visible = False if self.json else None
        return Bar(label, visible=visible, every=60.0, counts=True, remaining=True)


@dataclass(frozen=True, kw_only=True)
class Recover(Common):
    """Recover images or signals from measurements, with a generator as the prior.

    Writes recovered/ in the layout of the input, result.json with the outcome of every item, report.html with images.

    Example:
        genprior recover pictures/ --generator mnist --operator gaussian:m=392,seed=0 --simulate --out recovered
        genprior recover small/ --generator celeba --operator downsample:4 --restarts 4 --out large
        genprior recover y.npy --operator gaussian:m=392,seed=0 --noise-level 0.1 --out recovered
        genprior recover faces/ --generator celeba --operator hadamard:m=6144 --simulate --basis wavelet --out near
        genprior recover digits/ --operator gaussian:m=392 --simulate --noise 0.05 --compare --out compared
        genprior recover knee.h5 --generator knees.py:f --operator "kspace:columns.npy,centred=true @ coils:maps.npy" --out x
        genprior recover y.npy --operator gaussian:m=78,seed=0 --start runs/encoder/encoder.safetensors --out recovered
        genprior recover y.npy --forward my_physics.py:forward --out recovered
    """

    operator: Annotated[str | None, _ONE_OF] = None
    """gaussian:m=392,seed=0  mask:known.png  blur:sigma=2  downsample:4  fourier:lines.npy  dense:A.npy  hadamard:m=392

    Signals with channels, (8, 5000): downsample:4,dims=1. MRI: "kspace:every=4,centre=8,centred=true @ coils:maps.npy", with
    "@ complex" at the end for generators of real and imaginary parts; packed=true for files of sampled columns only.
    """
    forward: Annotated[str | None, _ONE_OF] = None
    """In place of an operator: your own measurements, which need not be linear, as a Python function of signals (n, *shape),
    my_physics.py:forward. It must be differentiable by torch. The file is run: give only code that you trust."""

    def run(self) -> None:
        """Run the command."""
        self.carry_out("identity" if self.operator is None else self.operator)


@dataclass(frozen=True, kw_only=True)
class Denoise(Common):
    """Remove noise from images: find the nearest images that the generator can make, in the norm that fits the noise.

    Example:
        genprior denoise noisy/ --generator mnist --loss linf --out clean
        genprior denoise noisy/ --noise-level 0.2 --out clean
        genprior denoise digits/ --simulate --noise 0.3 --restarts 4 --out clean
    """

    def run(self) -> None:
        """Run the command."""
        self.carry_out("identity")


def _failures(outcome: Outcome, skip: bool) -> list[str]:
    """Why not every item is recovered."""
    unread, poisoned, diverged = (outcome.counts[name] for name in ("UNREADABLE", "POISONED", "DIVERGED"))
    found = []
    if unread and (not skip or unread == outcome.total):
        others = ", all others are recovered" if 0 < outcome.recovered == outcome.total - unread else ""
        skipped = "; add --skip to leave them out" if unread < outcome.total else ""
        found.append(
            f"{unread} of {outcome.total} items could not be read{others} ({outcome.reasons['UNREADABLE']}){skipped}"
        )
    if poisoned:
        found.append(set_aside(poisoned, outcome.total, outcome.reasons["POISONED"]))
    if outcome.not_begun:
        found.append(
            f"no time was left for {outcome.not_begun} of {outcome.total} items: give more --time and another --out"
        )
    if outcome.lost:
        named = ", ".join(str(item["name"]) for item in outcome.first if item["attention"] == "lost")
        found.append(
            f"{outcome.lost} of {outcome.total} items are lost ({named}): they fit far worse than the others, or "
            "explain less than half of the data; try --restarts 8 and another --out"
        )
    if diverged:
        found.append(f"{diverged} of {outcome.total} items diverged: run genprior check on the generator")
    return found


def report_of(outcome: Outcome, out: Path, *, json: bool, skip: bool) -> None:
    """Print the summary, or ``result.json``; raises if not every item is recovered."""
    if json:
        with outcome.result.open(encoding="utf-8") as file:
            print_text(file)
    else:
        _say(outcome, out)
    if failures := _failures(outcome, skip):
        raise ValueError("; ".join(failures))


def _say(outcome: Outcome, out: Path) -> None:
    from genprior.jobs.comparison import METHODS  # noqa: PLC0415 - slow to import
    from genprior.jobs.recovery_page import verdict  # noqa: PLC0415
    from genprior.jobs.threads import solved_by  # noqa: PLC0415

    numbers = outcome.numbers()
    ends = ", ".join(f"{count} {name}" for name, count in numbers["status"].items())
    lines = [("recovered", f"{outcome.recovered} of {outcome.total} items ({ends})")]
    if numbers["attention"]:
        why = ", ".join(f"{count} {name}" for name, count in numbers["attention"].items())
        lines.append(("need attention", f"{why} (report, result.json)"))
        grave = [item for item in outcome.first if item["attention"] is not None]
        lines += [(str(item["name"]), str(item["advice"])) for item in grave[:_NAMED]]
    if outcome.outside:
        lines.append(("latents", f"{outcome.outside} lie outside the generator's latent distribution"))
    if numbers["median_residual"] is not None:
        lines.append(("median residual", f"{numbers['median_residual']:.3g}"))
    if numbers["median_error"] is not None:
        lines.append(("median true error", f"{numbers['median_error']:.3g}"))
    if numbers["median_misfit"] is not None:
        lines.append(("median misfit", f"{numbers['median_misfit']:.3g} times that of the noise"))
    if numbers["median_noise_estimate"] is not None:
        level = numbers["median_noise_estimate"]
        lines.append(("noise level", f"at most about {level:.2g}, from the residual; --noise-level makes use of it"))
    if outcome.baselines:
        medians = {METHODS[name]: one.numbers() for name, one in outcome.baselines.items()}
        what = "median_error" if numbers["median_error"] is not None else "median_residual"
        each = ", ".join(f"{name} {one[what]:.3g}" for name, one in medians.items() if one[what] is not None)
        lines += [(what.replace("_", " "), f"of {each}"), ("compared", verdict(outcome))]
    lines += [
        ("time", f"{outcome.run['elapsed']:.1f} s, {outcome.forwards} forward and {outcome.backwards} backward passes"),
        ("solved by", solved_by(outcome.run)),
        *([("plan", outcome.plan)] if outcome.plan else []),
    ]
    lines += [("note", note) for note in outcome.notes]
    lines += [("files", str(out / "recovered")), ("report", str(out / outcome.report.name))]
    print_lines(lines)
