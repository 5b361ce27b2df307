"""Looks functions up as pynvml does, one of which does not exist (list_missing.py)."""


def _nvmlGetFunctionPointer(name):  # noqa: N802: pynvml's name
    return name


FUNCTIONS = [_nvmlGetFunctionPointer("nvmlInit_v2"), _nvmlGetFunctionPointer("nvmlNoSuchFunction")]
OWN = "cudnnNobodyDeclaresThis"
