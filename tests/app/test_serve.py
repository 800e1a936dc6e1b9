"""The command, and the guard at the door."""

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from genprior import cli
from genprior.app import server
from genprior.app.security.body import UploadLimit
from genprior.app.server import bound_socket


def told(words, capfd):
    """Exit code and the one line of complaint."""
    code = cli.main(["serve", *words])
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.startswith("genprior: ") and shown.err.count("\n") == 1
    return code, shown.err


def test_a_port_in_use(capfd):
    with bound_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, line = told(["--port", str(port)], capfd)
    assert code == 1
    assert f"port {port} on 127.0.0.1 cannot be used" in line and f"try --port {port + 1}" in line


def test_a_host_that_is_not_there(capfd):
    code, line = told(["--host", "not a host", "--port", "8099"], capfd)
    assert code == 1 and "host 'not a host' cannot be resolved" in line


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--port", "0"], "port must be between 1 and 65535, got 0"),
        (["--port", "70000"], "port must be between 1 and 65535, got 70000"),
        (["--jobs", "0"], "jobs must be at least 1, got 0"),
        (["--time-limit", "0"], "genprior: --time-limit must be a finite number of at least 1, got 0.0"),
        (["--time-limit", "nan"], "time-limit must be a finite number"),
        (["--upload-limit", "-1"], "upload-limit must be a finite number above 0, got -1.0"),
        (["--allow-host", "https://a.org"], "--allow-host must be a host name such as demo.example.org"),
        (["--allow-host", "a.org:80"], "without http:// and without a port, got 'a.org:80'"),
    ],
)
def test_wrong_options(words, complaint, capfd):
    code, line = told(words, capfd)
    assert code == 1 and complaint in line


def test_without_the_extra(capfd, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "nicegui" else found(name, *a))
    code, line = told([], capfd)
    assert code == 1 and "nicegui, which is not installed: pip install 'genprior[app]'" in line


@pytest.mark.parametrize("host, warned", [("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)])
def test_a_warning_where_others_can_reach_it(host, warned, capfd, monkeypatch):
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    states = []
    monkeypatch.setattr(server, "serve", lambda bound, shared, announce: (bound.close(), states.append(shared)))
    assert cli.main(["serve", "--host", host, "--port", str(port), "--allow-host", "a.org", "b.org"]) == 0
    assert ("it has no login and no encryption" in capfd.readouterr().err) == warned
    hosts = states[0].hosts
    assert hosts.public == warned and hosts.know("b.org") and hosts.know("localhost") and not hosts.know("evil.example")


BUSY = """
import sys

from genprior.app import server, registry
from genprior.app.damage import Smaller
from genprior.app.queue import Owner
from genprior.app.race import Race
from genprior.app.recipe import Recipe
from genprior.cli import main

make = server.make_server


def make_busy(shared, announce):
    def begin():
        recipe = Recipe("mnist", registry.sample_images("mnist")[:1], Smaller(), ("Adam",), 600.0)
        shared.queue.submit(Race(recipe), Owner("", "a"))
        announce()

    return make(shared, begin)


server.make_server = make_busy
sys.exit(main())
"""


def test_the_command_serves_until_interrupted():
    """As a user would: start, look, Ctrl-C, during a race."""
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", BUSY]
    process = subprocess.Popen(
        [*command, "serve", "--port", str(port), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    )
    try:
        line = "".join(iter(process.stdout.readline, "}\n")) + "}"
        assert json.loads(line) == {"address": f"http://localhost:{port}", "jobs": 2}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
            page = answer.read().decode()
        assert answer.status == 200 and "<title>genprior</title>" in page
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and rest == "" and complaints == "stopped\n"


# -- uploads ---------------------------------------------------------------------------------------------------------


def through(most, parts, headers=()):
    """What an inner application receives, and the status that the client sees."""
    received, sent = [], []
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def inner(scope, receive, send):
        while True:
            message = await receive()
            received.append(message)
            if message["type"] == "http.disconnect" or not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": list(headers)}
    asyncio.run(UploadLimit(inner, most)(scope, receive, send))
    return [message["type"] for message in received], sent[0]["status"]


def test_small_requests_pass():
    assert through(10, [b"12345", b"12345"]) == (["http.request"] * 3, 200)
    assert through(10, [b"1"], [(b"content-length", b"10")])[1] == 200


def test_what_is_announced_as_too_large_is_refused_unread():
    assert through(10, [b"1"], [(b"content-length", b"11")]) == ([], 413)
    assert through(10, [b"1"], [(b"content-length", b"nonsense")]) == ([], 413)


def test_what_turns_out_too_large_is_cut_off():
    assert through(10, [b"123456", b"123456", b"1"])[0] == ["http.request", "http.disconnect"]


def test_a_body_that_does_not_come_is_not_waited_for():
    async def never():
        await asyncio.sleep(60)

    received = []

    async def inner(scope, receive, send):
        received.append(await receive())

    asyncio.run(UploadLimit(inner, 10, seconds=0.05)({"type": "http", "headers": []}, never, None))
    assert received == [{"type": "http.disconnect"}]


def test_other_traffic_is_left_alone():
    seen = []

    async def inner(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(UploadLimit(inner, 1)({"type": "websocket"}, None, None))
    assert seen == ["websocket"]


def test_a_socket_on_a_free_port():
    with bound_socket("localhost", 0) as found, socket.create_connection(found.getsockname()[:2]):
        pass
