"""The listening socket, taken before anything slow happens, so that a taken port costs no load."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ignis.config import Bind
from ignis.errors import ConfigError, IgnisError

BACKLOG = 128


class ListenError(IgnisError):
    """The address cannot be listened on."""


def check_exposure(bind: Bind, api_key: str | None) -> None:
    """Refuse an address that other machines can reach, unless requests must carry a key.

    Raises ConfigError.
    """
    if not bind.is_loopback and not api_key:
        raise ConfigError(
            f"{bind} can be reached from other machines; set server.api_key or listen on 127.0.0.1"
        )


@contextmanager
def listening(bind: Bind) -> Iterator[socket.socket]:
    """A socket that listens on `bind`; a Unix socket's file is removed at the end.

    Raises ListenError saying what is in the way.
    """
    taken = _unix(bind.socket) if bind.socket is not None else _tcp(bind)
    try:
        yield taken
    finally:
        taken.close()
        if bind.socket is not None:
            bind.socket.unlink(missing_ok=True)


def address_of(taken: socket.socket) -> str:
    """What a client writes to reach the socket."""
    if taken.family == socket.AF_UNIX:
        return f"unix:{taken.getsockname()}"
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tcp(bind: Bind) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            bind.host, bind.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise ListenError(f"{bind.host} is not an address of this machine: {error}") from None
    # `localhost` may be both; most clients try the older protocol.
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    taken = socket.socket(family, kind, protocol)
    if os.name == "posix":
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind(address)
        taken.listen(BACKLOG)
    except OSError as error:
        taken.close()
        raise ListenError(_why(bind, error)) from None
    taken.setblocking(False)
    return taken


def _unix(path: Path) -> socket.socket:
    _remove_stale(path)
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        taken.bind(str(path))
        taken.listen(BACKLOG)
    except OSError as error:
        taken.close()
        raise ListenError(f"cannot listen on unix:{path}: {error.strerror or error}") from None
    taken.setblocking(False)
    return taken


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a server that is gone; leave anything else."""
    if not path.is_socket():
        if path.exists():
            raise ListenError(f"{path} exists and is not a socket; it is left as it is")
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ListenError(f"cannot use unix:{path}: {error.strerror or error}") from None
    raise ListenError(f"unix:{path} is in use by another server")


def _why(bind: Bind, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"{bind} is in use by another program; stop it, or choose another port with "
                "--server-bind"
            )
        case errno.EACCES:
            return f"{bind} needs more rights than this process has; ports below 1024 often do"
        case errno.EADDRNOTAVAIL:
            return f"{bind.host} is not an address of this machine"
    return f"cannot listen on {bind}: {error.strerror or error}"
