"""A user's own generator: every way in, what is inferred about it, and what is refused."""

import pickle
import re
import sys
import textwrap
import warnings
import zipfile

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import genprior as gp
from genprior.models.foreign import open_generator, open_with_notes, source_digest
from genprior.models.foreign_classifiers import open_classifier
from genprior.models.labels import check_labels, with_label
from genprior.models.weights import load_weights, read_weights

CODE = """
import torch
from torch import nn
import genprior as gp


def nothing():
    nn.Linear(5, 16)


def dcgan():
    torch.manual_seed(0)
    layers = nn.ConvTranspose2d(12, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()
    return nn.Sequential(*layers).eval()


def training():
    return dcgan().train()


def vector():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Sigmoid(), nn.Unflatten(1, (1, 4, 4)))


def unbounded():
    return nn.Sequential(nn.Linear(5, 64), nn.Unflatten(1, (1, 8, 8)))


def waves():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 20), nn.Tanh())


def declared_waves():
    return gp.Generator(waves(), 5, 20, signal_range=(-1, 1))


def declared():
    return gp.Generator(dcgan(), (12, 1, 1), (3, 8, 8), latent=gp.Uniform(-1, 1), signal_range=(-1, 1))


class Map(nn.Module):
    latent_shape = (2, 3, 3)

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 1, 4, 2, 1)

    def forward(self, z):
        return torch.tanh(self.up(z))


class Conditional(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.classes, self.layer = nn.Embedding(10, 8), nn.Linear(14, 16)

    def forward(self, z, label):
        return torch.sigmoid(self.layer(torch.cat([z, self.classes(label)], 1))).reshape(-1, 1, 4, 4)


class Optional(Conditional):
    latent_dim = 6

    def forward(self, z, y=None):
        return super().forward(z, torch.zeros(len(z), dtype=torch.int64) if y is None else y)


class Truncated(Conditional):
    def forward(self, z, truncation=1.0):
        return truncation * super().forward(z, torch.zeros(len(z), dtype=torch.int64))


class OneHot(nn.Module):
    nz = 6

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 16)

    def forward(self, z, y):
        return torch.sigmoid(self.layer(torch.cat([z, y], 1))).reshape(-1, 1, 4, 4)


class Encoded(nn.Module):
    nz = 6

    def __init__(self):
        super().__init__()
        self.inner = OneHot()

    def forward(self, z, label):
        return self.inner(z, nn.functional.one_hot(label, 10).to(z.dtype))


def number():
    return 3


def fails():
    raise KeyError("where are my weights")


def needs(width):
    return nn.Linear(width, width)
"""


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(CODE)
    return str(path)


def quiet(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def module():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.Unflatten(1, (1, 3, 3)), nn.Tanh()).eval()


# -- what is found out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "latent", "signal"),
    [
        ("dcgan", (12, 1, 1), (3, 8, 8)),
        ("vector", (5,), (1, 4, 4)),
        ("unbounded", (5,), (1, 8, 8)),
        ("Map", (2, 3, 3), (1, 6, 6)),
        ("declared", (12, 1, 1), (3, 8, 8)),
    ],
)
def test_shapes_are_found(code, name, latent, signal):
    generator = open_generator(f"{code}:{name}")
    assert (generator.latent_shape, generator.signal_shape) == (latent, signal)
    assert generator(generator.sample_latent(3)).shape == (3, *signal)


def test_tanh_is_mapped_to_pictures(code):
    opened = open_with_notes(f"{code}:dcgan")
    G = opened.generator
    assert G.signal_range == (0.0, 1.0)
    assert "values in [-1, 1], mapped to [0, 1]" in " ".join(opened.notes)
    import runpy

    own = runpy.run_path(code)["dcgan"]()
    z = G.sample_latent(2)
    assert torch.allclose(G(z), (own(z) + 1) / 2)


def test_sigmoid_and_unbounded_stay_as_they_are(code):
    assert open_generator(f"{code}:vector").signal_range == (0.0, 1.0)
    opened = open_with_notes(f"{code}:unbounded")
    assert opened.generator.signal_range is None
    assert "neither [0, 1] nor [-1, 1]" in " ".join(opened.notes)


def test_a_range_that_is_told(code):
    plain, told = open_generator(f"{code}:unbounded"), open_generator(f"{code}:unbounded", signal_range=(-3, 5))
    state = {f"module.{name}": part for name, part in plain.module.state_dict().items()}
    told.module.load_state_dict(state)
    z = plain.sample_latent(2)
    assert torch.allclose(told(z), (plain(z) + 3) / 8, atol=1e-6)
    with pytest.raises(ValueError, match=r"low below high"):
        open_generator(f"{code}:unbounded", signal_range=(1, 0))


LEFT = {
    "waves": r"unchanged \(32 samples lie in \[-0\.\d+, 0\.\d+\]\): signals of shape \(20,\) are not images",
    "declared_waves": r"unchanged \(in \[-1, 1\], as declared\): signals of shape \(20,\) are not images",
}


@pytest.mark.parametrize("name", ["waves", "declared_waves"])
def test_signals_that_are_no_pictures_keep_their_values(code, name):
    import runpy

    opened = open_with_notes(f"{code}:{name}")
    own, z = runpy.run_path(code)["waves"](), opened.generator.sample_latent(4)
    assert torch.allclose(opened.generator(z), own(z)) and bool((own(z) < -0.1).any())
    assert re.search(LEFT[name], " ".join(opened.notes))
    told = open_generator(f"{code}:{name}", signal_range=(-1, 1))
    assert torch.allclose(told(z), (own(z) + 1) / 2), "what a person tells is done"


def test_pictures_keep_their_values_where_that_is_told(code):
    import runpy

    opened = open_with_notes(f"{code}:dcgan", signal_range="keep")
    own, z = runpy.run_path(code)["dcgan"](), opened.generator.sample_latent(2)
    assert torch.allclose(opened.generator(z), own(z)) and opened.generator.signal_range is None
    assert "values unchanged, as requested" in opened.notes
    with pytest.raises(ValueError, match=r"signal_range must be \(low, high\) or 'keep', got 'kept'"):
        open_generator(f"{code}:dcgan", signal_range="kept")


def test_a_generator_keeps_its_law(code):
    generator = open_generator(f"{code}:declared")
    assert generator.latent == gp.Uniform(-1, 1) and generator.signal_range == (0.0, 1.0)
    assert float(generator(generator.sample_latent(4)).min()) >= 0


def test_the_original_is_not_moved_to_eval(code):
    with pytest.raises(ValueError, match=r"batch-dependent layer in train mode.*load trained weights"):
        open_generator(f"{code}:training")


def test_conditional(code):
    with pytest.raises(ValueError, match=r"a class label: give `label`"):
        open_generator(f"{code}:Conditional")
    with pytest.raises(ValueError, match=r"latent shape of Conditional could not be inferred .*`latent_shape=.100,.`"):
        open_generator(f"{code}:Conditional", label=3)
    three = open_generator(f"{code}:Conditional", label=3, latent_shape=6)
    four = with_label(three, 4)
    z = three.sample_latent(2)
    own = three.module.module
    assert torch.allclose(three(z), own(z, torch.tensor([3, 3]))) and torch.allclose(
        four(z), own(z, torch.tensor([4, 4]))
    )
    assert not torch.equal(three(z), four(z))
    assert next(four.module.parameters()).data_ptr() == next(three.module.parameters()).data_ptr(), "weights are shared"
    with pytest.raises(ValueError, match=r"takes only a latent: leave it out"):
        open_generator(f"{code}:vector", label=1)
    with pytest.raises(ValueError, match=r"no class label"):
        with_label(gp.load_generator("mnist"), 1)


def test_a_label_that_has_a_default(code):
    free, three = open_generator(f"{code}:Optional"), open_generator(f"{code}:Optional", label=3)
    z = free.sample_latent(2)
    own = three.module.module
    assert (
        torch.equal(three(z), own(z, torch.tensor([3, 3])))
        and torch.equal(free(z), own(z))
        and not torch.equal(free(z), three(z))
    )
    with pytest.raises(ValueError, match=r"takes only a latent: leave it out"):
        open_generator(f"{code}:Truncated", label=3, latent_shape=6)


def test_a_label_out_of_range(code):
    with pytest.raises(ValueError, match=r"on 6 it failed with .*Error: .*is the class label 10 in range"):
        open_generator(f"{code}:Optional", label=10)
    with pytest.raises(ValueError, match=r"does not run on latents of shape \(6,\) .*is the class label 10 in range"):
        open_generator(f"{code}:Optional", label=10, latent_shape=6)
    G = open_generator(f"{code}:Optional", label=0)
    check_labels(G, [0, 9, 0])
    with pytest.raises(ValueError, match=r"does not take the class label 10: "):
        check_labels(G, [0, 10])


def test_one_hot_labels_are_left_to_the_user(code):
    with pytest.raises(ValueError, match=r"where it takes labels one-hot, give a function .*one_hot"):
        open_generator(f"{code}:OneHot", label=3)
    opened = open_with_notes(f"{code}:Encoded", label=3)
    G = opened.generator
    z, hot = G.sample_latent(2), torch.zeros(2, 10)
    hot[:, 3] = 1
    assert G.latent_shape == (6,) and torch.equal(G(z), G.module.module.inner(z, hot))
    assert "class label 3 for every item" in opened.notes


def test_a_class_that_was_left_out_is_asked_for(code):
    asked = "the optional argument y left out: if it is a class, give `label`"
    assert asked in open_with_notes(f"{code}:Optional").notes
    assert not any("left out" in note for note in open_with_notes(f"{code}:Optional", label=3).notes)
    assert not any("left out" in note for note in open_with_notes(f"{code}:Truncated", latent_shape=6).notes)


def test_an_assumed_distribution_of_the_latents_is_told(code):
    assert any("latents assumed standard normal" in note for note in open_with_notes(f"{code}:waves").notes)
    assert not any("latents assumed" in note for note in open_with_notes(f"{code}:declared_waves").notes)


def test_a_slow_module_is_looked_at_on_fewer_samples(code):
    whole, brief = (open_with_notes(f"{code}:dcgan", seconds=seconds) for seconds in (60.0, 1e-9))
    assert "32 samples lie in" in whole.notes[-1] and ": 2 samples lie in" in brief.notes[-1]


def test_a_range_that_the_samples_do_not_have(code):
    notes = open_with_notes(f"{code}:vector", signal_range=(0, 255)).notes
    assert "as given, but 32 samples lie in [0." in notes[-1] and notes[-1].endswith("is `signal_range` right?")
    assert "as given, but" in open_with_notes(f"{code}:dcgan", signal_range=(0.8, 1)).notes[-1]
    for name, bounds in (("vector", (0, 1)), ("dcgan", (-1, 1))):
        assert open_with_notes(f"{code}:{name}", signal_range=bounds).notes[-1].endswith("as given")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("types.SimpleNamespace(sample=x)", r"gives SimpleNamespace, expected one tensor: .* out\.sample$"),
        ("{'size': 3, 'picture': x}", r"gives dict, .* out\['picture'\]$"),
        ("(None, x)", r"gives tuple, .* out\[1\]$"),
    ],
)
@pytest.mark.parametrize("told", [{}, {"latent_shape": 4}])
def test_outputs_that_are_no_tensor(tmp_path, output, message, told):
    path = tmp_path / "wrapped.py"
    path.write_text(
        "import types, torch\n"
        "class Wrapped(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(4, 16)\n"
        f"    def forward(self, z): x = super().forward(z); return {output}\n"
    )
    with pytest.raises(ValueError, match=r"^the module runs on latents of shape \(4,\), but " + message):
        open_generator(f"{path}:Wrapped", **told)


def test_a_module_instead_of_a_function(tmp_path):
    path = tmp_path / "ready.py"
    path.write_text("import torch, genprior as gp\nmodel = torch.nn.Linear(4, 16)\nmade = gp.Generator(model, 4, 16)\n")
    assert open_generator(f"{path}:model").signal_shape == open_generator(f"{path}:made").signal_shape == (16,)


def test_every_latent_shape_is_tried_once(tmp_path):
    path = tmp_path / "picky.py"
    path.write_text(
        "from torch import nn\n"
        "class Picky(nn.Sequential):\n"
        "    def __init__(self): super().__init__(nn.Linear(4, 16), nn.Linear(16, 16))\n"
        "    def forward(self, z): raise ValueError('no')\n"
    )
    with pytest.raises(ValueError, match=r"\(tried 4, 4x1x1, 16, 16x1x1; on 4"):
        open_generator(f"{path}:Picky")


def test_why_the_latent_shape_is_not_found(code):
    with pytest.raises(ValueError, match=r"tried 8, .*; on 8 it failed with RuntimeError: .*`latent_shape=.100,.`"):
        open_generator(f"{code}:Conditional", label=3)


# -- programs --------------------------------------------------------------------------------------------------------


def test_torchscript(tmp_path):
    own = module()
    quiet(lambda: torch.jit.script(own).save(tmp_path / "a.pt"))
    G = open_generator(tmp_path / "a.pt")
    z = G.sample_latent(3)
    assert G.latent_shape == (4,) and torch.allclose(G(z), (own(z) + 1) / 2, atol=1e-6)
    assert gp.checks.check_generator(G).ok


@pytest.fixture
def exported(tmp_path):
    axes = ({0: torch.export.Dim("batch")},)
    program = quiet(lambda: torch.export.export(module(), (torch.zeros(2, 4),), dynamic_shapes=axes))
    quiet(lambda: torch.export.save(program, tmp_path / "a.pt2"))
    return tmp_path / "a.pt2"


def test_an_exported_program_is_refused_and_not_opened(exported, monkeypatch):
    """torch.export.load unpickles, and runs text that stands in the file."""
    monkeypatch.setattr(torch.export, "load", lambda path: pytest.fail("the file was opened"))
    with pytest.raises(
        ValueError, match=r"a\.pt2 is a torch\.export file, which can run any code .*refused.*def build"
    ):
        open_generator(exported)
    with pytest.raises(ValueError, match=r"a\.pt2 is a torch\.export file"):
        open_classifier(exported, signal_shape=(4,))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_an_exported_program_that_is_trusted(exported, tmp_path):
    """As the refusal says: through a function."""
    own, code = module(), tmp_path / "trusting.py"
    code.write_text(f"import torch\ndef build(): return torch.export.load({str(exported)!r}).module()\n")
    G = open_generator(f"{code}:build")
    z = G.sample_latent(3)
    assert G.latent_shape == (4,) and torch.allclose(G(z), (own(z) + 1) / 2, atol=1e-6)
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(G(z))), stop=gp.MaxSteps(3))
    assert result.signal.shape == (3, 1, 3, 3)


class Bomb:
    """Does something when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_pickled_code_is_refused_and_not_run(tmp_path, code):
    torch.save(module(), tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"whole\.pt holds pickled Python code.*refused.*state_dict"):
        open_generator(tmp_path / "whole.pt")
    mark = tmp_path / "ran"
    torch.save({"a": Bomb(mark)}, tmp_path / "bomb.pt")
    with pytest.raises(ValueError, match=r"holds pickled Python code"):
        open_generator(f"{code}:vector", tmp_path / "bomb.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(ValueError, match=r"cannot be read|pickled Python code"):
        open_generator(f"{code}:vector", tmp_path / "raw.pt")
    assert not mark.exists()


# -- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", ["plain", "nested", "beside", "parallel", "safetensors"])
def test_weights_in_every_usual_form(tmp_path, code, wrap):
    torch.manual_seed(7)
    own = nn.Sequential(nn.Linear(5, 16), nn.Sigmoid(), nn.Unflatten(1, (1, 4, 4)))
    state = own.state_dict()
    path = tmp_path / ("w.safetensors" if wrap == "safetensors" else "w.tar")
    other = nn.Linear(3, 3).state_dict()
    content = {
        "plain": state,
        "nested": {"state_dict": state, "epoch": 3},
        "beside": {"netD_state_dict": other, "netG_state_dict": state, "losses": [1.0, 2.0]},
        "parallel": {f"module.{name}": part for name, part in state.items()},
    }
    save_file(state, path) if wrap == "safetensors" else torch.save(content[wrap], path)
    G = open_generator(f"{code}:vector", path)
    z = G.sample_latent(2)
    assert torch.equal(G(z), own(z))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"0.weight": torch.zeros(16, 5)}, "it lacks 0.bias"),
        (
            {"0.weight": torch.zeros(16, 5), "0.bias": torch.zeros(16), "x": torch.zeros(1)},
            "it has x, which the module",
        ),
        ({"0.weight": torch.zeros(16, 6), "0.bias": torch.zeros(16)}, r"0.weight is \(16, 6\) in the file, \(16, 5\)"),
        ({"0.weight": torch.full((16, 5), torch.nan), "0.bias": torch.zeros(16)}, "holds NaN"),
        ([torch.zeros(3)], "holds list, expected names and tensors"),
        ({"epoch": 3}, "holds dict, expected names and tensors"),
    ],
)
def test_weights_that_do_not_fit(tmp_path, code, state, message):
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=message):
        open_generator(f"{code}:vector", tmp_path / "w.pt")


def test_one_of_several_sets_of_weights_is_named(tmp_path, code):
    torch.manual_seed(3)
    first, average = ({"0.weight": torch.randn(16, 5), "0.bias": torch.randn(16)} for _ in range(2))
    path = tmp_path / "ck.pt"
    torch.save({"g": first, "g_ema": average, "d": nn.Linear(3, 3).state_dict(), "step": 5}, path)
    with pytest.raises(ValueError, match=r"2 sets of weights that fit \(g, g_ema\): name one.*`weights=.*ck\.pt:g_ema"):
        open_generator(f"{code}:vector", path)
    for key, state in (("g", first), ("g_ema", average)):
        G = open_generator(f"{code}:vector", f"{path}:{key}")
        z = G.sample_latent(2)
        assert torch.allclose(G(z).flatten(1), torch.sigmoid(z @ state["0.weight"].T + state["0.bias"]))
    with pytest.raises(ValueError, match=r"no set of weights 'ema': give one of 'g', 'g_ema', 'd'"):
        open_generator(f"{code}:vector", f"{path}:ema")
    with pytest.raises(ValueError, match=r"does not fit the module"):
        open_generator(f"{code}:vector", f"{path}:d")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.pt:g"):
        open_generator(f"{code}:vector", tmp_path / "none.pt:g")
    before = source_digest(f"{code}:vector", f"{path}:g")
    torch.save({"g": average}, path)
    assert source_digest(f"{code}:vector", f"{path}:g") != before


def test_damaged_weights(tmp_path):
    torch.save({"a": torch.zeros(100)}, tmp_path / "w.pt")
    whole = (tmp_path / "w.pt").read_bytes()
    for name, content in (("cut.pt", whole[:300]), ("empty.pt", b""), ("text.safetensors", b"hello")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            read_weights(tmp_path / name)
    numpy.save(tmp_path / "x.npy", numpy.zeros(3))
    numpy.savez(tmp_path / "x.npz", a=numpy.zeros(3))
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    for name in ("x.npy", "x.npz", "x.png"):
        with pytest.raises(ValueError, match=f"{name} cannot be read as weights, .* give .safetensors, or .pt"):
            read_weights(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"there is no file"):
        load_weights(nn.Linear(1, 1), tmp_path / "none.pt")


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "returned int, expected a torch.nn.Module"),
        ("nothing", r"nothing returned None, expected a torch.nn.Module: is a return missing in nothing\?"),
        ("fails", r"fails\(\) failed with KeyError: 'where are my weights' \(my_model.py, line \d+\)"),
        ("needs", "needs the arguments width"),
        ("missing", "has no function 'missing': give one of .*dcgan"),
    ],
)
def test_functions_that_do_not_work(code, name, message):
    with pytest.raises(ValueError, match=message):
        open_generator(f"{code}:{name}")


def test_code_with_a_mistake(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text(textwrap.dedent("def build(:\n    pass\n"))
    with pytest.raises(ValueError, match=r"bad\.py failed with SyntaxError: [^()]+ \(bad\.py, line 1\)$"):
        open_generator(f"{path}:build")


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("mnst", {}, "no bundled generator 'mnst': give one of"),
        ("no.such.module:build", {}, "there is no Python module 'no.such.module'"),
        ("gone.py:build", {}, "there is no file gone.py"),
        ("gone.pt", {}, "there is no file gone.pt"),
        ("gone.safetensors", {}, "there is no file gone.safetensors"),
        ("my.py", {}, "names no function: write my.py:build"),
        ("mnist", {"weights": "w.pt"}, "has weights of its own"),
        ("mnist", {"latent_shape": 3}, "has its own shapes"),
        ("mnist", {"label": 3}, "takes no label"),
    ],
)
def test_specs_that_lead_nowhere(spec, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_generator(spec, **options)


def test_files_that_are_no_programs(tmp_path):
    torch.save(module().state_dict(), tmp_path / "state.pt")
    with pytest.raises(ValueError, match=r"holds weights only, no network.*my_model\.py:build"):
        open_generator(tmp_path / "state.pt")
    (tmp_path / "noise.pt").write_bytes(b"\x00" * 50)
    with pytest.raises(ValueError, match=r"noise.pt is not a TorchScript file"):
        open_generator(tmp_path / "noise.pt")


def test_damaged_programs_say_one_line(tmp_path, capfd):
    quiet(lambda: torch.jit.script(module()).save(tmp_path / "a.pt"))
    whole = (tmp_path / "a.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for record in old.namelist():
            new.writestr(record, old.read(record).replace(b"def forward", b"dfe forward"))
    entry = whole.index(b"FB", whole.index(b"data/0")) + 70
    (tmp_path / "spoilt.pt").write_bytes(whole[:entry] + bytes([whole[entry] ^ 1]) + whole[entry + 1 :])
    with pytest.raises(ValueError, match=r"spoilt\.pt is damaged .*checksum"):
        open_generator(tmp_path / "spoilt.pt")
    capfd.readouterr()
    with pytest.raises(ValueError, match=r"b\.pt cannot be read") as raised:
        open_generator(tmp_path / "b.pt")
    assert "\n" not in str(raised.value) and capfd.readouterr().err == ""


def test_wrong_shapes(code):
    with pytest.raises(ValueError, match=r"does not run on latents of shape \(7,\)"):
        open_generator(f"{code}:vector", latent_shape=7)
    with pytest.raises(ValueError, match=r"signal_shape is \(1, 5, 5\), but the module gives \(1, 4, 4\)"):
        open_generator(f"{code}:vector", signal_shape=(1, 5, 5))


def test_digest_follows_the_files(tmp_path, code):
    torch.save(nn.Linear(1, 1).state_dict(), tmp_path / "w.pt")
    before = source_digest(f"{code}:vector", tmp_path / "w.pt")
    assert before == source_digest(f"{code}:vector", tmp_path / "w.pt") != source_digest("mnist")
    torch.save(nn.Linear(1, 2).state_dict(), tmp_path / "w.pt")
    assert source_digest(f"{code}:vector", tmp_path / "w.pt") != before


def test_digest_follows_code_and_numbers_of_a_package(tmp_path, monkeypatch):
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    code = "import torch\n\ndef build():\n    torch.manual_seed(SEED)\n    return torch.nn.Linear(3, 9)\n"
    (package / "models.py").write_text(code.replace("SEED", "0"))
    monkeypatch.syspath_prepend(tmp_path)
    spec = "their_package.models:build"
    first = source_digest(spec, None, open_generator(spec))
    assert first == source_digest(spec, None, open_generator(spec))
    other = gp.Generator(nn.Linear(3, 9), 3, 9)
    assert source_digest(spec, None, other) != first, "the numbers count"
    files = source_digest(spec)
    (package / "models.py").write_text(code.replace("SEED", "1"))
    assert source_digest(spec) != files, "the code counts"


def test_digest_of_a_program_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quiet(lambda: torch.jit.script(module()).save("a.pt"))
    before = source_digest("a.pt")
    quiet(lambda: torch.jit.script(nn.Linear(2, 3)).save("a.pt"))
    assert source_digest("a.pt") != before


# -- neighbours of a person's file -----------------------------------------------------------------------------------

NETWORK = "import torch\n\n\ndef network():\n    return torch.nn.Linear(4, {width})\n"


def model_folder(folder, code, **neighbours):
    folder.mkdir()
    for name, text in {**neighbours, "model": code}.items():
        (folder / f"{name}.py").write_text(text)
    return f"{folder / 'model.py'}:build"


def test_build_imports_from_beside_its_file(tmp_path):
    code = "def build():\n    from late_neighbour import network\n    return network()\n"
    spec = model_folder(tmp_path / "one", code, late_neighbour=NETWORK.format(width=9))
    before = list(sys.path)
    assert open_generator(spec).signal_shape == (9,)
    assert sys.path == before


def test_two_models_each_with_their_own_neighbour(tmp_path):
    """Also where a network imports only when it is called: the first one's."""
    code = textwrap.dedent("""
        from same_neighbour import network

        class Late(__import__("torch").nn.Module):
            latent_shape = (4,)

            def __init__(self):
                super().__init__()
                self.inner = network()

            def forward(self, z):
                import same_neighbour
                return self.inner(z) * same_neighbour.SCALE

        def build():
            return Late()
    """)
    plain = "from same_neighbour import network as build\n"
    first = model_folder(tmp_path / "one", code, same_neighbour=NETWORK.format(width=9) + "\n\nSCALE = 2\n")
    second = model_folder(tmp_path / "two", plain, same_neighbour=NETWORK.format(width=16))
    one, two = open_generator(first), open_generator(second)
    assert (one.signal_shape, two.signal_shape) == ((9,), (16,))
    z = one.sample_latent(2)
    assert torch.equal(one(z), one.module.inner(z) * 2)
    assert open_generator(second).signal_shape == (16,), "and again"
    home = sys.modules[type(one.module).__module__]
    assert home.__file__ == first.removesuffix(":build"), "two files of one name are two modules"


def test_a_package_in_the_working_folder(tmp_path, monkeypatch):
    package = tmp_path / "working_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(NETWORK.format(width=9))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    spec = "working_package.models:network"
    assert open_generator(spec).signal_shape == (9,)
    assert source_digest(spec) != source_digest("mnist")


def test_a_label_of_a_module_that_cannot_be_copied(tmp_path):
    path = tmp_path / "locked.py"
    path.write_text(
        "import threading, torch\n"
        "class Locked(torch.nn.Module):\n"
        "    latent_dim = 3\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.lock, self.classes = threading.Lock(), torch.nn.Embedding(5, 3)\n"
        "    def forward(self, z, label):\n"
        "        return torch.tanh(z + self.classes(label)).reshape(-1, 1, 1, 3)\n"
        "def build():\n"
        "    return Locked().eval().requires_grad_(False)\n"
    )
    G = open_generator(f"{path}:build", label=0, signal_range=(-1, 1))
    others = [with_label(G, label) for label in range(5)]
    z = G.sample_latent(2)
    own = others[0].module.module.module
    for label, other in enumerate(others):
        assert torch.allclose(2 * other(z) - 1, own(z, torch.full((2,), label)), atol=1e-6)
    assert torch.equal(G(z), others[0](z)), "the class of the first stays"
