"""``genprior recover``, ``denoise`` and ``check`` as they are typed."""

import dataclasses
import json
import re

import numpy as np
import pytest
from PIL import Image

from genprior import cli, samples
from genprior.cli.recover import Recover
from genprior.engines import Local, Ray


def ends(words):
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as end:
        return end.code


def flat(text):
    return " ".join(text.split())


@pytest.fixture
def digits(tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    for number, picture in enumerate(samples.digits(3)[0]):
        Image.fromarray((picture[0] * 255).byte().numpy()).save(folder / f"{number}.png")
    return folder


def test_the_documented_form(digits, tmp_path, capfd):
    words = "--generator mnist --operator gaussian:m=392,seed=0 --simulate --steps 20 --time 60 --out"
    assert ends(["recover", digits, *words.split(), tmp_path / "out"]) == 0
    shown = capfd.readouterr()
    assert shown.err == "" and "recovered: 3 of 3 items" in shown.out and "report: " in shown.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".job",
        "recovered",
        "report.html",
        "result.json",
    ]
    assert sorted(path.name for path in (tmp_path / "out" / "recovered").iterdir()) == ["0.png", "1.png", "2.png"]


def test_json_is_the_result(digits, tmp_path, capfd):
    words = ["denoise", digits / "0.png", digits / "2.png", "--simulate", "--noise", "0.2", "--steps", "3", "--json"]
    assert ends([*words, "--out", tmp_path / "out"]) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    assert json.loads(shown.out) == json.loads((tmp_path / "out" / "result.json").read_text())
    assert [item["name"] for item in json.loads(shown.out)["items"]] == ["0.png", "2.png"]


def test_every_option_arrives(tmp_path, monkeypatch):
    given = {}

    def fake(job, show, *, engine, **others):
        given["engine"] = engine
        given.update(dataclasses.asdict(job))
        raise ValueError("seen enough")

    monkeypatch.setattr("genprior.jobs.recover.recover", fake)
    words = (
        "recover a b --out o --operator blur:sigma=2 --generator m.py:f --weights w.pt --latent-shape 3 1 1 --range -1 1 "
        "--label 4 --loss l2 --box 0 2 --latent-ball 7 --solver adam --restarts 3 --time 9 --steps 11 --batch-size 5 "
        "--deviation 0.2 --basis dct --start e.safetensors --patience 8 --settle-after 9 "
        "--simulate --noise 0.5 --resize --skip --seed 6 --device cpu --threads 1 --json "
        "--workers 3 --engine ray --address host:1 --cpus-per-worker 2 --gpus-per-worker 0.5 --batch-time 9"
    )
    assert ends(words.split()) == 1
    given.pop("pictures")
    ray = {
        "address": "host:1",
        "workers": 3,
        "cpus_per_worker": 2,
        "gpus_per_worker": 0.5,
        "batch_seconds": 9,
        "threads": 1,
    }
    assert given.pop("engine") == Ray(**ray)
    assert str(given.pop("out")) == "o"
    assert given == {
        "inputs": ("a", "b"),
        "source": {
            "generator": "m.py:f", "weights": "w.pt", "latent_shape": (3, 1, 1), "signal_range": (-1.0, 1.0),
            "label": 4, "labels": None,
        },
        "operator": "blur:sigma=2", "simulate": True, "noise": 0.5, "loss": "l2", "box": (0.0, 2.0), "latent_ball": 7.0,
        "deviation": 0.2, "basis": "dct", "solver": "adam", "restarts": 3, "time": 9.0, "steps": 11, "patience": 8,
        "settle_after": 9, "batch_size": 5, "seed": 6, "device": "cpu",
        "resize": True, "skip": True, "start": "e.safetensors",
    }  # fmt: skip
    asked = set(re.findall(r"--([a-z-]+)", words)) | {"labels", "inputs", "shard", "dry-run"}
    assert {field.name.replace("_", "-") for field in dataclasses.fields(Recover)} == asked


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ("", None),
        ("--workers 2", Local(2)),
        ("--workers 2 --threads 3 --batch-time 5", Local(2, 3, 5.0)),
        ("--engine ray --device cuda:99", Ray()),  # which this machine does not have
    ],
)
def test_workers_of_commands(words, engine, monkeypatch):
    seen = []
    monkeypatch.setattr("genprior.jobs.recover.recover", lambda *given, engine, **others: seen.append(engine) or 1 / 0)
    ends(f"denoise a --out o {words}".split())
    assert seen == [engine]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("recover a --operator identity --workers 0", "--workers must be at least 1"),
        ("recover a --operator identity --address host:1", "--address is for Ray: add --engine ray"),
        ("recover a --operator identity --batch-time 5", "--batch-time is for workers: add --workers"),
        ("recover", "no input: give files or folders"),
        ("recover gone.png", "there is no file or folder gone.png"),
        ("recover {digits} --operator blur:sigma=x", "sigma in the operator"),
        ("recover {digits}", "is an image, but items of shape (392,) are expected: give an array, or --simulate"),
        ("recover {digits} --generator mnst --simulate", "no bundled generator"),
        ("recover {digits} --solver magic --simulate", "no solver 'magic'"),
        ("recover {digits} --loss l1 --simulate", "compares whole images"),
        ("recover {digits} --device abacus --simulate", "device 'abacus' cannot be used here"),
        ("recover {digits} --restarts 0 --simulate", "restarts must be at least 1"),
        ("recover {digits} --out {digits}/0.png --simulate", "0.png is a file, expected a folder: give another --out"),
        (
            "recover {digits} --out {digits}/0.png/in --simulate",
            "0.png/in cannot be made, because {digits}/0.png is a file",
        ),
        ("recover {digits} --out /proc/nope --simulate", "--out /proc/nope cannot be made (No such file or directory)"),
        (
            "recover {digits} --generator free.py:Free --range 1 0 --label 0 --latent-shape 784",
            "genprior: --range must be",
        ),
        ("recover {digits} --batch-size 0", "genprior: --batch-size must be at least 1, got 0"),
        ("recover {digits} --latent-ball -3", "genprior: --latent-ball must be a finite number above 0, got -3"),
        ("recover {digits} --noise 1", "genprior: --noise is only used in simulations: add --simulate"),
        ("recover {digits} --out {digits} --simulate", "is also --out, or lies in it, and its files are not read"),
        ("recover {y} ", "shape (2, 300), expected (392,) for one item or (N, 392) for many"),
        ("recover {y} --skip", "shape (2, 300)"),
    ],
)
def test_one_line_and_exit_code_one(digits, tmp_path, capfd, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "free.py").write_text(FREE)
    np.save(tmp_path / "y.npy", np.zeros((2, 300), np.float32))
    words = words.format(digits=digits, y=tmp_path / "y.npy").split()
    words += [] if "--operator" in words else ["--operator", "gaussian:m=392"]
    words += [] if "--out" in words else ["--out", str(tmp_path / "out")]
    assert ends(words) == 1
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.startswith("genprior: ") and shown.err.count("\n") == 1
    assert message.format(digits=digits) in flat(shown.err)
    assert not (tmp_path / "out").exists(), "nothing was begun"


FREE = """
import torch


class Free(torch.nn.Module):
    def forward(self, z, label):
        return torch.tanh(z + label[:, None]).reshape(-1, 1, 28, 28)
"""
TOLD = ["--latent-shape", "784", "--range", "-1", "1", "--label", "2", "--threads", "1"]


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["defend", "{digits}", "--out", "o"], "genprior.jobs.defend.defend_files"),
        (["certify"], "genprior.theory.examination.examine"),
        (["recover", "{digits}", "--operator", "identity", "--out", "o"], "genprior.jobs.recover.check_loss"),
    ],
)
def test_what_is_told_of_a_generator_is_told_alike(digits, tmp_path, capfd, monkeypatch, words, where):
    seen = []

    def fake(*parts, **options):
        seen.extend(parts)
        raise ValueError("seen enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(where, fake)
    threads = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    (tmp_path / "free.py").write_text(FREE)
    code = ends([*(word.format(digits=digits) for word in words), "--generator", "free.py:Free", *TOLD])
    assert (code, threads) == (1, [1]) and "seen enough" in capfd.readouterr().err
    if words[0] == "certify":
        assert seen[0].latent_shape == (784,) and seen[0].signal_range == (0, 1)


def test_check_shows_the_whole_reason(tmp_path, capfd):
    (tmp_path / "bad.py").write_text("def boom(): raise KeyError('ckpt')")
    assert ends(["check", f"{tmp_path / 'bad.py'}:boom", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)["findings"][0]
    assert "boom() failed with KeyError: 'ckpt' (bad.py, line 1)" in found["measured"] and not found["advice"]


@pytest.mark.parametrize("command", ["recover", "denoise", "defend"])
def test_inputs_in_the_help(command, capfd):
    assert ends([command, "--help"]) == 0
    shown = flat(capfd.readouterr().out)
    assert "[OPTIONS] INPUT..." in shown and "(default: )" not in shown


@pytest.mark.parametrize("words", ["recover a.png --out o", "denoise a.png --out o --loss l9", "recover --operatr x"])
def test_wrong_words(words, capfd):
    assert ends(words.split()) == 2
    assert "Traceback" not in capfd.readouterr().err


def test_a_broken_picture_among_good_ones(digits, tmp_path, capfd):
    whole = (digits / "1.png").read_bytes()
    (digits / "1.png").write_bytes(whole[: len(whole) // 2])  # the head is sound, the pixels are not
    words = ["recover", digits, "--operator", "downsample:4", "--simulate", "--steps", "2"]
    assert ends([*words, "--out", tmp_path / "out"]) == 1
    shown = capfd.readouterr()
    assert "2 of 3 items" in shown.out and "1 of 3 items could not be read, all others are recovered" in flat(shown.err)
    assert sorted(path.name for path in (tmp_path / "out" / "recovered").iterdir()) == ["0.png", "2.png"]
    assert ends([*words, "--skip", "--out", tmp_path / "skipped"]) == 0


def test_a_broken_picture_among_defended_ones(digits, tmp_path, capfd):
    whole = (digits / "1.png").read_bytes()
    (digits / "1.png").write_bytes(whole[: len(whole) // 2])
    words = ["defend", digits, "--steps", "2", "--restarts", "1"]
    assert ends([*words, "--out", tmp_path / "out"]) == 1
    shown = flat(capfd.readouterr().err)
    assert "1 of 3 items could not be read (" in shown and "1.png cannot be read as an image" in shown
    assert shown.endswith("; add --skip to leave them out")
    assert sorted(path.name for path in (tmp_path / "out" / "defended").iterdir()) == ["0.png", "2.png"]
    assert ends([*words, "--skip", "--out", tmp_path / "skipped"]) == 0


def test_no_item_can_be_read(tmp_path, capfd):
    np.save(tmp_path / "x.npy", np.full((3, 1, 28, 28), 200.0, np.float32))
    assert ends(["denoise", tmp_path / "x.npy", "--out", tmp_path / "out"]) == 1
    shown = capfd.readouterr()
    assert "3 of 3 items could not be read (x.npy[0] has values" in flat(shown.err) and "--skip" not in shown.err
    assert "recovered: 0 of 3 items" in shown.out and "plan:" not in shown.out
    assert ends(["denoise", tmp_path / "x.npy", "--skip", "--out", tmp_path / "skipped"]) == 1
    assert "3 of 3 items could not be read" in flat(capfd.readouterr().err)
    assert ends(["defend", tmp_path / "x.npy", "--skip", "--out", tmp_path / "defended"]) == 1
    assert "3 of 3 items could not be read (x.npy[0] has values" in flat(capfd.readouterr().err)


@pytest.mark.parametrize("more", [[], ["--simulate"]])
def test_pictures_for_a_flat_generator(digits, tmp_path, capfd, more):
    (tmp_path / "flat.py").write_text("import torch\ndef build(): return torch.nn.Linear(4, 784)\n")
    np.save(tmp_path / "x.npy", np.zeros((3, 1, 28, 28), np.float32))
    np.save(tmp_path / "plain.npy", np.zeros((3, 28, 28), np.float32))
    np.save(tmp_path / "other.npy", np.zeros((3, 1, 14, 14), np.float32))
    words = ["--generator", f"{tmp_path / 'flat.py'}:build", "--out", tmp_path / "out", *more]
    for name in ("x.npy", "plain.npy"):
        assert ends(["denoise", tmp_path / name, *words]) == 1
        advice = "The generator makes flat signals of 784 values: end it with nn.Unflatten(1, (1, 28, 28))"
        assert advice in flat(capfd.readouterr().err)
    assert ends(["denoise", tmp_path / "other.npy", *words]) == 1
    assert "flat signals" not in capfd.readouterr().err
    assert ends(["denoise", digits, *words]) == 1
    assert "makes flat signals of 784 values: end it with nn.Unflatten" in flat(capfd.readouterr().err)


def test_results_inside_the_inputs(digits, capfd):
    words = ["recover", digits, "--operator", "downsample:4", "--simulate", "--steps", "2", "--out", digits / "out"]
    assert ends(words) == 0 and ends(words) == 0
    assert "3 of 3 items" in capfd.readouterr().out
    assert len(list((digits / "out" / "recovered").iterdir())) == 3


def test_ctrl_c_says_how_to_go_on(digits, tmp_path, capfd, monkeypatch):
    def pressed(*parts, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("genprior.jobs.work.solve", pressed)
    words = ["recover", digits, "--operator", "downsample:4", "--simulate", "--out", tmp_path / "out"]
    assert ends(words) == 130
    assert "the same command resumes" in flat(capfd.readouterr().err)


def test_a_lost_drive_says_how_to_go_on(digits, tmp_path, capfd, monkeypatch):
    def gone(*parts):
        raise OSError(5, "Input/output error", "0.png")

    words = ["recover", digits, "--operator", "downsample:4", "--simulate", "--steps", "2", "--out", tmp_path / "out"]
    with monkeypatch.context() as patch:
        patch.setattr("genprior.files.stream.decode", gone)
        assert ends(words) == 1
    shown = flat(capfd.readouterr().err)
    assert "the same command resumes the job" in shown and "Input/output error: '0.png'" in shown
    assert ends(words) == 0


def test_check_in_text_and_json(capfd, tmp_path):
    assert ends(["check", "mnist", "--out", tmp_path]) == 0
    shown = capfd.readouterr().out
    assert "all laws hold" in shown and "DG: largest singular value" in shown and "try: genprior recover" in flat(shown)
    assert (tmp_path / "samples.png").is_file() and (tmp_path / "samples" / "15.png").is_file()
    assert ends(["check", "gone.py:build", "--json"]) == 1
    captured = capfd.readouterr()
    document = json.loads(captured.out)
    assert document["ok"] is False and "there is no file gone.py" in document["findings"][0]["measured"]
    assert "1 of 1 checks fail: opens" in captured.err


def test_time_used_up_is_no_recovery(digits, tmp_path, capfd):
    words = ["denoise", digits, "--simulate", "--time", "1e-9", "--out", tmp_path / "out"]
    assert ends(words) == 1
    shown = capfd.readouterr()
    assert "recovered: 0 of 3 items (3 OUT_OF_TIME)" in shown.out
    assert "need attention: 3 not begun" in shown.out
    assert "no time was left for 3 of 3 items" in flat(shown.err)
    document = json.loads((tmp_path / "out" / "result.json").read_text())
    assert document["summary"]["not_begun"] == 3
    assert all("no time was left for a single step" in item["advice"] for item in document["items"])
    assert "no time was left for" in (tmp_path / "out" / "report.html").read_text()


def test_diverged_items_end_with_exit_code_one(tmp_path, capfd):
    (tmp_path / "bad.py").write_text(
        "import torch\n"
        "class Bad(torch.nn.Module):\n"
        "    latent_shape = (2,)\n"
        "    def forward(self, z):\n"
        "        slope_is_nan = (0 * z).sum(1).sqrt()\n"
        "        return torch.sigmoid(z.sum(1) + slope_is_nan).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)\n"
    )
    np.save(tmp_path / "x.npy", np.full((2, 1, 2, 2), 0.5, np.float32))
    words = ["denoise", tmp_path / "x.npy", "--generator", f"{tmp_path / 'bad.py'}:Bad", "--range", "0", "1"]
    code = ends([*words, "--solver", "gradient-descent", "--steps", "500", "--out", tmp_path / "out"])
    shown = capfd.readouterr()
    assert (code, "2 of 2 items diverged" in flat(shown.err)) == (1, True), shown
    assert "recovered: 0 of 2 items" in shown.out
    json.loads((tmp_path / "out" / "result.json").read_text(), parse_constant=pytest.fail)


def test_labels_beside_the_pictures_are_told(tmp_path, capfd):
    np.savez(tmp_path / "a.npz", images=samples.digits(2)[0].numpy(), labels=np.arange(2))
    assert ends(["denoise", tmp_path / "a.npz", "--simulate", "--steps", "2", "--out", tmp_path / "out"]) == 0
    shown = flat(capfd.readouterr().out)
    assert "recovered: 2 of 2 items" in shown and "note: ignored: " in shown and "labels has shape (2,)" in shown


def test_one_array_of_several_by_its_key(tmp_path, capfd):
    pictures = samples.digits(3)[0].numpy()
    np.savez(tmp_path / "a.npz", clean=pictures, noisy=pictures[:2], labels=np.arange(3))
    words = ["denoise", f"{tmp_path / 'a.npz'}:noisy", "--steps", "2", "--out", tmp_path / "out"]
    for _ in range(2):  # the second time it is done already
        assert ends(words) == 0
        shown = flat(capfd.readouterr().out)
        assert "recovered: 2 of 2 items" in shown and "ignored" not in shown
    with np.load(tmp_path / "out" / "recovered" / "a.npz") as file:
        assert list(file) == ["noisy"] and file["noisy"].shape == (2, 1, 28, 28)
    assert ends(["denoise", f"{tmp_path / 'a.npz'}:noise", "--out", tmp_path / "other"]) == 1
    assert "a.npz has no array 'noise': give one of clean, labels, noisy" in flat(capfd.readouterr().err)
    assert not (tmp_path / "other" / "recovered").exists()


class Odd(Exception):
    """Not one of the family that commands expect."""


@pytest.mark.parametrize(
    "problem", [IndexError("index out\nof range"), AssertionError(), Odd("odd"), OverflowError("big")]
)
def test_no_traceback_reaches_a_person(tmp_path, capfd, monkeypatch, problem):
    def fails(*parts, **options):
        raise problem

    monkeypatch.setattr("genprior.jobs.recover.recover", fails)
    assert ends(["denoise", "a.png", "--out", tmp_path / "out"]) == 1
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert shown.err.startswith(f"genprior: {type(problem).__name__}") and "set GENPRIOR_DEBUG=1" in shown.err
    monkeypatch.setenv("GENPRIOR_DEBUG", "1")
    assert ends(["denoise", "a.png", "--out", tmp_path / "out"]) == 1
    assert "Traceback" in capfd.readouterr().err


def test_shards_and_a_dry_run_as_typed(digits, tmp_path, capsys):
    out = tmp_path / "o"
    words = f"recover {digits} --operator downsample:2 --simulate --steps 3 --batch-size 1 --out {out}"
    assert ends([*words.split(), "--dry-run"]) == 0
    shown = flat(capsys.readouterr().out)
    assert "would solve: 3 items in 3 batches" in shown and "written: nothing" in shown and not out.exists()
    for shard in ("1/2", "2/2"):
        assert ends([*words.split(), "--shard", shard]) == 0
    assert f"shard 2/2: 1 of 3 items, in 0.0 s next: when all shards are solved, genprior gather {out}" in flat(
        capsys.readouterr().out
    ).replace("in 0.1 s", "in 0.0 s")
    assert ends(["gather", out]) == 0
    assert "solved by: 2 shards" in capsys.readouterr().out
    assert ends([*words.split(), "--shard", "3/2"]) == 1
    assert "--shard must be a number from 1 to the number of shards" in capsys.readouterr().err
    assert ends([*words.split(), "--shard", "1/2", "--dry-run"]) == 1
