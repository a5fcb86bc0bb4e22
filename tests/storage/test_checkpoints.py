import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from storage.artifacts.checkpoints import (
    CheckpointDamaged,
    CheckpointMissing,
    check_finite,
    has_checkpoint,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    to_bytes,
)
from storage.bytes import files

RECORD = {"dataset": "uci", "table_version": 3, "until": 12, "settings_hash": "ab", "seed": 0, "losses": [0.1, 1e-17]}
BITS = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])
SHARED = torch.arange(6.0)
TENSORS = {
    "number": torch.tensor(3),
    "big": torch.tensor([2**62 + 1, -(2**63)]),
    "flags": torch.tensor([True, False]),
    "generator": torch.Generator().manual_seed(7).get_state(),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "half": torch.tensor([[1.5, -2.25]], dtype=torch.bfloat16),
    "double": torch.tensor([0.1], dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "bits": BITS,
    "tied": SHARED,
    "tied_again": SHARED,
}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_every_tensor_comes_back_bit_by_bit(tmp_path: Path):
    tensors, record = load_checkpoint(save_checkpoint(str(tmp_path / "seed=0"), TENSORS, RECORD))
    assert record == RECORD
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape), name
        assert raw(tensors[name]) == raw(tensor), name


def test_a_generator_continues_where_it_was(tmp_path: Path):
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    save_checkpoint(str(tmp_path), {"generator": generator.get_state()}, {})
    expected = torch.rand(5, generator=generator)
    again = torch.Generator()
    again.set_state(load_checkpoint(str(tmp_path))[0]["generator"])
    assert torch.equal(torch.rand(5, generator=again), expected)


def test_the_same_training_gives_the_same_bytes():
    assert len({to_bytes(TENSORS, RECORD) for _ in range(20)}) == 1


def test_the_latest_checkpoint_is_loaded(tmp_path: Path):
    for epoch in range(3):
        save_checkpoint(str(tmp_path), {"weight": torch.full((2,), float(epoch))}, {"epoch": epoch})
    tensors, record = load_checkpoint(str(tmp_path))
    assert (tensors["weight"].tolist(), record["epoch"]) == ([2.0, 2.0], 2)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("key", ["dataset", "table_version", "until", "settings_hash", "seed", "absent"])
def test_a_checkpoint_of_another_training_is_refused_by_name(tmp_path: Path, key: str):
    save_checkpoint(str(tmp_path), TENSORS, RECORD)
    wanted = {name: RECORD[name] for name in ("dataset", "table_version", "until", "settings_hash", "seed")}
    load_checkpoint(str(tmp_path), expected=wanted)
    with pytest.raises(ValueError, match=rf"{key} is .*expected 'other'"):
        load_checkpoint(str(tmp_path), expected=wanted | {key: "other"})


def test_the_error_for_no_checkpoint_names_the_remedy(tmp_path: Path):
    assert not has_checkpoint(str(tmp_path))
    with pytest.raises(CheckpointMissing, match="run the training"):
        load_checkpoint(str(tmp_path))
    save_checkpoint(str(tmp_path), TENSORS, RECORD)
    assert has_checkpoint(str(tmp_path))
    remove_checkpoint(str(tmp_path))
    assert not has_checkpoint(str(tmp_path))


def test_every_changed_byte_is_noticed(tmp_path: Path):
    save_checkpoint(str(tmp_path), {"weight": torch.arange(4.0)}, {"epoch": 1, "note": "twelve"})
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    for position in (
        3,
        12,
        content.index(b"weight"),
        content.index(b"twelve"),
        content.index(b'"record":"') + 15,  # in the checksum
        len(content) - 1,
    ):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CheckpointDamaged, match="checkpoint"):
            load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("length", [0, 5, 40, -1])
def test_a_truncated_file_is_noticed(tmp_path: Path, length: int):
    save_checkpoint(str(tmp_path), TENSORS, RECORD)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointDamaged, match="train again"):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("fails", ["write_synced", "replace"])
def test_an_interrupted_save_leaves_the_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str):
    save_checkpoint(str(tmp_path), TENSORS, RECORD)

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files if fails == "write_synced" else Path, fails, cut)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(str(tmp_path), {}, {})
    assert load_checkpoint(str(tmp_path))[1] == RECORD


def test_a_reader_never_gets_half_a_checkpoint(tmp_path: Path):
    def save(epoch: int) -> None:
        save_checkpoint(str(tmp_path), {"weight": torch.full((50_000,), float(epoch))}, {"epoch": epoch})

    save(0)
    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(save, epoch) for epoch in range(30)]
        while not all(task.done() for task in writing):
            tensors, record = load_checkpoint(str(tmp_path))
            assert set(tensors["weight"].tolist()) == {float(record["epoch"])}


def test_the_module_alone_does_not_load_torch():
    program = "import sys, storage.artifacts.checkpoints; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_named(value: float):
    weights = {"bias": torch.zeros(2), "count": torch.tensor([2**62]), "scale": torch.tensor([1.0, value])}
    with pytest.raises(ValueError, match=r"the model: expected finite numbers, found NaN or infinity in scale: train"):
        check_finite(weights, "the model")
    check_finite({**weights, "scale": torch.ones(2)}, "the model")
