"""The text of CACHALOT_ON_OOM: what happens before an out-of-memory exception reaches the program."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

VARIABLE = "CACHALOT_ON_OOM"
_MOST_REPORTS = 10
_GRAMMAR = "'report', 'snapshot:DIR' and 'most:N', separated by commas, such as 'report,snapshot:/tmp/oom'"


@dataclasses.dataclass(frozen=True)
class Settings:
    report: bool = False  # print it on stderr
    folder: Path | None = None  # for the report's text and the snapshot
    most: int = _MOST_REPORTS  # failures of the process that are reported


def parse(text: str) -> Settings:
    """Returns the settings. Raises ValueError that names the word and the rule."""
    settings = Settings()
    seen: set[str] = set()
    for word in (part.strip() for part in text.split(",")):
        key, _, value = word.partition(":")
        if key in seen:
            raise ValueError(f"{key!r} occurs twice in {text!r}; give it once")
        seen.add(key)
        settings = _with(settings, word, key, value)
    if not settings.report and settings.folder is None:
        raise ValueError(f"{text!r} asks for nothing; it must contain 'report' or 'snapshot:DIR'")
    return settings


def of_environment() -> Settings | None:
    """Returns what CACHALOT_ON_OOM asks for; None: nothing. Raises ValueError that names the variable."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"environment variable {VARIABLE}: {error}") from None


def _with(settings: Settings, word: str, key: str, value: str) -> Settings:
    if word == "report":
        return dataclasses.replace(settings, report=True)
    if key == "snapshot":
        return dataclasses.replace(settings, folder=_folder(word, value))
    if key == "most":
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise ValueError(f"{word!r}: the number of reports must be 1 or more, such as 'most:{_MOST_REPORTS}'")
        return dataclasses.replace(settings, most=int(value))
    raise ValueError(f"{word!r} is unknown; it must be {_GRAMMAR}")


def _folder(word: str, value: str) -> Path:
    if not value:
        raise ValueError(f"{word!r} names no folder; give one, such as 'snapshot:/tmp/oom'")
    try:
        folder = Path(value).expanduser().absolute()
        is_file = _is_file(folder)
    except (OSError, RuntimeError, ValueError) as error:  # a long name, a home of nobody, a character 0
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ValueError(f"{word[:100]!r} cannot be a folder: {reason}") from None
    if is_file:
        raise ValueError(f"{word!r}: {str(folder)!r} is a file; give a folder, which may be new")
    return folder


def _is_file(path: Path) -> bool:
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return False
