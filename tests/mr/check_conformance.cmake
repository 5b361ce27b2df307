# cmake -D COMPILER=<g++> -D STANDARD=17 -D SOURCE=<conformance.cpp> "-D INCLUDES=<flags>" "-D LIBRARIES=<files>"
#       -D SIMULATOR=<libcachalot_simulator.so> -D PROGRAM=<to write> [-D CCCL=<include folder>] -P check_conformance.cmake
# Compiles the source with a CCCL, with the warnings of users as errors, and runs it over the simulated runtime.

cmake_minimum_required(VERSION 3.25)

separate_arguments(includes UNIX_COMMAND "${INCLUDES}")
separate_arguments(libraries UNIX_COMMAND "${LIBRARIES}")
file(STRINGS ${CCCL}/cuda/std/__cccl/version.h line REGEX "#define CCCL_VERSION +[0-9]+")
string(REGEX REPLACE ".* ([0-9]+).*" "\\1" version "${line}")
if(NOT version MATCHES "^[0-9]+$")
  message(FATAL_ERROR "${CCCL} has no CCCL: cuda/std/__cccl/version.h has no version")
endif()
set(definitions "")
if(version LESS 3002000)  # of 3.1 the references alone need it
  set(definitions -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
endif()

cmake_path(GET PROGRAM PARENT_PATH folder)
file(MAKE_DIRECTORY ${folder})
set(warnings -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror)
execute_process(
  COMMAND ${COMPILER} -std=c++${STANDARD} -O0 ${warnings} ${definitions} -I${CCCL} ${includes} ${SOURCE} ${libraries} -o ${PROGRAM}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "CCCL ${version}, C++${STANDARD}: it does not compile:\n${output}")
endif()

# What the header refuses at compile time: this CCCL without its macro.
if(version LESS 3001000)
  execute_process(COMMAND ${COMPILER} -std=c++${STANDARD} -fsyntax-only -I${CCCL} ${includes} ${SOURCE}
    OUTPUT_QUIET ERROR_VARIABLE output RESULT_VARIABLE result)
  if(result EQUAL 0 OR NOT output MATCHES "define it for the whole program")
    message(FATAL_ERROR "CCCL ${version} without the macro is not refused with the rule:\n${output}")
  endif()
endif()

execute_process(
  COMMAND ${CMAKE_COMMAND} -E env LD_PRELOAD=${SIMULATOR} ${PROGRAM}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
message(STATUS "${output}")
if(NOT result EQUAL 0 OR NOT output MATCHES "CCCL ${version}, C\\+\\+ [0-9]+: 0 failures")
  message(FATAL_ERROR "CCCL ${version}, C++${STANDARD}: the program ended with ${result}")
endif()
