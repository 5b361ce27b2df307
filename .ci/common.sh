# The functions that CI's stages share. A stage sources this file first: it enters the repository, and any command that fails
# ends the stage.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
mkdir -p build

# Random tests run this share of their operations under sanitizers, which are 5 to 15 times slower.
readonly sanitizer_scale=0.1
readonly release=build/release
readonly python_venv=$PWD/build/python-venv

# heading <text>: a title in the log.
heading() { printf '\n==== %s\n' "$1"; }

# arm_installed: Debian's cross compiler, emulator and libraries for Arm.
arm_installed() {
  python_can_make_environments
  [[ ! -e /usr/lib/aarch64-linux-gnu/libfmt.so.9 ]] || return 0
  $([[ $EUID -eq 0 ]] || echo sudo) dpkg --add-architecture arm64
  install no-such-command -- g++-aarch64-linux-gnu qemu-user libfmt-dev:arm64 zlib1g-dev:arm64 libgmock-dev:arm64
}

# discard <path>…: removes what a stage has built and no other uses, so that 9 GB of disk are enough for all stages.
# CACHALOT_CI_KEEP=1 keeps it for another run.
discard() { [[ -n ${CACHALOT_CI_KEEP:-} ]] || rm -rf "$@"; }

# install <command>… -- <package>…: installs Debian's packages, unless all the commands are there.
install() {
  local wanted=() sudo
  while [[ $1 != -- ]]; do
    command -v "$1" >/dev/null || wanted=(yes)
    shift
  done
  shift
  [[ ${#wanted[@]} -gt 0 ]] || return 0
  sudo=$([[ $EUID -eq 0 ]] || echo sudo)
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" >/dev/null
}

# python_can_make_environments: Debian has that part of Python in a package of its own.
python_can_make_environments() { python3 -c 'import ensurepip, venv' 2>/dev/null || install no-venv -- python3-venv; }

# python_with <folder> <argument of pip install>…: makes a virtual environment with packages from PyPI, unless it is there.
# uv takes half of pip's time, where it can be had.
python_with() {
  local folder=$1
  shift
  [[ $(cat "$folder/installed" 2>/dev/null) != "$*" ]] || return 0
  python_can_make_environments
  [[ -x $folder/bin/python ]] || python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check uv &&
    "$folder/bin/uv" pip install --quiet --no-cache --compile-bytecode --python "$folder/bin/python" "$@" ||
    "$folder/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$@"
  echo "$*" >"$folder/installed"
}

# The Python of the tests through PyTorch.
pytorch_installed() { python_with "$python_venv" torch==2.11.0 numpy pytest distributed mypy 'pyright[nodejs]'; }

# release_compiled: builds everything with the release preset. Device code is compiled for one architecture of the three of a
# user's build, since nothing here runs it.
release_compiled() {
  CACHALOT_CMAKE_ARGS="-DCACHALOT_WERROR=ON -DCACHALOT_CUDA_ARCHITECTURES=90 ${CACHALOT_CMAKE_ARGS:-}" ./run build
}

# release_built [<argument of cmake>…]: the same, and configures the tests through Python.
release_built() {
  release_compiled
  pytorch_installed
  cmake -DCACHALOT_PYTHON="$python_venv/bin/python" "$@" $release >/dev/null
}

# test_release <argument of ctest>…: runs some tests of the release preset.
test_release() { ctest --test-dir $release --output-on-failure --no-tests=error --no-label-summary "$@"; }

# sanitized_labels <preset>: the labels of the tests that the sanitizers run at every change, as a regular expression.
sanitized_labels() { sed -n 's/^sanitized=\(.*\)/^(\1)$/p' "build/$1/test-groups.txt"; }

# test_preset <preset> <argument of ctest>…: runs some tests of a sanitizer's preset. GCC 12's ThreadSanitizer does not know the
# memory layouts of kernels with more than 28 bits of address randomization.
test_preset() {
  local preset=$1 fixed_addresses=()
  shift
  if [[ $preset == tsan ]] && setarch -R true 2>/dev/null; then fixed_addresses=(setarch -R); fi
  CACHALOT_TEST_SCALE=$sanitizer_scale "${fixed_addresses[@]}" ctest --preset "$preset" --no-label-summary -j "$(nproc)" "$@"
}

# build_preset <preset> [<argument of cmake --build>…]: without debugging information, which takes a tenth of the compilers' time
# and is for the reader of a report: the preset as it stands has it.
build_preset() {
  local preset=$1
  shift
  ./run packages
  cmake --preset "$preset" -DCMAKE_CXX_FLAGS_DEBUG=-O1 >/dev/null
  cmake --build --preset "$preset" "$@"
}
