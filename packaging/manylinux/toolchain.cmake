# Links with the libraries that old_libraries.py has written: CACHALOT_OLD_LIBRARIES is their folder.
#
# The compiler, its headers and its archives stay this machine's; with CACHALOT_CROSS_TOOLCHAIN, those of a toolchain file for another
# processor (cmake/aarch64-linux-gnu.cmake). GCC's own flags: -B has it take start files and libraries from the folder first.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CACHALOT_OLD_LIBRARIES CACHALOT_CROSS_TOOLCHAIN)
if(CACHALOT_CROSS_TOOLCHAIN)
  include(${CACHALOT_CROSS_TOOLCHAIN})
endif()
if(NOT EXISTS "${CACHALOT_OLD_LIBRARIES}/libc.so.6")
  message(FATAL_ERROR "CACHALOT_OLD_LIBRARIES is '${CACHALOT_OLD_LIBRARIES}'; it must be a folder that "
    "packaging/manylinux/old_libraries.py has written")
endif()
set(old "-B${CACHALOT_OLD_LIBRARIES} -L${CACHALOT_OLD_LIBRARIES} -Wl,--exclude-libs,libcompat.a:libcompat_cxx.a")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${old}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${old} -Wl,-z,defs")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${old} -Wl,-z,defs")
