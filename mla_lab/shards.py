"""A safetensors checkpoint as a folder: one file, or shards and the index that says which tensor lies in which."""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import InputError
from .safetensors_file import Tensor, read_header, read_json

INDEX = "model.safetensors.index.json"
UNSAFE = (".bin", ".pt", ".pth", ".ckpt", ".gguf")


class Checkpoint:
    """Which file holds which tensor. A file's header is read when something in it is first asked for.

    Parameters
    ----------
    where : path
        A folder, its index, or a single ``.safetensors`` file. Beside an index nothing else counts: a stray
        ``model.safetensors`` is not merged with the shards.
    """

    def __init__(self, where: str | Path):
        path = Path(where)
        self.path = path = _one_file(path) if path.is_dir() else path
        self.folder, self.indexed = path.parent, path.suffix == ".json"
        self._headers: dict[str, dict[str, Tensor]] = {}
        if not path.exists():
            raise InputError(f"{path} does not exist; a checkpoint is a folder, an index or a .safetensors file.")
        if self.indexed:
            self.files = _weight_map(path)
        elif path.suffix == ".safetensors":
            self.files = dict.fromkeys(self.header(path.name), path.name)
        else:
            raise InputError(f"{path} is not a .safetensors file; checkpoints are read from safetensors only.")

    def header(self, file: str) -> dict[str, Tensor]:
        """All tensors of one file of the folder."""
        if file not in self._headers:
            self._headers[file] = read_header(self.folder / file)
        return self._headers[file]

    def find(self, name: str) -> Tensor:
        """Where the tensor called ``name`` lies."""
        file = self.files[name]
        if name not in self.header(file):
            raise InputError(f"{self.path.name} says that {name!r} is in {file}, but it is not.")
        return self.header(file)[name]

    def require(self, prefix: str) -> None:
        """All shards with tensors that begin with ``prefix`` must be there, and hold none that the index leaves out."""
        needed = sorted({file for name, file in self.files.items() if name.startswith(prefix)})
        missing = [file for file in needed if not (self.folder / file).is_file()]
        if missing:
            raise InputError(f"{', '.join(missing)} is missing in {self.folder}, and {self.path.name} puts tensors "
                             f"{prefix}... there.")
        self.refuse_strays(prefix, needed)

    def refuse_strays(self, prefix: str, files: Iterable[str] | None = None) -> None:
        """Refuse what begins with ``prefix`` and lies in ``files`` (by default, in any) without being in the index."""
        for name, file in self.strays(files):
            if name.startswith(prefix):
                raise stray(name, file, self.path)

    def strays(self, files: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
        """Tensors that files hold and the index does not name, each with its file.

        By default all files of the folder are looked through, even those that the index does not name, and one that
        cannot be read is passed over.
        """
        for file in sorted(p.name for p in self.folder.glob("*.safetensors")) if files is None else files:
            try:
                # Only files that are needed are kept: there may be hundreds.
                header = self._headers.get(file) or read_header(self.folder / file) if self.indexed else ()
            except InputError:
                if files is not None:
                    raise
                continue
            yield from ((name, file) for name in header if name not in self.files)


def stray(name: str, file: str, index: Path) -> InputError:
    """The error for a tensor that is needed and that the index does not name."""
    return InputError(f"{name!r} is in {file} but not in {index.name}, so one of the two is out of date.")


def report(where: str | Path) -> list[str]:
    """What a person should know about an index and the files beside it: sentences, none if they agree."""
    source, said = Checkpoint(where), []
    named = set(source.files.values())
    for file in sorted(p.name for p in source.folder.glob("*.safetensors")) if source.indexed else ():
        if file not in named:
            said.append(f"{file} is not read: {source.path.name} does not name it.")
            continue
        try:
            strays = [name for name, _ in source.strays([file])]
        except InputError as error:
            said.append(str(error))
            continue
        if strays:
            said.append(f"{file} holds tensors that {source.path.name} does not name, and they are not read: "
                        f"{strays[0]!r}{f' and {len(strays) - 1} more' if strays[1:] else ''}.")
    return said


def _one_file(folder: Path) -> Path:
    """The index of ``folder``, or its only file."""
    for pattern, usual in (("*.safetensors.index.json", INDEX), ("*.safetensors", "model.safetensors")):
        found = sorted(folder.glob(pattern))
        if folder / usual in found or len(found) == 1:
            return folder / usual if folder / usual in found else found[0]
        if found:
            raise InputError(f"{folder} holds {len(found)} files {pattern} and no {usual}; name one of them.")
    unsafe = sorted(path.name for path in folder.iterdir() if path.suffix in UNSAFE)
    raise InputError(f"{folder} holds no .safetensors file" + (
        f" but {unsafe[0]}; checkpoints are read from safetensors only." if unsafe else "."))


def _weight_map(path: Path) -> dict[str, str]:
    index = read_json(path)
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not files:
        raise InputError(f"{path} holds no weight_map from tensors to files.")
    for name, file in files.items():
        safe = isinstance(file, str) and re.fullmatch(r"[^/\\:]+\.safetensors", file) and (name + file).isprintable()
        if not safe:
            raise InputError(f"{path.name} maps {name!r} to {file!r}; it must be a .safetensors file beside it.")
    return files
