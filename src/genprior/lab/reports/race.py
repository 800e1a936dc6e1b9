"""The race as a table, as numbers and as a figure."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from genprior._files import write_atomically
from genprior.lab.race import Race
from genprior.lab.race.contenders import OURS
from genprior.lab.race.outcome import ProblemOutcome, Standing, geometric_mean
from genprior.lab.race.problems import EIGHT, ERRORS, EXCESSES

_FIRST = 1e-2
"""Seconds at which the axes begin."""
_LINES = {"ours": "--", "baseline": "-", "published": ":"}


def race_numbers(race: Race) -> dict[str, object]:
    """Everything as plain numbers."""
    eight, others = _parts(race)
    return {
        "quick": race.quick,
        "repeats": race.repeats,
        "threads": race.threads,
        "workers": race.workers,
        **_summary(eight),
        "never_fewer_solved": all(_solves_as_many(problem) for problem in race.problems),
        "least_solved": min((p.of(OURS[0]).solved for p in race.problems if p.determined), default=None),
        "others": _summary(others),
        "skipped": race.skipped,
        "problems": [_problem(problem) for problem in race.problems],
    }


def race_table(race: Race) -> Table:
    """One line per problem and solver."""
    title = "seconds / passes until 90% of the images are within the loose, the tight target; - : not reached; *: as published"
    if race.workers > 1:
        title += f"; {race.workers} problems at a time, which slow each other down on one machine"
    table = Table(title=title, box=SIMPLE_HEAD)
    for name in ("solver", "starts", "loose", "tight", "solved", "at the end"):
        table.add_column(name, justify="left" if name == "solver" else "right")
    for problem in race.problems:
        table.add_row(Text(_name(problem), style="bold"))
        for standing in problem.standings:
            table.add_row(standing.solver + ("*" if standing.role == "published" else ""), *_cells(standing))
        table.add_section()
    return table


def speedup_table(race: Race) -> Table:
    """Auto over the best tuned baseline."""
    table = Table(title="Auto, no option, over the fastest tuned baseline of each problem")
    for name in ("problem", "loose", "tight", "solved by Auto"):
        table.add_column(name, justify="left" if name == "problem" else "right")
    for part, name in zip(_parts(race), ("the eight", "the others"), strict=True):
        for problem in part:
            cells = [
                "-" if speedup is None else f"{kind} {speedup:.2f}".removeprefix("= ")
                for speedup, kind in zip(problem.speedups, problem.kinds, strict=True)
            ]
            table.add_row(_name(problem), *cells, f"{problem.of(OURS[0]).solved:.0%}")
        if part:
            means = [_mean(part, number) for number in range(2)]
            cells = ["-" if mean is None else f"{mean:.2f}" for mean in means]
            table.add_row(f"geometric mean of {name}", *cells, "", style="bold", end_section=True)
    return table


def notes_on(race: Race) -> list[str]:
    """What the tables do not say."""
    notes = []
    for problem in race.problems:
        edges = [standing.solver for standing in problem.standings if standing.edge]
        most = [standing.solver for standing in problem.standings if standing.most_starts]
        said = [f"at the edge of the grid: {', '.join(edges)}"] if edges else []
        said += [f"with the largest number of starts that was tried: {', '.join(most)}"] if most else []
        notes += [f"({problem.key}) {'; '.join(said)}"] if said else []
    open_ones = [problem.key for problem in race.problems if not problem.determined]
    if open_ones:
        notes.append(f"the data of {', '.join(open_ones)} do not determine the answer")
    return notes + [f"({key}) left out: {reason}" for key, reason in race.skipped.items()]


def draw_race(race: Race, path: Path) -> None:
    """The error, or objective over the best, that 90% of the images are within, against time: one plot per problem."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    columns = min(4, len(race.problems))
    lines = -(-len(race.problems) // columns)
    figure = Figure(figsize=(max(6.5, 4.2 * columns), 3.4 * lines + 1.2), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).flat
    for place, problem in zip(grid, race.problems, strict=False):
        for name, (seconds, values) in problem.curves.items():
            role = problem.of(name).role
            place.plot(
                seconds.clamp_min(_FIRST).numpy(),
                values.numpy(),
                label=f"{name}*" if role == "published" else name,
                linewidth=2.4 if name == OURS[0] else 1.2,
                linestyle="-" if name == OURS[0] else _LINES[role],
                color="black" if name == OURS[0] else None,
            )
        for target in EXCESSES if problem.noisy else ERRORS:
            place.axhline(target, color="grey", linewidth=0.6, linestyle=":")
        place.set_xscale("log")
        place.set_yscale("log")
        place.set_title(f"({problem.key}) {problem.title}", fontsize=10)
        place.set_xlabel("seconds", fontsize=9)
        place.set_ylabel("objective / best" if problem.noisy else "relative error", fontsize=9)
        place.grid(alpha=0.3)
    for place in list(figure.axes)[len(race.problems) :]:
        place.set_axis_off()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(2 * columns + 1, 6),
        fontsize=9,
        frameon=False,
        title="what 90% of the images are within; dotted: targets; *: as published",
    )
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=100, format="png"))


def _cells(standing: Standing) -> list[str]:
    cells = ["" if standing.starts is None else str(standing.starts)]
    for seconds, passes in zip(standing.seconds, standing.passes, strict=True):
        cells.append("-" if seconds is None or passes is None else f"{seconds:.2f} / {passes:.0f}")
    return [*cells, f"{standing.solved:.0%}", f"{standing.final:.3g}"]


def _name(problem: ProblemOutcome) -> str:
    return f"({problem.key}) {problem.title}"


def _problem(problem: ProblemOutcome) -> dict[str, object]:
    return {
        "key": problem.key,
        "title": problem.title,
        "generator": problem.generator,
        "images": problem.images,
        "measure": "objective over the best found" if problem.noisy else "relative error",
        "targets": EXCESSES if problem.noisy else ERRORS,
        "determined": problem.determined,
        "tuning_seconds": problem.tuning_seconds,
        "speedup": problem.speedups,
        "speedup_kind": problem.kinds,
        "solvers": [vars(standing) for standing in problem.standings],
    }


def _parts(race: Race) -> tuple[list[ProblemOutcome], list[ProblemOutcome]]:
    """The eight problems on the bundled generators, and the others."""
    eight = [problem for problem in race.problems if problem.key in EIGHT]
    return eight, [problem for problem in race.problems if problem.key not in EIGHT]


def _summary(problems: list[ProblemOutcome]) -> dict[str, float | None]:
    found = [value for problem in problems for value in problem.speedups if value is not None]
    return {
        "speedup_loose": _mean(problems, 0),
        "speedup_tight": _mean(problems, 1),
        "smallest_speedup": min(found, default=None),
    }


def _mean(problems: list[ProblemOutcome], number: int) -> float | None:
    found = [problem.speedups[number] for problem in problems]
    return geometric_mean([value for value in found if value is not None])


def _solves_as_many(problem: ProblemOutcome) -> bool:
    ours = problem.of(OURS[0]).solved
    return all(standing.solved <= ours for standing in problem.standings if standing.role != "ours")
