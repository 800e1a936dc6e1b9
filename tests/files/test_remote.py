"""Files behind URLs: fetched once, in bounded space, never mixed up, and no secret is told."""

import http.server
import io
import json
import pickle
import shutil
import sys
import tarfile
import threading
from urllib.parse import unquote

import numpy as np
import pytest

from genprior import samples
from genprior.files import open_items, remote
from genprior.files.expected import Expected
from genprior.files.fetched import Cache
from genprior.files.remote import expand, file_name, open_remote, shown
from genprior.jobs.recover import recover
from genprior.jobs.settings import Recovery

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

SHAPE = (1, 6, 8)
VALUES = np.random.default_rng(0).random((5, *SHAPE), dtype=np.float32)
EXPECTED = Expected(SHAPE)


def npy(values):
    store = io.BytesIO()
    np.save(store, values)
    return store.getvalue()


def npz():
    store = io.BytesIO()
    np.savez_compressed(store, x=VALUES, y=VALUES[:2])
    return store.getvalue()


def shard(numbers):
    store = io.BytesIO()
    with tarfile.open(fileobj=store, mode="w") as archive:
        for number in numbers:
            for name, content in ((f"{number}.npy", npy(VALUES[number])), (f"{number}.cls", b"7")):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return store.getvalue()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GENPRIOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GENPRIOR_CACHE_SIZE", raising=False)
    return tmp_path / "cache" / "inputs"


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


class Site(http.server.BaseHTTPRequestHandler):
    """Files of a dictionary, and some that go wrong."""

    def respond(self, whole):
        path = unquote(self.path.partition("?")[0])
        self.server.asked.append((self.command, self.path))
        content = self.server.files.get(path)
        if path == "/slow.npy":
            self.server.over.wait()
            return
        status = {"/secret.npy": 403, "/broken.npy": 500}.get(path, 404 if content is None else 200)
        self.send_response(status)
        if content is not None:
            self.send_header("ETag", f'"{hash(content)}"')
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if whole and content is not None:
            self.wfile.write(content[: len(content) // 2] if path == "/cut.npy" else content)

    def do_HEAD(self):
        self.respond(False)

    def do_GET(self):
        self.respond(True)

    def log_message(self, *args):
        pass


@pytest.fixture
def site():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.files, server.asked, server.over = {}, [], threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


def values(items):
    return [item.value.numpy() for item in items.read(0, len(items))]


def test_every_kind_of_file_by_url(memory, site, tmp_path):
    memory.pipe("memory://there/a.npz", npz())
    memory.pipe("memory://there/shard-7.tar", shard([3, 4]))
    site.files["/b c.npy"] = npy(VALUES[:2])
    np.save(tmp_path / "d.npy", VALUES[2])
    items = open_items(
        [
            f"{site.url}/b%20c.npy?token=1",
            "memory://there/a.npz:y",
            (tmp_path / "d.npy").as_uri(),
            "memory://there/shard-7.tar",
        ],
        EXPECTED,
    )
    assert [item.name for item in items.read(0, 9)] == [
        "b c.npy[0]", "b c.npy[1]", "a.npz/y[0]", "a.npz/y[1]", "d.npy", "shard-7.tar/3", "shard-7.tar/4"
    ]  # fmt: skip
    for found, number in zip(values(items), (0, 1, 0, 1, 2, 3, 4), strict=True):
        assert np.array_equal(found, VALUES[number])


def test_ranges(memory, tmp_path):
    assert expand("s3://b/x-{0008..0010}.tar") == [f"s3://b/x-{n:04d}.tar" for n in (8, 9, 10)]
    assert expand("{1..2}/{9..10}") == ["1/9", "1/10", "2/9", "2/10"] and expand("{a,b}.npy") == ["{a,b}.npy"]
    for wrong, message in (("{3..2}", "from 3 down to 2"), ("{0..999}{0..999}", "more than 100000")):
        with pytest.raises(ValueError, match=message):
            expand(wrong)
    for number in range(2):
        memory.pipe(f"memory://s/{number:03d}.npy", npy(VALUES[number]))
        np.save(tmp_path / f"{number}.npy", VALUES[number])
    np.save(tmp_path / "{0..1}.npy", VALUES[4])
    assert len(open_items(["memory://s/{000..001}.npy"], EXPECTED)) == 2
    assert len(open_items([tmp_path / "{0..1}.npy"], EXPECTED)) == 1, "a file of this name comes first"
    (tmp_path / "{0..1}.npy").unlink()
    assert [item.name for item in open_items([tmp_path / "{0..1}.npy"], EXPECTED).read(0, 2)] == ["0.npy", "1.npy"]


def test_fetched_once_and_again_when_it_changed(site, cache):
    site.files["/a.npy"] = npy(VALUES[0])
    first = open_items([f"{site.url}/a.npy"], EXPECTED)
    again = open_items([f"{site.url}/a.npy"], EXPECTED)
    assert [command for command, _ in site.asked].count("GET") == 1 and first.fingerprint() == again.fingerprint()
    site.files["/a.npy"] = npy(VALUES[1])
    changed = open_items([f"{site.url}/a.npy"], EXPECTED)
    assert changed.fingerprint() != first.fingerprint() and np.array_equal(values(changed)[0], VALUES[1])
    assert np.array_equal(values(first)[0], VALUES[0]), "the version that was opened"
    for path in cache.iterdir():
        path.unlink()
    assert "has changed since the job began" in first.read(0, 1)[0].problem


def test_the_cache_is_bounded_and_what_was_removed_is_fetched_again(memory, cache):
    size = len(npy(VALUES[0]))
    small = Cache(size=2 * size)
    for number in range(4):
        memory.pipe(f"memory://s/{number}.npy", npy(VALUES[number]))
    items = open_items(["memory://s/{0..3}.npy"], EXPECTED, cache=small)
    assert sorted(path.name[25:] for path in cache.iterdir()) == ["2.npy", "3.npy"]
    assert all(np.array_equal(found, VALUES[number]) for number, found in enumerate(values(items)))
    items.read(2, 3)
    open_items(["memory://s/0.npy"], EXPECTED, cache=small)
    assert sorted(path.name[25:] for path in cache.iterdir()) == ["0.npy", "2.npy"], "what was used last stays"
    with pytest.raises(
        ValueError, match=r"memory://s/1\.npy has 320 bytes, but at most 9 bytes .*GENPRIOR_CACHE_SIZE=100GB"
    ):
        open_items(["memory://s/1.npy"], EXPECTED, cache=Cache(size=9))
    elsewhere = cache.parent / "other"
    open_items(["memory://s/0.npy"], EXPECTED, cache=Cache(elsewhere))
    assert len(list(elsewhere.iterdir())) == 1


def test_a_file_that_is_removed_while_it_is_read(memory, cache, monkeypatch):
    memory.pipe("memory://s/0.npy", npy(VALUES[0]))
    items = open_items(["memory://s/0.npy"], EXPECTED)
    ready, times = remote.Remote.ready, []

    def removed(self):
        path = ready(self)
        times.append(path)
        if len(times) == 1:
            path.unlink()
        return path

    monkeypatch.setattr(remote.Remote, "ready", removed)
    assert np.array_equal(values(items)[0], VALUES[0]) and len(times) == 2


@pytest.mark.parametrize(("given", "size"), [("7", 7), ("50GB", 5e10), ("1.5 mb", 1.5e6), ("2T", 2e12), ("", 2e10)])
def test_sizes_of_the_cache(monkeypatch, given, size):
    monkeypatch.setenv("GENPRIOR_CACHE_SIZE", given)
    assert Cache().limit == size


@pytest.mark.parametrize("given", ["much", "-1", "0", "1.2.3GB"])
def test_sizes_that_are_none(monkeypatch, given):
    monkeypatch.setenv("GENPRIOR_CACHE_SIZE", given)
    with pytest.raises(ValueError, match="GENPRIOR_CACHE_SIZE must be a size such as 50GB, got"):
        assert Cache().limit


def test_another_process_fetches_for_itself(site, tmp_path, monkeypatch, cache):
    site.files["/a.npz"], site.files["/b.tar"] = npz(), shard([0, 1])
    items = open_items([f"{site.url}/a.npz", f"{site.url}/b.tar"], EXPECTED)
    expected = values(items)
    sent = pickle.dumps(items)
    shutil.rmtree(cache)
    monkeypatch.setenv("GENPRIOR_CACHE", str(tmp_path / "theirs"))
    copy = pickle.loads(sent)
    assert copy.missing(0, len(copy)) == [] and copy.fingerprint() == items.fingerprint()
    assert all(np.array_equal(one, other) for one, other in zip(values(copy), expected, strict=True))
    assert len(list((tmp_path / "theirs" / "inputs").iterdir())) == 2


def test_tokens_are_not_sent(site, tmp_path, monkeypatch):
    site.files["/a.npz"] = npz()
    items = open_items([f"{site.url.replace('//', '//me:hunter2@')}/a.npz?signature=hunter2"], EXPECTED)
    sent = pickle.dumps(items)
    assert b"hunter2" not in sent
    assert pickle.loads(sent).missing(0, 2) == [], "it is in the cache of this machine"
    monkeypatch.setenv("GENPRIOR_CACHE", str(tmp_path / "theirs"))
    copy = pickle.loads(sent)
    assert [path.name[25:] for path in copy.missing(0, 2)] == ["a.npz"], "the process with the token sends the values"


def test_secrets_are_not_told(site, tmp_path):
    digits, _ = samples.digits(2)
    site.files["/digits.npy"] = npy(digits.numpy())
    url = f"{site.url.replace('//', '//me:hunter2@')}/digits.npy?signature=hunter2"
    job = Recovery(inputs=(url,), out=tmp_path / "out", operator="downsample:2", simulate=True, steps=3)
    assert recover(job).total == 2 and np.load(tmp_path / "out" / "recovered" / "digits.npy").shape == (2, 1, 28, 28)
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    recover(Recovery(**{**vars(job), "inputs": (url.replace("signature=hunter2", "signature=other"),)}))
    assert json.loads((tmp_path / "out" / "result.json").read_text())["items"]


def test_what_is_shown_of_a_url():
    assert shown("https://me:pass@host:80/a/b.tar?sig=1#x") == "https://host:80/a/b.tar"
    assert shown("s3://bucket/a@b.npy") == "s3://bucket/a@b.npy" and shown("in/a?b.png") == "in/a?b.png"
    assert file_name("https://h/a/b%20c%2F..npy?x=/y") == "b c_..npy"


FAULTS = {
    "none.npy": (FileNotFoundError, "there is no file http://HOST/none.npy"),
    "secret.npy": (PermissionError, "may not be read: credentials come from the environment"),
    "broken.npy": (ConnectionError, "http://HOST/broken.npy cannot be fetched .the server answered 500"),
    "slow.npy": (TimeoutError, r"http://HOST/slow.npy: no answer within 0\.2 seconds"),
    "cut.npy": (OSError, "http://HOST/cut.npy (cannot be fetched|arrived with)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_is_said_without_the_token(site, name, monkeypatch, cache):
    if name == "slow.npy":  # the others may take what a busy machine takes
        monkeypatch.setattr(remote, "ANSWER", 0.2)
    site.files["/cut.npy"] = npy(VALUES[0])
    error, message = FAULTS[name]
    with pytest.raises(error, match=message.replace("HOST", site.url[7:])) as caught:
        open_remote(f"{site.url}/{name}?token=hunter2", Cache())
    assert "hunter2" not in str(caught.value) and caught.value.__cause__ is None
    assert not cache.exists() or not list(cache.iterdir()), "nothing half"


def test_no_server(site):
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:1/a\.npy cannot be fetched \(ClientConnector"):
        open_items(["http://127.0.0.1:1/a.npy?token=hunter2"], EXPECTED)


def test_a_missing_file_is_left_out(site):
    site.files["/a.npy"] = npy(VALUES[0])
    given = [f"{site.url}/a.npy", f"{site.url}/none.npy?x=1"]
    with pytest.raises(ValueError, match=r"there is no file http://[\d.:]+/none\.npy.*`skip=True`"):
        open_items(given, EXPECTED)
    items = open_items(given, EXPECTED, skip=True)
    assert [item.value is None for item in items.read(0, 2)] == [False, True] and items.fingerprint()


def test_a_file_that_does_not_fit_is_named_by_its_url(memory):
    memory.pipe("memory://s/a.npy", npy(VALUES[:, :, 1:]))
    memory.pipe("memory://s/b.npy", npy(np.full(SHAPE, np.nan, np.float32)))
    with pytest.raises(ValueError, match=r"^memory://s/a\.npy has shape"):
        open_items(["memory://s/a.npy"], EXPECTED)
    assert "b.npy holds 48 NaN" in open_items(["memory://s/b.npy"], EXPECTED).read(0, 1)[0].problem
    memory.mkdir("memory://s/folder.npy")
    with pytest.raises(ValueError, match=r"is a folder: give its files, for example memory://s/folder\.npy/shard-"):
        open_items(["memory://s/folder.npy"], EXPECTED)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://b/a.npy", "s3://b/a.npy needs another package: pip install s3fs"),
        ("what://b/a.npy", "what://b/a.npy has the unknown protocol what://"),
        ("https://h/a.xyz?x=hunter2", "https://h/a.xyz has an unknown type"),
        ("https://h/a.tar.gz", "https://h/a.tar.gz is compressed"),
        ("https://h/a.png:key", "https://h/a.png:key has an unknown type"),
    ],
)  # fmt: skip
def test_urls_that_cannot_be_opened(monkeypatch, url, message):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ValueError, match="^" + message.replace("?", r"\?")):
        open_items([url], EXPECTED)


@pytest.mark.parametrize(("module", "url"), [("fsspec", "memory://a.npy"), ("aiohttp", "https://h/a.npy")])
def test_without_the_extra(monkeypatch, module, url):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"{url} needs the extra 'remote': pip install 'genprior\[remote\]'"):
        open_items([url], EXPECTED)


def test_the_same_url_twice(memory):
    memory.pipe("memory://s/a.npy", npy(VALUES[0]))
    with pytest.raises(ValueError, match=r"memory://s/a\.npy was given twice"):
        open_items(["memory://s/a.npy", "memory://s/a.npy"], EXPECTED)
    memory.pipe("memory://t/a.npy", npy(VALUES[0]))
    with pytest.raises(ValueError, match=r"memory://s/a\.npy and memory://t/a\.npy would both be written to a\.npy"):
        open_items(["memory://s/a.npy", "memory://t/a.npy"], EXPECTED)
