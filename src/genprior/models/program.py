"""What may stand in the program of a torch.export file: operations on tensors, sizes, names. No text that could become code.

torch looks up what the program calls, evaluates its sizes, imports what the layout of its arguments names, and writes
Python source with the names of its values in it, which is then run. So every text is checked, whatever its use, and a text
whose use is not known may hold nothing with which Python calls or quotes.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from genprior.files.guard import Unreadable

_OPERATION = re.compile(
    r"torch\.ops\.(aten|prims|quantized|quantized_decomposed|torchvision)\.(?!(save|from_file)\b)\w+(\.(?!__)\w+)?"
    r"|_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|not_)"
    r"|math\.\w+|torch\.sym_\w+"
)
_WORDS = re.compile(r"[\w .,:+*/>-]*")
"""Names of layers, modes such as ``nearest``, equations such as ``bi,ij->bj``: no brackets, quotes or line ends."""
_CALLED = re.compile(r"[A-Z]\w*")
"""Functions of sizes, such as ``Symbol('s0')`` or ``FloorDiv(s0, 2)``; Python's own begin with a small letter."""
_SIZES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.keyword, ast.Tuple, ast.operator, ast.unaryop, ast.cmpop),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.boolop),
)
_LAYOUT_VERSION = 1
_SEQUENCES = ("builtins.tuple", "builtins.list")
_MAPPINGS = ("builtins.dict", "collections.OrderedDict")


def checked_program(program: dict[str, Any], path: Path) -> dict[str, Any]:
    """The program without its remarks and its lines of code, which no network needs; refused where a text is suspicious."""
    program = program | {"guards_code": [], "graph_module": program["graph_module"] | {"metadata": {}}}
    for part in _parts(program):
        if isinstance(part.get("target"), str):
            part["metadata"] = {}  # where the call stood in the person's source
    check_texts(program, path)
    return program


def check_texts(document: Any, path: Path) -> None:
    """Refuse a JSON document in which a text, or a key, is more than its use asks for."""
    for use, text in _texts(document):
        rule, complaint = _RULES.get(use, (_is_words, "holds the text {}, which no network needs"))
        if not rule(text):
            shown = repr(text if len(text) <= 80 else f"{text[:80]}...")
            raise Unreadable(f"{path} {complaint.format(shown)}: refused, it could run any code")


def check_samples(samples: Any, path: Path) -> None:
    """Refuse example inputs that are more than tensors and numbers: torch writes their keys into source that it runs."""
    if isinstance(samples, tuple | list):
        for part in samples:
            check_samples(part, path)
    elif isinstance(samples, dict) and all(isinstance(key, str) for key in samples):
        check_texts({"name": list(samples)}, path)
        check_samples(list(samples.values()), path)
    elif not isinstance(samples, Tensor | bool | int | float | None):
        raise Unreadable(f"{path} has an example input of type {type(samples).__name__}: export it with tensors only")


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON document."""
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from _parts(part)


def _texts(value: Any, use: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a JSON document with the key under which it stands; keys are texts too."""
    if isinstance(value, str):
        yield use, value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, use)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield "", key
            yield from _texts(part, key)


def _is_words(text: str) -> bool:
    return bool(_WORDS.fullmatch(text))


def _is_operation(text: str) -> bool:
    return bool(_OPERATION.fullmatch(text))


def _is_name(text: str) -> bool:
    """A name of Python's, or none."""
    return not text or (text.isidentifier() and not keyword.iskeyword(text))


def _is_size(text: str) -> bool:
    """Arithmetic of numbers, symbols and functions of sizes; no attributes, no other calls."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(_is_arithmetic(node) for node in nodes)


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and bool(_CALLED.fullmatch(node.func.id))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.isidentifier() and "__" not in node.value
    return isinstance(node, _SIZES)


def _is_layout(text: str) -> bool:
    """How arguments or results are nested: tuples, lists and dictionaries with plain names; other types import modules."""
    try:
        version, layout = json.loads(text)
        return version == _LAYOUT_VERSION and _is_nested(layout)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _is_nested(layout: Any) -> bool:
    kind, context, children = layout["type"], layout["context"], layout["children_spec"]
    if kind is None:
        return context is None and children == []
    keys = json.loads(context)
    fits = keys is None if kind in _SEQUENCES else kind in _MAPPINGS and _are_names(keys)
    return fits and isinstance(children, list) and all(_is_nested(child) for child in children)


def _are_names(keys: Any) -> bool:
    return isinstance(keys, list) and all(isinstance(key, str) and _is_name(key) for key in keys)


_CALL = (_is_operation, "calls {}, which is no operation on tensors")
_NAME = (_is_name, "names a value {}, which is no name")
_LAYOUT = (_is_layout, "has arguments or results in the layout {}, not plain tuples, lists and dictionaries")
_RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    "target": _CALL,
    "as_operator": _CALL,
    "expr_str": (_is_size, "has the size {}, which is no arithmetic"),
    "name": _NAME,
    "as_name": _NAME,
    "forward_arg_names": _NAME,
    "in_spec": _LAYOUT,
    "out_spec": _LAYOUT,
}
