"""Conditional networks: how a third-party network takes a class in addition to the latent."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from genprior import _validate
from genprior.generators.contract import Generator
from genprior.models.adapt import FromRange, Labelled

_NAMES = ("y", "c", "cls", "label", "labels", "class_label", "class_labels", "class_id", "target", "condition")


def label_use(module: nn.Module) -> Literal["none", "optional", "needed"]:
    """Whether ``forward`` takes, or needs, a class as a second argument after the latent."""
    if isinstance(module, torch.jit.ScriptModule):
        forward: Any = module.forward
        second = forward.schema.arguments[2:3]  # the first parameter is the module itself
        return _use([(a.name, a.has_default_value(), a.default_value) for a in second])
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(module.forward).parameters.values() if p.kind in plain]
    return _use([(p.name, p.default is not inspect.Parameter.empty, p.default) for p in parameters[1:2]])


def _second(module: nn.Module) -> str:
    """The optional second argument, by its name where that is known."""
    if isinstance(module, torch.jit.ScriptModule):
        return "an optional second argument"
    return f"the optional argument {list(inspect.signature(module.forward).parameters)[1]}"


def of_latent(module: nn.Module, label: int | None) -> tuple[nn.Module, str]:
    """The module as a function of the latent only, with a note on its class."""
    use = label_use(module)
    if label is not None and use == "none":
        raise ValueError(f"label {label} was given, but the module takes only a latent: leave it out")
    if label is None and use == "needed":
        raise ValueError("the module takes a second argument, a class label: give `label`, a whole number from 0")
    if label is None:
        return module, "" if use == "none" else f"{_second(module)} left out: if it is a class, give `label`"
    return Labelled(module, label).train(module.training), f"class label {label} for every item"


def label_hint(label: int) -> str:
    """Advice if a conditional module does not run."""
    return (
        f"is the class label {label} in range? The module gets it as a whole number for each item: where it takes labels "
        "one-hot, give a function that returns a module which calls torch.nn.functional.one_hot"
    )


def with_label(generator: Generator, label: int) -> Generator:
    """The same conditional generator with another class; the weights are shared, the given generator keeps its class."""
    return generator.with_module(_relabelled(generator.module, _validate.whole("label", label, 0)))


def check_labels(generator: Generator, labels: Iterable[int]) -> None:
    """Try each class once; raise if the generator fails on it."""
    for label in sorted(set(labels)):
        other = with_label(generator, label)
        try:
            with torch.no_grad():
                other(other.sample_latent(1))
        except ValueError as problem:
            raise ValueError(f"the generator does not take the class label {label}: {problem}") from problem


def _relabelled(module: nn.Module, label: int) -> nn.Module:
    """New wrappers around the same network, which may not support copying; the class must not be shared."""
    if isinstance(module, Labelled):
        other: nn.Module = Labelled(module.module, label)
    elif isinstance(module, FromRange):
        other = FromRange(_relabelled(module.module, label), module.low, module.high)
    else:
        raise ValueError("the generator has no class label to change")
    return other.train(module.training)


def _use(second: list[tuple[str, bool, object]]) -> Literal["none", "optional", "needed"]:
    """By name, whether there is a default, and the default. A truncation factor with default 1 is not a class."""
    if not second:
        return "none"
    name, has_default, default = second[0]
    if not has_default:
        return "needed"
    return "optional" if default is None or name.lower() in _NAMES else "none"
