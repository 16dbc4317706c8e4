"""Rendezvous: how many hosts a run has, where they meet, and the addresses by which they reach each other."""

import ipaddress
import socket

from dpexp.config.errors import ConfigError
from dpexp.config.strategy_options import LaunchOptions


def host_range(options: LaunchOptions) -> tuple[int, int]:
    """(fewest, most) hosts of ``--nnodes``. Raises ConfigError."""
    fewest, _, most = options.nnodes.partition(":")
    try:
        low, high = int(fewest), int(most or fewest)
    except ValueError:
        low = high = 0
    if not 1 <= low <= high:
        raise ConfigError(f"--nnodes {options.nnodes}: give a number of hosts, as 2, or fewest:most, as 1:2")
    if high > 1 and not options.rdzv_endpoint:
        raise ConfigError(
            f"--nnodes {options.nnodes} needs --rdzv-endpoint HOST:PORT, the same on every host: the address "
            "of the first one and a free port of it"
        )
    return low, high


def parse_endpoint(endpoint: str) -> tuple[str, int]:
    """(host, port) of ``--rdzv-endpoint``. Raises ConfigError."""
    host, colon, port = endpoint.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ConfigError(f"--rdzv-endpoint '{endpoint}' is not HOST:PORT, as 10.0.0.1:29500")
    return host, int(port)


def resolve(host: str) -> str:
    """The address of a host. Raises ConfigError."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError:
        hint = "give a name that every host can resolve, or an address"
        raise ConfigError(f"host name '{host}' cannot be resolved: {hint}") from None


def local_address(host: str, port: int) -> str:
    """The address of this machine on the route to the host, which may be itself. Raises ConfigError."""
    address = resolve(host)
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return address
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port or 1))  # sends nothing: the kernel only looks up the route
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"host '{host}' cannot be reached from this one: {error.strerror}") from None


class HeadAddress(str):
    """The address of the head: it sorts before that of any other host.

    torchrun gives ranks to the hosts in the order of their addresses. The first rank has the journal, so it
    must stay where it is when a host joins. The hosts exchange their addresses pickled.
    """

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return self != other

    def __gt__(self, other: str) -> bool:
        return False


def interface(host: str, port: int) -> str:
    """The network interface through which this machine reaches the host. Raises ConfigError."""
    import psutil

    address = local_address(host, port)
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return str(name)
    return "lo"
