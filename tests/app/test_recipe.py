"""A visitor's choices, and the script and the command that do the same."""

import json
import re
import shlex

import numpy as np
import pytest
import torch
from PIL import Image

import genprior as gp
from genprior import cli
from genprior.app import bundle, registry
from genprior.app.choices import DAMAGES, Choices
from genprior.app.damage import Measurements, Painted, SaltAndPepper
from genprior.app.race import Race
from genprior.app.recipe import PATIENCE, Recipe
from genprior.app.snapshot import Phase
from genprior.solvers.registry import solver_named


def choices_for(kind, generator="mnist", own=False):
    choices = Choices(solvers=["Adam"], seconds=0.2)
    choices.take_generator(generator)
    choices.take_damage(kind)
    choices.take_sample(3)
    if own:
        choices.take_image(registry.sample_images(generator)[3:4].mul(255).round() / 255)
    height = choices.image.shape[-1]
    choices.known = torch.ones(height, height, dtype=torch.bool)
    choices.known[4:9, 3:20] = False
    return choices


CASES = [(kind, "mnist", False) for kind in DAMAGES]
CASES += [("measurements", "celeba", False), ("mask", "celeba", True), ("blur", "mnist", True)]


@pytest.mark.parametrize("kind, generator, own", CASES)
def test_the_script_poses_the_same_problem(kind, generator, own, tmp_path, monkeypatch, capsys):
    """Run the script, in a folder with the files of the zip: same truth, same measurements, same objective."""
    choices = choices_for(kind, generator, own)
    choices.noise = 0.05
    race = Race(choices.recipe(limit=10))
    race.damaged = race.recipe.damaged()
    for name, content in bundle.inputs(race).items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(race.recipe.script(), names)
    assert torch.equal(names["truth"], race.recipe.truth)
    w, z = torch.rand_like(race.recipe.truth), names["G"].sample_latent(1)
    expected = race.damaged.problem.evaluate(w, z).objective
    assert torch.allclose(names["problem"].evaluate(w, z).objective, expected, rtol=1e-6)
    assert names["result"].signal.shape == race.recipe.truth.shape
    assert f"error {float((names['result'].signal - names['truth']).norm() / names['truth'].norm()):.3g}" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("kind, generator, own", CASES)
def test_the_script_begins_with_the_files_that_it_reads(kind, generator, own):
    race = Race(choices_for(kind, generator, own).recipe(limit=10))
    race.damaged = race.recipe.damaged()
    first, *_ = script = race.recipe.script().splitlines()
    read = re.findall(r'open\("(.*?)"\)', "\n".join(script))
    assert set(read) <= set(bundle.inputs(race)) and len(read) == own + (kind == "mask")
    assert first.startswith("# ") == bool(read) and re.findall(r"\w+\.png", first) == sorted(read)
    assert not read or "result.zip" in first


def test_script_and_race_give_the_same(tmp_path, monkeypatch):
    """Not only the problem: the same steps. A step is a step, however long it takes."""
    recipe = choices_for("downsample").recipe(limit=10)
    race = Race(recipe)
    race.run()
    assert race.snapshot.phase is Phase.DONE
    steps = int(race.results["Adam"].steps[0])
    names = {}
    exec(recipe.script().replace("gp.Seconds(0.2)", f"gp.MaxSteps({steps})"), names)
    assert torch.equal(names["result"].signal, race.results["Adam"].signal)


def test_the_command():
    choices = choices_for("measurements")
    choices.restarts = 4
    assert choices.recipe(10).command("ExactADMM") == (
        "genprior recover input.png --operator gaussian:m=392,seed=0 --simulate --generator mnist --solver exact-admm "
        "--restarts 4 --time 0.2 --patience 1000000000 --settle-after 0 --seed 0 --out recovered"
    )
    faces = choices_for("downsample", "celeba")
    faces.noise = 0.02
    assert faces.recipe(10).command() == (
        "genprior recover input.npy --operator downsample:4 --simulate --noise 0.02 --generator celeba --solver adam "
        "--restarts 1 --time 0.2 --patience 1000000000 --settle-after 0 --seed 0 --out recovered"
    )
    assert "genprior denoise changed.npy --loss l1 " in choices_for("salt").recipe(10).command()
    assert "genprior denoise changed.npy --loss linf " in choices_for("attack").recipe(10).command()


@pytest.mark.parametrize("kind, generator", [(kind, "mnist") for kind in DAMAGES] + [("downsample", "celeba")])
def test_the_command_gives_the_same(kind, generator, tmp_path, monkeypatch, capsys):
    """Not only the same words: the answer that ``solve`` gives for the page's problem in as many steps."""
    choices = choices_for(kind, generator)
    choices.noise, choices.restarts = 0.1, 2
    race = Race(choices.recipe(limit=10))
    race.damaged = race.recipe.damaged()
    result = gp.solve(race.damaged.problem, gp.Adam(), stop=gp.MaxSteps(5), restarts=2, patience=10**9)
    for name, content in bundle.inputs(race).items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    given = {}

    def noted(*parts, **options):
        given.update(options)
        return gp.solve(*parts, **options)

    monkeypatch.setattr("genprior.jobs.work.solve", noted)
    words = shlex.split(race.recipe.command())
    place = words.index("--time")
    words[place : place + 2] = ["--steps", "5"]
    assert cli.main([*words[1:], "--json"]) in {0, 1}, "an answer after five steps may be lost"
    json.loads(capsys.readouterr().out)
    assert given["patience"] == PATIENCE, "it does not stall before the page does"
    (found,) = (tmp_path / "recovered" / "recovered").iterdir()
    if found.suffix == ".npy":
        assert np.allclose(np.load(found).reshape(result.signal.shape), result.signal, atol=1e-5)
    else:
        with Image.open(found) as image:
            assert np.abs(np.asarray(image) / 255 - result.signal[0, 0].numpy()).max() < 0.51 / 255


def test_every_solver_has_a_name_on_the_command_line():
    for name, solver in registry.SOLVERS.items():
        assert type(solver()) is type(solver_named(solver.name)) is getattr(gp, name)


def test_the_solvers_share_the_limit():
    choices = choices_for("measurements")
    choices.solvers, choices.seconds = ["Adam", "Auto", "LBFGS"], 20.0
    assert choices.recipe(30).seconds == 10
    assert choices.recipe(300).seconds == 20
    assert choices.recipe(30).solvers == ("Auto", "LBFGS", "Adam")  # in the order of the page


def test_another_generator_takes_the_image_away():
    choices = choices_for("attack")
    choices.take_generator("celeba")
    assert choices.image is None and choices.known is None
    assert choices.damage_type == "measurements" and choices.amount == 1536
    with pytest.raises(ValueError, match="no image yet"):
        choices.recipe(10)
    choices.take_sample(0)
    choices.take_generator("celeba")  # the same again changes nothing
    assert choices.image is not None


@pytest.mark.parametrize(
    "change, words",
    [
        ({"generator": "cats"}, "generator must be one of mnist, celeba, got 'cats'"),
        ({"solvers": ()}, "choose at least one"),
        ({"solvers": ("Adam", "Newton")}, "different names among"),
        ({"solvers": ("Adam", "Adam")}, "different names among"),
        ({"seconds": 0.0}, "seconds must be"),
        ({"seconds": float("nan")}, "seconds must be"),
        ({"restarts": 99}, "restarts must be at most 16"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_a_wrong_recipe_is_refused(change, words):
    right = {"generator": "mnist", "truth": torch.zeros(1, 1, 28, 28), "damage": Measurements(), "solvers": ("Adam",)}
    with pytest.raises(ValueError, match=words):
        Recipe(**(right | change))


@pytest.mark.parametrize("name", registry.GENERATORS)
def test_shapes_are_those_of_the_generators(name):
    assert registry.SHAPES[name] == registry.generator(name).signal_shape


def test_an_image_of_the_wrong_size_is_refused():
    recipe = Recipe("celeba", torch.zeros(1, 1, 28, 28), SaltAndPepper(), ("Adam",))
    with pytest.raises(ValueError, match=r"truth has shape \(1, 1, 28, 28\)"):
        recipe.damaged()


def test_mask_files_hold_the_mask(tmp_path):
    race = Race(choices_for("mask").recipe(10))
    race.damaged = race.recipe.damaged()
    assert isinstance(race.recipe.damage, Painted)
    (tmp_path / "mask.png").write_bytes(bundle.inputs(race)["mask.png"])
    with Image.open(tmp_path / "mask.png") as image:
        assert image.size == (28, 28) and int((np.asarray(image) == 0).sum()) == 5 * 17


@pytest.mark.parametrize("sent", [None, "9" * 99, True, float("nan"), float("inf"), -1e9, 1e9, 3.14, [1], 10**400])
def test_a_browser_may_send_anything(sent):
    """Whatever arrives becomes a value that the slider can show."""
    for kind in DAMAGES:
        choices = choices_for(kind)
        choices.take_amount(sent)
        choices.take_noise(sent)
        choices.take_seconds(sent, 30)
        scale = choices.scale
        assert choices.amount in (scale.stops or (choices.amount,)) and scale.low <= choices.amount <= scale.high
        assert 0 <= choices.noise <= 0.5 and 1 <= choices.seconds <= 30
        assert (choices.amount - scale.low) / scale.step == pytest.approx(
            round((choices.amount - scale.low) / scale.step)
        )
    choices.take_seconds(17, 30)
    choices.take_noise(0.07)
    assert choices.seconds == 17 and choices.noise == 0.07
