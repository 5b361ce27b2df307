#!/usr/bin/env bash
# Tests a wheel as a user gets it: installed into a fresh environment, without compiler, CUDA toolkit and network.
#
#   packaging/test_wheel.sh [WHEEL [PYTHON]]
#
# WHEEL: that of dist/ for this processor unless given. PYTHON: one that has PyTorch, for the part that needs it, and is of the same minor version as
# python3; unless given, or in $CACHALOT_PYTHON, that part is skipped. Its packages are used in place, nothing is installed there.
# $CACHALOT_PYTHONS: further interpreters, for the part that runs with each Python of pyproject.toml; that part also finds
# python3.10, python3.11 and so on on PATH and those of pyenv, and names those that it did not find. uvx and pipx are tried where
# PATH has them.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

wheels=(dist/*_"$(uname -m)".whl)
wheel=$(readlink -f "${1:-${wheels[0]}}")
with_torch=${2:-${CACHALOT_PYTHON:-}}
root=$PWD
scratch=$(mktemp -d "${TMPDIR:-/tmp}/cachalot-wheel-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

passed=0
check() { # check <what> <command…>
  local what=$1
  shift
  if "$@" >"$scratch/out" 2>&1; then
    echo "ok    $what"
    passed=$((passed + 1))
  else
    echo "FAILED $what"
    cat "$scratch/out"
    exit 1
  fi
}
says() { # says <text> <command…>: the command succeeds and says it
  local text=$1
  shift
  "$@" >"$scratch/said" 2>&1 && grep -qF -- "$text" "$scratch/said" || { cat "$scratch/said"; return 1; }
}
refuses() { # refuses <text> <command…>: the command fails and says it
  local text=$1
  shift
  ! "$@" >"$scratch/said" 2>&1 && grep -qF -- "$text" "$scratch/said" || { cat "$scratch/said"; return 1; }
}

python=${with_torch:-python3}
"$python" -m venv "$scratch/venv" 2>/dev/null || python3 -m venv "$scratch/venv"
# What a machine without compilers has on its PATH; no network where the kernel lets us cut it.
mkdir "$scratch/bin"
for tool in env sh cat rm mkdir grep sed uname true; do ln -s "$(command -v $tool)" "$scratch/bin"; done
cut=()
if unshare --net --map-root-user true 2>/dev/null; then cut=(unshare --net --map-root-user); fi
echo "without compilers${cut:+, without network}: $("$scratch/venv/bin/python" --version)"
clean() {
  "${cut[@]}" env -i PATH="$scratch/venv/bin:$scratch/bin" HOME="$scratch/home" LANG=C.UTF-8 "${extra[@]}" "$@"
}
extra=(NOTHING=)
python=$scratch/venv/bin/python
mkdir "$scratch/home"
cd "$scratch"

check "pip install, from the file alone" clean "$python" -m pip install --no-index --quiet "$wheel"
check "no compiler is at hand" clean sh -c '! command -v gcc && ! command -v g++ && ! command -v c++ && ! command -v clang++'

# ---- the command ----
version=$(sed -n 's/^project(cachalot VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
check "cachalot --version" says "$version" clean cachalot --version
check "python -m cachalot --version" says "cachalot $version" clean "$python" -m cachalot --version
check "cachalot.__version__" says "$version" clean "$python" -c 'import cachalot; print(cachalot.__version__)'
check "cachalot replay" says "gpt2_varlen" clean cachalot replay "$root/data/traces/gpt2_varlen.csv.gz"
check "python -m cachalot replay" says "gpt2_varlen" clean "$python" -m cachalot replay "$root/data/traces/gpt2_varlen.csv.gz"
check "cachalot simulate" says "peak" clean cachalot simulate --gpu t4 "$python" "$root/packaging/allocate.py"
for file in bash-completion/completions/cachalot zsh/site-functions/_cachalot fish/vendor_completions.d/cachalot.fish; do
  check "share/$file" grep -q simulate "$scratch/venv/share/$file"
done

# ---- the package, without PyTorch ----
check "enable() without PyTorch says so" refuses "PyTorch cannot be imported" \
  clean "$python" -c 'import cachalot; cachalot.enable()'
check "python -m cachalot run without PyTorch says so" refuses "cachalot: PyTorch cannot be imported" \
  clean "$python" -m cachalot run -c pass
check "import cachalot takes at most 60 ms" clean "$python" - <<'PYTHON'
import subprocess, sys
def milliseconds():
    lines = subprocess.run([sys.executable, "-X", "importtime", "-c", "import cachalot"], capture_output=True, text=True)
    (line,) = [line for line in lines.stderr.splitlines() if line.endswith("| cachalot")]
    return int(line.split("|")[1]) / 1000
best = min(milliseconds() for _ in range(5))
assert best <= 60, f"{best} ms"
PYTHON
check "type information is marked" test -f "$(clean "$python" -c 'import cachalot; print(cachalot.__path__[0])')/py.typed"

# ---- each Python, with nothing but the wheel: as uvx and pipx use it ----
interpreter() { # interpreter <minor version>: prints its path
  local each
  for each in ${CACHALOT_PYTHONS:-} "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if [[ $("$each" -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) == "$1" ]]; then
      command -v "$each"
      return
    fi
  done
  return 1
}
for minor in $(grep -oP 'Programming Language :: Python :: \K3\.\d+' "$root/pyproject.toml"); do
  if ! each=$(interpreter "$minor"); then
    echo "skipped: Python $minor (not found)"
    continue
  fi
  rm -rf "$scratch/bare"
  "$each" -m venv "$scratch/bare"
  bare=$scratch/bare/bin
  check "$("$bare/python" --version): pip install --no-deps" clean "$bare/python" -m pip install --no-index --no-deps --quiet "$wheel"
  check "$minor: the package has nothing that this Python warns of" clean "$bare/python" -W error - <<'PYTHON'
import compileall, importlib, pkgutil
import cachalot
assert compileall.compile_dir(cachalot.__path__[0], quiet=1, force=True)
for module in pkgutil.walk_packages(cachalot.__path__, "cachalot."):
    try:
        importlib.import_module(module.name)
    except cachalot.EnableError as error:  # of a library that is not here
        assert "Install it" in str(error), error
    except ModuleNotFoundError as error:
        assert error.name in ("torch", "pytest"), error
PYTHON
  check "$minor: vLLM finds the backend of its sleep mode" says "register" clean "$bare/python" - <<'PYTHON'
from importlib.metadata import entry_points
print([found.load().__name__ for found in entry_points(group="vllm.general_plugins") if found.name == "cachalot"])
PYTHON
  check "$minor: cachalot --help" says "simulate" clean "$bare/cachalot" --help
  check "$minor: cachalot explain" says "layers.pickle" clean "$bare/cachalot" explain "$root/data/snapshots/layers.pickle"
  check "$minor: cachalot compare" says "the page heap" clean "$bare/cachalot" compare "$root/data/traces/lsm.csv.gz"
  check "$minor: python -m cachalot explain" says "layers.pickle" \
    clean "$bare/python" -W error -m cachalot explain "$root/data/snapshots/layers.pickle"
  check "$minor: cachalot simulate" says "peak" clean "$bare/cachalot" simulate --gpu t4 "$bare/python" "$root/packaging/allocate.py"
  check "$minor: enable() without PyTorch says so" refuses "PyTorch cannot be imported" \
    clean "$bare/python" -W error -c 'import cachalot; cachalot.enable()'
done

# ---- tried without installing it: the command answers in ten seconds, in a fresh environment without PyTorch ----
at_most_ten_seconds() { # at_most_ten_seconds <command…>: the command explains a snapshot; says how long it took
  local began=${EPOCHREALTIME//[!0-9]/} took
  says "layers.pickle" clean "$@" cachalot explain "$root/data/snapshots/layers.pickle"
  took=$(((${EPOCHREALTIME//[!0-9]/} - began) / 1000))
  echo "$took" >"$scratch/took"
  [[ $took -le 10000 ]]
}
uvx=$(command -v uvx || true)
pipx=$(command -v pipx || true)
base=$("$python" -c 'import sys; print(sys.base_prefix)')/bin/python3
try_once() { # try_once <name> <command…>
  check "$1: an answer within ten seconds" at_most_ten_seconds "${@:2}"
  echo "      $(($(cat "$scratch/took"))) ms, with the installation"
}
if [[ -n $uvx ]]; then try_once "uvx --from WHEEL" "$uvx" --offline --python "$base" --from "$wheel"; else echo "skipped: uvx (not on PATH)"; fi
if [[ -n $pipx ]]; then
  extra=(PIP_NO_INDEX=1)
  try_once "pipx run --spec WHEEL" "$pipx" run --python "$base" --spec "$wheel"
  extra=(NOTHING=)
else
  echo "skipped: pipx (not on PATH)"
fi

# ---- with PyTorch, on the simulated GPU ----
if [[ -z $with_torch ]]; then
  echo "skipped: the part with PyTorch (no PYTHON was given)"
else
  packages=$("$with_torch" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])')
  echo "$packages" >"$(clean "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_elsewhere.pth"
  simulator=$scratch/venv/lib/cachalot/simulator/libcachalot_simulator.so
  extra=(LD_PRELOAD="$simulator" CACHALOT_SIM=devices:2,memory:8GiB)
  code="import cachalot, torch; cachalot.enable(); x = torch.ones(3 << 20, device='cuda'); print(cachalot.enabled_mode())"
  check "enable() takes the ready adapter" says "full" clean "$python" -c "$code"
  check "nothing was compiled" test ! -e "$scratch/home/.cache/cachalot"
  check "on the page heap" says "full" clean env CACHALOT_CONF=heap:pages "$python" -c "$code"
  check "a line at the end" says "cachalot: peak reserved" clean "$python" -m cachalot run "$root/packaging/smoke.py"
  check "a script on a simulated T4" says "peak reserved" \
    env -u LD_PRELOAD "${cut[@]}" env -i PATH="$scratch/venv/bin:$scratch/bin" HOME="$scratch/home" \
    cachalot simulate --gpu t4 "$python" -m cachalot run "$root/packaging/smoke.py"
fi
echo "$passed passed, 0 failed"
