"""Conditional networks: how a stranger's network takes the class besides the latent."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import nn

from genprior import _validate
from genprior.generators.contract import Generator
from genprior.models.adapt import FromRange, Labelled
from genprior.models.shapes import declared_latent, first_weights

_COUNTS = ("n_classes", "num_classes", "classes", "n_class", "num_class", "class_count", "label_dim", "c_dim")
_NAMES = ("y", "c", "cls", "label", "labels", "class_label", "class_labels", "class_id", "target", "condition")


def label_use(module: nn.Module) -> Literal["none", "optional", "needed"]:
    """Whether ``forward`` takes, or needs, a class as its second argument besides the latent."""
    if isinstance(module, torch.fx.GraphModule):
        return "needed" if [node.op for node in module.graph.nodes].count("placeholder") > 1 else "none"
    if isinstance(module, torch.jit.ScriptModule):
        forward: Any = module.forward
        second = forward.schema.arguments[2:3]  # the first one is the module itself
        return _use([(a.name, a.has_default_value(), a.default_value) for a in second])
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(module.forward).parameters.values() if p.kind in plain]
    return _use([(p.name, p.default is not inspect.Parameter.empty, p.default) for p in parameters[1:2]])


def _second(module: nn.Module) -> str:
    """The optional second argument, by its name where that is known."""
    if isinstance(module, torch.jit.ScriptModule):
        return "an optional second argument"
    return f"the optional argument {list(inspect.signature(module.forward).parameters)[1]}"


def ways(module: nn.Module, label: int | None, latent_shape: tuple[int, ...] | None) -> Iterator[tuple[nn.Module, str]]:
    """The module as one of the latent only, with a note: the class as a whole number, then one-hot."""
    use = label_use(module)
    if label is not None and use == "none":
        raise ValueError(f"label {label} was given, but the module takes only a latent: leave it out")
    if label is None and use == "needed":
        raise ValueError("the module takes a second argument, a class label: give `label`, a whole number from 0")
    if label is None:
        yield module, "" if use == "none" else f"{_second(module)} left out: if it is a class, give `label`"
        return
    note = f"class label {label} for every item"
    yield Labelled(module, label).train(module.training), note
    for count in _class_counts(module, latent_shape):
        if label < count:
            yield Labelled(module, label, count).train(module.training), f"{note}, one-hot among {count}"


def with_label(generator: Generator, label: int) -> Generator:
    """The same conditional generator with another class; the weights are shared, the class of the given one stays."""
    return generator.with_module(_relabelled(generator.module, _validate.whole("label", label, 0)))


def check_labels(generator: Generator, labels: Iterable[int]) -> None:
    """Raise where the generator does not run with one of these classes: each is tried once."""
    for label in sorted(set(labels)):
        other = with_label(generator, label)
        try:
            with torch.no_grad():
                other(other.sample_latent(1))
        except ValueError as problem:
            raise ValueError(f"the generator does not take the class label {label}: {problem}") from problem


def _relabelled(module: nn.Module, label: int) -> nn.Module:
    """New wrappers around the same network: one that cannot be copied is shared, and so would be a class set inside."""
    if isinstance(module, Labelled):
        other: nn.Module = Labelled(module.module, label, module.classes)
    elif isinstance(module, FromRange):
        other = FromRange(_relabelled(module.module, label), module.low, module.high)
    else:
        raise ValueError("the generator has no class label to change")
    return other.train(module.training)


def _use(second: list[tuple[str, bool, object]]) -> Literal["none", "optional", "needed"]:
    """By name, whether there is a default, and the default. A truncation with the default 1 is no class."""
    if not second:
        return "none"
    name, has_default, default = second[0]
    if not has_default:
        return "needed"
    return "optional" if default is None or name.lower() in _NAMES else "none"


def _class_counts(module: nn.Module, latent_shape: tuple[int, ...] | None) -> list[int]:
    """How many classes there may be: declared, or what the first weights take besides the latent."""
    declared = [getattr(module, name, None) for name in _COUNTS]
    counts = [n for n in declared if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    latents = [latent_shape] if latent_shape else [shape for shape, _ in declared_latent(module)]
    sizes = {math.prod(shape) for shape in latents}
    counts += [int(w.shape[1]) - size for _, w in first_weights(module) for size in sizes if w.shape[1] > size]
    return list(dict.fromkeys(counts))
