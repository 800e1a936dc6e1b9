"""Accepted host names and origins.

A site that the user has open in another tab must not use the page. Requests of its scripts have its name in ``Origin``; after
DNS rebinding, in which a site points its name at this machine, they have it in ``Host``.
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

    Always ``localhost``, the loopback addresses, the name given to listen on, and the names in ``allowed``. If other machines
    can reach the server, also its own name and any IP address, because a rebinding site has a name, not an address.
    """

    listening: str = "127.0.0.1"
    """The address of the socket."""
    given: str = "127.0.0.1"
    """The host name given by the user."""
    allowed: tuple[str, ...] = ()
    """Names under which a proxy serves the page."""

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
        """Whether a ``Host`` header names this server; the port is ignored, because a tunnel may have another."""
        name = _name(host)
        if not name:
            return False
        try:
            address = ip_address(name)
        except ValueError:
            return name in self._names
        return self.public or address.is_loopback or name in self._names

    def trust(self, origin: str, host: str) -> bool:
        """Whether an ``Origin`` header is this page (the same host and port as in ``Host``) or a proxy that serves it."""
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
    """The name or address in ``name:port``, in lower case; empty if it is neither."""
    found = _HOST.fullmatch(host.lower()) or _HOST.fullmatch(f"[{host.lower()}]")
    return found["name"].strip("[]") if found else ""


def network(address: str) -> str:
    """The network of an address: the IPv4 address itself, or the 64-bit prefix of an IPv6 address."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
