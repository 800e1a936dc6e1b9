"""What a worker checks before it takes part."""

import pickle

import pytest
import torch

from genprior.engines import EngineError
from genprior.engines.worker import Head, open_work, packed, portable, versions
from tests.engines.works import Squares


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("package", ["genprior", "torch", "Python"])
def test_other_versions_than_the_drivers_are_refused(package):
    with pytest.raises(EngineError, match=rf"other versions \({package} .* there, 9.9 here\)"):
        open_work(Head(versions() | {package: "9.9"}, threads=1), packed(Squares()))


def test_what_cannot_be_imported_is_named():
    with pytest.raises(EngineError, match=r"cannot import the job.*there_is_no_such_module.*same packages"):
        open_work(Head(versions(), threads=1), packed(Squares(broken="import")))


def test_other_errors_of_opening_stay_what_they_are():
    with pytest.raises(ValueError, match="the weights do not fit"):
        open_work(Head(versions(), threads=1), packed(Squares(broken="the weights do not fit")))


def test_a_worker_has_the_threads_it_was_given():
    assert open_work(Head(versions(), threads=1), packed(Squares()))((3, False))[2] == 1


class _Stubborn(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize("error", [ValueError("no"), _Stubborn(1, 2), OSError(28, "disk full", "a.npy")])
def test_exceptions_cross_with_their_message(error):
    found = pickle.loads(portable(error))
    assert str(error) in str(found)
    assert type(found) is (EngineError if isinstance(error, _Stubborn) else type(error))
