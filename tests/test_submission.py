"""Submissions: what 2020's looked like is accepted, what is hostile or wrong is refused."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest

from harness.submission import Kind, Refused, copy_files, load_submission, parse_size

HIDER = "def hider(input_dict):\n    return input_dict['data']\n"
SEEKER = "def seeker(input_dict):\n    return input_dict['enlarged_data'][:, 0, 0]\n"


def folder(root: Path, **files: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(text)
    return root


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_plain_folder(tmp_path: Path) -> None:
    entry = load_submission(folder(tmp_path / "mine", hider__py=HIDER), tmp_path)
    assert (entry.name, entry.kind, entry.entry, entry.notes) == ("mine", "hider", "hider.py", ())


def test_manifest_is_read(tmp_path: Path) -> None:
    manifest = """
        name: sharp eyes
        team: blue
        kind: seeker
        image: some/image:1
        resources: {memory: 2GB, time_limit: 60}
        parameters: {sigma: 0.5, layers: [1, 2]}
    """
    root = folder(tmp_path / "mine", seeker__py=SEEKER, submission__yml=manifest)
    entry = load_submission(root, tmp_path, Kind.SEEKER)
    assert (entry.name, entry.team, entry.image) == ("sharp eyes", "blue", "some/image:1")
    assert entry.parameters == {"sigma": 0.5, "layers": [1, 2]}
    assert entry.resources.memory == 2 * 2**30
    assert entry.resources.time_limit == 60


def test_key_with_nothing_below_is_as_if_left_out(tmp_path: Path) -> None:
    text = "name: x\nteam:\nresources:\nparameters:\n  # sigma: 1\n"
    root = folder(tmp_path / "mine", hider__py=HIDER, submission__yml=text)
    assert load_submission(root, tmp_path).parameters == {}


def test_zip_of_2020_with_a_folder_too_many(tmp_path: Path) -> None:
    path = zipped(
        tmp_path / "my hider (final) 2.zip",
        {
            "my hider (final)/hider.py": HIDER,
            "my hider (final)/Dockerimage": "drhi/base:v0 \n",
            "my hider (final)/utils/data_preprocess.py": "x = 1\n",
            "__MACOSX/my hider (final)/._hider.py": "junk",
            ".DS_Store": "junk",
        },
    )
    entry = load_submission(path, tmp_path / "work")
    assert entry.name == "my hider (final) 2"
    assert entry.image == "drhi/base:v0"
    assert entry.notes == (
        "taken from the folder 'my hider (final)' inside 'my hider (final) 2.zip'",
    )
    assert (entry.root / "utils" / "data_preprocess.py").is_file()


def test_digest_follows_content_and_not_place(tmp_path: Path) -> None:
    one = load_submission(folder(tmp_path / "a", hider__py=HIDER), tmp_path)
    archive = zipped(tmp_path / "a.zip", {"deep/hider.py": HIDER})
    assert load_submission(archive, tmp_path / "w").digest == one.digest
    other = load_submission(folder(tmp_path / "c", hider__py=HIDER + "\n"), tmp_path)
    assert other.digest != one.digest


@pytest.mark.parametrize(
    "text",
    [
        "from solution import hider\n",
        "from solution import *\n",
        "import solution\nhider = solution.run\n",
        "try:\n    from a import hider\nexcept ImportError:\n    hider = None\n",
    ],
)
def test_function_may_come_from_elsewhere(tmp_path: Path, text: str) -> None:
    assert load_submission(folder(tmp_path / "h", hider__py=text), tmp_path).kind is Kind.HIDER


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "empty": ({"readme__txt": "hi"}, "must hold hider.py or seeker.py"),
    "both": ({"hider__py": HIDER, "seeker__py": SEEKER}, "both hider.py and seeker.py"),
    "syntax": ({"hider__py": "def hider(:\n"}, "hider.py is not Python, line 1"),
    "no function": ({"hider__py": "def hide(x): pass\n"}, "must define a function hider"),
    "yaml": ({"hider__py": HIDER, "submission__yml": "a: [\n"}, "submission.yml is not YAML"),
    "list": ({"hider__py": HIDER, "submission__yml": "- a\n"}, "list of 'name: value' lines"),
    "field": ({"hider__py": HIDER, "submission__yml": "nickname: x\n"}, "'nickname' is unknown"),
    "kind": ({"hider__py": HIDER, "submission__yml": "kind: seeker\n"}, "says kind: seeker"),
    "kind word": ({"hider__py": HIDER, "submission__yml": "kind: hidder\n"}, "'kind'"),
    "memory": (
        {"hider__py": HIDER, "submission__yml": "resources: {memory: lots}\n"},
        "'lots' is not a size",
    ),
    "resource": (
        {"hider__py": HIDER, "submission__yml": "resources: {gpus: 4}\n"},
        "'resources.gpus' is unknown",
    ),
    "date": (
        {"hider__py": HIDER, "submission__yml": "parameters: {day: 2020-01-01}\n"},
        "only text, numbers",
    ),
}


@pytest.mark.parametrize(("files", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_broken_contract_is_one_sentence(tmp_path: Path, files: dict[str, str], says: str) -> None:
    root = folder(tmp_path / "bad", **files)
    with pytest.raises(Refused) as caught:
        load_submission(root, tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_track_is_refused(tmp_path: Path) -> None:
    root = folder(tmp_path / "h", hider__py=HIDER)
    with pytest.raises(Refused, match="it is a hider, and was entered as a seeker"):
        load_submission(root, tmp_path, Kind.SEEKER)


def test_other_files_and_absent_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_text("no zip")
    with pytest.raises(Refused, match="a folder or a zip file"):
        load_submission(tmp_path / "x.tar", tmp_path)
    with pytest.raises(Refused, match="no such file or folder"):
        load_submission(tmp_path / "absent", tmp_path)


def test_attack_path_traversal_in_zip(tmp_path: Path) -> None:
    for name in ("../evil.py", "/etc/evil.py", "a/../../evil.py", "..\\evil.py"):
        path = zipped(tmp_path / "evil.zip", {"hider.py": HIDER, name: "x"})
        with pytest.raises(Refused, match="a path outside itself"):
            load_submission(path, tmp_path / "work")
    assert not list(tmp_path.rglob("evil.py"))


def test_attack_zip_bomb(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("hider.py", HIDER)
        archive.writestr("zeros", bytes(200 * 2**20))
    with pytest.raises(Refused, match="would unpack to 200 MiB"):
        load_submission(path, tmp_path / "work")


def test_attack_zip_that_lies_about_sizes(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("hider.py", HIDER)
        archive.writestr("zeros", bytes(50 * 2**20))
    # The size stands in the local header and in the directory; both are made to say 10 bytes.
    size = (50 * 2**20).to_bytes(4, "little")
    path = tmp_path / "liar.zip"
    path.write_bytes(buffer.getvalue().replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(Refused):
        load_submission(path, tmp_path / "work")
    assert sum(f.stat().st_size for f in (tmp_path / "work").rglob("zeros")) < 2**21


def test_attack_symlink_in_zip(tmp_path: Path) -> None:
    path = tmp_path / "link.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hider.py", HIDER)
        link = zipfile.ZipInfo("passwords")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(Refused, match="symbolic link"):
        load_submission(path, tmp_path / "work")


def test_attack_symlink_out_of_a_folder(tmp_path: Path) -> None:
    root = folder(tmp_path / "h", hider__py=HIDER)
    (root / "passwords").symlink_to("/etc/passwd")
    with pytest.raises(Refused, match="leads out of the submission"):
        copy_files(root, tmp_path / "copy")


@pytest.mark.parametrize(
    ("text", "size"), [("4GB", 2**32), ("512 MiB", 2**29), ("1.5g", 3 * 2**29), (2048, 2048)]
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-4GB", "4 cats", "nan"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
