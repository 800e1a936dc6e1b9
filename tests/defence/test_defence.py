"""The defence: what is minimised, per picture, and the command for files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import genprior as gp
from genprior import cli, samples
from genprior.defence.attacks import ProjectedGradientAttack, predictions, straight_through
from genprior.defence.projection import Projection, defend, named_solver
from genprior.models.foreign_classifiers import open_classifier


@pytest.fixture(scope="module")
def generator():
    return gp.load_generator("mnist")


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_what_is_minimised(generator, norm):
    """Against numpy, from the definition."""
    pictures = samples.digits(3)[0]
    projection = Projection(generator, norm, gamma=0.01)
    z = generator.sample_latent(3, seed=1)
    away = (generator(z) - pictures).detach().numpy().reshape(3, -1)
    square = (away**2).sum(1)
    expected = square if norm == "l2" else 0.01 * square + np.abs(away).max(1)
    np.testing.assert_allclose(projection.problem(pictures).objective(z).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["admm", "auto", "adam", "gd"])
def test_every_named_solver_comes_nearer(generator, name):
    z = generator.sample_latent(2, seed=3)
    pictures = generator(z).detach()
    z0 = z + 0.3 * generator.sample_latent(2, seed=4)
    projection = Projection(generator, "l2" if name == "gd" else "linf", named_solver(name, "l2"), steps=25)
    result = projection(pictures, z0=z0)
    assert (result.objective < 0.97 * projection.problem(pictures).objective(z0)).all()


def test_pictures_do_not_mix(generator):
    pictures = samples.digits(2)[0]
    z0 = generator.sample_latent(2, seed=5)
    projection = Projection(generator, steps=3)  # every one multiplies the rounding of other batch sizes
    both = projection(pictures, z0=z0).signal
    alone = torch.cat([projection(pictures[i : i + 1], z0=z0[i : i + 1]).signal for i in range(2)])
    torch.testing.assert_close(both, alone, atol=1e-3, rtol=0)


@pytest.mark.parametrize("restarts", [1, 2])
def test_an_attack_in_parts_meets_the_starts_of_the_defence(generator, restarts):
    pictures, labels = samples.digits(3)
    projection = Projection(generator, steps=3, restarts=restarts)
    own, seen = projection(pictures).signal, []
    torch.testing.assert_close(
        projection(pictures[1:], z0=projection.starts([1, 2])).signal, own[1:], atol=1e-3, rtol=0
    )
    assert (projection(pictures[1:]).signal - own[1:]).abs().max() > 0.1, "other starts lead elsewhere"

    def classify(x):
        seen.append(x.detach())
        return torch.stack([x.flatten(1).sum(1), x.new_zeros(len(x))], dim=1)

    known = straight_through(classify, projection.purify)
    ProjectedGradientAttack(steps=1, random_start=False)(known, pictures, labels % 2, batch_size=2)
    torch.testing.assert_close(torch.cat(seen), own, atol=1e-3, rtol=0)
    seen.clear()
    predictions(known, pictures, batch_size=1)
    torch.testing.assert_close(torch.cat(seen), own, atol=1e-3, rtol=0)


def test_no_more_pictures_in_memory_than_batch_size(generator):
    seen = []
    projection = Projection(generator, steps=2, restarts=3, batch_size=2)
    result = projection(samples.digits(5)[0], callbacks=[lambda view: seen.append(len(view.items.unique()))])
    assert max(seen) == 2 and len(result.signal) == 5


def test_a_defence_undoes_an_attack(generator):
    """Pictures of the generator, attacked, from a start near them: the classifier's mind comes back."""
    classifier = gp.load_classifier("mnist")
    z = generator.sample_latent(12, seed=6)
    clean = generator(z).detach()
    labels = predictions(classifier, clean)
    attacked = ProjectedGradientAttack(steps=15, step=0.02)(classifier, clean, labels)
    near = z + 0.1 * torch.randn(z.shape, generator=torch.Generator().manual_seed(0))
    result = Projection(generator, steps=30)(attacked, z0=near)
    before = (predictions(classifier, attacked) == labels).float().mean()
    after = (predictions(classifier, result.signal) == labels).float().mean()
    assert before <= 0.25 and after >= 0.75


def test_defend_tells_before_and_after(generator):
    classifier = gp.load_classifier("mnist")
    pictures = samples.digits(3)[0]
    found = defend(classifier, Projection(generator, steps=3), pictures)
    assert torch.equal(found.before, predictions(classifier, pictures))
    assert torch.equal(found.after, predictions(classifier, found.pictures))
    torch.testing.assert_close(found.distance, (found.pictures - pictures).flatten(1).abs().amax(1))
    assert torch.equal(found.changed, found.before != found.after)
    assert ((found.before_confidence > 0.1) & (found.before_confidence <= 1)).all()


def test_bad_options(generator):
    with pytest.raises(ValueError, match="norm must be 'linf' or 'l2', got 'l1'"):
        Projection(generator, "l1")
    with pytest.raises(ValueError, match="solver must be admm, auto, adam or gd, got 'newton'"):
        named_solver("newton", "l2")
    with pytest.raises(ValueError, match=r"pictures lie in \[0, 2\]"):
        defend(
            gp.load_classifier("mnist"), Projection(generator), 2 * samples.digits(1)[0] / samples.digits(1)[0].max()
        )


# -- the command -----------------------------------------------------------------------------------------------------

QUICK = ["--steps", "3", "--restarts", "1", "--batch-size", "2"]


def test_command_on_an_array_with_labels(tmp_path, capsys):
    pictures, labels = samples.digits(3)
    np.save(tmp_path / "digits.npy", pictures.numpy())
    np.save(tmp_path / "labels.npy", labels.numpy())
    out = tmp_path / "out"
    words = ["defend", str(tmp_path / "digits.npy"), "--labels", str(tmp_path / "labels.npy"), "--out", str(out)]
    assert cli.main([*words, *QUICK, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    document = json.loads(shown.out)
    assert document == json.loads((out / "result.json").read_text())
    assert document["items"] == 3 and document["accuracy_before"] == 1.0 and 0 <= document["accuracy_after"] <= 1
    assert (
        [one["label"] for one in document["results"]]
        == labels.tolist()
        == [one["before"] for one in document["results"]]
    )
    projected = np.load(out / "defended" / "digits.npy")
    assert projected.shape == (3, 1, 28, 28) and not np.allclose(projected, pictures.numpy())
    assert sorted(path.name for path in out.iterdir()) == ["defended", "report.html", "result.json"]
    assert "not a proven defence" in (out / "report.html").read_text()
    assert cli.main([*words, *QUICK]) == 1, "an earlier run lies there"
    assert "give another --out" in capsys.readouterr().err


def test_the_command_starts_each_picture_by_its_number(tmp_path):
    """Whatever the batches, and though one that cannot be read lies between them."""
    pictures = samples.digits(4)[0].numpy().copy()
    np.save(tmp_path / "digits.npy", pictures)
    pictures[1] = np.nan
    np.save(tmp_path / "broken.npy", pictures)
    found = {}
    for name, size in (("digits", "4"), ("digits", "3"), ("broken", "3")):
        out = tmp_path / f"{name}-{size}"
        words = ["defend", str(tmp_path / f"{name}.npy"), "--out", str(out), "--skip", *QUICK]
        assert cli.main([*words, "--batch-size", size]) == 0
        found[name, size] = np.load(out / "defended" / f"{name}.npy")
    np.testing.assert_allclose(found["digits", "3"], found["digits", "4"], atol=1e-3)
    np.testing.assert_allclose(found["broken", "3"][[0, 2, 3]], found["digits", "4"][[0, 2, 3]], atol=1e-3)


def test_command_on_a_folder_of_pictures(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    for number, picture in enumerate(samples.digits(2)[0]):
        Image.fromarray((255 * picture[0]).byte().numpy()).save(folder / f"{number}.png")
    assert cli.main(["defend", str(folder), "--out", str(tmp_path / "out"), *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "items: 2" in shown and "changed:" in shown and "accuracy" not in shown
    assert sorted(path.name for path in (tmp_path / "out" / "defended").iterdir()) == ["0.png", "1.png"]


MODEL = """
import torch
def build():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 4))
def wrong():
    return torch.nn.Identity()
def nothing():
    return 3
"""


def test_a_classifier_of_ones_own(tmp_path):
    (tmp_path / "my_model.py").write_text(MODEL)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 4))
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    spec = f"{tmp_path / 'my_model.py'}:build"
    classifier = open_classifier(spec, tmp_path / "weights.pt", signal_shape=(1, 28, 28))
    pictures = samples.digits(2)[0]
    torch.testing.assert_close(classifier(pictures), module(pictures))
    assert not any(parameter.requires_grad for parameter in classifier.parameters())


@pytest.mark.parametrize(
    ("spec", "weights", "message"),
    [
        ("nothing", None, "returned int, expected a torch.nn.Module"),
        ("wrong", None, r"gives \(2, 1, 28, 28\) for two images, expected \(2, classes\)"),
        ("mnist", "w.pt", "weights go with a Python function"),
        ("there-is-none", None, "there is no bundled classifier"),
    ],
)
def test_classifiers_that_cannot_be_used(tmp_path, spec, weights, message):
    (tmp_path / "my_model.py").write_text(MODEL)
    known = spec in {"nothing", "wrong"}
    with pytest.raises((ValueError, TypeError), match=message):
        open_classifier(f"{tmp_path / 'my_model.py'}:{spec}" if known else spec, weights, signal_shape=(1, 28, 28))


def test_a_classifier_of_other_pictures_is_refused():
    with pytest.raises(ValueError, match=r"fails on images of shape \(3, 64, 64\)"):
        open_classifier("mnist", signal_shape=(3, 64, 64))
