# pyright: strict
"""A mistake that each type checker must find."""


def size_of(name: str) -> int:
    return name
