"""Which names the page answers to, and which sites may talk to it.

A site that the user has open in another tab must not use the page. Its scripts carry its name in ``Origin``; and where it
points its own name at this machine (DNS rebinding), its name is in ``Host``.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?)\.?(?P<port>:[0-9]{1,5})?")


@dataclass(frozen=True)
class Hosts:
    """Names of this server.

    Always ``localhost`` and the loopback addresses; the name it was told to listen on; names in ``allowed``. Where
    other machines can reach it, also the machine's own name and any IP address: a rebinding site has a name, not an address.
    """

    listening: str = "127.0.0.1"
    """The address of the socket."""
    given: str = "127.0.0.1"
    """What the user calls it."""
    allowed: tuple[str, ...] = ()
    """Names under which a proxy offers the page."""

    def __post_init__(self) -> None:
        for name in self.allowed:
            if not name or _name(name) != name.lower().strip("[]"):
                raise ValueError(
                    "allowed must be a host name such as demo.example.org, without http:// and without a port, "
                    f"got {name!r}"
                )

    @property
    def public(self) -> bool:
        """Whether other machines can reach it."""
        return not ip_address(self.listening.partition("%")[0]).is_loopback

    def know(self, host: str) -> bool:
        """Whether a ``Host`` header names this server; the port may be that of a tunnel, so it does not matter."""
        name = _name(host)
        if not name:
            return False
        try:
            address = ip_address(name)
        except ValueError:
            return name in self._names
        return self.public or address.is_loopback or name in self._names

    def trust(self, origin: str, host: str) -> bool:
        """Whether an ``Origin`` header is this page (what ``Host`` says, with its port), or a proxy that offers it."""
        scheme, _, site = origin.lower().partition("://")
        if scheme not in {"http", "https"} or not _name(site):
            return False
        return site == host.lower() or _name(site) in self._proxies

    @property
    def _proxies(self) -> set[str]:
        return {_name(name) for name in self.allowed}

    @property
    def _names(self) -> set[str]:
        names = {"localhost", _name(self.given)} | self._proxies
        return names | {_name(socket.gethostname())} if self.public else names


def _name(host: str) -> str:
    """The name or address in ``name:port``, in small letters; empty if it is neither."""
    found = _HOST.fullmatch(host.lower()) or _HOST.fullmatch(f"[{host.lower()}]")
    return found["name"].strip("[]") if found else ""


def network(address: str) -> str:
    """What counts as one place on the network: an IPv4 address, or the 64 bits that one IPv6 line has."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
