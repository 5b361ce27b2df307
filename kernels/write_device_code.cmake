# cmake -D CLANG=<clang++> -D NAME=device_code [-D WRITE=ON | -D WORK_DIR=<folder>] -P write_device_code.cmake
#
# Writes NAME.ptx of NAME.cu, or fails where NAME.ptx is not what the same version of Clang makes of it.
#
# The PTX is kept in the repository, so that nobody who builds needs a compiler for it. Clang says in it which PTX it needs,
# 4.0 for compute capability 5.0, and every driver since CUDA 6.0 compiles that for its GPU; nvcc 13 writes PTX 9.0 for 7.5 at
# least, which no driver of CUDA 12 takes.

cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(written ${CMAKE_CURRENT_LIST_DIR}/${NAME}.ptx)
set(flags -x cuda --cuda-device-only --cuda-gpu-arch=sm_50 -nocudainc -nocudalib -S -O3 -std=c++20 -Wall -Wextra -Werror
  -Wno-unknown-cuda-version)  # of a toolkit, which it looks for and does not use

if(NOT CLANG)
  message("skipped: there is no clang++")
  return()
endif()
execute_process(COMMAND ${CLANG} --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "version ([0-9]+\.[0-9]+\.[0-9]+)" version "${version}")
set(version "Clang ${CMAKE_MATCH_1}")
set(heading "// Written by write_device_code.cmake, of ${NAME}.cu, with ${version}.\n")

if(WRITE)
  set(made ${written})
else()
  file(READ ${written} kept)
  if(NOT kept MATCHES " with ${version}\.\n")
    string(REGEX MATCH "Clang [0-9.]*[0-9]" other "${kept}")
    message("skipped: ${NAME}.ptx was written with ${other}, and here is ${version}")
    return()
  endif()
  file(MAKE_DIRECTORY ${WORK_DIR})
  set(made ${WORK_DIR}/${NAME}.ptx)
endif()

execute_process(
  COMMAND ${CLANG} ${flags} -I ${root} -I ${root}/allocator -I ${root}/allocator/include -I ${root}/kernels/include ${NAME}.cu -o ${made}
  WORKING_DIRECTORY ${CMAKE_CURRENT_LIST_DIR} COMMAND_ERROR_IS_FATAL ANY)
file(READ ${made} code)
file(WRITE ${made} "${heading}${code}")

if(NOT WRITE)
  file(READ ${made} code)
  if(NOT code STREQUAL kept)
    message(FATAL_ERROR "${written} is not what ${version} makes of ${NAME}.cu: build the target device_code")
  endif()
  message(STATUS "${written} is what ${version} makes of ${NAME}.cu")
endif()
