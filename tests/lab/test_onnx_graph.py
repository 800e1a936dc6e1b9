"""ONNX graphs as torch modules: every operation against plain numpy, what is refused, and the terrain package's layout."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from genprior.files.guard import Unreadable
from genprior.lab.third_party import PACKAGES, graph, open_third_party
from genprior.lab.third_party.graph import read_graph
from genprior.lab.third_party.operations import OPERATIONS, prepared

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
helper, FLOAT, INT = onnx.helper, 1, 7
RANDOM = np.random.default_rng(0)


def numbers(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def whole(*values):
    return np.array(values, dtype=np.int64)


def model(nodes, inputs, constants, output="y", version=18):
    """A model; inputs are names, constants arrays."""
    made = helper.make_graph(
        [helper.make_node(kind, ins, outs, **attributes) for kind, ins, outs, attributes in nodes],
        "test",
        [helper.make_tensor_value_info(name, FLOAT, None) for name in inputs],
        [helper.make_tensor_value_info(output, FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", version)])


def opened(folder, made):
    path = folder / "graph.onnx"
    path.write_bytes(made.SerializeToString())
    return read_graph(path)


def stretched(x):
    return x.repeat(2, axis=2).repeat(3, axis=3)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


def standardised(x, scale, shift):
    mean, variance = x.mean(axis=(2, 3), keepdims=True), x.var(axis=(2, 3), keepdims=True)
    return scale[:, None, None] * (x - mean) / np.sqrt(variance + 0.1) + shift[:, None, None]


def correlated(x, w, b):
    """Stride 2, rows twice as far apart, one row and two columns of zeros at every border."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2)))
    rows, columns = (padded.shape[2] - 3) // 2 + 1, (padded.shape[3] - 3) // 2 + 1
    out = np.zeros((len(x), len(w), rows, columns))
    for i in range(rows):
        for j in range(columns):
            out[:, :, i, j] = np.einsum("bcuv,ocuv->bo", padded[:, :, 2 * i : 2 * i + 3 : 2, 2 * j : 2 * j + 3], w)
    return out + b[:, None, None]


IMAGES, MATRIX = numbers(2, 3, 6, 8), numbers(4, 6)
W, B = numbers(5, 3, 2, 3), numbers(5)
CONV = {"strides": [2, 2], "pads": [1, 2, 1, 2], "dilations": [2, 1], "group": 1, "auto_pad": "NOTSET"}
POOL = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0] * 4, "auto_pad": "NOTSET", "ceil_mode": 0}
POOL |= {"count_include_pad": 1}
GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
RESIZE = dict(OPERATIONS["Resize"].fixed)
SCALE = numbers(3)

CASES = {
    "Add": (MATRIX, [numbers(6)], {}, lambda x, b: x + b),
    "Sub": (MATRIX, [numbers(6)], {}, lambda x, b: x - b),
    "Mul": (MATRIX, [numbers(4, 1)], {}, lambda x, b: x * b),
    "Div": (MATRIX, [2 + numbers(6) ** 2], {}, lambda x, b: x / b),
    "Pow": (MATRIX, [np.float32(2)], {}, lambda x, b: x**2),
    "Sqrt": (MATRIX**2, [], {}, np.sqrt),
    "Log": (MATRIX**2, [], {}, np.log),
    "Cos": (MATRIX, [], {}, np.cos),
    "Sin": (MATRIX, [], {}, np.sin),
    "Sigmoid": (MATRIX, [], {}, sigmoid),
    "Reciprocal": (2 + MATRIX**2, [], {}, lambda x: 1 / x),
    "Clip": (MATRIX, [np.float32(-0.5), np.float32(0.7)], {}, np.clip),
    "Softmax": (MATRIX, [], {"axis": 1}, softmax),
    "Concat": (MATRIX, [numbers(4, 2)], {"axis": -1}, lambda *x: np.concatenate(x, axis=1)),
    "Einsum": (
        numbers(2, 3, 4),
        [numbers(2, 3, 5)],
        {"equation": "bct,bcs->bts"},
        lambda x, y: x.transpose(0, 2, 1) @ y,
    ),
    "Gemm": (MATRIX, [numbers(3, 6), numbers(3)], GEMM, lambda x, w, b: x @ w.T + b),
    "Conv": (IMAGES, [W, B], CONV, correlated),
    "InstanceNormalization": (IMAGES, [SCALE, numbers(3)], {"epsilon": 0.1}, standardised),
    "AveragePool": (IMAGES, [], POOL, lambda x: x.reshape(2, 3, 3, 2, 4, 2).mean(axis=(3, 5))),
    "Resize": (
        IMAGES,
        [None, np.array([1, 1, 2, 3], dtype=np.float32)],
        RESIZE,
        lambda x, *_: stretched(x),
    ),
    "Reshape": (IMAGES, [whole(0, -1, 4)], {"allowzero": 0}, lambda x, _: x.reshape(2, -1, 4)),
    "Unsqueeze": (MATRIX, [whole(3, 0)], {}, lambda x, _: x[None, :, :, None]),
    "Squeeze": (numbers(1, 4, 1, 6), [whole(0, -2)], {}, lambda x, _: x[0, :, 0]),
}


@pytest.mark.parametrize("kind", CASES)
def test_operations(tmp_path, kind):
    x, others, attributes, expected = CASES[kind]
    names = ["" if other is None else f"c{number}" for number, other in enumerate(others)]
    constants = {name: other for name, other in zip(names, others, strict=True) if name}
    module = opened(tmp_path, model([(kind, ["x", *names], ["y"], attributes)], ["x"], constants))
    found = module(torch.from_numpy(x)).numpy()
    wanted = expected(x.astype(np.float64), *others)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_operations_of_shapes(tmp_path):
    """What a graph does with the length of a batch."""
    nodes = [
        ("Shape", ["x"], ["batch"], {"start": 0, "end": 1}),
        ("Concat", ["batch", "rest"], ["shape"], {"axis": 0}),
        ("Reshape", ["x", "shape"], ["a"], {}),
        ("Split", ["a"], ["b", "c", "d"], {"axis": 1, "num_outputs": 3}),
        ("Sub", ["b", "d"], ["y"], {}),
    ]
    module = opened(tmp_path, model(nodes, ["x"], {"rest": whole(6, 2)}))
    for count in (1, 5):
        x = numbers(count, 12)
        three = x.reshape(count, 3, 2, 2)
        np.testing.assert_array_equal(module(torch.from_numpy(x)).numpy(), three[:, 0] - three[:, 2])


def test_all_operations_are_tested():
    assert {*CASES, "Shape", "Split"} == {*OPERATIONS}


def test_gradients_and_batches(tmp_path):
    nodes = [
        ("Conv", ["x", "w", "b"], ["a"], {**CONV, "pads": [1, 1, 1, 1]}),
        ("InstanceNormalization", ["a", "scale", "b"], ["c"], {"epsilon": 1e-5}),
        ("Sigmoid", ["c"], ["y"], {}),
    ]
    module = opened(tmp_path, model(nodes, ["x"], {"w": W, "b": B, "scale": numbers(5)})).double()
    x = torch.from_numpy(IMAGES).double().requires_grad_()
    assert torch.autograd.gradcheck(module, x)
    torch.testing.assert_close(module(x)[1:], module(x[1:]))
    assert not any(weight.requires_grad for weight in module.weights)


def test_a_value_is_dropped_after_its_last_use(tmp_path):
    nodes = [
        ("Add", ["x", "x"], ["a"], {}),
        ("Mul", ["a", "a"], ["b"], {}),
        ("Add", ["b", "a"], ["y"], {}),
        ("Sin", ["x"], ["unused"], {}),
    ]
    module = opened(tmp_path, model(nodes, ["x"], {}))
    assert [node.last for node in module.nodes] == [(), (), ("a", "b"), ("unused",)]
    assert float(module(torch.tensor(3.0))) == 42


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs", "reason"),
    [
        ("Tanh", {}, 1, "uses the operation Tanh, supported are Add"),
        (
            "Conv",
            {**CONV, "auto_pad": "SAME_UPPER"},
            2,
            "Conv with auto_pad = 'SAME_UPPER', supported is only 'NOTSET'",
        ),
        ("Conv", {"strides": [1, 1]}, 2, "Conv with auto_pad = None"),
        ("Gemm", {**GEMM, "transA": 1}, 3, "Gemm with transA = 1"),
        ("Resize", {**RESIZE, "mode": "cubic"}, 3, "Resize with mode = 'cubic'"),
        ("Resize", RESIZE, 4, "Resize with 4 inputs"),
        ("Softmax", {"new": 1}, 1, r"Softmax with 1 inputs and \['new'\]"),
        ("Split", {"axis": 1, "num_outputs": 2}, 2, "Split with 2 inputs"),
    ],
)
def test_other_operations_are_refused(kind, attributes, inputs, reason):
    with pytest.raises(Unreadable, match=reason):
        prepared(kind, attributes, inputs)


@pytest.mark.parametrize("pads", [[0, 0, 1, 1], [1, 1]])
def test_other_paddings_are_refused(tmp_path, pads):
    attributes = {**CONV, "pads": pads}
    if len(pads) == 2:
        attributes |= {"strides": [1], "dilations": [1]}
    module = opened(tmp_path, model([("Conv", ["x", "w"], ["y"], attributes)], ["x"], {"w": W}))
    with pytest.raises(Unreadable, match="Conv with pads"):
        module(torch.from_numpy(IMAGES))


@pytest.mark.parametrize("scales", [[1, 1, 1.5, 2], [1, 2, 2, 2], [1, 1, 0.5, 1]])
def test_other_scales_are_refused(tmp_path, scales):
    scales = np.array(scales, dtype=np.float32)
    module = opened(tmp_path, model([("Resize", ["x", "", "s"], ["y"], RESIZE)], ["x"], {"s": scales}))
    with pytest.raises(Unreadable, match="Resize by"):
        module(torch.from_numpy(IMAGES))


ADD = [("Add", ["x", "c"], ["y"], {})]


def changed(change):
    made = model(ADD, ["x"], {"c": numbers(2)})
    change(made)
    return made


def elsewhere(made):
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    tensor.external_data.add(key="location", value="/etc/hostname")


def shaped(*shape):
    def change(made):
        del made.graph.initializer[0].dims[:]
        made.graph.initializer[0].dims.extend(shape)

    return change


def typed(made):
    made.graph.initializer[0].data_type = 11


REFUSED = {
    "version": (lambda: model(ADD, ["x"], {"c": numbers(2)}, version=11), "operator sets .*11.*, supported is only 18"),
    "external": (lambda: changed(elsewhere), "'c' is not of float32 or int64 in the file itself"),
    "double": (lambda: changed(typed), "'c' is not of float32"),
    "larger": (lambda: changed(shaped(10**9)), "declares the shape .1000000000,., but holds 8 bytes"),
    "negative": (lambda: changed(shaped(-1, -2)), "declares the shape"),
    "NaN": (lambda: model(ADD, ["x"], {"c": np.float32(np.nan)}), "holds NaN"),
    "order": (
        lambda: model([("Sin", ["a"], ["y"], {}), ("Cos", ["x"], ["a"], {})], ["x"], {}),
        "uses 'a' before it is computed",
    ),
    "twice": (lambda: model([*ADD, *ADD], ["x"], {"c": numbers(2)}), "computes 'y' twice"),
    "output": (lambda: model(ADD, ["x"], {"c": numbers(2)}, output="z"), "does not compute its output 'z'"),
    "operation": (lambda: model([("Relu", ["x"], ["y"], {})], ["x"], {}), "the operation Relu"),
    "outputs": (lambda: changed(lambda made: made.graph.output.add(name="c")), "has 2 outputs"),
    "tensor": (
        lambda: model([("Softmax", ["x"], ["y"], {"axis": onnx.numpy_helper.from_array(numbers(1), "t")})], ["x"], {}),
        "attribute axis, of an unsupported type",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_graphs_that_are_refused(tmp_path, case):
    make, reason = REFUSED[case]
    with pytest.raises(Unreadable, match=reason):
        opened(tmp_path, make())


@pytest.mark.parametrize("content", [b"", b"not a graph", bytes(100)])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.onnx").write_bytes(content)
    with pytest.raises(Unreadable):
        read_graph(tmp_path / "a.onnx")


def test_a_file_of_unreasonable_size(tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "LARGEST_PIECE", 10)
    with pytest.raises(Unreadable, match="at most 10 bytes are read"):
        opened(tmp_path, model(ADD, ["x"], {"c": numbers(2)}))


@pytest.mark.parametrize(("label", "difficulty"), [(None, 49 / 99), (0, 0.0), (99, 1.0)])
def test_the_network_of_terrain(tmp_path, label, difficulty):
    """Its graph gets noise of level 80, the level, and the difficulty, in this order."""
    column = {"shape": whole(-1, 1, 1, 1)}
    nodes = [
        ("Div", ["noisy", "spread"], ["a"], {}),
        ("Reshape", ["sigma", "shape"], ["b"], {}),
        ("Log", ["b"], ["c"], {}),
        ("Mul", ["a", "c"], ["d"], {}),
        ("Reshape", ["difficulty", "shape"], ["e"], {}),
        ("Add", ["d", "e"], ["y"], {}),
    ]
    made = model(nodes, ["noisy", "sigma", "difficulty"], {**column, "spread": np.float32(16)})
    package = PACKAGES["terrain"]
    with zipfile.ZipFile(tmp_path / package.archive, "w") as archive:
        archive.writestr(package.members[0], made.SerializeToString())
    digest = hashlib.sha256((tmp_path / package.archive).read_bytes()).hexdigest()
    shape = (1, 2, 3)
    package = replace(package, sha256=digest, latent_shape=shape, signal_shape=shape)
    z = numbers(4, *shape)
    found = open_third_party(package, tmp_path, label=label)(torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(found, 5 * z * np.log(80) + difficulty, rtol=1e-5, atol=1e-6)
