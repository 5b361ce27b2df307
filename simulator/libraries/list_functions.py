#!/usr/bin/env python3
"""Lists what the CUDA math libraries export, and where each function hands something back, from their headers.

usage: list_functions.py --headers FOLDER... --libraries FILE... > functions.inc

Only names and positions of arguments come out of it: functions.inc is what the simulator is built from, so that no CUDA
library is needed to build it. Run it again, with newer libraries, when a program finds a function missing.
"""
import argparse
import glob
import re
import subprocess
import sys
import textwrap

LIBRARIES = r"^(cublas|cudnn|cusparse|cusolver|cufft|curand)[A-Z]"
# These are written by hand, in functions.cpp, graph_functions.cpp and recurrent_functions.cpp.
BY_HAND = re.compile(r"^(\w+GetProperty|cublasLtMatmulAlgoGetHeuristic|cublasLtMatmulAlgoGetIds|cudnnGetVersion|"
                     r"cudnnGetCudartVersion|cudnnGetMaxDeviceVersion|cublasLtGetVersion|cublasLtGetCudartVersion|"
                     r"cublas(Lt)?GetStatus(Name|String)|cudnnGetErrorString|cudnnGetLastErrorString|"
                     r"cusparseGetError(Name|String)|cusparseLtGetError(Name|String)|cufftPlan.*|cufftCreate|"
                     r"cublasGetStream_v2|cusolverDnGetStream|cusparseGetStream|cudnnGetStream|"
                     r"cudnn(Create|Destroy)(Tensor|RNNData|RNN)Descriptor|cudnn(Set|Get)TensorNdDescriptor|"
                     r"cudnnSetRNNDataDescriptor|cudnnSetRNNDescriptor_v8|cudnnGetRNNWeight(SpaceSize|Params)|"
                     r"cudnnGetRNNTempSpaceSizes|cudnnGetExecutionPlanWorkspaceSize|"
                     r"cudnnBackend((Create|Destroy)Descriptor|(Set|Get)Attribute|Finalize|Execute)|"
                     r"cublasCreate_v2|cublasLtCreate|cudnnCreate|cusolver(Dn|Sp)Create|cusparseCreate)$")
REAL = re.compile(r"^(const\s+)?(float|double|cuComplex|cuDoubleComplex|cuFloatComplex|cufftReal|half|__half)\s+\w+$")
SIZES = re.compile(r"(lwork|buffersize|workspacesize|sizeinbytes|worksize|workspaceinbytes|spacebytes|_size$|bytes)", re.I)
DEVICE_STATUS = re.compile("^(devInfo|info|d_info|infoArray)$")
VERSION = re.compile(r"version", re.I)
# Letters of types by the macro: floats and doubles, complex ones, both; and solvers that refine what they factorized in a smaller type.
TYPES = {"SDCZ": "SDCZ", "SD": "SD", "CZ": "CZ",
         "REFINED": ("ZZ", "ZC", "ZK", "ZE", "ZY", "CC", "CK", "CE", "CY", "DD", "DS", "DH", "DB", "DX", "SS", "SH", "SB", "SX")}

HEAD = """\
// Made by list_functions.py. FUNCTION(name, …): a function that does nothing, and what it hands back through the
// argument at a position, counted without real numbers. REFUSED(name): one whose answer cannot be made up.
// FUNCTION_64(name, …): name, and name_64, which takes sizes of 64 bits; FUNCTION_V2(name, …): name, name_v2 and name_v2_64.
// SDCZ(macro, library, rest, …): the macro for each letter of a type between library and rest; SD, CZ and REFINED: likewise.
"""


def prototypes(folders):
    text = ""
    for folder in folders:
        for name in ("cublas*.h", "cudnn*.h", "cusparse*.h", "cusolver*.h", "cufft*.h", "curand.h"):
            for path in sorted(glob.glob(f"{folder}/{name}")):
                text += open(path, errors="ignore").read()
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*|^\s*#[^\n]*(\\\n[^\n]*)*", " ", text, flags=re.M)
    found = {}
    for match in re.finditer(r"\b(\w+)\s*\(([^(){};]*)\)\s*;", text):
        found.setdefault(match.group(1), [" ".join(p.split()) for p in match.group(2).split(",")])
    return found


def exported(libraries):
    names = set()
    for library in libraries:
        listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
        names |= {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines() if line.strip()}
    return {name for name in names if re.match(LIBRARIES, name)}


def integer_arguments(parameters):
    """The parameters that travel in integer registers, as real numbers do not."""
    return [p for p in parameters if p and p != "void" and not REAL.match(p)]


def outputs(name, parameters):
    """Returns the function's outputs: (position, kind) for each argument that it writes through."""
    arguments = list(enumerate(integer_arguments(parameters)))
    if "Create" in name or "createDescr" in name or "createPlan" in name or name == "cusparseLtInit":
        for position, parameter in arguments:
            if re.search(r"\*\s*\w+$", parameter) and "const" not in parameter.split("*")[0]:
                return [(position, "Handle")]
    found = []
    writable = [p for _, p in arguments if "*" in p and not p.startswith("const")]
    if "Get" in name and name.startswith(("cublas", "cusolver")):
        found = [(i, "Int") for i, p in arguments if re.match(r"^(cu\w+_t|int)\s*\*\s*\w+$", p)]
    for position, parameter in arguments:
        match = re.match(r"^(size_t|int|int64_t)\s*\*\s*(\w+)$", parameter)
        if not match:
            continue
        if VERSION.search(match.group(2)):
            found.append((position, "Version"))
        elif SIZES.search(match.group(2)) or re.search("[Bb]ufferSize|[Ww]orkspace|SpaceSize", name):
            found.append((position, {"size_t": "Size", "int": "Int", "int64_t": "Size"}[match.group(1)]))
        elif DEVICE_STATUS.match(match.group(2)) and match.group(1) == "int":
            found.append((position, "DeviceInt"))
    if "Get" in name and not found and writable:
        return None
    return found


def without_repetitions(functions):
    """Returns the lines that define the functions, {name: its arguments in the macro's parentheses, or None if it is refused}:
    one for functions that are alike in several generations (name_v2; name_64 with sizes of 64 bits), for several types, or both.
    """
    left = {name: ("REFUSED", ()) if arguments is None else ("FUNCTION", tuple(arguments))
            for name, arguments in functions.items()}
    for suffix, macro, of_other in (("_64", "FUNCTION_64", "FUNCTION"), ("_v2", "FUNCTION_V2", "FUNCTION_64")):
        for name, (kind, arguments) in list(left.items()):
            if kind == "FUNCTION" and left.get(name + suffix) == (of_other, arguments):
                del left[name + suffix]
                left[name] = (macro, arguments)
    lines = {}
    for macro, types in TYPES.items():
        for name in list(left):
            typed = re.fullmatch(rf"(cublas(?:Xt)?|cusparse|cusolver(?:Dn|Sp)?){types[0]}([a-z]\w*)", name)
            same = [typed[1] + type_ + typed[2] for type_ in types] if typed else []
            if name in left and typed and all(left.get(other) == left[name] for other in same):
                kind, arguments = left[name]
                lines[min(same)] = f"{macro}({', '.join([kind, typed[1], typed[2], *arguments])})"
                for other in same:
                    del left[other]
    lines |= {name: f"{kind}({', '.join([name, *arguments])})" for name, (kind, arguments) in left.items()}
    return [line for _, line in sorted(lines.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headers", nargs="+", required=True)
    parser.add_argument("--libraries", nargs="+", required=True)
    options = parser.parse_args()
    known = prototypes(options.headers)
    functions = {}
    for name in sorted(exported(options.libraries)):
        parameters = known.get(name, known.get(re.sub(r"(_v2|_64|_v2_64)$", "", name)))
        if parameters is None or BY_HAND.match(name):
            continue
        handed_back = outputs(name, parameters)
        functions[name] = None if handed_back is None else [f"{kind}<{position}>" for position, kind in handed_back]
    print(HEAD)
    unbreakable = " ".join(entry.replace(" ", "~") for entry in without_repetitions(functions))
    print(textwrap.fill(unbreakable, 120).replace("~", " "))


if __name__ == "__main__":
    main()
