"""The settings that tuning chose, and their position in the grids."""

from __future__ import annotations

from genprior.lab.reports.reproduction.layout import Sheet, plain
from genprior.lab.reproduce import compressive_sensing as sensing
from genprior.lab.reproduce import defence, denoising
from genprior.lab.reproduce.contest import Setting
from genprior.lab.reproduce.methods import (
    ADAM,
    EDGE,
    INSIDE,
    LABELS,
    ONE_OF_TWO,
    PROJECTED,
    Method,
    denoising_methods,
    sensing_methods,
)
from genprior.lab.reproduce.run import Reproduction

_TUNE = ".tune."


def offered(setting: Setting) -> dict[str, list[Method]]:
    """The methods on each problem, by the prefix of its parts."""
    count = setting.size.settings
    found = {
        sensing.field_name(generator, fraction, truth): sensing_methods(count, generator, fraction)
        for generator, size in (("mnist", setting.size.digits), ("celeba", setting.size.faces))
        for fraction in size.fractions
        for truth in ("range", "real")
    }
    found |= {f"{denoising.PREFIX}.{case.key}": denoising_methods(count, case.norm) for case in denoising.CASES}
    return found | {defence.PREFIX: defence.methods(count)}


def tuned(done: Reproduction) -> dict[str, tuple[Method, int]]:
    """Of every tuning that was run, by the name of its part: the method, and the number of the setting it chose."""
    methods = {
        f"{problem}{_TUNE}{method.key}": method
        for problem, several in offered(done.setting).items()
        for method in several
    }
    return {name: (methods[name], int(found.numbers["chosen"])) for name, found in done.parts.items() if _TUNE in name}


def place(method: Method, number: int) -> str:
    """The position of a setting's parameters in their grid, in words."""
    found = method.places(number)
    names = {where: [name for name in found if found[name] == where] for where in (EDGE, INSIDE, ONE_OF_TWO)}
    return "; ".join(f"{', '.join(several)} {where}" for where, several in names.items() if several) or "-"


def chosen_sheet(done: Reproduction) -> Sheet:
    """The chosen setting of every tuned method on every problem, and whether a better one may lie beyond the grid."""
    rows = []
    for name, (method, number) in tuned(done).items():
        numbers = done.parts[name].numbers
        rows.append(
            (
                name.partition(_TUNE)[0],
                LABELS[method.key],
                str(len(numbers["scores"])),
                f"{min(numbers['scores']):.3g}",
                plain(numbers["solvers"][number]),
                place(method, number),
            )
        )
    head = (
        "problem",
        "method",
        "settings",
        "best mean objective",
        "chosen (for the tuning's iterations)",
        "in its grid",
    )
    caption = (
        "All methods, equal budget. At the edge: the smallest or largest of three or more, so that a better one may lie "
        "beyond. One of two: there is no inside, a better one may lie anywhere else"
    )
    return Sheet(caption, head, rows)


def projected_note(done: Reproduction) -> str | None:
    """Projected gradient with one inner step is Adam: on how many problems its tuning chose that; None if on none."""
    chosen = {
        name: (method, number)
        for name, (method, number) in tuned(done).items()
        if method.key == PROJECTED and name.startswith(sensing.PREFIX)
    }
    same = [name for name, (method, number) in chosen.items() if method.choices[number].numbers["inner"] == 1]
    if not same:
        return None
    methods = offered(done.setting)[same[0].partition(_TUNE)[0]]
    steps = {method.key: _steps(method) for method in methods if method.key in (ADAM, PROJECTED)}
    where = "every problem" if len(same) == len(chosen) else f"{len(same)} of {len(chosen)} problems"
    return (
        f"Projected gradient chose one inner step on {where}. With one inner step it is Adam: a new target at every step, "
        f"whose step is along the gradient of the objective. It had a choice of {len(steps[PROJECTED])} step lengths "
        f"({_span(steps[PROJECTED])}), Adam of {len(steps[ADAM])} ({_span(steps[ADAM])}): these rows are Adam's with fewer "
        "steps to choose from, and no other method."
    )


def _steps(method: Method) -> list[float]:
    """The step lengths of the grid, ascending."""
    return sorted({value for choice in method.choices for name, value in choice.numbers.items() if "step" in name})


def _span(values: list[float]) -> str:
    return f"{values[0]:g} {'to' if len(values) > 2 else 'and'} {values[-1]:g}"
