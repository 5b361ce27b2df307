"""The environment variables of the process. No other module of the package reads or changes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

_Value = TypeVar("_Value")


def text(variable: str, otherwise: str = "") -> str:
    """Returns the variable's value, or `otherwise` if it is not set."""
    return os.environ.get(variable, otherwise)


def number(variable: str) -> int | None:
    """Returns the value of a variable that a launcher sets, such as RANK; None where it is not a number of decimal digits."""
    value = text(variable)
    return int(value) if value.isascii() and value.isdigit() else None


def switch(variable: str) -> bool | None:
    """Returns whether the variable is 1; None if it is not set or empty. Raises ValueError if it is anything else but 0."""
    return parsed(variable, _switch)


def parsed(variable: str, parse: Callable[[str], _Value], otherwise: str = "", *, in_words: bool = False) -> _Value:
    """Returns parse(value), or parse(otherwise) if the variable is not set or empty.

    Raises:
        ValueError: `parse` did. The message names the variable and its value, and goes on with that of `parse`: the rule. A value
            `in_words` can be long; `parse` names the bad word.
    """
    value = text(variable) or otherwise
    try:
        return parse(value)
    except ValueError as error:
        shown = ":" if in_words else f" is {value!r};"
        raise ValueError(f"environment variable {variable}{shown} {error}") from None


def given(variables: Iterable[str]) -> dict[str, str]:
    """Returns the values of those that are set, empty ones among them, in this order."""
    return {variable: os.environ[variable] for variable in variables if variable in os.environ}


def change(values: Mapping[str, str]) -> None:
    """Sets variables, for C libraries of this process and for its children, too."""
    os.environ.update(values)


def copied(*left_out: str, **otherwise: str) -> dict[str, str]:
    """Returns the environment for a child process, without the variables `left_out`; `otherwise` are values of those not set."""
    return otherwise | {variable: value for variable, value in os.environ.items() if variable not in left_out}


def _switch(value: str) -> bool | None:
    if value not in ("", "0", "1"):
        raise ValueError("it must be 0 or 1")
    return value == "1" if value else None
