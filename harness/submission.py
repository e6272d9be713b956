"""A folder or zip becomes a checked Submission: kind, entry, parameters, resources, digest."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

MAX_FILES = 20_000
MAX_BYTES = 2 * 2**30
# A zip of text shrinks about tenfold, of zeros a thousandfold.
MAX_RATIO = 200
_IGNORED = frozenset({"__MACOSX", "__pycache__", ".git", ".DS_Store", ".ipynb_checkpoints"})
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Refused(ValueError):
    """The submission breaks the contract; the message is one sentence for its author."""


class Kind(StrEnum):
    """Which track a submission is for."""

    HIDER = "hider"
    SEEKER = "seeker"


class Resources(BaseModel):
    """What a submission asks for; the rules cap it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory: int | None = None
    time_limit: Annotated[float, Field(gt=0)] | None = None

    @classmethod
    def parse(cls, given: dict[str, Any]) -> Self:
        """Read the ``resources`` of a ``submission.yml``; memory may be text like ``4GB``."""
        memory = given.get("memory")
        parsed = None if memory is None else parse_size(memory)
        return cls.model_validate({**given, "memory": parsed})


class Manifest(BaseModel):
    """What an optional ``submission.yml`` may say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, StringConstraints(min_length=1, max_length=80)] | None = None
    team: Annotated[str, StringConstraints(max_length=80)] = ""
    kind: Kind | None = None
    image: str | None = None
    resources: dict[str, Any] = Field(default_factory=dict)
    parameters: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Submission:
    """A hider or seeker that keeps the contract as far as reading it can tell.

    Attributes
    ----------
    name, team : str
        As in ``submission.yml``; the name is else the folder's or the zip's.
    kind : Kind
        Hider or seeker.
    root : Path
        Folder with ``hider.py`` or ``seeker.py`` at its top.
    digest : str
        SHA-256 over the files' paths and contents.
    image : str or None
        The image it names (``image:`` or 2020's ``Dockerimage``).
    parameters : dict
        Reach it as ``input_dict["parameters"]``.
    resources : Resources
        What it asks for.
    notes : tuple of str
        What was odd but accepted.
    """

    name: str
    team: str
    kind: Kind
    root: Path
    digest: str
    image: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    resources: Resources = Resources()
    notes: tuple[str, ...] = ()

    @property
    def entry(self) -> str:
        """File that holds the function: ``hider.py`` or ``seeker.py``."""
        return f"{self.kind}.py"


def parse_size(text: str | int) -> int:
    """Return a size in bytes from ``4GB``, ``512 MiB``, ``2g`` or a number of bytes.

    Units are powers of 1,024.

    Raises
    ------
    ValueError
        The text is no positive size.

    Examples
    --------
    >>> parse_size("4GB")
    4294967296
    """
    match = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(text), flags=re.IGNORECASE
    )
    size = int(float(match[1]) * _SIZES[match[2].upper()]) if match else 0
    if size <= 0:
        raise ValueError(f"{str(text)!r} is not a size; write it like 4GB or 512MB")
    return size


def load_submission(path: Path, workspace: Path, expected: Kind | None = None) -> Submission:
    """Check a submission and make it ready to run.

    Parameters
    ----------
    path : Path
        Folder or zip with ``hider.py`` or ``seeker.py`` at its root; one folder level too many
        is accepted and noted.
    workspace : Path
        Existing folder under which a zip is unpacked.
    expected : Kind, optional
        The track that it is entered for.

    Returns
    -------
    Submission

    Raises
    ------
    Refused
        It breaks the contract, in one sentence that names the file and says what to do.
    """
    if not path.exists():
        raise Refused(f"{path}: there is no such file or folder.")
    notes: list[str] = []
    if path.is_dir():
        root, default_name = path, path.resolve().name
    elif zipfile.is_zipfile(path):
        root, default_name = _unpack(path, workspace), path.stem
    else:
        raise Refused(f"{path}: a submission is a folder or a zip file.")
    root = _entry_folder(root, path, notes)
    manifest = _manifest(root, path)
    kind = _kind(root, path, manifest, expected)
    _check_entry(root / f"{kind}.py", kind, path)
    try:
        resources = Resources.parse(manifest.resources)
    except ValueError as error:
        raise Refused(f"{path}: submission.yml, {_first_problem(error, 'resources.')}.") from error
    return Submission(
        name=manifest.name or default_name,
        team=manifest.team,
        kind=kind,
        root=root,
        digest=_digest(root),
        image=manifest.image or _docker_image(root, notes),
        parameters=dict(manifest.parameters),
        resources=resources,
        notes=tuple(notes),
    )


def files_of(root: Path) -> Iterator[Path]:
    """Yield a submission's regular files in order of their path, leaving out caches."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _IGNORED)
        for name in sorted(names):
            file = Path(folder, name)
            if name not in _IGNORED and file.is_file():
                yield file


def copy_files(root: Path, target: Path) -> None:
    """Copy a submission's files to a new folder `target`; links are not followed out of it."""
    inside = root.resolve()
    for file in files_of(root):
        if not file.resolve().is_relative_to(inside):
            raise Refused(f"{file}: this link leads out of the submission; copy the file in.")
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)


def _unpack(path: Path, workspace: Path) -> Path:
    """Unpack a zip into a fresh folder, refusing what a hostile zip would try."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    target = workspace / digest[:16]
    if target.exists():
        shutil.rmtree(target)
    target.mkdir(parents=True)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not _ignored(info.filename)]
            _check_members(path, members)
            for info in members:
                _extract(archive, info, target, path)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError) as error:
        raise Refused(f"{path}: the zip cannot be unpacked ({error}).") from error
    return target


def _ignored(name: str) -> bool:
    return any(part in _IGNORED for part in PurePosixPath(name).parts)


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    if len(members) > MAX_FILES:
        raise Refused(f"{path}: the zip holds {len(members):,} files; at most {MAX_FILES:,}.")
    unpacked = sum(info.file_size for info in members)
    packed = max(1, sum(info.compress_size for info in members))
    if unpacked > MAX_BYTES or (unpacked > 2**26 and unpacked > MAX_RATIO * packed):
        raise Refused(
            f"{path}: the zip would unpack to {unpacked / 2**20:,.0f} MiB; at most "
            f"{MAX_BYTES / 2**20:,.0f} MiB and {MAX_RATIO} times its own size."
        )
    for info in members:
        parts = PurePosixPath(info.filename.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in info.filename:
            raise Refused(f"{path}: the zip names a path outside itself: {info.filename!r}.")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise Refused(f"{path}: the zip holds a symbolic link, {info.filename!r}; copy it.")
        if info.flag_bits & 1:
            raise Refused(f"{path}: the zip is encrypted; submit it without a password.")


def _extract(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, path: Path) -> None:
    place = target / PurePosixPath(info.filename)
    if info.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with archive.open(info) as source, place.open("wb") as out:
        # The directory of a zip can lie about sizes, so the bytes themselves are counted.
        while chunk := source.read(1 << 20):
            written += len(chunk)
            if written > info.file_size:
                raise Refused(f"{path}: {info.filename!r} is larger than the zip says it is.")
            out.write(chunk)


def _entry_folder(root: Path, path: Path, notes: list[str]) -> Path:
    """Return the folder that holds the entry: the root, or the only folder below it."""
    for depth in range(3):
        if (root / "hider.py").is_file() or (root / "seeker.py").is_file():
            if depth:
                notes.append(f"taken from the folder {root.name!r} inside {path.name!r}")
            return root
        inside = [item for item in root.iterdir() if item.name not in _IGNORED]
        folders = [item for item in inside if item.is_dir()]
        if len(folders) != 1 or any(item.suffix == ".py" for item in inside):
            break
        root = folders[0]
    raise Refused(f"{path}: it must hold hider.py or seeker.py at its root.")


def _manifest(root: Path, path: Path) -> Manifest:
    file = root / "submission.yml"
    if not file.is_file():
        return Manifest()
    try:
        said = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "not UTF-8 text"
        raise Refused(f"{path}: submission.yml is not YAML{where}: {problem}.") from error
    if said is None:
        return Manifest()
    if not isinstance(said, dict):
        raise Refused(f"{path}: submission.yml must be a list of 'name: value' lines.")
    try:
        # A key whose lines are all commented out reads as null.
        manifest = Manifest.model_validate({k: v for k, v in said.items() if v is not None})
        json.dumps(manifest.parameters, allow_nan=False)
    except ValidationError as error:
        raise Refused(f"{path}: submission.yml, {_first_problem(error)}.") from error
    except (TypeError, ValueError) as error:
        raise Refused(
            f"{path}: submission.yml, parameters: only text, numbers, true/false, lists and "
            f"mappings can be passed on ({error})."
        ) from error
    return manifest


def _first_problem(error: ValueError, inside: str = "") -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    where = inside + ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(Resources.model_fields if "resources" in where else Manifest.model_fields)
        return f"the field {where!r} is unknown (there are {known})"
    return f"the field {where!r}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _kind(root: Path, path: Path, manifest: Manifest, expected: Kind | None) -> Kind:
    present = [kind for kind in Kind if (root / f"{kind}.py").is_file()]
    if len(present) == 2:
        raise Refused(f"{path}: it holds both hider.py and seeker.py; keep one of them.")
    kind = present[0]
    if manifest.kind not in (None, kind):
        raise Refused(f"{path}: submission.yml says kind: {manifest.kind}, but it holds {kind}.py.")
    if expected not in (None, kind):
        raise Refused(f"{path}: it is a {kind}, and was entered as a {expected}.")
    return kind


def _check_entry(file: Path, kind: Kind, path: Path) -> None:
    try:
        tree = ast.parse(file.read_bytes(), filename=file.name)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise Refused(
            f"{path}: {file.name} is not Python"
            + (f", line {line}: {getattr(error, 'msg', error)}." if line else f" ({error}).")
        ) from error
    if not _binds(tree.body, kind):
        raise Refused(f"{path}: {file.name} must define a function {kind}(input_dict).")


def _binds(body: list[ast.stmt], name: str) -> bool:
    """Tell whether statements may bind `name` at the top level, also inside if/try/with."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == name:
            return True
        if isinstance(statement, ast.ImportFrom | ast.Import):
            for alias in statement.names:
                if alias.name == "*" or (alias.asname or alias.name) == name:
                    return True
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target)):
                    return True
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With) and _binds(
                getattr(statement, block, []), name
            ):
                return True
    return False


def _docker_image(root: Path, notes: list[str]) -> str | None:
    file = root / "Dockerimage"
    if not file.is_file():
        return None
    lines = file.read_text(encoding="utf-8", errors="replace").split()
    if not lines:
        notes.append("its Dockerimage is empty and was passed over")
        return None
    return lines[0]


def _digest(root: Path) -> str:
    sha = hashlib.sha256()
    for file in files_of(root):
        name = file.relative_to(root).as_posix().encode()
        content = file.read_bytes()
        for part in (name, content):
            sha.update(len(part).to_bytes(8, "big") + part)
    return "sha256:" + sha.hexdigest()
