"""Checkpoints: tensors and their record in one safetensors file, replaced in one move.

The record lies in the file's own header, so that tensors and record can never be of two different moments: the
older checkpoint stays readable until the newer one is complete.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storage import files

if TYPE_CHECKING:
    from torch import Tensor

FILE_NAME = "checkpoint.safetensors"
RECORD = "record"


class CheckpointMissing(ValueError):
    """There is no checkpoint under an address."""


class CheckpointDamaged(ValueError):
    """A checkpoint is not what was written."""


class CheckpointMismatch(ValueError):
    """A checkpoint belongs to other settings, another cut or another graph."""


def save_checkpoint(address: str, tensors: "Mapping[str, Tensor]", record: Mapping[str, Any]) -> str:
    """Replace the checkpoint of a folder and return the folder; every dtype is kept bit by bit."""
    files.write_bytes(f"{address}/{FILE_NAME}", to_bytes(tensors, record))
    return address


def load_checkpoint(
    address: str, *, expected: Mapping[str, Any] | None = None
) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Tensors (on the CPU) and record of the newest checkpoint.

    Args:
        address: the folder given to `save_checkpoint`.
        expected: values that the record must have (settings hash, dataset, table version, until, seed).

    Raises:
        CheckpointMissing: nothing was saved there.
        CheckpointDamaged: the file was cut or changed.
        CheckpointMismatch: names each expected value that the record has not.
    """
    if not has_checkpoint(address):
        raise CheckpointMissing(f"no checkpoint under {address}: run the training that writes it")
    tensors, record = from_bytes(files.read_bytes(f"{address}/{FILE_NAME}"), place=f"{address}/{FILE_NAME}")
    _check_expected(f"{address}/{FILE_NAME}", record, json.loads(json.dumps(dict(expected or {}))))
    return tensors, record


def has_checkpoint(address: str) -> bool:
    """Whether something was saved in the folder."""
    return files.size(f"{address}/{FILE_NAME}") is not None


def remove_checkpoint(address: str) -> None:
    """Forget the checkpoint of a finished training."""
    files.remove(f"{address}/{FILE_NAME}")


def to_bytes(tensors: "Mapping[str, Tensor]", record: Mapping[str, Any]) -> bytes:
    """One safetensors file with the record and a checksum over both in its header; equal input gives equal bytes."""
    from safetensors.torch import save

    plain = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    text = json.dumps(dict(record), sort_keys=True)
    # One entry: safetensors writes several in an order that changes from call to call.
    return save(plain, metadata={RECORD: f"{_checksum(plain, text)} {text}"})


def _unshared(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Clone tensors that share memory with an earlier one, as tied weights do: safetensors refuses them."""
    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return plain


def from_bytes(content: bytes, *, place: str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Tensors and record of `to_bytes`; CheckpointDamaged with the place when it is not what was written."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    remedy = "delete it and train again"
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        checksum, _, text = header[RECORD].partition(" ")
    except (SafetensorError, KeyError) as error:
        raise CheckpointDamaged(f"{place} is not a complete checkpoint ({error}): {remedy}") from error
    if checksum != _checksum(tensors, text):
        raise CheckpointDamaged(f"{place} was changed after it was written: {remedy}")
    return tensors, json.loads(text)


def _checksum(tensors: "Mapping[str, Tensor]", text: str) -> str:
    import torch

    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _check_expected(place: str, record: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    wrong = [
        f"{key} is {record.get(key)!r}, expected {value!r}"
        for key, value in expected.items()
        if record.get(key) != value
    ]
    if wrong:
        raise CheckpointMismatch(
            f"{place} belongs to another training: {'; '.join(wrong)}; delete it or use its settings"
        )
