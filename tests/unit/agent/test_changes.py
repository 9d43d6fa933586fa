"""A change of files counts once it is at rest."""

from pathlib import Path

from kvitals.agent.changes import FileChanges, stamp


def test_a_file_that_is_being_written_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("one")
    changes = FileChanges([file])
    assert not changes.look([file])
    file.write_text("")
    assert not changes.look([file])  # it changed, and may go on to
    file.write_text("another")
    assert not changes.look([file])
    assert changes.look([file])
    assert not changes.look([file])  # told once


def test_what_was_there_for_a_moment_is_no_change(tmp_path: Path) -> None:
    file = tmp_path / "f"
    changes = FileChanges([file])
    file.write_text("")
    assert not changes.look([file])
    file.unlink()
    assert not changes.look([file])
    assert not changes.look([file])


def test_files_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("one")
    changes = FileChanges([])
    assert not changes.look([file])
    assert changes.look([file])
    file.unlink()
    assert stamp(file) is None
    assert [changes.look([file]), changes.look([file])] == [False, True]
    file.write_text("two")
    changes.take([file])
    assert [changes.look([file]), changes.look([file])] == [False, False]


def test_the_same_size_and_name_is_told_by_a_link(tmp_path: Path) -> None:
    """As a mounted ConfigMap changes: the name stays, the link above it moves."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("same")
    link = tmp_path / "data"
    link.symlink_to("one")
    before = stamp(link / "f")
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(link)
    assert stamp(link / "f") != before
