"""Outputs are checked before they are written, and get their name when they are complete."""

import shutil

import pytest

from pgcli.errors import OutputExists, OutputFailed, PgcliError, UsageError
from pgcli.stores.writing import MARK, Target


@pytest.mark.parametrize("kind", ["file", "folder", "whole folder"])
@pytest.mark.parametrize("name", ["", "-", "s3://bucket/out", "file/x", "rows.jsonl"])
def test_names_that_cannot_be_written_are_rejected(workdir, kind, name):
    (workdir / "file").touch()
    (workdir / "rows.jsonl").touch()
    target = Target(name=name, kind=kind, option="--out", overwrite=True, inputs=["./rows.jsonl"])
    with pytest.raises((UsageError, OutputExists)) as refusal:
        target.check()
    assert "--out" in refusal.value.hint or "on this machine" in refusal.value.hint


def test_input_in_a_folder_that_is_written_is_rejected(workdir):
    (workdir / "out").mkdir()
    (workdir / "out" / "a.png").touch()
    (workdir / "link.png").symlink_to("out/a.png")
    for source in ("out/a.png", "link.png", "out/*.png", "file:out/a.png"):
        with pytest.raises(UsageError, match="is an input and is in out"):
            Target(name="out", kind="folder", overwrite=True, inputs=[source]).check()
    Target(name="out", kind="folder", overwrite=True, inputs=["-", "s3://b/x", "other"]).check()


def test_existing_files_need_overwrite(workdir):
    (workdir / "page.html").write_text("ours")
    target = Target(name="page.html", option="--view")
    with pytest.raises(OutputExists, match="exists") as refusal:
        target.check()
    assert refusal.value.hint == "--overwrite replaces it, or choose another --view"
    Target(name="page.html", overwrite=True).check()


@pytest.mark.parametrize("kind", ["file", "folder", "whole folder"])
def test_only_a_run_replaces_its_output(workdir, kind):
    (workdir / "rows.pgcli").mkdir()
    (workdir / "rows.pgcli" / "run.json").touch()
    with pytest.raises(OutputExists, match="rows is the output of a run"):
        Target(name="rows", kind=kind, overwrite=True).check()
    Target(name="rows", kind=kind, overwrite=True, is_run=True).check()


@pytest.mark.parametrize("kind", ["file", "whole folder"])
def test_target_is_complete_or_absent(workdir, kind):
    target = Target(name="made/out", kind=kind)

    def fill(path):
        (path / "a.txt" if kind == "whole folder" else path).write_text("whole")

    def fail(path):
        fill(path)
        raise KeyError

    def be_late(path):
        fill(path)
        target.path.mkdir()
        (target.path / "of another process").touch()

    for write, error in ((fail, KeyError), (be_late, PgcliError)):
        with pytest.raises(error):
            publish(target, write)
        assert [path.name for path in (workdir / "made").iterdir()] == ["out"] * (write is be_late)
    shutil.rmtree(target.path)
    publish(target, fill)
    assert [path.name for path in (workdir / "made").iterdir()] == ["out"]


def publish(target, write):
    """Publish the output of `write`, which gets a temporary path."""
    with target.publish() as part:
        write(part)


def test_only_folders_of_exports_are_replaced_whole(workdir):
    (workdir / "photos").mkdir()
    (workdir / "photos" / "a.png").touch()
    target = Target(name="photos", kind="whole folder", overwrite=True)
    with pytest.raises(OutputExists, match="not written by pgcli"):
        target.check()
    (workdir / "photos" / MARK).touch()
    with target.publish() as part:
        (part / "b.png").touch()
    (workdir / "file").touch()
    (workdir / "link").symlink_to("nothing")
    with pytest.raises(OutputExists, match="link is not empty"):
        Target(name="link", kind="folder").check()
    with pytest.raises(UsageError, match="file is not a folder"):
        Target(name="file", kind="whole folder", overwrite=True).check()
    assert sorted(path.name for path in (workdir / "photos").iterdir()) == [MARK, "b.png"]


def test_only_a_run_writes_to_a_folder_in_an_object_store(workdir):
    Target(name="s3://bucket/rows/", kind="folder", is_run=True).check()
    for name in ("s3://bucket/", "s3://bucket/rows", "hf://a/b/", "s3://user:word@bucket/rows/"):
        with pytest.raises(UsageError, match="cannot write to"):
            Target(name=name, kind="folder", is_run=True).check()


def test_folder_without_permission_is_rejected(workdir, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(OutputFailed, match="not writable"):
        Target(name="new.txt").check()
