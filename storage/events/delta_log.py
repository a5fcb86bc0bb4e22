"""The actions of a commit of a Delta table <-> the content of its file in the log, with a checksum."""

import json
import re
from collections.abc import Mapping
from typing import Any

import dyformer
from storage.checksums import Damaged, sha256

LOG = "_delta_log"
COMMIT_NAME = re.compile(r"(\d{20})\.json")
ENGINE = b'{"commitInfo":{"engineInfo":"dyformer '
SEAL = re.compile(rb'"digest":"([0-9a-f]{64})"')
NO_DIGEST = b"0" * 64
REMEDY = "`dyformer verify --repair` makes again what it can"

Action = Mapping[str, Any]


class TableDamaged(Damaged):
    """A file of a table is missing, or differs from the one that was written."""


def commit_name(version: int) -> str:
    """Name of the file of a commit."""
    return f"{version:020}.json"


def content_of(operation: str, metadata: Action, actions: list[dict[str, Any]], milliseconds: int) -> bytes:
    """Encode a commit with its checksum."""
    values = {"timestamp": milliseconds, "operation": operation, "operationParameters": {}, **metadata}
    head = ENGINE + f'{dyformer.__version__}","digest":"'.encode() + NO_DIGEST + b'",' + _json(values)[1:] + b"}"
    content = b"\n".join([head, *map(_json, actions)]) + b"\n"
    return content.replace(NO_DIGEST, sha256(content).encode(), 1)


def actions_in(location: str, content: bytes) -> tuple[Action, ...]:
    """Give the actions of a commit's content; raises TableDamaged."""
    found = SEAL.search(content)
    if not content.strip(b"\0 \n"):
        raise TableDamaged(f"{location} is empty, as a power cut leaves a file: {REMEDY}")
    if content.startswith(ENGINE) or found is not None:
        digest = found[1] if found is not None else b""
        if sha256(content.replace(digest or NO_DIGEST, NO_DIGEST, 1)).encode() != digest:
            raise TableDamaged(f"{location} was changed after it was written: {REMEDY}")
    try:
        actions = tuple(json.loads(line) for line in content.splitlines() if line.strip())
    except (ValueError, RecursionError) as error:
        raise TableDamaged(f"{location} is incomplete or was changed after it was written: {REMEDY}") from error
    if not all(map(_is_action, actions)):
        raise TableDamaged(f"{location} is no commit of a Delta table: {REMEDY}")
    return actions


def _is_action(action: Any) -> bool:
    values = {
        "commitInfo": {},
        "add": {"path": str, "size": int},
        "remove": {"path": str},
        "txn": {"appId": str, "version": int},
    }
    return isinstance(action, dict) and all(
        isinstance(action[kind], dict) and isinstance(action[kind].get(name), of_type)
        for kind in values.keys() & action.keys()
        for name, of_type in values[kind].items()
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
