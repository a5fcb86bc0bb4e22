"""MLflow's address -> the file of its database, and the address without user and password, for all that leaves us."""

import re
from pathlib import Path

# A port ends at a slash; a password may contain one, and another "@". USER stands in messages, for a user to replace.
CREDENTIALS = re.compile(r"(?<=://)(?!USER@)[^\s/?#:@]*(?::(?!\d+/)\S*)?@")
PASSWORD_OPTION = re.compile(r"(?<=[?&])(\w*passw\w*)=[^\s&#]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """Remove user and password from each address in a text, such as an error; printed and stored texts pass here."""
    return PASSWORD_OPTION.sub(r"\1=***", CREDENTIALS.sub("", text))


def database_of(uri: str) -> Path | None:
    """File of a SQLite address; None for a server."""
    from sqlalchemy.engine import make_url

    return Path(make_url(uri).database or "") if uri.startswith("sqlite:") else None
