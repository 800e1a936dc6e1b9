"""The same operators built as explicit matrices with numpy and scipy, from the definitions and nothing of genprior."""

import math

import numpy as np
import scipy.linalg


def channels(plane, signal_shape):
    """One matrix for the last two axes, repeated along the diagonal for every channel."""
    count = math.prod(signal_shape[:-2])
    return np.kron(np.eye(count), plane)


def convolution(kernel, size):
    """Circular convolution by its double sum: y[i] = sum_k h[k] x[i - (k - centre)]."""
    kernel = np.asarray(kernel, dtype=float)
    (h, w), (rows, cols) = kernel.shape, size
    matrix = np.zeros((rows, cols, rows, cols))
    for i in range(rows):
        for j in range(cols):
            for a in range(h):
                for b in range(w):
                    matrix[i, j, (i - a + h // 2) % rows, (j - b + w // 2) % cols] += kernel[a, b]
    return matrix.reshape(rows * cols, rows * cols)


def gaussian_kernel(sigma, size):
    """Wrapped Gaussian around the middle, summed over many periods."""
    rows, cols = size
    kernel = np.zeros(size)
    for i in range(rows):
        for j in range(cols):
            for p in range(-12, 13):
                for q in range(-12, 13):
                    di, dj = i - rows // 2 + p * rows, j - cols // 2 + q * cols
                    kernel[i, j] += math.exp(-(di**2 + dj**2) / (2 * sigma**2))
    return kernel / kernel.sum()


def fourier(mask):
    """Unitary two-dimensional DFT with rows outside the mask set to zero."""
    rows, cols = mask.shape
    one, two = (scipy.linalg.dft(n, scale="sqrtn") for n in (rows, cols))
    return np.asarray(mask, dtype=float).reshape(-1, 1) * np.kron(one, two)


def averaging(factor, size):
    """Means over blocks."""
    rows, cols = size
    matrix = np.zeros((rows // factor, cols // factor, rows, cols))
    for i in range(rows):
        for j in range(cols):
            matrix[i // factor, j // factor, i, j] = 1 / factor**2
    return matrix.reshape(-1, rows * cols)


def hadamard(operator):
    """Rows of (H D P)^rounds from the operator's own permutations, signs and rows."""
    d = math.prod(operator.signal_shape)
    digits = [2**k for k in range(30, -1, -1) if d & 2**k]
    blocks = scipy.linalg.block_diag(*(scipy.linalg.hadamard(n) / math.sqrt(n) for n in digits))
    q = np.eye(d)
    for order, signs in zip(operator._orders, operator._signs, strict=True):
        q = blocks @ np.diag(signs.numpy().astype(float)) @ np.eye(d)[order.numpy()] @ q
    return math.sqrt(d / operator.measurement_shape[0]) * q[operator._kept.numpy()]
