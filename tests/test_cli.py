"""The command line: what it prints, what it writes, how it ends."""

import base64
import contextlib
import dataclasses
import io
import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import genprior
from genprior import cli, samples
from genprior.cli.speech import print_json
from genprior.generators.preconditioner import IN_A_RUN
from genprior.lab import overhead
from genprior.lab.demo import demo_solvers, run_demo
from genprior.models.examples import random_mlp

SMALL = ["--pictures", "2", "--time", "0.2"]


def ends(words):
    """Exit code, whether returned or raised."""
    try:
        return cli.main(words)
    except SystemExit as end:
        return end.code


def options(command):
    """Names of the options; a group of settings stands for its members, what has no name is left out."""
    for field in dataclasses.fields(command):
        if "Positional" in str(field.type):
            continue
        if field.name == "settings":
            yield from options(field.default_factory())
        else:
            yield field.name


def flat(text):
    return " ".join(text.split())


# -- demo ------------------------------------------------------------------------------------------------------------


def test_demo_json(tmp_path, capfd):
    out = tmp_path / "new" / "demo"
    assert ends(["demo", "--out", str(out), *SMALL, "--json"]) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    document = json.loads(shown.out)  # fails on anything before or after the document
    assert [row["solver"] for row in document["solvers"]] == list(demo_solvers())
    for row in document["solvers"]:
        # The preconditioner of Auto is given with the generator; the variance of signals beside it takes a few samples.
        samples = row["forwards"] - row["iterations"] - 1
        assert 0 <= samples <= IN_A_RUN[0] if row["solver"] == "Auto" else samples == 0, row["solver"]
        assert row["backwards"] == row["iterations"]
        assert row["status"] == ["OUT_OF_TIME"] * 2
        assert 0 <= row["median_error"] <= row["worst_error"] < 2
        assert 0.1 < row["seconds"] < 5
        assert row["plan"]
    assert document["report"] == str(out / "demo.html")
    assert [path.name for path in out.iterdir()] == ["demo.html"]


def test_demo_report_is_one_page_that_needs_nothing_else(tmp_path):
    assert ends(["demo", "--out", str(tmp_path), *SMALL, "--truth", "range", "--restarts", "2", "--json"]) == 0
    text = (tmp_path / "demo.html").read_text(encoding="utf-8")
    addresses = re.findall(r"(?:src|href)=\"([^\"]{0,30})", text)
    assert addresses and all(address.startswith(("data:image/png;base64,", "#")) for address in addresses)
    assert "<svg" in text and "Digits from the generator" in text
    for name in ("original", "A^T y", *demo_solvers()):
        assert name in text
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(pictures) == 2 + len(demo_solvers())
    with Image.open(io.BytesIO(base64.b64decode(pictures[0]))) as picture:
        assert picture.size == (2 * 28 + 2, 28), "two digits side by side"


def test_demo_table(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    out = tmp_path / "with [brackets] in it"
    assert ends(["demo", "--out", str(out), *SMALL]) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    for name in demo_solvers():
        assert name in shown.out
    assert "2 digits of 784 pixels from 392 random measurements each" in flat(shown.out)
    assert "0.2 s per solver, one start per digit" in flat(shown.out)
    assert f"report: {out / 'demo.html'}\n" in shown.out, "the path stands whole on its line"


def test_demo_truths():
    real = run_demo(pictures=1, seconds=0.05, seed=3)
    assert torch.equal(real.truth, samples.digits(1)[0])
    first, second, other = (run_demo(pictures=1, seconds=0.05, seed=seed, truth="range") for seed in (3, 3, 4))
    assert torch.equal(first.truth, second.truth) and torch.equal(first.backprojection, second.backprojection)
    assert not torch.equal(first.truth, other.truth)
    for run in real.runs:
        assert torch.equal(run.trace.errors[-1], run.errors), "the curve ends where the result is"
        assert (run.trace.seconds.diff() >= 0).all() and (run.trace.passes.diff() > 0).all()


def test_demo_uses_every_option(tmp_path, monkeypatch):
    given = {}

    def fake(**options):
        given.update(options)
        raise ValueError("seen enough")

    monkeypatch.setattr("genprior.lab.demo.run_demo", fake)
    words = "--pictures 3 --measurements 50 --time 7 --restarts 5 --truth range --seed 9 --device cpu --json"
    assert ends(["demo", "--out", str(tmp_path), *words.split()]) == 1
    del given["announce"]
    assert given == {
        "pictures": 3,
        "measurements": 50,
        "seconds": 7,
        "restarts": 5,
        "truth": "range",
        "seed": 9,
        "device": "cpu",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pictures", "0"], "genprior: --pictures must be at least 1, got 0"),
        (["--measurements", "0"], "measurements must be at least 1, got 0"),
        (["--restarts", "0"], "restarts must be at least 1, got 0"),
        (["--time", "0"], "--time must be a finite number above 0, got 0"),
        (["--pictures", "301"], "count must be at most 300"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
    ],
)
def test_bad_values(tmp_path, capfd, words, message):
    assert ends(["demo", "--out", str(tmp_path / "out"), *words]) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert message in flat(shown.err)
    assert "Traceback" not in shown.err
    assert shown.err.startswith("genprior: ")


def test_folder_that_cannot_be_made(tmp_path, capfd):
    (tmp_path / "file").write_text("x")
    assert ends(["demo", "--out", str(tmp_path / "file")]) == 1
    assert "file is a file, expected a folder" in flat(capfd.readouterr().err)


def test_ctrl_c(tmp_path, capfd, monkeypatch):
    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr("genprior.lab.demo.run_demo", interrupted)
    assert ends(["demo", "--out", str(tmp_path)]) == 130
    assert "interrupted" in capfd.readouterr().err


# -- bench overhead --------------------------------------------------------------------------------------------------


def small_cases(repeats, *, seed, device):
    generator = random_mlp(4, 8, (16,))
    return [
        overhead.measure_overhead(generator, name="a", batch=2, measurements=6, repeats=repeats, steps=4),
        overhead.measure_overhead(generator, name="b", batch=3, measurements=6, repeats=repeats, steps=4),
    ]


def test_overhead_json(capfd, monkeypatch):
    monkeypatch.setattr(overhead, "overhead_cases", small_cases)
    assert ends(["bench", "overhead", "--repeats", "1", "--json"]) == 0
    shown = capfd.readouterr()
    document = json.loads(shown.out)
    assert set(document) == {"ratio", "cases"}
    assert [case["generator"] for case in document["cases"]] == ["a", "b"]
    assert document["ratio"] == document["cases"][0]["ratio"]
    for case in document["cases"]:
        assert case["passes"] == [1.0, 1.0]
        assert case["repeats"] == 1
    assert shown.err == ""


def test_overhead_table(capfd, monkeypatch):
    monkeypatch.setattr(overhead, "overhead_cases", small_cases)
    monkeypatch.setenv("COLUMNS", "140")
    assert ends(["bench", "overhead", "--repeats", "2"]) == 0
    shown = capfd.readouterr().out
    assert "iteration ms" in shown and "1 + 1" in shown


def test_overhead_of_the_real_mlp():
    case = overhead.measure_overhead(random_mlp(), name="mlp", repeats=2, steps=20)
    assert case.passes == (1.0, 1.0), "an iteration costs one forward and one backward pass"
    assert case.bare_seconds > 0 and case.step_seconds > 0  # which is longer is a matter of luck on a busy machine
    assert case.ratio_quartiles[0] <= case.ratio <= case.ratio_quartiles[1]


def test_overhead_cases_are_the_reported_ones(monkeypatch):
    asked = []

    def note(generator, *, name, repeats, steps, **rest):
        asked.append((name, tuple(generator.signal_shape), repeats, steps, rest))

    monkeypatch.setattr(overhead, "measure_overhead", note)
    overhead.overhead_cases(3)
    assert [(name, repeats) for name, _, repeats, _, _ in asked] == [("dcgan", 3), ("mlp", 12)]


def test_overhead_bad_values(capfd):
    assert ends(["bench", "overhead", "--repeats", "0"]) == 1
    assert "repeats must be at least 1, got 0" in flat(capfd.readouterr().err)


def test_overhead_sets_threads(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(overhead, "overhead_cases", small_cases)
    assert ends(["bench", "overhead", "--repeats", "1", "--threads", "3", "--json"]) == 0
    assert asked == [3]


# -- everything else -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", cli.COMMANDS, ids=" ".join)
def test_help_of_every_command(path, capfd):
    assert ends([*path, "--help"]) == 0
    out = capfd.readouterr().out
    shown = flat(out)
    assert re.search(r"\n\nExample:\n +genprior ", out), "a paragraph of its own"
    assert " ".join(("genprior", *path)) in shown
    for name in options(cli.COMMANDS[path]):
        assert re.search(rf"--{name.replace('_', '-')}\b", shown), name


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_overview(words, capfd):
    assert ends(words) == 0
    shown = capfd.readouterr()
    assert shown.err == ""
    assert "usage: genprior COMMAND [options]" in shown.out
    for path in cli.COMMANDS:
        assert " ".join(path) in shown.out


@pytest.mark.parametrize("words", [["nonsense"], ["nonsense", "--help"], ["demos", "--json"], ["--nonsense"]])
def test_unknown_command(words, capfd):
    assert ends(words) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert f"there is no command {words[0]!r}" in shown.err
    assert "bench overhead" in shown.err


def test_half_a_command(capfd):
    assert ends(["bench"]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "bench overhead" in shown.err
    assert "there is no command" not in shown.err
    assert ends(["bench", "--help"]) == 0


@pytest.mark.parametrize("words", [["demo", "--picture", "2"], ["demo", "--pictures", "two"], ["demo", "extra"]])
def test_unknown_options(words, capfd):
    assert ends(words) == 2
    assert "Traceback" not in capfd.readouterr().err


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "genprior", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == f"genprior {genprior.__version__}\n"


def test_any_name_can_be_shown(monkeypatch):
    """Names of files with bytes that are no text, on an output stream that is strict, as it is outside of tests."""
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="utf-8", errors="strict"))
    assert cli.main(["--version"]) == 0
    sys.stdout.write("a\udcff.png\n")
    sys.stdout.flush()
    assert shown.getvalue().endswith(b"a\\udcff.png\n")


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(word, capfd):
    assert ends([word]) == 0
    assert capfd.readouterr().out == f"genprior {genprior.__version__}\n"


def test_json_has_no_nan(capfd):
    print_json({"a": float("nan"), "b": [float("inf"), 1.5, (float("-inf"), "x")]})

    def refuse(word):
        raise AssertionError(word)

    document = json.loads(capfd.readouterr().out, parse_constant=refuse)
    assert document == {"a": None, "b": [None, 1.5, [None, "x"]]}


def test_installed_command():
    script = "import sys; from genprior.cli import main; code = main(['nonsense']); "
    script += "assert 'matplotlib' not in sys.modules, 'slow to import, and not needed yet'; sys.exit(code)"
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr


def shell(command, **options):
    """A command line with our own Python, in a shell."""
    python = f"{shlex.quote(sys.executable)} -m genprior"
    return subprocess.run(
        ["bash", "-c", command.replace("genprior", python, 1)], capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A job that is done: the same command only prints its result."""
    folder = tmp_path_factory.mktemp("job")
    np.save(folder / "a.npy", samples.digits(1)[0].numpy())
    words = f"recover {folder}/a.npy --operator downsample:2 --simulate --steps 2 --out {folder}/out"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert ends(words.split()) == 0
    return f"genprior {words}"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a shell and /dev/full")
@pytest.mark.parametrize(
    ("rest", "code", "said"),
    [
        ("--json >&-", 1, "genprior: standard output is closed, so the JSON document cannot be printed"),
        ("--json > /dev/full", 1, "genprior: [Errno 28] No space left on device: 'standard output'"),
        ("--json | true; exit ${PIPESTATUS[0]}", 1, ""),
    ],
)
def test_a_result_that_cannot_be_printed(finished, rest, code, said):
    done = shell(f"{finished} {rest}")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said) and done.stderr.count("\n") == bool(said), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs a shell and /dev/full")
@pytest.mark.parametrize(
    ("rest", "code", "said"),
    [
        ("--version >&- 2>&-", 0, ""),
        ("recover --help > /dev/full", 1, "genprior: standard output cannot be written: [Errno 28]"),
        ("recover --help | true; exit ${PIPESTATUS[0]}", 1, ""),
    ],
)
def test_an_output_that_cannot_be_written(rest, code, said):
    done = shell(f"genprior {rest}")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(said) and done.stderr.count("\n") == bool(said), done.stderr


def test_options_that_are_checked_while_the_command_is_built_give_one_line(capsys, tmp_path):
    words = ["train", "encoder", "--operator", "gaussian:m=20", "--noise", "-1", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("genprior: noise must be a finite number of at least 0, got -1")
    assert len(error.splitlines()) == 1 and not (tmp_path / "run").exists()
