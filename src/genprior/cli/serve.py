"""``genprior serve``."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from dataclasses import dataclass, replace

from rich.console import Console
from rich.text import Text

from genprior import _validate
from genprior.cli.speech import print_json


@dataclass(frozen=True)
class Serve:
    """A web page on which to damage an image and watch solvers recover it.

    Draw a digit, choose a sample or upload an image; choose the damage and the solvers; download the result, the command
    and a Python script. Works without an internet connection.

    Example:
        genprior serve --port 8080
    """

    host: str = "127.0.0.1"
    """Address to listen on. 0.0.0.0 opens the page to everyone on the network, without login or encryption."""
    port: int = 8080
    """Port to listen on."""
    jobs: int = 2
    """Races that run at once; the others wait in a queue."""
    time_limit: float = 30.0
    """Seconds of computing per race, shared by its solvers."""
    upload_limit: float = 5.0
    """Largest size of an uploaded image, in megabytes."""
    allow_host: tuple[str, ...] = ()
    """More host names under which browsers may reach the page, such as that of a reverse proxy:
    --allow-host demo.example.org. Requests for other names, and from other sites, are refused."""
    json: bool = False
    """Print one JSON document with the address instead of a sentence."""

    def run(self) -> None:
        """Serve until interrupted."""
        if importlib.util.find_spec("nicegui") is None:
            raise RuntimeError(
                "the web page needs nicegui, which is not installed: pip install 'genprior[app]', or '.[app]' in a copy of "
                "the repository"
            )
        self._check()
        from genprior.app.queue import Queue  # noqa: PLC0415
        from genprior.app.security.hosts import Hosts  # noqa: PLC0415
        from genprior.app.server import bound_socket, serve  # noqa: PLC0415
        from genprior.app.state import ServerState  # noqa: PLC0415 - slow to import

        hosts = Hosts(given=self.host, allowed=self.allow_host)
        bound = bound_socket(self.host, self.port)
        hosts = replace(hosts, listening=bound.getsockname()[0])
        if hosts.public:
            self._warn()
        _share_cores(self.jobs)
        with suppress(KeyboardInterrupt):
            serve(bound, ServerState(Queue(self.jobs), self.time_limit, self.upload_limit, hosts), self._announce)
        sys.stderr.write("stopped\n")

    def _check(self) -> None:
        _validate.whole("jobs", self.jobs)
        _validate.number("time_limit", self.time_limit, least=1)
        _validate.number("upload_limit", self.upload_limit, above=0)
        if not 0 < self.port < 65536:
            raise ValueError(f"port must be between 1 and 65535, got {self.port}")

    def _warn(self) -> None:
        words = (
            f"anyone who can reach port {self.port} of this machine can use the page: it has no login and no encryption. "
            f"To keep it on this machine, leave out --host. To give others access, let them use a tunnel (ssh -L {self.port}:"
            f"localhost:{self.port} USER@MACHINE), or put a web server with login and TLS in front of it (--allow-host NAME)."
        )
        Console(stderr=True).print(Text.assemble(("warning: ", "bold yellow"), words), soft_wrap=True)

    def _announce(self) -> None:
        host = "localhost" if self.host in {"127.0.0.1", "0.0.0.0", "::", "::1"} else self.host
        address = f"http://{host}:{self.port}"
        if self.json:
            print_json({"address": address, "jobs": self.jobs})
            sys.stdout.flush()
            return
        Console().print(Text.assemble(("genprior serve: ", "bold"), address, "   (Ctrl-C stops it)"), soft_wrap=True)


def _share_cores(jobs: int) -> None:
    """Split the cores between races that run at once, which is faster than all cores for each."""
    import torch  # noqa: PLC0415 - slow to import

    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
