"""ONNX graphs as torch modules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from genprior.files.guard import Unreadable, reading
from genprior.files.limits import LARGEST_PIECE, readable
from genprior.lab.third_party.operations import Result, prepared

_OPERATOR_SET = 18
_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 7: np.dtype("<i8")}
"""Codes of float32 and int64 in ONNX."""
_ATTRIBUTES = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints"}
"""Codes of attributes' types, and the fields that hold their values."""


@dataclass(frozen=True)
class Node:
    """One operation of a graph."""

    run: Callable[..., Result]
    inputs: tuple[str, ...]
    """Names of values; an empty one stands for an input that is left out."""
    outputs: tuple[str, ...]
    last: tuple[str, ...]
    """Computed values that no later operation needs."""


class Graph(nn.Module):
    """A graph that was read by :func:`read_graph`: named inputs to its only output.

    Weights are parameters. Whole numbers, which are shapes and axes, stay on the CPU, where shapes are made.
    """

    def __init__(self, inputs: Sequence[str], output: str, nodes: Sequence[Node], constants: dict[str, Tensor]) -> None:
        super().__init__()
        self.inputs, self.output, self.nodes = tuple(inputs), output, tuple(nodes)
        self._numbers = {name: value for name, value in constants.items() if not value.is_floating_point()}
        self._names = [name for name in constants if name not in self._numbers]
        self.weights = nn.ParameterList(nn.Parameter(constants[name], requires_grad=False) for name in self._names)

    def forward(self, *values: Tensor) -> Tensor:
        """The values of the inputs, in their order, to the output."""
        known: dict[str, Tensor | None] = {
            "": None,
            **self._numbers,
            **dict(zip(self._names, self.weights, strict=True)),
        }
        known |= zip(self.inputs, values, strict=True)
        for node in self.nodes:
            found = node.run(*(known[name] for name in node.inputs))
            known |= zip(node.outputs, (found,) if isinstance(found, Tensor) else found, strict=True)
            for name in node.last:
                del known[name]
        result = known[self.output]
        assert result is not None, "a value"
        return result


def read_graph(path: Path) -> Graph:
    """The graph in a file of ONNX, if all of its operations are supported. Values in other files are refused."""
    onnx = _package()
    size = path.stat().st_size
    if size > LARGEST_PIECE:
        raise Unreadable(f"{path} has {readable(size)}, at most {readable(LARGEST_PIECE)} are read")
    with reading(path, "an ONNX graph"):
        model = onnx.ModelProto.FromString(path.read_bytes())
        versions = {entry.domain: entry.version for entry in model.opset_import}
        if versions != {"": _OPERATOR_SET} or model.functions:
            raise Unreadable(
                f"{path} uses the operator sets {versions}, supported is only {_OPERATOR_SET} of ONNX itself"
            )
        return _graph(model.graph)


def _graph(graph: Any) -> Graph:
    constants = {tensor.name: _constant(tensor) for tensor in graph.initializer}
    inputs = [entry.name for entry in graph.input if entry.name not in constants]
    if len(graph.output) != 1 or graph.sparse_initializer:
        raise Unreadable(f"the graph has {len(graph.output)} outputs and {len(graph.sparse_initializer)} sparse values")
    output = graph.output[0].name
    _check_names(graph, {"", *constants, *inputs}, output)
    needed = Counter(name for node in graph.node for name in set(node.input))
    needed[output] += 1
    computed = {name for node in graph.node for name in node.output}
    nodes = []
    for node in graph.node:
        needed.subtract(set(node.input))
        last = {name for name in (*node.input, *node.output) if name in computed and not needed[name]}
        run = prepared(node.op_type, _attributes(node), len(node.input))
        nodes.append(Node(run, tuple(node.input), tuple(node.output), tuple(sorted(last))))
    return Graph(inputs, output, nodes, constants)


def _check_names(graph: Any, known: set[str], output: str) -> None:
    """Raise unless every value is computed once, and before it is used."""
    for node in graph.node:
        if missing := [name for name in node.input if name not in known]:
            raise Unreadable(f"the graph uses {missing[0]!r} before it is computed")
        if twice := [name for name in node.output if name in known]:
            raise Unreadable(f"the graph computes {twice[0]!r} twice, or leaves out an output of {node.op_type}")
        known.update(node.output)
    if output not in known:
        raise Unreadable(f"the graph does not compute its output {output!r}")


def _constant(tensor: Any) -> Tensor:
    if tensor.data_type not in _TYPES or tensor.data_location or tensor.external_data:
        raise Unreadable(f"the value {tensor.name!r} is not of float32 or int64 in the file itself")
    dtype, shape = _TYPES[tensor.data_type], tuple(tensor.dims)
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != len(tensor.raw_data):
        raise Unreadable(
            f"the value {tensor.name!r} declares the shape {shape}, but holds {len(tensor.raw_data)} bytes"
        )
    value = torch.from_numpy(np.frombuffer(tensor.raw_data, dtype).reshape(shape).astype(dtype.newbyteorder("=")))
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise Unreadable(
            f"the value {tensor.name!r} holds NaN or infinity: the training diverged, or the file is damaged"
        )
    return value


def _attributes(node: Any) -> dict[str, Any]:
    return {attribute.name: _attribute(attribute, node.op_type) for attribute in node.attribute}


def _attribute(attribute: Any, operation: str) -> Any:
    if attribute.type not in _ATTRIBUTES:
        raise Unreadable(f"the graph uses {operation} with the attribute {attribute.name}, of an unsupported type")
    value = getattr(attribute, _ATTRIBUTES[attribute.type])
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, int | float) else list(value)


def _package() -> Any:
    """The package onnx, or the way to get it."""
    try:
        import onnx  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        raise Unreadable(
            "ONNX graphs need the extra 'onnx': pip install 'genprior[onnx]', or '.[onnx]' in a copy of the repository"
        ) from None
    return onnx
