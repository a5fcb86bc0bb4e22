"""Tensors and a record -> one safetensors file, replaced in one move.

The record lies in the file's header, so tensors and record always belong together. The older checkpoint stays
readable until the newer one is complete.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dyformer import InvalidInput
from storage.bytes import files
from storage.bytes.checksums import Damaged, link_in

if TYPE_CHECKING:
    from torch import Tensor

FILE_NAME = "checkpoint.safetensors"
RECORD = "record"
REMEDY = "delete it (or run `dyformer verify --repair`) and train again"


class CheckpointMissing(InvalidInput):
    """An address has no checkpoint."""


class CheckpointDamaged(Damaged):
    """A checkpoint differs from the bytes that were written."""


def save_checkpoint(address: str, tensors: "Mapping[str, Tensor]", record: Mapping[str, Any]) -> str:
    """Replace the checkpoint of a folder and return the folder; every dtype is kept bit for bit."""
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
        CheckpointDamaged: the file is truncated or was changed.
        ValueError: the record lacks an expected value; the message names each.
    """
    if not has_checkpoint(address):
        raise CheckpointMissing(f"there is no checkpoint under {address}: run the training that writes it")
    if (problem := link_in(f"{address}/{FILE_NAME}")) is not None:
        raise CheckpointDamaged(f"{address}/{FILE_NAME}", problem, REMEDY)
    tensors, record = from_bytes(files.read_bytes(f"{address}/{FILE_NAME}"), name=f"{address}/{FILE_NAME}")
    _check_expected(f"{address}/{FILE_NAME}", record, json.loads(json.dumps(dict(expected or {}))))
    return tensors, record


def has_checkpoint(address: str) -> bool:
    """Whether the folder has a checkpoint."""
    return files.size(f"{address}/{FILE_NAME}") is not None


def remove_checkpoint(address: str) -> None:
    """Delete the checkpoint of a finished training."""
    files.remove(f"{address}/{FILE_NAME}")


def to_bytes(tensors: "Mapping[str, Tensor]", record: Mapping[str, Any]) -> bytes:
    """One safetensors file with the record and a checksum over both in its header; equal input gives equal bytes."""
    from safetensors.torch import save

    plain = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    text = json.dumps(dict(record), sort_keys=True)
    # One entry, because safetensors writes several in an order that changes from call to call.
    return save(plain, metadata={RECORD: f"{_checksum(plain, text)} {text}"})


def check_finite(tensors: "Mapping[str, Tensor]", name: str) -> None:
    """Raise ValueError for tensors with NaN or infinity, before they are used or stored as weights."""
    wrong = [key for key, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if wrong:
        raise InvalidInput(
            f"{name}: expected finite numbers, found NaN or infinity in {', '.join(wrong)}: train again, with other "
            f"settings (such as a smaller learning rate) if these were trained so"
        )


def _unshared(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Clone tensors that share memory with an earlier one (tied weights), because safetensors refuses them."""
    seen: set[int] = set()
    plain = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return plain


def from_bytes(content: bytes, *, name: str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Tensors and record of `to_bytes`; CheckpointDamaged, with the name, if a byte was changed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        checksum, _, text = header[RECORD].partition(" ")
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointDamaged(name, f"is not a complete checkpoint ({_line(error)})", REMEDY) from error
    if checksum != _checksum(tensors, text):
        raise CheckpointDamaged(name, "was changed after it was written", REMEDY)
    return tensors, json.loads(text)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _checksum(tensors: "Mapping[str, Tensor]", text: str) -> str:
    import torch

    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _check_expected(name: str, record: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    wrong = [
        f"{key} is {record.get(key)!r}, expected {value!r}"
        for key, value in expected.items()
        if record.get(key) != value
    ]
    if wrong:
        raise InvalidInput(
            f"{name} belongs to another training: {'; '.join(wrong)}; delete it, or train with the values it has"
        )
