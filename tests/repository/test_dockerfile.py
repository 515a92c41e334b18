"""The Dockerfile: what it copies exists, and the program runs as it promises, without Docker."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Mounts the file system of a new namespace read-only, with one folder in memory to write to.
READ_ONLY = 'mount -t tmpfs none "$1" && mkdir "$1/out" && mount -o remount,ro,bind / && shift'


def test_files_that_the_dockerfile_copies_are_sent_to_docker():
    allowed = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    copies = re.findall(r"^COPY (.*)", text, re.M)
    for value in copies:
        *sources, target = value.split()
        if sources[0].startswith("--from="):
            continue
        for source in sources:
            assert (ROOT / source).exists()
            assert f"!{source}" in allowed
            assert target.startswith("/src/")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all(
        name in " ".join(copies) for name in ("README.md", *project["license-files"], "pgcli")
    )


def test_a_gpu_can_compile_its_kernels_in_the_read_only_image():
    """What Triton builds is loaded as code, and Docker mounts memory with noexec by default."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    image = text[text.rindex("\nFROM ") :]
    (packages,) = re.findall(r"apt-get install -y --no-install-recommends ([^&]*)", image)
    assert packages.split() == ["gcc", "libc6-dev"]  # the image has Python's headers
    assert image.index("apt-get") < image.index("USER")
    (cache,) = re.findall(r"TRITON_CACHE_DIR=(\S+)", image)
    page = (ROOT / "docs" / "how-to" / "containers.md").read_text()
    mounts = re.findall(r"docker run .*--read-only --tmpfs (\S+)", page)
    assert len(mounts) == 2
    for mount in mounts:
        folder, options = mount.split(":")
        assert cache.startswith(f"{folder}/")
        assert options == "exec"


@pytest.fixture
def read_only(tmp_path):
    """Runs a command of pgcli on a read-only file system, with no HOME and no variables."""
    probe = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", "/mnt"]
    try:
        subprocess.run(probe, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a user who may mount")

    def run(*words):
        python = [sys.executable, "-m", "pgcli", *words]
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": "/dev/shm"}
        script = f'{READ_ONLY}; "$@"; code=$?; ls /mnt/out; exit $code'
        return subprocess.run(
            ["unshare", "-rm", "sh", "-c", script, "sh", "/mnt", *python],
            env=variables,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=250,
            check=False,
        )

    return run


@pytest.mark.slow
def test_program_runs_on_a_read_only_file_system_without_home(read_only):
    image = str(ROOT / "examples" / "images" / "one.png")
    run = read_only("caption", image, "-o", "/mnt/out/rows.jsonl")
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["rows.jsonl", "rows.jsonl.pgcli"]
    assert "pgcli: 1 row in /mnt/out/rows.jsonl" in run.stderr
