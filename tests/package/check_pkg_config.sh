#!/usr/bin/env bash
# Links programs by hand, by what pkg-config says of an installed cachalot, and runs them.
#
#   tests/package/check_pkg_config.sh PREFIX SCRATCH
#
# With each C++ compiler that is there: g++ and clang++. SCRATCH is a folder for the programs.
set -euo pipefail
prefix=$(readlink -f "$1")
scratch=$2
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
mkdir -p "$scratch"

build_and_run() { # build_and_run <compiler> <program> <argument of pkg-config>…
  local compiler=$1 program=$2 flags
  read -ra flags < <(pkg-config --cflags --libs "${@:3}")
  $compiler "$program" "${flags[@]}" -o "$scratch/by_hand"
  "$scratch/by_hand"
}
build_and_run cc use_c.c cachalot
for compiler in g++ clang++; do
  command -v $compiler >/dev/null || continue
  build_and_run "$compiler -std=c++17" use_cpp.cpp --static cachalot-core cachalot-simulated_device
  build_and_run "$compiler -std=c++17" use_cpp.cpp cachalot-simulated_device  # which names the core
  build_and_run "$compiler -std=c++17" use_pool.cpp --static cachalot-pool cachalot-simulated_device
  build_and_run "$compiler -std=c++17" use_kernels.cpp --static cachalot-kernels cachalot-simulated_device
done
