"""An operator by somebody who knows the documentation alone."""

from genprior.operators import Operator


class RunningSum(Operator):
    """Each measurement is the sum of the signal up to there, as an integrating detector gives."""

    def __init__(self, size):
        self.signal_shape = self.measurement_shape = (size,)

    def _forward(self, x):
        return x.cumsum(dim=1)

    def _adjoint(self, y):
        return y.flip(1).cumsum(dim=1).flip(1)
