"""Who is one client: an address, or the network that one subscriber gets."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

SUBSCRIBER_BITS = 64
"""Of an IPv6 address; the rest anybody may choose."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine: a server bound to it is reachable from here alone."""
    return host in LOOPBACK_NAMES or ((address := _address_of(host)) is not None and address.is_loopback)


def client_of(host: str) -> str:
    """The same for all addresses of one client."""
    address = _address_of(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), SUBSCRIBER_BITS), strict=False))
    return str(address or host)


def is_trusted(host: str, proxies: Sequence[str]) -> bool:
    """Whether `host` is this machine, or one of `proxies`: addresses and networks."""
    address = _address_of(host)
    return is_loopback(host) or (
        address is not None and any(address in ipaddress.ip_network(proxy, strict=False) for proxy in proxies)
    )


def _address_of(host: str) -> Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
