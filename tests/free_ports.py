"""Ports for the servers of the tests."""

import itertools
import os
import socket

FIRST, PROCESSES, PORTS = 12_000, 200, 100

_ports = itertools.cycle(range(PORTS))


def free_port() -> int:
    """Give a port of this machine that nothing uses and no process that tests now is given as well.

    It lies below those that the system gives to outgoing connections: one of them could take it before its server
    starts.
    """
    first = FIRST + os.getpid() % PROCESSES * PORTS
    for number in itertools.islice(_ports, PORTS):
        with socket.socket() as unused:
            try:
                unused.bind(("127.0.0.1", first + number))
            except OSError:
                continue
            return first + number
    raise OSError(f"every port from {first} to {first + PORTS - 1} is in use")
