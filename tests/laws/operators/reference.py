"""The same operators built as explicit matrices with numpy and scipy, from the definitions (but for long wavelet filters)."""

import functools
import math

import numpy as np
import scipy.fft
import scipy.linalg

from genprior.operators.bases import daubechies


def channels(plane, signal_shape, dims=2):
    """One matrix for the last axes, repeated along the diagonal for every channel."""
    count = math.prod(signal_shape[:-dims])
    return np.kron(np.eye(count), plane)


def convolution(kernel, size):
    """Circular convolution by its sum: y[i] = sum_k h[k] x[i - (k - centre)], i and k with one index per axis."""
    kernel = np.asarray(kernel, dtype=float)
    matrix = np.zeros((*size, *size))
    for i in np.ndindex(*size):
        for k in np.ndindex(*kernel.shape):
            source = ((a - b + h // 2) % n for a, b, h, n in zip(i, k, kernel.shape, size, strict=True))
            matrix[(*i, *source)] += kernel[k]
    return matrix.reshape(math.prod(size), math.prod(size))


@functools.cache
def gaussian_kernel(sigma, size):
    """Wrapped Gaussian around the middle, summed over many periods."""
    kernel = np.zeros(size)
    for i in np.ndindex(*size):
        for periods in np.ndindex(*(17,) * len(size)):
            offsets = (a - n // 2 + (p - 8) * n for a, n, p in zip(i, size, periods, strict=True))
            kernel[i] += math.exp(-sum(offset**2 for offset in offsets) / (2 * sigma**2))
    return kernel / kernel.sum()


def fourier(mask):
    """Unitary DFT along every axis, with rows outside the mask set to zero."""
    matrix = np.eye(1)
    for n in mask.shape:
        matrix = np.kron(matrix, scipy.linalg.dft(n, scale="sqrtn"))
    return np.asarray(mask, dtype=float).reshape(-1, 1) * matrix


def averaging(factor, size):
    """Means over blocks."""
    small = tuple(n // factor for n in size)
    matrix = np.zeros((*small, *size))
    for i in np.ndindex(*size):
        matrix[(*(a // factor for a in i), *i)] = 1 / factor ** len(size)
    return matrix.reshape(math.prod(small), math.prod(size))


def hadamard(operator):
    """Rows of (H D P)^rounds from the operator's own permutations, signs and rows."""
    d = math.prod(operator.signal_shape)
    digits = [2**k for k in range(30, -1, -1) if d & 2**k]
    blocks = scipy.linalg.block_diag(*(scipy.linalg.hadamard(n) / math.sqrt(n) for n in digits))
    q = np.eye(d)
    for order, signs in zip(operator._orders, operator._signs, strict=True):
        q = blocks @ np.diag(signs.numpy().astype(float)) @ np.eye(d)[order.numpy()] @ q
    return math.sqrt(d / operator.measurement_shape[0]) * q[operator._kept.numpy()]


def cosines(shape, dims):
    """The coefficients of each unit signal, by scipy."""
    size = shape[-dims:]
    units = np.eye(math.prod(size)).reshape(-1, *size)
    columns = [scipy.fft.dctn(unit, norm="ortho").ravel() for unit in units]
    return channels(np.array(columns).T, shape, dims)


ROOT = math.sqrt(3)
FILTERS = {
    "haar": np.array([1, 1]) / math.sqrt(2),
    "db2": np.array([1 + ROOT, 3 + ROOT, 3 - ROOT, 1 - ROOT]) / (4 * math.sqrt(2)),
}
"""As Daubechies gives them in closed form."""


def wavelets(name, shape, levels, dims):
    """The coefficients of each unit signal: sums over the filter, level by level, axis by axis."""
    low = FILTERS.get(name)
    low = np.array(daubechies(name)) if low is None else low
    high = np.array([(-1) ** j * low[len(low) - 1 - j] for j in range(len(low))])
    size = shape[-dims:]
    columns = [_pyramid(unit, low, high, levels).ravel() for unit in np.eye(math.prod(size)).reshape(-1, *size)]
    return channels(np.array(columns).T, shape, dims)


def _pyramid(x, low, high, levels):
    size = x.shape
    for _ in range(levels):
        axes = [axis for axis, n in enumerate(size) if n % 2 == 0 and n >= len(low)]
        if not axes:
            break
        corner = tuple(slice(n) for n in size)
        part = x[corner]
        for axis in axes:
            part = np.apply_along_axis(_halves, axis, part, low, high)
        x[corner] = part
        size = tuple(n // 2 if axis in axes else n for axis, n in enumerate(size))
    return x


def _halves(line, low, high):
    n = len(line)
    each = [sum(h[j] * line[(2 * k + j) % n] for j in range(len(h))) for h in (low, high) for k in range(n // 2)]
    return np.array(each)


def kspace(mask, signal_shape, centred=False, packed=False):
    """Unitary DFT of the last axes, its origin in the middle if wanted, rows outside the mask zero or left out."""
    size = mask.shape
    plane = fourier(np.ones(size))
    if centred:
        places = np.arange(math.prod(size)).reshape(size)
        plane = plane[np.fft.fftshift(places).ravel()][:, np.fft.fftshift(places).ravel()]
    rows = np.asarray(mask, dtype=float).ravel()
    plane = plane[rows > 0] if packed else rows[:, None] * plane
    return channels(plane, signal_shape, len(size))


def coils(maps):
    """One diagonal below the other."""
    return np.concatenate([np.diag(one.ravel()) for one in maps])
