"""``genprior train ...`` from the outside."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import genprior as gp
from genprior import cli, samples
from genprior._progress import Bar
from genprior.models.saved import load_network
from genprior.training import quality
from genprior.training.data import ImageSet, image_files
from genprior.training.image_encoder import ImageEncoderTask
from genprior.training.start import recorded_threads
from genprior.training.task import Devices

WORDS = "--latent 3 --width 2 --critic-width 2 --encoder-width 2 --batch 4 --warm-steps 2 --steps 2"
TINY = WORDS.split()


@pytest.fixture
def few_digits(monkeypatch):
    def found(split="train", folder=None):
        pictures, labels = samples.digits(60)
        return ImageSet("mnist", (pictures * 255).round().to(torch.uint8), labels, "CC BY-SA 3.0")

    monkeypatch.setattr("genprior.training.data.mnist", found)
    monkeypatch.setattr("genprior.training.data.fashion_mnist", found)
    monkeypatch.setattr(quality.cover, "__kwdefaults__", quality.cover.__kwdefaults__ | {"steps": 5})


def run(*words):
    try:
        return cli.main(["train", *words])
    except SystemExit as end:
        return end.code


def test_mnist(few_digits, tmp_path, capsys):
    assert run("mnist", "--out", str(tmp_path / "run"), *TINY, "--json", "--seed", "4") == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["seed"] == 4 and document["quality"]["coverage"]["pictures"] == 60
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "training.checkpoint",
        "curve.csv",
        "curve.png",
        "samples.png",
        "generator.safetensors",
        "generator.md",
        "encoder.safetensors",
        "encoder.md",
    }
    G = gp.load_generator(tmp_path / "run" / "generator.safetensors")
    assert G.latent_shape == (3,)
    card = (tmp_path / "run" / "generator.md").read_text()
    for words in (
        "mnist",
        "CC BY-SA 3.0",
        "**Seed:** 4",
        "TruncatedNormal(radius=5.73",
        "| warm steps | 2 |",
        "coverage",
    ):
        assert words in card
    assert run("mnist", "--out", str(tmp_path / "run"), *TINY, "--json", "--seed", "5") == 1
    assert "belongs to another run" in capsys.readouterr().err


def test_going_on_with_other_settings(few_digits, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert run("mnist", "--out", str(first), *TINY, "--json") == 0
    later = [*TINY[:-4], "--warm-steps", "0", "--steps", "1", "--rate", "1e-9", "--averaging", "0.0", "--json"]
    assert run("mnist", "--out", str(second), "--start", str(first), *later) == 0
    old, new = (load_file(folder / "training.checkpoint")["network.generator.0.weight"] for folder in (first, second))
    assert not torch.equal(old, new) and torch.allclose(old, new, atol=1e-7), "it starts from the other run's weights"
    card = (second / "generator.md").read_text()
    assert "## Training, part 1" in card and f"--out {first}" in card and "## Training, last part" in card
    capsys.readouterr()
    assert run("mnist", "--out", str(tmp_path / "x"), "--start", str(first), *TINY, "--width", "3") == 1
    assert "do not fit the settings of this run" in capsys.readouterr().err
    assert run("mnist", "--out", str(tmp_path / "x"), "--start", str(tmp_path / "none"), *TINY) == 1
    assert "start: there is no" in capsys.readouterr().err
    (tmp_path / "bad").write_bytes(b"half")
    assert run("mnist", "--out", str(tmp_path / "x"), "--start", str(tmp_path / "bad"), *TINY) == 1
    assert "cannot be read" in capsys.readouterr().err


class Cut(Bar):
    """A person who gives up in the third step."""

    def show(self, done, total, note):
        if done == 3:
            raise KeyboardInterrupt


def without_history(checkpoint, path):
    """As checkpoints were that did not tell it."""
    meta = json.dumps({"run": "x", "step": 4, "seconds": 1.0})
    save_file(load_file(checkpoint), path, {"format": "genprior-checkpoint-2", "meta": meta})


def test_the_card_tells_all_parts(few_digits, tmp_path, capsys, monkeypatch):
    quick = [*TINY[:-4], "--warm-steps", "4", "--steps", "0", "--checkpoint-steps", "1"]
    monkeypatch.setattr("genprior.cli.train.measure", lambda *_: {})

    def earlier(out, start):
        folder = tmp_path / out
        words = [*quick, "--json"]
        assert run("mnist", "--out", str(folder), "--start", str(start), *words) == 0, capsys.readouterr().err
        told = json.loads(capsys.readouterr().out)["earlier"]
        assert load_network(folder / "generator.safetensors").facts["earlier"] == told
        return told, (folder / "generator.md").read_text()

    first = tmp_path / "first"
    with monkeypatch.context() as patched:
        patched.setattr("genprior.cli.training.Bar", Cut)
        assert run("mnist", "--out", str(first), *quick, "--seed", "3") == 130
    capsys.readouterr()
    assert not (first / "generator.safetensors").exists()
    told, card = earlier("second", first)
    assert len(told) == 1 and told[0]["seed"] == 3 and told[0]["training"]["warm_steps"] == 4
    assert f"--out {first}" in told[0]["command"] and told[0]["taken"] == "step 2 of 4"
    assert "## Training, part 1" in card and "seed 3, 0.0 hours, taken at step 2 of 4" in card

    told, card = earlier("third", tmp_path / "second" / "training.checkpoint")
    assert [part["seed"] for part in told] == [3, 0] and "taken" not in told[1] and "## Training, part 2" in card

    without_history(tmp_path / "third" / "training.checkpoint", tmp_path / "old")
    told, card = earlier("fourth", tmp_path / "old")
    assert len(told) == 1 and "unknown earlier part" in card

    (tmp_path / "ended").mkdir()  # by a version whose checkpoints did not tell, but whose generators did
    without_history(tmp_path / "third" / "training.checkpoint", tmp_path / "ended" / "training.checkpoint")
    weights = (tmp_path / "third" / "generator.safetensors").read_bytes()
    (tmp_path / "ended" / "generator.safetensors").write_bytes(weights)
    told, _ = earlier("fifth", tmp_path / "ended")
    assert [part["seed"] for part in told] == [3, 0, 0]


def test_fashion_and_text(few_digits, tmp_path, capsys):
    assert run("fashion-mnist", "--out", str(tmp_path), *TINY, "--threads", "1") == 0
    assert f"wrote {tmp_path / 'generator.safetensors'}" in capsys.readouterr().out


def test_classifier_and_encoder(few_digits, tmp_path, capsys):
    assert run("classifier", "--out", str(tmp_path / "c"), "--steps", "2", "--width", "2", "--json") == 0
    assert "classifier.safetensors" in json.loads(capsys.readouterr().out)["files"][0]
    assert run("mnist", "--out", str(tmp_path / "g"), *TINY, "--json") == 0
    capsys.readouterr()
    weights = str(tmp_path / "g" / "generator.safetensors")
    options = ["--generator", weights, "--steps", "2", "--width", "2", "--batch", "4", "--json"]
    for more in (
        [],
        ["--own-samples", "1"],
        ["--start", str(tmp_path / "g/encoder.safetensors")],
    ):
        out = tmp_path / f"e{len(more)}{''.join(more[:1])}"
        assert run("image-encoder", "--out", str(out), *options, *more) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert gp.load_encoder(out / "encoder.safetensors").latent_shape == (3,)
        assert ("## Training, part 1" in (out / "encoder.md").read_text()) == ("--start" in more)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    random = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(random.integers(256, size=(70, 80, 3), dtype=np.uint8)).save(tmp_path / f"images/{number}.png")
    (tmp_path / "images" / "x.jpg").write_bytes(b"broken")
    return tmp_path / "images"


@pytest.mark.parametrize("command", ["folder", "celeba"])
def test_folder(few_digits, folder, tmp_path, capsys, command):
    out = tmp_path / "run"
    words = [command, "--data", str(folder), "--out", str(out), *TINY, "--hold-out", "2", "--channels", "1", "--json"]
    assert run(*words) == 0
    shown = capsys.readouterr()
    assert "1 files could not be read and were skipped, first x.jpg" in shown.err
    assert json.loads(shown.out)["quality"]["coverage"]["pictures"] == 2
    assert gp.load_generator(out / "generator.safetensors").signal_shape == (1, 64, 64)
    assert ("non-commercial" in (out / "generator.md").read_text()) == (command == "celeba")


def test_encoder_of_ones_own_generator(few_digits, folder, tmp_path, capsys):
    out = tmp_path / "g"
    words = ["--data", str(folder), "--licence", "mine", "--weights-licence", "also mine", "--json"]
    assert run("folder", "--out", str(out), *TINY, *words) == 0
    options = [
        "image-encoder",
        "--generator",
        str(out / "generator.safetensors"),
        "--steps",
        "1",
        "--width",
        "2",
        "--batch",
        "4",
    ]
    assert run(*options, "--out", str(tmp_path / "x")) == 1
    assert "data must be given: the generator was trained on 'images'" in " ".join(capsys.readouterr().err.split())
    assert run(*options, "--out", str(tmp_path / "e"), "--data", str(folder)) == 0
    card = (tmp_path / "e" / "encoder.md").read_text()
    assert "**Licence of the data:** mine" in card and "**Licence of the weights:** also mine" in card


def test_an_encoder_does_not_see_what_was_held_out(few_digits, folder, tmp_path, capsys, monkeypatch):
    """From a folder that has the name of a data set."""
    folder = folder.rename(tmp_path / "mnist")
    out, seen = tmp_path / "g", []
    words = [*TINY, "--data", str(folder), "--json", "--hold-out", "2", "--limit", "5"]
    assert run("folder", "--out", str(out), *words) == 0

    class Spy(ImageEncoderTask):
        def __init__(self, settings, generator, pictures, *more):
            seen.append(pictures.bytes)
            super().__init__(settings, generator, pictures, *more)

    monkeypatch.setattr("genprior.cli.train.ImageEncoderTask", Spy)
    generator = str(out / "generator.safetensors")
    options = [
        "--generator",
        generator,
        "--data",
        str(folder),
        "--steps",
        "1",
        "--width",
        "2",
        "--batch",
        "4",
        "--json",
    ]
    for count, more in ((3, []), (5, ["--hold-out", "0"])):
        assert run("image-encoder", "--out", str(tmp_path / f"e{count}"), *options, *more) == 0, capsys.readouterr().err
        assert torch.equal(seen[-1], image_files(folder, limit=5).bytes[:count])
        card = (tmp_path / f"e{count}" / "encoder.md").read_text()
        assert f"**Hold out:** {5 - count}" in card and "**Limit:** 5" in card
    capsys.readouterr()
    assert run("image-encoder", "--out", str(tmp_path / "x"), *options, "--hold-out", "5") == 1
    assert "--hold-out must be below the number of images, 5, got 5" in " ".join(capsys.readouterr().err.split())


def test_one_named_device_is_one():
    with pytest.raises(ValueError, match="devices must be 1 for the one device 'cuda:1', got 4: give `device=cuda`"):
        Devices("cuda:1", 4)
    assert Devices("cpu:0").world == 1


def test_what_goes_wrong(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    cases = [
        (["folder", "--data", str(tmp_path / "empty"), "--out", str(tmp_path / "o")], "holds no image"),
        (["folder", "--data", str(tmp_path / "none"), "--out", str(tmp_path / "o")], "there is no folder or archive"),
        (
            ["folder", "--data", str(folder), "--out", str(tmp_path / "o"), "--hold-out", "6"],
            "--hold-out must be below",
        ),
        (["folder", "--data", str(folder), "--out", str(tmp_path / "file")], "file is a file, expected a folder"),
        (
            ["mnist", "--data", str(tmp_path), "--out", str(tmp_path / "o")],
            "-images-idx3-ubyte could not be downloaded",
        ),
        (["folder", "--data", str(folder), "--out", str(tmp_path / "o"), "--device", "abacus"], "device 'abacus'"),
        (["image-encoder", "--generator", "minst", "--out", str(tmp_path / "o")], "no bundled generator 'minst'"),
    ]
    for words, message in cases:
        assert run(*words) == 1, words
        shown = capsys.readouterr()
        assert message in " ".join(shown.err.split()), shown.err
        assert "Traceback" not in shown.err


def test_without_the_extra(folder, tmp_path):
    """What is said where lightning-fabric is not installed."""
    script = (
        "import sys; sys.modules['lightning_fabric'] = None; from genprior.cli import main; "
        f"sys.exit(main(['train', 'folder', '--data', {str(folder)!r}, '--out', {str(tmp_path / 'o')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "pip install 'genprior[train]'" in done.stderr


def test_help_has_an_example(capsys):
    for name in ("mnist", "fashion-mnist", "celeba", "folder", "classifier", "encoder", "image-encoder"):
        assert run(name, "--help") == 0
        assert f"genprior train {name} " in capsys.readouterr().out


def test_a_resumed_training_goes_on_with_its_threads(few_digits, tmp_path, capsys, monkeypatch):
    """One pass with two threads takes as long as five with one; then the machine is quiet again."""

    class Probe:
        speeds = {1: 0.01, 2: 0.05}  # noqa: RUF012

        def __init__(self, generator):
            pass

        def seconds(self, threads):
            use(threads)
            return self.speeds[threads]

    now = [2]

    def use(threads):
        now[0] = threads

    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", use)
    monkeypatch.setattr("genprior.cli.threads.Probe", Probe)
    words = ["classifier", "--out", str(tmp_path), "--steps", "2", "--width", "2", "--json"]
    assert run(*words) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 1 and recorded_threads(tmp_path) == 1
    Probe.speeds = {1: 0.01, 2: 0.005}
    use(2)
    assert run(*words) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["threads"] == 1 and "other_threads" not in facts and now == [1]
    assert run(*words[:2], str(tmp_path / "given"), *words[3:], "--threads", "2") == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 2
    assert recorded_threads(tmp_path / "nothing") is None


def test_a_training_whose_threads_change_says_so(few_digits, tmp_path, capsys, monkeypatch):
    steps = []

    def look(watch):
        steps.append(watch)
        now[0] = 1 if len(steps) == 2 else now[0]

    now = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr("genprior.cli.training.Watch.begin", lambda watch, generator, before: None)
    monkeypatch.setattr("genprior.cli.training.Watch.look", look)
    assert run("classifier", "--out", str(tmp_path), "--steps", "4", "--width", "2", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["threads"] == 1 and facts["other_threads"] == [2]
