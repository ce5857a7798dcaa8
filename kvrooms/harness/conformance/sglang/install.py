"""Puts a published SGLang wheel where a driver process can import it, without SGLang's GPU dependencies.

Nothing is installed into the running environment: a cache folder holds, per version, the Python files of the wheel, and
once, the few light packages that its disaggregation modules import and kvrooms does not (ZeroMQ, requests, psutil).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

# Tried together; a range would let tomorrow's release change what the suite reports.
DEPENDENCIES = ("pyzmq==27.1.0", "requests==2.32.5", "psutil==7.1.3")
_PIP_SECONDS = 300


class WheelUnavailableError(RuntimeError):
    """The wheel, or a package that it needs, could not be had; the text says why."""


class Wheel(NamedTuple):
    """An unpacked wheel. package: the folder that holds `sglang/`. dependencies: a folder for the end of `sys.path`."""

    version: str
    package: Path
    dependencies: Path


def cache_folder() -> Path:
    """`kvrooms/` in the user's cache folder: `$XDG_CACHE_HOME`, else `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvrooms"


def prepare(version: str | None, wheel: str | None, cache: Path | None = None) -> Wheel:
    """The wheel of a version from the package registry, or a wheel file, unpacked; downloaded once.

    Raises WheelUnavailableError, and ValueError unless exactly one of the two is given.
    """
    if (version is None) == (wheel is None):
        raise ValueError("give either a version of SGLang or a wheel file")
    folder = cache or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder / "sglang.lock"):
        dependencies = _dependencies(folder)
        if wheel is not None:
            package = _from_file(folder, Path(wheel))
        else:
            assert version is not None
            package = _from_registry(folder, version)
    return Wheel(_version_of(package), package, dependencies)


def _from_registry(folder: Path, version: str) -> Path:
    home = folder / f"sglang-{version}"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _pip("download", "--only-binary", ":all:", "--dest", scratch, f"sglang=={version}")
            _unpack(next(Path(scratch).glob("sglang-*.whl")), home)
    return home


def _from_file(folder: Path, wheel: Path) -> Path:
    if not wheel.is_file():
        raise WheelUnavailableError(f"{wheel} is not a file")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]
    home = folder / f"sglang-wheel-{digest}"
    if not home.exists():
        _unpack(wheel, home)
    return home


def _unpack(wheel: Path, home: Path) -> None:
    """The wheel's Python files and its metadata; complete or not there at all."""
    scratch = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith((".py", ".dist-info/METADATA")):
                    archive.extract(member, scratch)
        if not (scratch / "sglang/srt/disaggregation/nixl/conn.py").is_file():
            raise WheelUnavailableError(f"{wheel.name} holds no sglang.srt.disaggregation.nixl")
        scratch.rename(home)
    except zipfile.BadZipFile as error:
        raise WheelUnavailableError(f"{wheel.name} is not a wheel: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def dependencies_folder(cache: Path) -> Path:
    """Where the packages of `DEPENDENCIES` are put, for this Python and these versions."""
    key = hashlib.sha256(" ".join(DEPENDENCIES).encode()).hexdigest()[:8]
    return cache / f"sglang-needs-{sys.implementation.cache_tag}-{key}"


def _dependencies(folder: Path) -> Path:
    home = dependencies_folder(folder)
    if not home.exists():
        scratch = Path(tempfile.mkdtemp(dir=folder))
        try:
            _pip("install", "--target", str(scratch), *DEPENDENCIES, dependencies=True)
            scratch.rename(home)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return home


def _pip(verb: str, *arguments: str, dependencies: bool = False) -> None:
    extra = () if dependencies else ("--no-deps",)
    command = [sys.executable, "-m", "pip", verb, "--disable-pip-version-check", "--quiet", *extra, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise WheelUnavailableError(f"pip {verb} took longer than {_PIP_SECONDS} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise WheelUnavailableError(f"pip {verb} {' '.join(arguments)} failed: {last}")


def _version_of(package: Path) -> str:
    metadata = next(package.glob("sglang-*.dist-info/METADATA"), None)
    if metadata is None:
        raise WheelUnavailableError(f"{package} holds no metadata of a wheel named sglang")
    return HeaderParser().parsestr(metadata.read_text(encoding="utf-8"))["Version"]


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Two runs at once download once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
