"""The race as a table, as numbers and as a figure."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from genprior._files import write_atomically
from genprior.lab.race import Race
from genprior.lab.race.contenders import OURS
from genprior.lab.race.outcome import ERRORS, EXCESSES, ProblemOutcome, Standing, geometric_mean


def race_numbers(race: Race) -> dict[str, object]:
    """Everything as plain numbers."""
    return {
        "quick": race.quick,
        "repeats": race.repeats,
        "threads": race.threads,
        "workers": race.workers,
        "speedup_loose": _mean(race, 0),
        "speedup_tight": _mean(race, 1),
        "smallest_speedup": _smallest(race),
        "never_fewer_solved": all(_solves_as_many(problem) for problem in race.problems),
        "problems": [_problem(problem) for problem in race.problems],
    }


def race_table(race: Race) -> Table:
    """One line per problem and solver."""
    title = "time and passes to the loose and to the tight target (medians); - : not reached"
    if race.workers > 1:
        title += f"; {race.workers} problems at a time, which slow each other down on one machine"
    table = Table(title=title)
    for name in ("problem", "solver", "loose s", "passes", "tight s", "passes", "solved", "at the end"):
        table.add_column(name, justify="left" if name in ("problem", "solver") else "right")
    for problem in race.problems:
        for number, standing in enumerate(problem.standings):
            title = f"({problem.key}) {problem.title}" if number == 0 else ""
            table.add_row(title, standing.solver, *_cells(standing), end_section=number == len(problem.standings) - 1)
    return table


def speedup_table(race: Race) -> Table:
    """Auto over the best tuned baseline."""
    table = Table(title="Auto, no option, over the fastest tuned baseline of each problem")
    for name in ("problem", "loose", "tight"):
        table.add_column(name, justify="left" if name == "problem" else "right")
    for problem in race.problems:
        cells = [
            "-" if speedup is None else f"{kind} {speedup:.2f}".removeprefix("= ")
            for speedup, kind in zip(problem.speedups, problem.kinds, strict=True)
        ]
        table.add_row(f"({problem.key}) {problem.title}", *cells)
    means = [_mean(race, number) for number in range(2)]
    table.add_row("geometric mean", *("-" if mean is None else f"{mean:.2f}" for mean in means), style="bold")
    return table


def draw_race(race: Race, path: Path) -> None:
    """The median error, or objective over the best, against time: one plot per problem."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import, needed only here

    columns = min(4, len(race.problems))
    lines = -(-len(race.problems) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * lines + 0.5), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).flat
    for place, problem in zip(grid, race.problems, strict=False):
        for name, (seconds, values) in problem.curves.items():
            place.plot(
                seconds.numpy(),
                values.numpy(),
                label=name,
                linewidth=2.4 if name == "Auto" else 1.2,
                linestyle="--" if name in OURS and name != "Auto" else "-",
                color="black" if name == "Auto" else None,
            )
        for target in EXCESSES if problem.noisy else ERRORS:
            place.axhline(target, color="grey", linewidth=0.6, linestyle=":")
        place.set_yscale("log")
        place.set_title(f"({problem.key}) {problem.title}", fontsize=10)
        place.set_xlabel("seconds", fontsize=9)
        place.set_ylabel("objective / best" if problem.noisy else "median relative error", fontsize=9)
        place.grid(alpha=0.3)
    for place in list(figure.axes)[len(race.problems) :]:
        place.set_axis_off()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=100, format="png"))


def _cells(standing: Standing) -> list[str]:
    cells = []
    for seconds, passes in zip(standing.seconds, standing.passes, strict=True):
        cells += ["-" if seconds is None else f"{seconds:.2f}", "-" if passes is None else f"{passes:.0f}"]
    return [*cells, f"{standing.solved:.0%}", f"{standing.final:.3g}"]


def _problem(problem: ProblemOutcome) -> dict[str, object]:
    return {
        "key": problem.key,
        "title": problem.title,
        "generator": problem.generator,
        "measure": "objective over the best found" if problem.noisy else "relative error",
        "targets": EXCESSES if problem.noisy else ERRORS,
        "tuning_seconds": problem.tuning_seconds,
        "speedup": problem.speedups,
        "speedup_kind": problem.kinds,
        "solvers": [vars(standing) for standing in problem.standings],
    }


def _mean(race: Race, number: int) -> float | None:
    found = [problem.speedups[number] for problem in race.problems]
    return geometric_mean([value for value in found if value is not None])


def _smallest(race: Race) -> float | None:
    found = [value for problem in race.problems for value in problem.speedups if value is not None]
    return min(found, default=None)


def _solves_as_many(problem: ProblemOutcome) -> bool:
    ours = problem.of("Auto").solved
    return all(standing.solved <= ours for standing in problem.standings if standing.solver not in OURS)
