"""The Prefect server that runs the flows of this process -> its description, once it serves with this login."""

import base64
import socket
from http import HTTPStatus
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from dyformer import InvalidInput

SECONDS_TO_CONNECT = 5.0
TEMPORARY = "a temporary Prefect server"


class ServerUnreachable(InvalidInput):
    """The configured Prefect server cannot be reached."""


def server_in_use() -> str:
    """Describe the Prefect server that runs the flows of this process; raises ServerUnreachable."""
    from prefect.settings import PREFECT_API_URL

    address = PREFECT_API_URL.value()
    if not address:
        return TEMPORARY
    parts = urlsplit(address)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=SECONDS_TO_CONNECT).close()
    except OSError as error:
        raise ServerUnreachable(
            f"the Prefect server at {address} cannot be reached ({error}): start it,"
            " or unset PREFECT_API_URL to run on a temporary one"
        ) from error
    if _refuses_login(address):
        raise ServerUnreachable(
            f"the Prefect server at {address} refuses this login, or wants one: set PREFECT_API_AUTH_STRING to"
            " USER:PASSWORD; `dyformer login` prints that of `dyformer up`"
        )
    return f"the Prefect server at {address}"


def _refuses_login(address: str) -> bool:
    """Whether a server, which is there, refuses a request for the reason of its login; a busy one may be late."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY

    if PREFECT_API_KEY.value():
        return False
    request = Request(f"{address}/admin/version")  # noqa: S310, the user's own address
    if login := PREFECT_API_AUTH_STRING.value():
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    try:
        urlopen(request, timeout=SECONDS_TO_CONNECT).close()  # noqa: S310
    except HTTPError as error:
        with error:
            return error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    except OSError:
        pass
    return False
