"""What a worker checks before it takes part."""

import pickle
import subprocess
import sys
import warnings

import pytest
import torch

import genprior as gp
from genprior.engines import EngineError
from genprior.engines.worker import Head, arrived, dumps, open_work, packed, portable, versions
from genprior.models.foreign import open_generator
from tests.engines.works import Squares


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("package", ["genprior", "torch", "Python"])
def test_other_versions_than_the_drivers_are_refused(package):
    with pytest.raises(EngineError, match=rf"other versions \({package} .* there, 9.9 here\)"):
        open_work(Head(versions() | {package: "9.9"}, threads=1), packed(Squares()))


def test_what_cannot_be_imported_is_named():
    with pytest.raises(EngineError, match=r"cannot import the job.*there_is_no_such_module.*same packages"):
        open_work(Head(versions(), threads=1), packed(Squares(broken="import")))


def test_other_errors_of_opening_stay_what_they_are():
    with pytest.raises(ValueError, match="the weights do not fit"):
        open_work(Head(versions(), threads=1), packed(Squares(broken="the weights do not fit")))


def test_a_worker_has_the_threads_it_was_given():
    assert open_work(Head(versions(), threads=1), packed(Squares()))((3, False))[2] == 1


class _Stubborn(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize("error", [ValueError("no"), _Stubborn(1, 2), OSError(28, "disk full", "a.npy")])
def test_exceptions_cross_with_their_message(error):
    found = arrived(portable(error))
    assert str(error) in str(found)
    assert type(found) is (EngineError if isinstance(error, _Stubborn) else type(error))


def test_a_model_from_a_users_file_crosses_by_its_definition(tmp_path):
    """A worker has neither the file nor the one beside it."""
    (tmp_path / "beside.py").write_text("from torch import nn\n\nclass Layer(nn.Linear):\n    pass\n")
    code = "from torch import nn\nfrom beside import Layer\n\n\nclass Net(nn.Module):\n    latent_shape = (3,)\n\n"
    code += "    def __init__(self):\n        super().__init__()\n        self.layer = Layer(3, 4)\n\n"
    code += "    def forward(self, z):\n        return self.layer(z) * scale\n\n\nscale = 2\n"
    (tmp_path / "net.py").write_text(code)
    generator = open_generator(f"{tmp_path / 'net.py'}:Net")
    crossed(generator, tmp_path)


def test_what_cannot_cross_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(torch.nn.Linear(3, 4), torch.zeros(1, 3))
    with pytest.raises(EngineError, match=r"cannot be sent to workers .*without TorchScript.*genprior recover"):
        packed(gp.Generator(module, latent_shape=3, signal_shape=4))


def crossed(generator, folder):
    """Another process, which can import nothing of the model, gets the same signals."""
    z = generator.sample_latent(2, seed=0)
    (folder / "generator").write_bytes(packed(generator))
    torch.save(z, folder / "z.pt")
    script = "import pickle, torch; g = pickle.load(open('generator', 'rb')); torch.save(g(torch.load('z.pt')), 'x.pt')"
    for path in folder.glob("*.py"):
        path.rename(path.with_suffix(".gone"))
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)
    assert torch.equal(torch.load(folder / "x.pt"), generator(z))


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(5, 3)[1:3],
        torch.randn(4, 4).t(),
        torch.tensor(3.0),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(2, dtype=torch.complex128),
        torch.randn(2).bfloat16(),
        torch.randn(2).half(),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=lambda value: f"{value.dtype}, {tuple(value.shape)}",
)
def test_tensors_cross_with_their_bits_and_without_those_of_others(value):
    content = dumps({"x": value})
    found = pickle.loads(content)["x"]
    assert found.dtype == value.dtype and type(found) is type(value) and torch.equal(found, value)
    found.data.zero_()  # it can be written to
    large = torch.zeros(10**6)
    assert len(dumps(large[:3])) < 1000
