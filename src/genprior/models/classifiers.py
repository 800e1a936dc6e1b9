"""A standard convolutional classifier of 28 x 28 images."""

from __future__ import annotations

from torch import Tensor, nn

from genprior import _validate


class ConvClassifier(nn.Module):
    """Images ``(B, 1, 28, 28)`` in [0, 1] to logits ``(B, classes)``: two convolutions with pooling, two dense layers."""

    def __init__(self, classes: int = 10, width: int = 32, hidden: int = 256) -> None:
        super().__init__()
        _validate.whole("classes", classes, 2)
        _validate.whole("width", width)
        _validate.whole("hidden", hidden)
        self.signal_shape: tuple[int, ...] = (1, 28, 28)
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 49, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        _validate.batch("x", x, self.signal_shape)
        logits: Tensor = self.layers(x)
        return logits
