"""Files of torch.export that were made to run code when they are opened: refused, and nothing has run."""

import io
import json
import pickle
import warnings
import zipfile

import pytest
import torch
from torch import nn

from genprior.models.exported import load_exported
from genprior.models.foreign import open_generator
from genprior.models.program import _is_layout, _is_name, _is_size, _is_words

WEIGHTS = "a/data/weights/model_weights_config.json"
CONSTANTS = "a/data/constants/model_constants_config.json"
PROGRAM = "a/models/model.json"
SAMPLES = "a/data/sample_inputs/model.pt"


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


def exported(module, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(module, (torch.zeros(2, 4),), dynamic_shapes=axes), path)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Names and contents of an honest file."""
    path = tmp_path_factory.mktemp("honest") / "a.pt2"
    exported(nn.Sequential(nn.Linear(4, 9), nn.Sigmoid(), nn.Unflatten(1, (1, 3, 3))).eval(), path)
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def saved(bomb):
    buffer = io.BytesIO()
    torch.save(bomb, buffer)
    return buffer.getvalue()


def changed(records, name, change):
    """The records with one JSON document changed."""
    return [(n, json.dumps(change(json.loads(content))).encode() if n == name else content) for n, content in records]


def pickled(config, path_name="payload", key=None):
    entry = next(iter(config["config"].values()), None)
    entry = entry or {"is_param": False, "tensor_meta": None, "path_name": "", "use_pickle": False}
    name = key or next(iter(config["config"]))
    return {"config": config["config"] | {name: entry | {"use_pickle": True, "path_name": path_name}}}


def twice(records, mark):
    """The reader of torch takes the first or the middle one of equal names, Python's the last."""
    bad = dict(changed(records, WEIGHTS, pickled))[WEIGHTS]
    rest = [record for record in records if record[0] != WEIGHTS]
    return [
        *rest,
        *[(WEIGHTS, bad)] * 3,
        (WEIGHTS, dict(records)[WEIGHTS]),
        ("a/data/weights/payload", saved(Bomb(mark))),
    ]


def as_pickle(records, mark):
    return [*changed(records, WEIGHTS, pickled), ("a/data/weights/payload", saved(Bomb(mark)))]


def upper_case(records, mark):
    """The reader of torch does not mind the case of a name."""
    kept = [record for record in records if "sample_inputs" not in record[0]]
    return [*kept, ("a/data/sample_inputs/MODEL.PT", saved(Bomb(mark)))]


def opaque(records, mark):
    """torch unpickles what begins so, a folder too."""
    name = "opaque_obj_/payload"
    records = changed(records, CONSTANTS, lambda config: pickled(config, name, "c"))
    return [*records, (f"a/data/constants/{name}", pickle.dumps(Bomb(mark)))]


def node(change):
    def attack(records, mark):
        def altered(program):
            change(program, str(mark))
            return program

        return changed(records, PROGRAM, altered)

    return attack


def call(program, mark):
    first = program["graph_module"]["graph"]["nodes"][0]
    first["target"] = "torch.os.mkdir"
    first["inputs"] = [{"name": "path", "arg": {"as_string": mark}, "kind": 1}]


def size(program, mark):
    sizes = program["graph_module"]["graph"]["tensor_values"]["input"]["sizes"]
    sizes[0]["as_expr"]["expr_str"] = f"open({mark!r}, 'w') and Symbol('s31')"


def intruder(mark, name):
    """A module of Python on the path that leaves a mark when it is imported."""
    (mark.parent / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\nvalue = {{'x': None}}\n")
    return name


def layout(kind, context):
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


def with_layout(records, key, text):
    def altered(program):
        program["graph_module"]["module_call_graph"][0]["signature"][key] = text
        return program

    return changed(records, PROGRAM, altered)


def enumeration(records, mark):
    """torch takes an object with this key for a member of an enumeration, whose module it imports."""
    context = json.dumps({"__enum__": True, "fqn": f"{intruder(mark, 'intruder_one')}:value", "name": "x"})
    return with_layout(records, "in_spec", layout("builtins.tuple", context))


def factory(records, mark):
    """torch imports what makes the missing values of such a dictionary."""
    parts = {"default_factory_module": intruder(mark, "intruder_two"), "default_factory_name": "value"}
    return with_layout(records, "out_spec", layout("collections.defaultdict", parts | {"dict_context": ["x"]}))


def argument(program, mark):
    """The names of the arguments stand in a line ``def forward(...)`` that torch runs."""
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["forward_arg_names"] = [f"input=open({mark!r}, 'w')"]


def placeholder(program, mark):
    """So do the names of the program's inputs."""
    name = f"input=open({mark!r}, 'w')"
    graph = program["graph_module"]["graph"]
    graph["tensor_values"][name] = graph["tensor_values"].pop("input")
    text = json.dumps(program).replace('{"name": "input"}', json.dumps({"name": name}))
    program.update(json.loads(text))


def sample(records, mark):
    """Keys of the example inputs stand in a message inside lines that torch runs."""
    kept = [record for record in records if record[0] != SAMPLES]
    return [*kept, (SAMPLES, saved(((torch.zeros(2, 4),), {f"open({str(mark)!r})": torch.zeros(2)})))]


def write_zip(path, records):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in records:
            archive.writestr(name, content)


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (twice, "twice, or in an odd spelling"),
        (as_pickle, "holds 0.weight as a pickle"),
        (upper_case, "cannot be read"),
        (opaque, "holds c as a pickle"),
        (node(call), "calls 'torch.os.mkdir', which is no operation on tensors"),
        (node(size), "which is no arithmetic"),
        (enumeration, "not plain tuples, lists and dictionaries"),
        (factory, "not plain tuples, lists and dictionaries"),
        (node(argument), "names a value .input=open"),
        (node(placeholder), "names a value .input=open"),
        (sample, 'names a value "open'),
    ],
)
def test_no_code_runs(records, tmp_path, monkeypatch, attack, message):
    monkeypatch.syspath_prepend(tmp_path)
    mark = tmp_path / "ran"
    write_zip(tmp_path / "evil.pt2", attack(records, mark))
    with pytest.raises(ValueError, match=message):
        open_generator(tmp_path / "evil.pt2")
    assert not mark.exists()


def test_names_that_differ_in_case_only(records, tmp_path):
    write_zip(tmp_path / "a.pt2", [(WEIGHTS.upper(), b"{}"), *records])
    with pytest.raises(ValueError, match="twice, or in an odd spelling"):
        open_generator(tmp_path / "a.pt2")


def test_lines_of_code_in_the_program_are_dropped(records, tmp_path):
    mark = tmp_path / "ran"
    lines = [f"open({str(mark)!r}, 'w')"]
    write_zip(tmp_path / "a.pt2", changed(records, PROGRAM, lambda program: program | {"guards_code": lines}))
    open_generator(tmp_path / "a.pt2")
    assert not mark.exists()


def test_packed_records_are_refused(records, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in [*records, ("a/extra/zeros", bytes(10**6))]:
            archive.writestr(name, content)
    with pytest.raises(ValueError, match="more than its size allows"):
        open_generator(tmp_path / "a.pt2")


def test_a_convolutional_program_still_opens(tmp_path):
    layers = (
        nn.Unflatten(1, (4, 1, 1)),
        nn.ConvTranspose2d(4, 8, 4),
        nn.BatchNorm2d(8),
        nn.GELU(approximate="tanh"),
        nn.Upsample(scale_factor=2),
    )
    module = nn.Sequential(
        *layers, nn.Conv2d(8, 1, 3, padding=1), nn.PixelUnshuffle(2), nn.Flatten(), nn.Softplus()
    ).eval()
    exported(module, tmp_path / "a.pt2")
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(load_exported(tmp_path / "a.pt2")(z), module(z), atol=1e-6)


class Named(nn.Module):
    """Arguments by name, results by name, a text as the argument of an operation."""

    def forward(self, z, *, scale):
        return {"signal": torch.einsum("bi,bj->bij", z, scale), "latent": [z]}


def test_arguments_and_results_with_names_still_open(tmp_path):
    z, scale = torch.ones(2, 4), torch.arange(4.0).expand(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(Named(), (z,), {"scale": scale}), tmp_path / "a.pt2")
        out = load_exported(tmp_path / "a.pt2")(z, scale=scale)
    assert torch.equal(out["signal"], Named()(z, scale=scale)["signal"])
    assert torch.equal(out["latent"][0], z)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("Symbol('s31', positive=True, integer=True)", True),
        ("2*FloorDiv(s0, 2) + 1", True),
        ("Max(1, s0) < 5", True),
        ("__import__('os')", False),
        ("eval('x')", False),
        ("Symbol.__class__", False),
        ("(lambda: 1)()", False),
        ("[x for x in s0]", False),
        ("Symbol('__import__(1)')", False),
        ("5!", False),
    ],
)
def test_sizes(text, good):
    assert _is_size(text) is good


LEAF = {"type": None, "context": None, "children_spec": []}


@pytest.mark.parametrize(
    ("kind", "context", "good"),
    [
        ("builtins.tuple", "null", True),
        ("builtins.list", "null", True),
        ("builtins.dict", '["z", "label"]', True),
        ("collections.OrderedDict", '["z"]', True),
        ("builtins.tuple", '{"__enum__": 1, "fqn": "os:environ", "name": "x"}', False),
        ("builtins.dict", '[{"__enum__": 1, "fqn": "os:environ", "name": "x"}]', False),
        ("builtins.dict", '["z=print(1)"]', False),
        ("builtins.dict", '[["z"]]', False),
        ("collections.deque", "null", False),
        ("collections.namedtuple", "x", False),
        (None, '{"__enum__": 1}', False),
    ],
)
def test_layouts(kind, context, good):
    part = {"type": kind, "context": context, "children_spec": [LEAF]}
    outer = {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF, part]}
    assert _is_layout(json.dumps([1, part])) is good
    assert _is_layout(json.dumps([1, outer])) is good


@pytest.mark.parametrize("text", ["", "null", "[1]", "[2, {}]", "[1, []]", "[" * 10**5])
def test_what_is_no_layout(text):
    assert not _is_layout(text)


def test_texts_of_no_known_use():
    for good in ("", "layers.0.weight", "nearest", "bi,ij->bj", "2.13.0+cpu", "to-rgb 64x64", "größe"):
        assert _is_words(good)
    for bad in ("f()", 'a"', "a'", "a[0]", "a\n", "a\\", "{a}", "a;b", "a=b", "a#b"):
        assert not _is_words(bad)
    assert _is_name("p_0_weight")
    assert not _is_name("a.b")
    assert not _is_name("lambda")
