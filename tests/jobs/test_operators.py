"""Operators as words: each builds what it says; each mistake is named."""

import numpy as np
import pytest
import torch
from PIL import Image

from genprior import operators as ops
from genprior.operators import parse as operators
from genprior.operators.parse import describe, examples, parse_operator, parse_options

SHAPE = (1, 6, 8)
X = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that the words below name, in the working folder."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    bright = np.zeros((6, 8), np.uint8)
    bright[:3] = 255
    Image.fromarray(bright).save("known.png")
    np.save("known.npy", bright > 0)
    np.save("weights.npy", random.random((6, 8)).astype(np.float32))
    np.save("A.npy", random.standard_normal((5, 48)))
    np.save("kernel.npy", random.random((3, 3)))
    np.save("lines.npy", np.array([0, 2, 5]))
    np.save("flags.npy", np.array([1, 0, 1, 0, 0, 1], bool))
    np.save("columns.npy", np.array([1, 0, 1, 1, 0, 0, 1, 0], np.uint8))
    np.save("maps.npy", random.standard_normal((3, 6, 8)) + 1j * random.standard_normal((3, 6, 8)))
    np.save("plane.npy", random.random((6, 8)) > 0.5)
    return tmp_path


def known():
    return torch.zeros(6, 8).index_fill_(0, torch.arange(3), 1.0)


def rows(*numbers):
    mask = torch.zeros(6, 8, dtype=torch.bool)
    mask[list(numbers)] = True
    return mask


def columns():
    return torch.from_numpy(np.load("columns.npy"))[None] > 0


def coils():
    return ops.Coils(torch.from_numpy(np.load("maps.npy").astype(np.complex64)), SHAPE)


def comb(*numbers):
    mask = torch.zeros(1, 8, dtype=torch.bool)
    mask[:, list(numbers)] = True
    return mask


CASES = {
    "coils:maps.npy": coils,
    "kspace": lambda: ops.Fourier(SHAPE),
    "kspace:columns.npy,packed=true": lambda: ops.Fourier(SHAPE, columns(), packed=True),
    "kspace:plane.npy,centred=true": lambda: ops.Fourier(SHAPE, torch.from_numpy(np.load("plane.npy")), centred=True),
    "kspace:every=3,centre=2,centred=true": lambda: ops.Fourier(SHAPE, comb(1, 3, 4, 7), centred=True),
    "kspace:every=3,centre=2": lambda: ops.Fourier(SHAPE, comb(0, 3, 5, 7)),
    "kspace:columns.npy,centred=true,packed=true @ coils:maps.npy": lambda: (
        ops.Fourier((3, 6, 8), columns(), centred=True, packed=True) @ coils()
    ),
    "gaussian:m=9,seed=4": lambda: ops.Gaussian(9, SHAPE, seed=4),
    "gaussian:m=9": lambda: ops.Gaussian(9, SHAPE, seed=0),
    "hadamard:m=9,seed=4": lambda: ops.SubsampledHadamard(9, SHAPE, seed=4),
    "mask:known.png": lambda: ops.Mask(known(), SHAPE),
    "mask:known.png,invert=true": lambda: ops.Mask(1 - known(), SHAPE),
    "mask:known.npy": lambda: ops.Mask(known(), SHAPE),
    "mask:known.npy,invert=true": lambda: ops.Mask(1 - known(), SHAPE),
    "mask:weights.npy": lambda: ops.Mask(torch.from_numpy(np.load("weights.npy")), SHAPE),
    "blur:sigma=2": lambda: ops.Blur(2.0, SHAPE),
    "blur:kernel.npy": lambda: ops.Blur(torch.from_numpy(np.load("kernel.npy").astype(np.float32)), SHAPE),
    "downsample:2": lambda: ops.Downsample(2, SHAPE),
    "fourier:lines.npy": lambda: ops.SubsampledFourier(rows(0, 2, 5), SHAPE),
    "fourier:flags.npy": lambda: ops.SubsampledFourier(rows(0, 2, 5), SHAPE),
    "fourier:plane.npy": lambda: ops.SubsampledFourier(torch.from_numpy(np.load("plane.npy")), SHAPE),
    "fourier:plane.npy,centred=true": lambda: ops.SubsampledFourier(
        torch.from_numpy(np.load("plane.npy")), SHAPE, centred=True
    ),
    "fourier:m=12,seed=3": lambda: ops.SubsampledFourier(12, SHAPE, seed=3),
    "dense:A.npy": lambda: ops.Dense(torch.from_numpy(np.load("A.npy").astype(np.float32)), SHAPE),
    "identity": lambda: ops.Identity(SHAPE),
    "mask:known.png and downsample:2 @ blur:sigma=1 and hadamard:m=5": lambda: ops.Stack(
        ops.Mask(known(), SHAPE), ops.Downsample(2, SHAPE) @ ops.Blur(1.0, SHAPE), ops.SubsampledHadamard(5, SHAPE)
    ),
    "downsample:2 @ blur:sigma=1": lambda: ops.Downsample(2, SHAPE) @ ops.Blur(1.0, SHAPE),
}


@pytest.mark.parametrize("text", CASES)
def test_words_build_what_they_say(files, text):
    built, own = parse_operator(text, SHAPE), CASES[text]()
    assert torch.equal(built(X), own(X))
    assert built.measurement_shape == own.measurement_shape


def test_random_mask(files):
    one, same = parse_operator("mask:keep=0.4,seed=1", SHAPE), parse_operator("mask:keep=0.4,seed=1", SHAPE)
    other = parse_operator("mask:keep=0.4,seed=2", SHAPE)
    ones = torch.ones(1, *SHAPE)
    assert torch.equal(one(ones), same(ones)) and not torch.equal(one(ones), other(ones))
    assert 5 < float(parse_operator("mask:keep=0.4", SHAPE)(ones).sum()) < 35
    colour = parse_operator("mask:keep=0.4", (3, 6, 8))(torch.ones(1, 3, 6, 8))
    assert torch.equal(colour[:, 0], colour[:, 1]), "a pixel is lost in all its channels"


AXES = {
    "downsample:4": ((8,), lambda: ops.Downsample(4, 8)),
    "downsample:4,dims=1": ((2, 8), lambda: ops.Downsample(4, (2, 8), dims=1)),
    "downsample:2,dims=2": ((2, 8), lambda: ops.Downsample(2, (2, 8), dims=2)),
    "downsample:2": ((1, 4, 2, 6), lambda: ops.Downsample(2, (1, 4, 2, 6), dims=3)),
    "blur:sigma=1,dims=1": ((2, 8), lambda: ops.Blur(1.0, (2, 8), dims=1)),
    "blur:sigma=1": ((8,), lambda: ops.Blur(1.0, 8)),
    "fourier:m=3,dims=1": ((2, 8), lambda: ops.SubsampledFourier(3, (2, 8), dims=1)),
    "fourier:lines.npy,dims=1": ((2, 8), lambda: ops.SubsampledFourier(frequencies(8), (2, 8), dims=1)),
    "fourier:lines.npy,dims=2": (
        (8, 2),
        lambda: ops.SubsampledFourier(frequencies(8)[:, None].expand(8, 2), (8, 2), dims=2),
    ),
    "fourier:lines.npy": ((8,), lambda: ops.SubsampledFourier(frequencies(8), 8)),
    "fourier:plane.npy": ((6, 8), lambda: ops.SubsampledFourier(torch.from_numpy(np.load("plane.npy")), (6, 8))),
    "fourier:lines.npy,centred=true": (
        (1, 8, 2, 3),
        lambda: ops.SubsampledFourier(frequencies(8)[:, None, None].expand(8, 2, 3), (1, 8, 2, 3), centred=True),
    ),
}


def frequencies(count):
    mask = torch.zeros(count, dtype=torch.bool)
    mask[[0, 2, 5]] = True
    return mask


@pytest.mark.parametrize("text", AXES)
def test_words_for_signals_and_volumes(files, text):
    shape, own = AXES[text]
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(parse_operator(text, shape)(x), own()(x))


@pytest.mark.parametrize("text", ["downsample:4", "blur:sigma=2", "fourier:m=3", "fourier:lines.npy"])
def test_channels_or_an_image(files, text):
    """Leads of an ECG must not be averaged in silence: both readings are named, and each is one word away."""
    reading = r"8 channels of 5000 values \(dims=1\) or an image of 8 x 5000 \(dims=2\): say which with dims"
    with pytest.raises(ValueError, match=f"operator '{text}': the signal has shape .*{reading}"):
        parse_operator(text, (8, 5000))
    assert parse_operator(f"{text},dims=1", (8, 5000)).signal_shape == (8, 5000)


def test_channels_stay_apart():
    leads = torch.arange(8.0)[:, None].expand(8, 5000)[None]
    for text in ("downsample:4,dims=1", "blur:sigma=2,dims=1"):
        y = parse_operator(text, (8, 5000))(leads)
        torch.testing.assert_close(y, torch.arange(8.0)[:, None].expand(8, y.shape[-1])[None], msg=text)


def test_a_random_mask_of_channels():
    ones = torch.ones(1, 3, 50)
    together, apart = (parse_operator(text, (3, 50))(ones)[0] for text in ("mask:keep=0.4,dims=1", "mask:keep=0.4"))
    assert torch.equal(together[0], together[1]) and not torch.equal(apart[0], apart[1])


def test_a_matrix_that_memory_cannot_hold_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(operators, "available", lambda: operators._BYTES * 9 * 48 - 1)
    with pytest.raises(ValueError, match=r"9 x 48 numbers needs .* of memory, .* are free: write hadamard:m=9, random"):
        parse_operator("gaussian:m=9", SHAPE)
    monkeypatch.setattr(operators, "available", lambda: operators._BYTES * 9 * 48)
    parse_operator("gaussian:m=9", SHAPE)
    monkeypatch.setattr(operators, "available", lambda: None)
    parse_operator("gaussian:m=9", SHAPE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kspace:known.npy,every=2", "gives file and every"),
        ("kspace:lines.npy", "columns must be 8 values 0 or 1"),
        ("kspace:centre=3", "centre goes with every"),
        ("kspace:every=9", "at most 8"),
        ("coils", "lacks file"),
        ("coils:plane.npy", "holds bool, expected real numbers or complex numbers"),
        ("complex", "even number of channels"),
        ("gausian:m=3", r"no operator 'gausian' .*give one of gaussian:m=392,seed=0, .*downsample:4"),
        ("", "no operator ''"),
        ("gaussian", "lacks m: write for example gaussian:m=392"),
        ("gaussian:392", "does not know what '392' is"),
        ("gaussian:m=3.5", "m in the operator .* must be a whole number, got '3.5'"),
        ("gaussian:m=", "must be a whole number, got ''"),
        ("gaussian:m=3,m=4", "gives m twice"),
        ("gaussian:m=3,n=4", r"has no option 'n' .its options: m, seed."),
        ("gaussian:m=0", "m must be at least 1, got 0"),
        ("gaussian:m=3,seed=-1", "seed must be at least 0"),
        ("hadamard:m=99", "m must be at most 48"),
        ("mask:gone.png", "there is no file gone.png"),
        (
            "mask:kernel.npy",
            r"mask has shape \(3, 3\), expected \(6, 8\), the size of the images, or \(1, 6, 8\): cut",
        ),
        ("mask:0.3", "there is no file 0.3: for a number write mask:keep=0.3"),
        ("blur:2", "there is no file 2: for a number write blur:sigma=2"),
        ("fourier:20", "for a number write fourier:m=20"),
        ("downsample:2@blur:sigma=1", "put spaces around @, 'downsample:2 @ blur:sigma=1'"),
        ("mask:minus.npy", "mask must hold weights of at least 0"),
        ("mask:dark.png", "keeps nothing: bright pixels are the known ones; add invert=true"),
        ("mask:known.png,invert=yes", "invert in the operator .* must be true or false"),
        ("mask:keep=2", "keep must be a share above 0 and at most 1"),
        ("mask", "needs one of file or keep"),
        ("mask:known.png,keep=0.3", "needs one of file or keep"),
        ("blur:sigma=-1", "above 0, got -1"),
        ("blur:sigma=nan", "must be finite"),
        ("blur:sigma=1e300", r"from 0.1 to the longest side of the signal, 8; got 1e\+300, which leaves the mean only"),
        ("blur:sigma=1e-300", "got 1e-300, which changes nothing: give for example sigma=2"),
        ("mask:keep=0.5,seed=99999999999999999999999", "operator 'mask.*Overflow"),
        ("gaussian:m=99999999999999", "operator 'gaussian.*of memory, .*GB are free: write hadamard:m=48, random"),
        ("mask:known.png,dims=1", "dims goes with keep"),
        ("downsample:2,dims=4", "has no 4 axes of space or time"),
        ("blur:sigma=x", "sigma in the operator .* must be a number"),
        ("blur", "needs one of file or sigma"),
        ("downsample:4", "factor 4 does not divide the image of 6 x 8"),
        ("downsample", "lacks factor"),
        ("fourier:A.npy", r"frequencies has shape \(5, 48\)"),
        ("fourier:far.npy", "the lines must be 6 values 0 or 1, or whole numbers below 6"),
        ("dense:known.npy", "holds bool, expected real numbers or whole numbers"),
        ("dense:lines.npy", r"matrix must have shape \(m, d\)"),
        ("dense:wide.npy", "matrix has 3 columns, but signal_shape"),
        ("dense:pickle.npy", "pickle.npy holds Python objects .object arrays are pickles., which are not read"),
        ("dense:known.png", "must be a .npy file"),
        ("identity:3", "does not know what '3' is"),
        ("blur:sigma=1 @ gausian", "no operator 'gausian'"),
        ("blur:sigma=1 and gausian", "sigma in the operator .* must be a number, got '1 and gausian'"),
        ("gausian and blur:sigma=1", "no operator 'gausian'"),
        ("identity and blur", "'blur' needs one of file or sigma"),
    ],
)
def test_mistakes_are_named(files, text, message):
    Image.fromarray(np.zeros((6, 8), np.uint8)).save("dark.png")
    np.save("minus.npy", -np.ones((6, 8)))
    np.save("far.npy", np.array([7, 9]))
    np.save("wide.npy", np.zeros((2, 3)))
    np.save("pickle.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        parse_operator(text, SHAPE)


@pytest.mark.parametrize("text", [text for text in CASES if " " not in text])
def test_describe_is_the_inverse(text):
    name, options = parse_options(text)
    assert describe(name, **options) == text


def test_describe_refuses_what_cannot_be_parsed():
    with pytest.raises(ValueError, match="no operator"):
        describe("magic", m=3)
    with pytest.raises(ValueError, match="has no option 'n'"):
        describe("gaussian", m=3, n=4)


def test_a_file_may_have_and_in_its_name(files):
    np.save("salt and pepper.npy", np.load("known.npy"))
    built = parse_operator("mask:salt and pepper.npy and identity", SHAPE)
    assert torch.equal(built(X), ops.Stack(ops.Mask(known(), SHAPE), ops.Identity(SHAPE))(X))


def test_files_of_every_operator_count(files):
    text = "mask:known.npy and blur:kernel.npy @ mask:weights.npy"
    before = operators.digest_of_files(text)
    for name in ("known.npy", "kernel.npy", "weights.npy"):
        content = np.load(name)
        np.save(name, content[::-1])
        assert operators.digest_of_files(text) != before
        np.save(name, content)
    assert operators.digest_of_files(text) == before


def test_examples_are_all_types():
    assert {text.partition(":")[0] for text in examples()} >= {text.partition(":")[0] for text in CASES}


def test_dtype():
    assert parse_operator("gaussian:m=9", SHAPE, dtype=torch.float64).dtype == torch.float64


def test_fourier_is_unitary_with_frequency_zero_first(tmp_path):
    x = np.random.default_rng(0).random((2, 1, 6, 8)).astype(np.float32)
    spectrum = np.fft.fft2(x, norm="ortho")
    np.save(tmp_path / "lines.npy", np.array([0, 1, 5]))
    y = parse_operator(f"fourier:{tmp_path / 'lines.npy'}", (1, 6, 8))(torch.from_numpy(x)).numpy()
    assert np.allclose(y[..., [0, 1, 5], :], spectrum[..., [0, 1, 5], :], atol=1e-5) and not y[..., 2:5, :].any()
    np.save(tmp_path / "lines.npy", np.array([2, 3, 4]))
    centred = parse_operator(f"fourier:{tmp_path / 'lines.npy'},centred=true", (1, 6, 8))(torch.from_numpy(x)).numpy()
    assert np.allclose(centred, y), "6 // 2 is the middle; the measurements keep their order"
