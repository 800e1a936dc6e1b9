"""Who is let in: by name, by origin, by number, by patience."""

import http.client
import socket
import time
from contextlib import suppress

import pytest

pytest.importorskip("nicegui")

from nicegui import Client

from genprior.app import server
from genprior.app.security import connections
from genprior.app.security.hosts import Hosts, network

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport="


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(server, "_CONNECT_SECONDS", 1.0)


def ask(address, path="/", method="GET", body=None, **headers):
    """Status, headers and text of one request, with these headers and no other."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read().decode()
    connection.close()
    return found


def knock(address, **headers):
    """The status of an attempt to open a websocket."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
    host, port = address.removeprefix("http://").split(":")
    lines = {"Host": f"{host}:{port}", **upgrade, "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", **headers}
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        raw.sendall(f"GET {SOCKET}websocket HTTP/1.1\r\n{head}\r\n".encode())
        return int(raw.recv(100).split()[1])


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8080", "127.0.0.1:9000", "[::1]:8080", "localhost."])
def test_names_of_this_machine(host):
    assert Hosts().know(host) and Hosts("0.0.0.0", "0.0.0.0").know(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "a b", "localhost\n", "x@localhost"],
)
def test_names_of_others(host):
    assert not Hosts().know(host) and not Hosts("0.0.0.0", "0.0.0.0").know(host)


def test_addresses_only_where_other_machines_may_come():
    assert not Hosts().know("192.168.1.7:8080")
    assert Hosts("0.0.0.0", "0.0.0.0").know("192.168.1.7:8080") and Hosts("::", "::").know("[2001:db8::7]:8080")
    assert Hosts("192.168.1.7", "box.lan").know("box.lan:8080")


def test_names_that_were_allowed():
    hosts = Hosts(allowed=("Demo.example.org", "::7"))
    assert hosts.know("demo.example.org") and hosts.know("[::7]:80") and not hosts.know("www.demo.example.org")
    assert hosts.trust("https://demo.example.org", "127.0.0.1:8080"), "a proxy may put its own address into Host"
    for name in ("", "https://a.org", "a.org:80", "a.org/", "*.a.org"):
        with pytest.raises(ValueError, match="allowed must be a host name"):
            Hosts(allowed=(name,))


@pytest.mark.parametrize(
    "origin, trusted",
    [
        ("http://localhost:8080", True),
        ("https://localhost:8080", True),
        ("http://localhost:3000", False),
        ("http://127.0.0.1:8080", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
        ("file://localhost:8080", False),
    ],
)
def test_only_the_page_itself_is_trusted(origin, trusted):
    assert Hosts().trust(origin, "localhost:8080") == trusted


def test_one_line_is_one_address():
    assert network("1.2.3.4") == network("::ffff:1.2.3.4") == "1.2.3.4"
    assert network("2001:db8::1") == network("2001:db8::2") != network("2001:db8:0:1::1")


# -- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers, status",
    [({"Host": "evil.example"}, 400), ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403)],
)
def test_foreign_requests_are_refused_everywhere(address, headers, status):
    for path, method in (("/", "GET"), (f"{SOCKET}polling", "GET"), ("/upload/x", "POST"), ("/favicon.ico", "GET")):
        code, answer, words = ask(address, path, method, **headers)
        assert code == status and "Access-Control-Allow-Origin" not in answer and words.count("\n") == 1
    assert knock(address, **headers) == 403


def test_the_page_itself_is_not_refused(address):
    port = address.rpartition(":")[2]
    assert ask(address)[0] == ask(address, Host=f"localhost:{port}", Origin=f"http://localhost:{port}")[0] == 200
    assert ask(address, f"{SOCKET}polling", Origin=address)[0] == 200
    assert knock(address, Origin=address) == knock(address) == 101


@pytest.mark.parametrize("path, status", [("/", 200), ("/favicon.ico", 200), ("/nothing", 404)])
def test_headers(address, path, status):
    code, headers, _ = ask(address, path)
    assert code == status
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin" and "Server" not in headers
    policy = headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy and "default-src 'self'" in policy and "object-src 'none'" in policy


def test_a_path_that_is_not_there_makes_no_page(address, until):
    until(lambda: not Client.instances)
    for number in range(5):
        assert ask(address, f"/nothing/{number}")[0] == 404
    assert not Client.instances


def test_pages_without_a_socket_are_few_and_forgotten(address, until, monkeypatch):
    until(lambda: not Client.instances)
    monkeypatch.setattr(server, "_CONNECT_SECONDS", 3.0)
    monkeypatch.setattr(server, "MOST_PAGES", 8)
    codes = [ask(address)[0] for _ in range(6)]
    assert codes == [200] * 4 + [503] * 2, "one address has half of the places, whatever its cookies say"
    assert max(len(client.elements) for client in Client.instances.values()) < 20, "the page is not built yet"
    until(lambda: not Client.instances, 30)
    assert ask(address)[0] == 200


@pytest.mark.parametrize(
    "first, second",
    [
        (b"", b""),
        (b"", b"GET / HT"),
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: lo"),
    ],
)
def test_half_a_request_is_not_waited_for(address, first, second, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw, suppress(ConnectionResetError):
        begun = time.monotonic()
        raw.sendall(first)
        if first:
            answer = b""
            while not answer.endswith(b"not found\n"):
                answer += raw.recv(2**16)
            time.sleep(0.1)
        raw.sendall(second)
        while raw.recv(2**16):
            pass
    assert time.monotonic() - begun < 4, "uvicorn's own timer for idle connections takes 5"


def test_too_many_connections_are_cut(address, monkeypatch):
    host, port = address.removeprefix("http://").split(":")
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 0)
    with (
        socket.create_connection((host, int(port)), timeout=20) as raw,
        pytest.raises((ConnectionResetError, EOFError)),
    ):
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if not raw.recv(100):
            raise EOFError
    monkeypatch.undo()
    assert ask(address)[0] == 200


def test_an_upload_to_a_page_that_is_gone(address):
    assert ask(address, "/upload/nobody", "POST", b"x", Content_Type="multipart/form-data; boundary=x")[0] == 404
