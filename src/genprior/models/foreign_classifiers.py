"""Opens a classifier: a bundled name, a file of ``genprior train``, Python code, TorchScript."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from genprior.generators.alias import frozen_alias
from genprior.models.bundled import load_classifier
from genprior.models.modules import SCRIPT_ENDINGS, build_from_python, is_python, load_program
from genprior.models.weights import load_weights


def open_classifier(
    spec: str | Path,
    weights: str | Path | None = None,
    *,
    signal_shape: tuple[int, ...],
    device: torch.device | str = "cpu",
) -> nn.Module:
    """A classifier of images ``(B, *signal_shape)`` in [0, 1] that gives logits ``(B, classes)``, in eval mode.

    Parameters
    ----------
    spec
        ``"mnist"`` or another bundled name; a ``.safetensors`` file that ``genprior train classifier`` wrote;
        ``my_model.py:build``, a function without arguments that returns a ``torch.nn.Module``; a TorchScript file.
    weights
        for a function: ``.safetensors``, or ``.pt`` with a state dictionary. Files with pickled code are refused.
    signal_shape
        of one image: it is tried on two of them.
    device
        where it runs.

    Examples
    --------
    >>> import torch
    >>> from genprior.models.foreign_classifiers import open_classifier
    >>> open_classifier("mnist", signal_shape=(1, 28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    module = _opened(str(spec), weights).to(device)
    classifier = frozen_alias(module)
    _check(classifier, str(spec), signal_shape, device)
    return classifier


def _opened(text: str, weights: str | Path | None) -> nn.Module:
    if is_python(text):
        built = build_from_python(text)
        if not isinstance(built, nn.Module):
            raise TypeError(f"{text} returned {type(built).__name__}, expected a torch.nn.Module")
        if weights is not None:
            load_weights(built, Path(weights))
        return built
    if weights is not None:
        raise ValueError(
            f"weights go with a Python function as the classifier, my_model.py:build, but {text!r} has weights of its own"
        )
    return load_program(Path(text)) if Path(text).suffix.lower() in SCRIPT_ENDINGS else load_classifier(text)


def _check(classifier: nn.Module, spec: str, signal_shape: tuple[int, ...], device: torch.device | str) -> None:
    """Two black images must give two rows of logits."""
    try:
        with torch.no_grad():
            logits = classifier(torch.zeros(2, *signal_shape, device=device))
    except (RuntimeError, ValueError) as problem:
        reason = str(problem).partition("\n")[0]
        raise ValueError(
            f"the classifier {spec} fails on images of shape {signal_shape} ({reason}): it must accept what the generator "
            "makes"
        ) from problem
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[0] != 2 or logits.shape[1] < 2:
        given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the classifier {spec} gives {given} for two images, expected (2, classes): one row of logits each"
        )
