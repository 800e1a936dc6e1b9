"""The training loop: exact resume after interruption and kill -9, several processes, full disks."""

import dataclasses
import math
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from safetensors.torch import load_file

from genprior.training.loop import CURVE, Schedule, train, write_curve
from genprior.training.start import CHECKPOINT
from genprior.training.wgan import Wgan, WganSettings
from tests import processes

SMALL = WganSettings(latent=4, width=2, critic_width=2, encoder_width=2, batch=8, warm_steps=4, steps=5, critic_steps=2)
OFTEN = Schedule(checkpoint_steps=1)


def everything(task):
    return torch.cat([p.detach().flatten() for network in task.networks.values() for p in network.parameters()])


class Stop(Exception):
    pass


def stopping_at(step):
    def show(number, losses):
        if number == step:
            raise Stop

    return show


@pytest.mark.parametrize("every", [1, 2, 3])
def test_resumed_run_equals_the_uninterrupted_one(pictures, devices, tmp_path, every):
    whole = Wgan(SMALL, pictures, seed=3)
    expected = train(whole, tmp_path / "whole", seed=3, devices=devices)
    schedule = Schedule(checkpoint_steps=every)
    for stop in (3, 5, 8):  # in stage one, at the change, in stage two
        with pytest.raises(Stop):
            train(
                Wgan(SMALL, pictures, 3),
                tmp_path / "cut",
                seed=3,
                devices=devices,
                schedule=schedule,
                show=stopping_at(stop),
            )
    resumed = Wgan(SMALL, pictures, seed=3)
    found = train(resumed, tmp_path / "cut", seed=3, devices=devices, schedule=schedule)
    assert torch.equal(everything(whole), everything(resumed))
    assert torch.equal(expected.curve.nan_to_num(-1.0), found.curve.nan_to_num(-1.0))
    assert (tmp_path / "whole" / CURVE).read_text() == (tmp_path / "cut" / CURVE).read_text()
    assert found.seconds > 0


def test_a_finished_run_is_not_run_again(pictures, devices, tmp_path):
    train(Wgan(SMALL, pictures, 0), tmp_path, seed=0, devices=devices)
    seen = []
    again = Wgan(SMALL, pictures, 0)
    train(again, tmp_path, seed=0, devices=devices, show=lambda step, losses: seen.append(step))
    assert not seen
    stored = load_file(tmp_path / CHECKPOINT)
    assert torch.equal(stored["network.average.0.weight"], again.average[0].weight)


def test_another_run_is_refused(pictures, devices, tmp_path):
    train(Wgan(SMALL, pictures, 0), tmp_path, seed=0, devices=devices)
    old = (tmp_path / CHECKPOINT).read_bytes()
    for settings, seed in ((SMALL, 1), (dataclasses.replace(SMALL, anchor=0.5), 0)):
        with pytest.raises(ValueError, match="belongs to another run"):
            train(Wgan(settings, pictures, seed), tmp_path, seed=seed, devices=devices)
    assert (tmp_path / CHECKPOINT).read_bytes() == old


def test_damaged_checkpoint(pictures, devices, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(b"half")
    with pytest.raises(ValueError, match=r"cannot be read .*delete it to start anew"):
        train(Wgan(SMALL, pictures, 0), tmp_path, seed=0, devices=devices)


def test_full_disk_while_writing_a_checkpoint(tmp_path):
    """A real one: from some step on, the process may not write files larger than a kilobyte."""
    folder = tmp_path / "run"
    full = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    def show(step, losses):
        if step == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    """
    path = tmp_path / "full.py"
    path.write_text(
        textwrap.dedent(SCRIPT).replace("show = lambda step, losses: time.sleep(pause)", textwrap.dedent(full))
    )
    done = subprocess.run(  # its words come through a pipe, which has no limit
        [sys.executable, path, folder, "1", "0"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1 and "File too large" in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted([CHECKPOINT, CURVE])
    assert len(tensors_of(folder)["curve"]) == 4, "the old checkpoint is whole"


def test_a_curve_that_was_cut_is_made_whole(pictures, devices, tmp_path):
    train(Wgan(SMALL, pictures, 0), tmp_path, seed=0, devices=devices)
    whole = (tmp_path / CURVE).read_text()
    (tmp_path / CURVE).write_text(whole[:50])
    train(Wgan(SMALL, pictures, 0), tmp_path, seed=0, devices=devices)
    assert (tmp_path / CURVE).read_text() == whole


def test_a_run_gone_astray_stops_before_it_is_stored(pictures, devices, tmp_path, monkeypatch):
    task = Wgan(SMALL, pictures, 0)
    original = task.step

    def astray(number, draw, devices):
        losses = original(number, draw, devices)
        return losses | {"penalty": torch.tensor(math.inf)} if number == 6 else losses

    monkeypatch.setattr(task, "step", astray)
    with pytest.raises(RuntimeError, match=r"step 7: penalty is not finite: lower the rate.*holds the last good state"):
        train(task, tmp_path, seed=0, devices=devices, schedule=OFTEN)
    assert len(tensors_of(tmp_path)["curve"]) == 6


@pytest.mark.parametrize("every", [1, 7])
def test_an_update_gone_astray_is_not_stored(pictures, devices, tmp_path, monkeypatch, every):
    """Its losses, from before the update, are finite."""
    task = Wgan(SMALL, pictures, 0)
    original = task.step

    def astray(number, draw, devices):
        losses = original(number, draw, devices)
        if number == 6:
            next(task.critic.parameters()).data.mul_(math.nan)
        return losses

    monkeypatch.setattr(task, "step", astray)
    with pytest.raises(RuntimeError, match=r"step 7: after its update, network\.critic\S+ is not finite") as caught:
        train(task, tmp_path, seed=0, devices=devices, schedule=Schedule(checkpoint_steps=every))
    assert ("holds the last good state" in str(caught.value)) == (every == 1) == (tmp_path / CHECKPOINT).exists()
    if every == 1:
        stored = tensors_of(tmp_path)
        assert len(stored.pop("curve")) == 6 and all(tensor.isfinite().all() for tensor in stored.values())


def test_another_start_is_another_run(pictures, devices, tmp_path):
    quick = dataclasses.replace(SMALL, steps=0)
    for seed, name in enumerate("ab"):
        train(Wgan(quick, pictures, seed), tmp_path / name, seed=seed, devices=devices)

    def run(folder, start, **options):
        task = Wgan(quick, pictures, 5)
        train(task, tmp_path / folder, seed=5, devices=devices, schedule=OFTEN, start=start, **options)
        return everything(task)

    with pytest.raises(Stop):
        run("cut", tmp_path / "a", show=stopping_at(3))
    for other in (tmp_path / "b", None):
        with pytest.raises(ValueError, match=r"belongs to another run .*start"):
            run("cut", other)
    copy = tmp_path / "kept elsewhere"
    copy.write_bytes((tmp_path / "a" / CHECKPOINT).read_bytes())
    assert torch.equal(run("cut", copy), run("whole", tmp_path / "a")), "the networks count, not where they lie"


def test_leftovers_of_a_killed_writer_are_removed(pictures, devices, tmp_path):
    left = tmp_path / f".{CHECKPOINT}.123-456.part"
    left.write_bytes(b"half")
    train(Wgan(SMALL, pictures, 0), tmp_path, seed=0, devices=devices)
    assert not left.exists()


def test_the_residual_generator_resumes_exactly(colours, devices, tmp_path):
    settings = dataclasses.replace(SMALL, network="residual-generator", batch=4, warm_steps=2, steps=2)
    whole, cut = Wgan(settings, colours, 0), Wgan(settings, colours, 0)
    train(whole, tmp_path / "whole", seed=0, devices=devices)
    with pytest.raises(Stop):
        train(cut, tmp_path / "cut", seed=0, devices=devices, schedule=OFTEN, show=stopping_at(3))
    resumed = Wgan(settings, colours, 0)
    train(resumed, tmp_path / "cut", seed=0, devices=devices)
    assert torch.equal(everything(whole), everything(resumed))


def test_sheets_are_written_on_the_way(pictures, devices, tmp_path):
    train(Wgan(SMALL, pictures, 0), tmp_path, seed=0, devices=devices, schedule=Schedule(sheet_steps=4))
    assert (tmp_path / "samples.png").is_file()


def test_curve_file(tmp_path):
    write_curve(tmp_path / "c.csv", ("a", "b"), torch.tensor([[1.5, math.nan], [0.25, 2.0]]))
    assert (tmp_path / "c.csv").read_text() == "step,a,b\n1,1.5,\n2,0.25,2.0\n"


# -- processes -------------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, dataclasses, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from genprior.training.data import Pictures
from genprior.training.loop import Schedule, train
from genprior.training.task import Devices
from genprior.training.wgan import Wgan, WganSettings

folder, count, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
random = torch.Generator().manual_seed(0)
pictures = Pictures("noise", torch.randint(256, (40, 1, 28, 28), generator=random, dtype=torch.uint8))
settings = WganSettings(latent=4, width=2, critic_width=2, encoder_width=2, batch=8, warm_steps=6, steps=14, critic_steps=2)
devices = Devices("cpu", count)
task = Wgan(settings, pictures, seed=3)
show = lambda step, losses: time.sleep(pause)
train(task, folder, seed=3, devices=devices, schedule=Schedule(checkpoint_steps=1), show=show)
"""


def script(tmp_path):
    path = tmp_path / "run.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def tensors_of(folder):
    return load_file(folder / CHECKPOINT)


def run_whole(tmp_path, name, count=1):
    done = processes.run(script(tmp_path), tmp_path / name, count, 0)
    assert done.returncode == 0, done.stderr
    return tensors_of(tmp_path / name)


def steps_done(folder):
    try:
        return len((folder / CURVE).read_text().splitlines()) - 1
    except FileNotFoundError:
        return 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that was never interrupted."""
    folder = tmp_path_factory.mktemp("runs")
    run_whole(folder, "whole")
    return folder / "whole"


def test_killed_twice_it_ends_with_the_same_bits(tmp_path, whole):
    expected = tensors_of(whole)
    folder = tmp_path / "killed"
    for goal in (3, 13):  # in stage one and in stage two
        with processes.started(script(tmp_path), folder, 1, 0.2) as process:
            limit = time.monotonic() + 120
            while steps_done(folder) < goal and time.monotonic() < limit:
                time.sleep(0.02)
            process.kill()
            process.join()
            assert process.exitcode == -signal.SIGKILL, "it was killed in the middle"
        assert goal <= steps_done(folder) < 20
    found = run_whole(tmp_path, "killed")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor.nan_to_num(-1.0), found[name].nan_to_num(-1.0)), name
    assert (whole / CURVE).read_text() == (folder / CURVE).read_text()


def test_killed_while_writing_it_goes_on_from_the_checkpoint_before(tmp_path, whole):
    """The writer stops in the middle of the fourth checkpoint, and is killed there."""
    folder = tmp_path / "run"
    slow = """
    import genprior._files as files, genprior._journal as journal
    from pathlib import Path
    def stuck(path, write):
        def half(temporary):
            temporary.write_bytes(b"half")
            Path(str(folder) + ".stuck").touch()
            time.sleep(600)
        files.write_atomically(path, half if steps_done["now"] == 4 else write)
    journal.write_atomically = stuck
    steps_done = {"now": 0}
    def show(step, losses):
        steps_done["now"] = step
    """
    path = tmp_path / "slow.py"
    path.write_text(
        textwrap.dedent(SCRIPT).replace("show = lambda step, losses: time.sleep(pause)", textwrap.dedent(slow))
    )
    with processes.started(path, folder, 1, 0):
        limit = time.monotonic() + 120
        while not (tmp_path / "run.stuck").exists() and time.monotonic() < limit:
            time.sleep(0.02)
    assert len(tensors_of(folder)["curve"]) == 3
    expected, found = tensors_of(whole), run_whole(tmp_path, "run")
    for name, tensor in expected.items():
        assert torch.equal(tensor.nan_to_num(-1.0), found[name].nan_to_num(-1.0)), name


def test_two_processes_train_what_one_would(tmp_path, whole):
    one, two = tensors_of(whole), run_whole(tmp_path, "two", count=2)
    assert one.keys() == two.keys()
    for name in one:
        if name.startswith("network."):  # in all layouts of memory
            assert torch.allclose(one[name], two[name], atol=2e-3), name
    first = slice(0, 8)  # later, steps of Adam without momentum turn rounding into whole steps
    assert torch.allclose(one["curve"][first], two["curve"][first], atol=1e-3, equal_nan=True)
    assert torch.allclose(one["curve"], two["curve"], atol=1e-2, equal_nan=True)


def test_a_batch_that_cannot_be_shared(pictures, tmp_path):
    class Three:
        world = 3

    with pytest.raises(ValueError, match="batch must be divisible by the number of devices, got 8 and 3"):
        train(Wgan(SMALL, pictures, 0), tmp_path, seed=0, devices=Three())
