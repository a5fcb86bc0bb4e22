"""A simulated disk: what a power cut leaves of the files and folders that a program has written so far."""

import os
import stat
from pathlib import Path

import pytest

Contents = dict[int, bytes]
Entries = dict[int, dict[str, int]]


class Disk:
    """Watches every fsync: a file has the content of its last one, a folder the names of its last one."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path):
        self.root = root.stat().st_ino
        self.states: list[tuple[Contents, Entries]] = [({}, {})]
        self._real = os.fsync
        patch.setattr(os, "fsync", self._fsync)

    def _fsync(self, descriptor: int) -> None:
        self._real(descriptor)
        status, path = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}").readlink()
        contents, entries = dict(self.states[-1][0]), dict(self.states[-1][1])
        if stat.S_ISDIR(status.st_mode):
            children = {child.name: child.stat() for child in path.iterdir()}
            entries[status.st_ino] = {name: child.st_ino for name, child in children.items()}
            folders = (child.st_ino for child in children.values() if stat.S_ISDIR(child.st_mode))
            entries |= {node: entries.get(node, {}) for node in folders}  # one that was never synced is empty
        else:
            contents[status.st_ino] = path.read_bytes()
        self.states.append((contents, entries))

    def after_power_cut(self, target: Path, state: int = -1) -> Path:
        """Write what is left: a file that was never synced is empty, a name of an unsynced folder is lost."""
        contents, entries = self.states[state]

        def rebuild(folder: Path, node: int) -> None:
            folder.mkdir()
            for name, child in entries.get(node, {}).items():
                if child in entries:
                    rebuild(folder / name, child)
                else:
                    (folder / name).write_bytes(contents.get(child, b""))

        rebuild(target, self.root)
        return target
