# Builds for Arm (GH200, GB200, Jetson) on a machine of another processor, with Debian's cross compiler; qemu-user runs the tests.
# docs/support_matrix.md has the packages. The preset aarch64 names this file.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# Debian's folder of the libraries for Arm, beside those of this machine.
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
# Programs find the dynamic linker and the C library of Debian's architecture arm64 where Arm has them, so that nothing is said about
# their place (qemu's -L): with those of the cross compiler's package, which are often of another date, no thread would start.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
