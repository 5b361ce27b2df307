#!/usr/bin/env python3
"""Lists the driver's functions by the name a program asks for, from CUDA's headers: from which version of CUDA on which symbol.

usage: list_entry_points.py FOLDER_OF_HEADERS > entry_points.inc

A function whose signature changed has several forms: cuCtxCreate, cuCtxCreate_v2, …, each a symbol of its own. cudaTypedefs.h has
a type for each form, PFN_cuCtxCreate_v2000, _v3020, …, by the version of CUDA that introduced it. Only names and versions come
out of it.
"""
import collections
import glob
import re
import sys
import textwrap

TYPE = re.compile(r"\*PFN_(cu\w+?)_v(\d{4,5})\)")
# The forms for programs that are compiled with a default stream for each thread.
PER_THREAD_TYPE = re.compile(r"\*PFN_(cu\w+?)_v(\d{4,5})(_pt[ds][sz])\)")

HEAD = """\
// Made by list_entry_points.py. FORMS(name, version, …): from the first version of CUDA on, `name` means the symbol of that name,
// from the second one on name_v2, and so on. FORM(name, version, symbol): from this version on it means `symbol`.
// PER_THREAD(symbol, suffix): programs that have a default stream for each thread mean the symbol with this suffix.
"""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    forms = collections.defaultdict(set)
    per_thread = set()
    for path in glob.glob(f"{sys.argv[1]}/cuda*Typedefs.h"):
        with open(path, encoding="utf-8") as header:
            text = header.read()
        for name, version in TYPE.findall(text):
            forms[name].add(int(version))
        per_thread |= {(name, int(version), suffix) for name, version, suffix in PER_THREAD_TYPE.findall(text)}
    if len(forms) < 100:
        sys.exit(f"list_entry_points.py: only {len(forms)} functions in {sys.argv[1]}: nothing is written")
    entries = []
    for name in sorted(forms):
        entries.append(f"FORMS({name}, {', '.join(map(str, sorted(forms[name])))})")
        if name == "cuGraphInstantiate":  # a macro of cuda.h since CUDA 12
            entries.append("FORM(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags)")
    for name, version, suffix in sorted(per_thread):
        form = sum(other <= version for other in forms[name])
        entries.append(f"PER_THREAD({name}{f'_v{form}' if form > 1 else ''}, {suffix})")
    print(HEAD)
    unbreakable = " ".join(entry.replace(" ", "~") for entry in entries)
    print(textwrap.fill(unbreakable, 120).replace("~", " "))


if __name__ == "__main__":
    main()
