"""The report on each experiment: method, claims, tables, figures. One source for page and document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genprior.lab.reports.reproduction import races, theory
from genprior.lab.reports.reproduction.grids import chosen_sheet, projected_note
from genprior.lab.reports.reproduction.layout import Section, Sheet, plain
from genprior.lab.reproduce import compressive_sensing as sensing
from genprior.lab.reproduce import defence, denoising, plateau, tuning
from genprior.lab.reproduce.claims import Claim, percent, share_of
from genprior.lab.reproduce.defender import NORMS
from genprior.lab.reproduce.judging_defence import KINDS, accuracy_curve, known_accuracy
from genprior.lab.reproduce.methods import LABELS
from genprior.lab.reproduce.parts import Found
from genprior.lab.reproduce.run import EXPERIMENTS, Reproduction

_NAMES = {"mnist": "Digits", "celeba": "Faces"}
_TIMES = (
    'A is factorised before any clock starts. What that took is added for the methods that use it: as "once" in the '
    "tables, and as a later start in the plots. Exact ADMM needs all of it. Linearized ADMM and projected gradient take "
    "only nu_L from it, the largest eigenvalue of A^T A, which some products with A would give too; Auto uses the same "
    "number, though its steps do not need it here. Gradient descent and Adam, with the steps that tuning gave them, take "
    "nothing."
)
_METRIC = (
    "Auto starts from the preconditioner E[DG^T DG] of the generator, stored with the bundled generators: its passes are not "
    "among those counted here. It was estimated once for each generator, when it was bundled, from 256 points with one "
    "forward and eight backward passes each. For a generator without one, Auto estimates it from 4 points at the "
    "start of a run, with two backward passes each, and these passes count."
)


def sections(done: Reproduction) -> list[Section]:
    """The sections of all experiments that ran."""
    makers: dict[str, Callable[[Reproduction, list[Claim]], Section]] = {
        sensing.PREFIX: _sensing,
        denoising.PREFIX: _denoising,
        defence.PREFIX: _defence,
        tuning.PREFIX: _tuning,
        plateau.PREFIX: _plateau,
    }
    return [
        make(done, [claim for claim in done.claims if claim.experiment == name])
        for name, make in makers.items()
        if name in done.experiments
    ]


def _sensing(done: Reproduction, claims: list[Claim]) -> Section:
    size = done.setting.size
    text = (
        f"{size.digits.pictures} digits and {size.faces.pictures} faces made by the bundled generators, so that the "
        "objective can go to zero; Gaussian measurements; one start, the same for all. Every tuned method chose the "
        f"best of {size.settings} settings by the mean objective on {size.digits.tuning_pictures} other digits "
        f"({size.faces.tuning_pictures} other faces) after {size.digits.tuning_steps} ({size.faces.tuning_steps}) "
        "iterations; Auto has no option. The iterate shown is the best so far by objective. Faces cost ten times as "
        f"much: {size.faces.steps} iterations instead of {size.digits.steps}, fewer fractions. The variant of exact ADMM "
        "with Adam's z step runs where digits have the main number of measurements only. Real images, which do not "
        "lie in the range, are shown separately: their objective cannot go to zero. Why exact ADMM can be ahead: with a small "
        "penalty its w step whitens the measurements, so that z moves as if A had orthogonal rows. Why the linearized one "
        "is behind: its w goes 1/(nu_L + rho) of the gradient at a time, and z follows w."
    )
    figures = {}
    for generator, one in (("mnist", size.digits), ("celeba", size.faces)):
        caption = (
            f"{_NAMES[generator]} in the range, means (shaded: quartiles): objective and error against passes and time; "
            "the factorisation of A comes first, for the methods that use it"
        )
        figures[f"sensing-{generator}"] = (caption, races.draw_sensing(done, generator, one.main, "range"))
    figures["sensing-sweep"] = ("Digits in the range, against the number of measurements", races.draw_sweep(done))
    caption = (
        "Real digits, not in the range: means (shaded: quartiles); the factorisation of A comes first, for the methods that "
        "use it"
    )
    figures["sensing-real"] = (caption, races.draw_sensing(done, "mnist", size.digits.main, "real"))
    notes = tuple(note for note in (_TIMES, _METRIC, projected_note(done)) if note is not None)
    title = EXPERIMENTS[sensing.PREFIX].title
    return Section(sensing.PREFIX, title, text, claims, figures, _sensing_sheets(done), notes)


def _sensing_sheets(done: Reproduction) -> list[Sheet]:
    size = done.setting.size
    fields = [("mnist", fraction, "range") for fraction in size.digits.fractions]
    fields += [("celeba", fraction, "range") for fraction in size.faces.fractions]
    fields += [("mnist", size.digits.main, "real")]
    fields += [("celeba", size.faces.main, "real")] if done.setting.faces is not None else []
    found = []
    for generator, fraction, truth in fields:
        kind = "in the range" if truth == "range" else "real"
        m = sensing.measurements(generator, fraction)
        caption = f"{_NAMES[generator]}, {kind}, m = {m}: at the end, mean; median (quartiles)"
        found.append(_race_sheet(done, sensing.field_name(generator, fraction, truth), caption, ("objective", "error")))
    return found


def _race_sheet(done: Reproduction, field_name: str, caption: str, names: tuple[str, ...]) -> Sheet:
    rows = []
    for key in races.runs(done, field_name):
        found = done.parts[f"{field_name}.run.{key}"]
        numbers = found.numbers
        rows.append(
            (
                LABELS[key],
                *(_spread(numbers[name]) for name in names),
                str(numbers["steps"]),
                f"{numbers['forwards']} + {numbers['backwards']}",
                _clock(key, found),
                plain(numbers["solver"]),
            )
        )
    return Sheet(caption, ("method", *names, "iterations", "passes", "seconds", "setting"), rows)


def _clock(key: str, found: Found) -> str:
    """Seconds of the iterations, and of the preparation."""
    once = races.preparation(key, found)
    return f"{found.times['seconds']:.1f}" + (f" + {once:.2g} once" if once > 0 else "")


def _denoising(done: Reproduction, claims: list[Claim]) -> Section:
    size = done.setting.size.denoising
    text = (
        f"{size.pictures} digits made by the bundled generator, gamma |w - y|_2^2 + |w - y|_inf over w = G(z); "
        f"gradient descent and Adam {size.descent_steps} iterations, the ADMMs and Auto {size.admm_steps} "
        f"(the other four cases, also in tuning: {size.other_share:g} of these). "
        f"Settings: the best of {done.setting.size.settings} "
        f"by objective on other digits after {size.tuning_steps} iterations. Why gamma matters: a subgradient of the "
        "l_inf norm sees one pixel of 784; what a large gamma lets descent gain is owed to the squared l2 distance, "
        "which sees all of them. Why the z step matters: latent directions differ by a factor of 200 in how far "
        "they change the image; the paper's gradient step is limited by the steepest one, Adam's evens them out."
    )
    figures = {
        "denoising": (
            "Mean error of the best iterate by objective, at each iteration; the plots end at "
            f"{races.LEAST_ERROR:g}, what lies below is in the tables",
            races.draw_denoising(done),
        ),
        "denoising-duals": ("l_inf runs: w differs from y, duals are bounded", races.draw_duals(done)),
    }
    sheets = [
        _race_sheet(
            done,
            f"{denoising.PREFIX}.{case.key}",
            f"{case.title}: at the end, mean; median (quartiles)",
            ("linf", "error"),
        )
        for case in denoising.CASES
    ]
    return Section(denoising.PREFIX, EXPERIMENTS[denoising.PREFIX].title, text, claims, figures, sheets)


def _defence(done: Reproduction, claims: list[Claim]) -> Section:
    size = done.setting.size.defence
    attack = done.parts[f"{defence.PREFIX}.attack"].numbers
    text = (
        f"{attack['pictures']} MNIST test digits, attacked by projected gradient in l_inf ({attack['steps']} "
        f"iterations, step {attack['step']:g}, size {attack['size']:g}) on the bundled convolutional classifier: "
        f"accuracy {attack['clean_accuracy']:.1%} clean, {attack['attacked_accuracy']:.1%} attacked. Gradient "
        f"descent and Adam project in l2 ({size.descent_steps} iterations), the ADMMs and Auto in l_inf "
        f"({size.admm_steps}); one start each, where genprior defend takes the best of four. Methods that are not the "
        f"paper's, and clean images: {size.ours_pictures} digits. Attacks that know the defence: BPDA (straight-through, "
        f"{size.bpda_steps} steps, {size.bpda_pictures} digits), and a search of the latent space ({size.latent_steps} steps, "
        f"{size.latent_pictures} digits, {len(defence.LATENT_WEIGHTS)} weights, two starts; what fools the defence is "
        "kept); BPDA starts a second time from there, where the first start failed. "
        "Projection on the range of a generator is no proven defence."
    )
    figures = {
        "defence": ("Test error on attacked digits", theory.draw_defence(done)),
        "defence-known": ("Accuracy of the defended classifier, one start", theory.draw_known(done)),
    }
    return Section(defence.PREFIX, EXPERIMENTS[defence.PREFIX].title, text, claims, figures, [_defence_sheet(done)])


def _defence_sheet(done: Reproduction) -> Sheet:
    rows = []
    for key in theory.defence_keys(done):
        curve = accuracy_curve(done.setting, done.parts, key)
        known = [done.parts.get(f"{defence.PREFIX}.{kind}.{key}") for kind in KINDS]
        images = sum(stop - start for start, stop in defence.chunks(done.setting, key))
        clean = done.parts.get(f"{defence.PREFIX}.clean.{key}")
        rows.append(
            (
                LABELS[key],
                NORMS[key].replace("linf", "l_inf"),
                share_of(curve["accuracy"][-1], images),
                "-" if clean is None else share_of(clean.numbers["accuracy"], clean.numbers["pictures"]),
                *("-" if one is None else _known(one) for one in known),
                str(images),
                f"{1e3 * curve['seconds'][-1] / images:.0f}",
                plain(done.parts[f"{defence.PREFIX}.run.{key}.0"].numbers["solver"]),
            )
        )
    attacks = ("attacked", "clean", "BPDA, both its starts", "latent")
    head = ("defence", "norm", *attacks, "attacked digits", "ms per digit", "setting")
    return Sheet("Accuracy of the defended classifier, projected from one start, with 95% intervals", head, rows)


def _known(part: Found) -> str:
    """The accuracy, with that of BPDA's first start alone."""
    numbers, found = part.numbers, known_accuracy(part)
    first = numbers["defended_accuracy"]
    alone = f" (first start alone: {percent(first)})" if "defended_accuracy_both_starts" in numbers else ""
    return f"{share_of(found, numbers['pictures'])}, n = {numbers['pictures']}{alone}"


def _tuning(done: Reproduction, claims: list[Claim]) -> Section:
    size = done.setting.size
    text = (
        f"Gradient descent with fixed steps: average objective of {size.digit_tuning.pictures} digits after "
        f"{size.digit_tuning.iterations} iterations, of {size.face_tuning.pictures} faces after "
        f"{size.face_tuning.iterations} (the paper: 100 of each). The other methods were tuned with {size.settings} "
        "settings each, as gradient descent in the race. The last iterate counts; the best one so far is shown too."
    )
    figures = {"tuning": ("Average objective against the step", races.draw_tuning(done))}
    return Section(tuning.PREFIX, EXPERIMENTS[tuning.PREFIX].title, text, claims, figures, [chosen_sheet(done)])


def _plateau(done: Reproduction, claims: list[Claim]) -> Section:
    text = (
        "Small generators U diag(s) (z + 0.2 tanh z) of known conditioning, data off the range (so that the optimal "
        "dual is not zero), linearized ADMM with the paper's dual rule and a small first step, float64; then noisy "
        "digits with the bundled generator. The solution is found by Levenberg-Marquardt. The theorem's constant "
        f"mu_L - 2 rho is positive only for rho below {plateau.LARGEST_PENALTY:g}: the rate is measured at 0.4, but the "
        "plateau against rho lies beyond what is proved."
    )
    figures = {"plateau": ("Plateaus, rates and dual rules", theory.draw_plateau(done))}
    return Section(plateau.PREFIX, EXPERIMENTS[plateau.PREFIX].title, text, claims, figures)


def _spread(numbers: dict[str, Any]) -> str:
    cells = ["-" if numbers[name] is None else f"{numbers[name]:.3g}" for name in ("mean", "median", "q25", "q75")]
    return f"{cells[0]}; {cells[1]} ({cells[2]} to {cells[3]})"
