"""The actions of a commit of a Delta table <-> the content of its file in the log, with a checksum."""

import json
import re
from collections.abc import Mapping
from typing import Any

import dyformer
from storage import kinds
from storage.checksums import Damaged, sha256
from storage.kinds import wrong_in_commit, wrong_kind

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
        raise TableDamaged(location, "is empty, as a power cut leaves a file", REMEDY)
    if content.startswith(ENGINE) or found is not None:
        digest = found[1] if found is not None else b""
        if sha256(content.replace(digest or NO_DIGEST, NO_DIGEST, 1)).encode() != digest:
            raise TableDamaged(location, "was changed after it was written", REMEDY)
    try:
        actions = tuple(json.loads(line) for line in content.splitlines() if line.strip())
    except (ValueError, RecursionError) as error:
        raise TableDamaged(location, "is incomplete or was changed after it was written", REMEDY) from error
    for action in actions:
        problem = wrong_kind(kinds.Action, action) or wrong_in_commit(action.get("commitInfo") or {})
        if problem is not None:
            raise TableDamaged(location, problem, REMEDY)
    return actions


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
