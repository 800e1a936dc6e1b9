"""``genprior defend`` on files: what is refused, what is replaced, and how it ends after a failure."""

import json
import os
import sys

import numpy as np
import pytest
from PIL import Image

from genprior import cli
from genprior.engines import Crew, Poisoned
from genprior.jobs.ledger import alone

MORE = """

def tanh():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8)))


def double():
    return build().double()


class Broken(nn.Module):
    latent_shape = (3,)

    def forward(self, z):
        slope_is_nan = (0 * z).sum(1).sqrt()
        return torch.sigmoid(z.sum(1) + slope_is_nan).reshape(-1, 1, 1, 1).expand(-1, 1, 8, 8)


def classifier():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


class Wild(nn.Module):
    def forward(self, x):
        score = x.flatten(1).mean(1, keepdim=True)
        return torch.cat([score, 1 - score], 1) + torch.where(score > 0.999, torch.nan, 0.0)
"""


@pytest.fixture
def defend(tmp_path, model):
    """The command, with a small generator and classifier."""
    with open(model, "a", encoding="utf-8") as file:
        file.write(MORE)

    def run(*words, generator="build", classifier="classifier", out=None):
        models = ["--generator", f"{model}:{generator}", "--classifier", f"{model}:{classifier}"]
        quick = [] if "--steps" in words else ["--steps", "3", "--restarts", "1"]
        return cli.main(["defend", *map(str, words), *models, *quick, "--out", str(out or tmp_path / "out")])

    return run


def result(out):
    return json.loads((out / "result.json").read_text(), parse_constant=pytest.fail)


def pressed(*parts, **options):
    raise KeyboardInterrupt


def test_with_workers(defend, made, tmp_path, capsys):
    """Who has done it is in the record, the summary and the report; nothing else differs from one process."""
    words = ["--threads", "1", "--batch-size", "3"]
    assert defend(made, *words, out=tmp_path / "one") == 0
    capsys.readouterr()
    assert defend(made, *words, "--workers", "2") == 0
    shown = capsys.readouterr().out
    one, two = result(tmp_path / "one"), result(tmp_path / "out")
    runs = one.pop("run"), two.pop("run")
    assert [one.pop("seconds") > 0, two.pop("seconds") > 0] == [True, True] and one == two
    assert [(run["engine"], run["workers"]) for run in runs] == [
        ("this process", 1),
        ("2 processes on this machine", 2),
    ]
    assert runs[1].keys() == {
        *("engine", "workers", "lost_workers", "retries", "poisoned", "threads", "other_threads", "elapsed"),
        "items_per_second",
    }
    assert runs[1]["items_per_second"] * runs[1]["elapsed"] == pytest.approx(7, rel=0.1)
    assert "solved by: 2 processes on this machine, with 1 thread" in shown
    assert "2 processes on this machine" in (tmp_path / "out" / "report.html").read_text()
    assert defend(made, "--cpus-per-worker", "2", out=tmp_path / "third") == 1
    assert "--cpus-per-worker is for Ray: add --engine ray" in capsys.readouterr().err


def test_items_that_were_set_aside_are_told(defend, made, tmp_path, capsys, monkeypatch):
    def run(self, batches):
        batches.watch(Crew("2 processes", 2, notes=["a note of the engine"]))
        yield from [(number, Poisoned("3 workers were lost with it")) for number in batches.numbers]

    monkeypatch.setattr("genprior.engines.Local.run", run)
    assert defend(made, "--workers", "2") == 1
    assert "7 of 7 items were set aside, because solving their batch ended its process" in capsys.readouterr().err
    document = result(tmp_path / "out")
    assert "a note of the engine" in document["notes"]
    assert document["poisoned"] == document["items"] == 7 and document["unreadable"] == 0
    assert "POISONED" in (tmp_path / "out" / "report.html").read_text()
    assert np.isnan(np.load(tmp_path / "out" / "defended" / "made.npy")).all()


def test_rows_of_an_interrupted_run_are_not_mixed_in(defend, made, tmp_path, monkeypatch):
    """Killed, so that nothing could be tidied up: the rows of the first file lie there still."""
    values = np.load(made)
    np.save(tmp_path / "b.npy", values[:2])
    out = tmp_path / "out"
    (out / "defended").mkdir(parents=True)
    (out / ".job").mkdir()
    np.save(out / ".job" / "rows-000000.npy", values + 100)
    (out / ".job" / ".rows-000000.npy.1-2.part").write_bytes(b"half")
    assert defend(tmp_path / "b.npy") == 0
    found = np.load(out / "defended" / "b.npy")
    assert found.shape == (2, 1, 8, 8) and found.max() <= 1
    assert sorted(path.name for path in out.iterdir()) == ["defended", "report.html", "result.json"]


def test_an_interrupted_run_leaves_no_rows(defend, made, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("genprior.files.Outputs.finish", pressed)
        assert defend(made) == 130
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["defended"]
    assert defend(made) == 0


@pytest.mark.parametrize("name", ["result.json", "report.html", "defended/x.png", "defended", ".job/job.json"])
def test_nothing_is_replaced(defend, made, tmp_path, capsys, name):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert defend(made) == 1
    assert "give another --out" in capsys.readouterr().err and path.read_text() == "mine"
    assert [each for each in (tmp_path / "out").rglob("*") if each.is_file()] == [path]


def test_files_of_others_in_the_hidden_folder(defend, made, tmp_path):
    path = tmp_path / "out" / ".job" / "mine.txt"
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert defend(made) == 0
    assert path.read_text() == "mine" and result(tmp_path / "out")["items"] == 7
    assert (tmp_path / "out" / "report.html").is_file()


def test_two_at_once_are_refused(defend, made, tmp_path, capsys):
    with alone(tmp_path / "out"):
        assert defend(made) == 1
    assert "another process is working in" in capsys.readouterr().err


def test_results_inside_the_inputs(defend, made, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    np.save(folder / "x.npy", np.load(made))
    (folder / "out" / "work").mkdir(parents=True)
    np.save(folder / "out" / "work" / "rows-000000.npy", np.load(made))
    assert defend(folder, out=folder / "out") == 0
    assert result(folder / "out")["items"] == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-size", "-1"], "--batch-size must be at least 1, got -1"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--restarts", "0"], "--restarts must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
    ],
)
def test_options_are_checked_at_once(defend, made, tmp_path, capsys, words, message):
    assert defend(made, "--steps", "3", *words) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_diverged_projections_are_told(defend, made, tmp_path, capsys):
    words = ["--range", "0", "1", "--solver", "gd", "--norm", "l2", "--steps", "500", "--restarts", "1"]
    code = defend(made, *words, generator="Broken")
    shown = capsys.readouterr()
    assert (code, "7 of 7 projections diverged" in shown.err) == (1, True), shown
    document = result(tmp_path / "out")
    assert document["diverged"] == 7 and {item["status"] for item in document["results"]} == {"DIVERGED"}
    assert "DIVERGED" in (tmp_path / "out" / "report.html").read_text()


def test_numbers_that_are_not_finite_are_null(defend, tmp_path):
    np.save(tmp_path / "x.npy", np.stack([np.ones((1, 8, 8)), np.zeros((1, 8, 8))]).astype(np.float32))
    assert defend(tmp_path / "x.npy", classifier="Wild") == 0
    unknown, known = result(tmp_path / "out")["results"]
    assert unknown["before"] is unknown["before_confidence"] is unknown["changed"] is None
    assert isinstance(known["before"], int) and isinstance(known["changed"], bool) and known["status"] == "MAX_STEPS"


def test_values_are_not_clipped(defend, tmp_path, capsys):
    """Negative ones are a tanh generator's own where its values are kept; what rounding leaves outside is cut off."""
    random = np.random.default_rng(0)
    values = random.uniform(-1, 1, (3, 1, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    assert defend(tmp_path / "x.npy", "--range", "keep", generator="tanh") == 0
    found = np.load(tmp_path / "out" / "defended" / "x.npy")
    away = np.abs(found - values).reshape(3, -1).max(1)
    assert np.allclose([item["distance"] for item in result(tmp_path / "out")["results"]], away, atol=1e-6)
    capsys.readouterr()
    assert defend(tmp_path / "x.npy", out=tmp_path / "other") == 1
    assert "3 of 3 items could not be read (x.npy[0] has values from -" in capsys.readouterr().err
    mixed = np.stack([np.abs(values[0]), 1.01 * np.abs(values[1]) / np.abs(values[1]).max(), values[2]])
    np.save(tmp_path / "mixed.npy", mixed)
    assert defend(tmp_path / "mixed.npy", "--skip", out=tmp_path / "third") == 0
    document = result(tmp_path / "third")
    assert document["items"] == 2 and document["unreadable"] == 1
    found = np.load(tmp_path / "third" / "defended" / "mixed.npy")
    away = np.abs(found[:2] - mixed[:2].clip(0, 1)).reshape(2, -1).max(1)
    assert np.allclose([item["distance"] for item in document["results"]], away, atol=1e-6)


def test_a_generator_in_double_precision(defend, made, tmp_path):
    assert defend(made, generator="double") == 0
    assert result(tmp_path / "out")["items"] == 7


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_no_text(defend, made, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    names = [os.fsdecode(b"a\xff.png"), "b" * 251 + ".png"]
    for name, picture in zip(names, np.load(made), strict=False):
        Image.fromarray((picture[0] * 255).round().astype(np.uint8)).save(folder / name)
    out = tmp_path / os.fsdecode(b"out\xff")
    assert defend(folder, out=out) == 0
    assert sorted(os.listdir(out / "defended")) == sorted(names)
    assert "a\\udcff.png" in (out / "report.html").read_text(encoding="utf-8")
