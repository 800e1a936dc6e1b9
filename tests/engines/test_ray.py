"""Workers on Ray: on the loopback interface only, without dashboard and usage statistics; skipped where there is no Ray."""

import os
import socket
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from genprior.engines import Batches, EngineError, Ray
from genprior.engines.ray import _refuse_silent, _Worker
from genprior.jobs.recover import recover
from tests.engines.test_recover import job, outcome_of  # noqa: F401 - a fixture
from tests.engines.works import Squares

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # on the loopback interface, whatever the system
ray = pytest.importorskip("ray", reason="pip install genprior[ray]")
pytestmark = pytest.mark.filterwarnings("ignore")


def run(work, count=4, **options):
    batches = Batches(work, range(count), lambda number, whole: (number, whole))
    return Ray(**{"address": "local", "workers": 2} | options).run(batches)


def processes():
    """The processes of Ray that run now."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes()
        except OSError:
            continue
        if any(name in words for name in (b"raylet", b"gcs_server", b"ray::", b"default_worker.py")):
            found.add(place.parent.name)
    return found


def test_a_cluster_of_its_own_is_gone_afterwards_and_a_lost_worker_costs_nothing(tmp_path):
    before = processes()
    found = dict(run(Squares(deadly_once=str(tmp_path), blind=True)))
    assert {number: answer[0] for number, answer in found.items()} == {n: n**2 for n in range(4)}
    assert all(answer[2] == 1 and answer[3] for answer in found.values()), "one thread; the contents were sent"
    assert not ray.is_initialized()
    assert processes() == before
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_an_address_where_nobody_answers():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(EngineError, match=rf"no Ray cluster answers at {address} \(.*refused.*ray status"):
            run(Squares(), address=address)
    with pytest.raises(EngineError, match="address is 'nowhere', expected auto, local, host:port or ray://host:port"):
        run(Squares(), address="nowhere")


@pytest.mark.parametrize("reply", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_where_something_else_answers_or_nothing(reply, monkeypatch):
    """Ray itself would try for a quarter of an hour."""
    monkeypatch.setattr("genprior.engines.ray._ANSWERS_WITHIN", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection = server.accept()[0]
            if reply is None:
                time.sleep(2.0)
            connection.recv(1000)
            connection.sendall(reply or b"")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        why = "timed out" if reply is None else "something else than Ray"
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", lambda given: address)
        with pytest.raises(EngineError, match=rf"no Ray cluster answers at {address} \({why}"):
            run(Squares(), address=address if reply is None else "auto")


@pytest.fixture(scope="module")
def cluster():
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_a_connection_of_the_caller_is_used_and_left_open(cluster, job):  # noqa: F811
    recover(job("one"))
    recover(job("two"), engine=Ray(workers=2))
    assert outcome_of(job("two").out) == outcome_of(job("one").out)
    assert ray.is_initialized()


def test_the_address_of_a_cluster_is_known_as_one(cluster):
    _refuse_silent(ray.get_runtime_context().gcs_address)


def test_errors_of_workers_are_raised_here(cluster):
    with pytest.raises(ValueError, match="batch 0 makes no sense"):
        list(run(Squares(failing=(0,)), workers=1))
    with pytest.raises(EngineError, match=r"cannot import the job.*there_is_no_such_module"):
        list(run(Squares(broken="import"), workers=1))


def test_another_cluster_than_that_of_the_caller(cluster):
    with pytest.raises(
        EngineError, match=r"connected to the .* at 127.0.0.1:\d+ already.*10.0.0.1:6379: call ray.shut"
    ):
        run(Squares(), address="10.0.0.1:6379")


def test_a_worker_that_hangs_is_replaced(cluster, tmp_path):
    found = dict(run(Squares(hanging_once=str(tmp_path)), count=3, batch_seconds=1.0))
    assert {number: answer[0] for number, answer in found.items()} == {0: 0, 1: 1, 2: 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"gpus_per_worker": 1.0},
            r"gpus_per_worker is 1, and no machine of the Ray cluster has more than 0: ask for less",
        ),
        ({"cpus_per_worker": 64.0}, r"cpus_per_worker is 64, and no machine .* more than 2"),
    ],
)
def test_more_than_there_is(cluster, options, message):
    with pytest.raises(EngineError, match=message):
        run(Squares(), **options)


def test_workers_whose_machine_lacks_genprior(cluster, monkeypatch):
    module = types.ModuleType("only_here")
    module._Worker = _Worker
    monkeypatch.setitem(sys.modules, "only_here", module)
    monkeypatch.setattr(_Worker, "__module__", "only_here")
    with pytest.raises(
        EngineError, match=r"can start.*No module named 'only_here'.*is genprior installed on its machine"
    ):
        list(run(Squares(), workers=1))


def test_what_no_machine_has_together(cluster, monkeypatch):
    machines = [{"Alive": True, "Resources": resources} for resources in ({"CPU": 4.0}, {"GPU": 1.0})]
    monkeypatch.setattr(ray, "nodes", lambda: machines)
    with pytest.raises(EngineError, match=r"no machine of the Ray cluster has both 1 processors and 1 graphics cards"):
        run(Squares(), gpus_per_worker=1.0)


def test_fewer_workers_fit_than_were_asked_for(cluster):
    crews = []
    batches = Batches(Squares(), range(3), lambda number, whole: (number, whole), watch=crews.append)
    assert len(list(Ray(workers=9).run(batches))) == 3
    assert crews[-1].wanted == 2 and crews[-1].notes[0] == "9 workers were asked for, 2 fit into the Ray cluster"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("workers", 0),
        ("cpus_per_worker", 0),
        ("gpus_per_worker", -1),
        ("threads", 0),
        ("batch_seconds", 0),
        ("start_seconds", 0),
    ],
)
def test_arguments_are_checked(argument, value):
    with pytest.raises((ValueError, TypeError), match=argument):
        Ray(**{argument: value})
