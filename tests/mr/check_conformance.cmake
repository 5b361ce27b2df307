# cmake -D COMPILER=<g++> -D STANDARD=17 -D SOURCE=<conformance.cpp> "-D FLAGS=<warnings>" "-D INCLUDES=<flags>"
#       "-D LIBRARIES=<files>" -D SIMULATOR=<libcachalot_simulator.so> -D PROGRAM=<to write> -D CCCL=<include folder>
#       -P check_conformance.cmake
# Compiles the source with a CCCL, with the warnings of users as errors, and runs it over the simulated runtime. The source prints how
# many failures it found.

cmake_minimum_required(VERSION 3.25)

separate_arguments(flags UNIX_COMMAND "${FLAGS}")
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
execute_process(
  COMMAND ${COMPILER} -std=c++${STANDARD} ${flags} ${definitions} -I${CCCL} ${includes} ${SOURCE} ${libraries} -o ${PROGRAM}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "CCCL ${version}, C++${STANDARD}: it does not compile:\n${output}")
endif()

# What the header refuses at compile time, in words: no CCCL, and a CCCL that needs the macro without it.
function(expect_refusal message)
  execute_process(COMMAND ${COMPILER} -std=c++${STANDARD} -fsyntax-only ${ARGN} ${includes} ${SOURCE}
    OUTPUT_QUIET ERROR_VARIABLE output RESULT_VARIABLE result)
  if(result EQUAL 0 OR NOT output MATCHES "${message}")
    message(FATAL_ERROR "CCCL ${version}: it is not refused with '${message}':\n${output}")
  endif()
endfunction()
if(version LESS 3001000)
  expect_refusal("add CCCL's include folder" -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
  expect_refusal("define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE everywhere" -I${CCCL})
endif()

execute_process(
  COMMAND ${CMAKE_COMMAND} -E env LD_PRELOAD=${SIMULATOR} CACHALOT_SIM=gpu:h100 ${PROGRAM}
  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
message(STATUS "${output}")
if(NOT result EQUAL 0 OR NOT output MATCHES "CCCL ${version}, C\\+\\+ [0-9]+: 0 failures")
  message(FATAL_ERROR "CCCL ${version}, C++${STANDARD}: the program ended with ${result}")
endif()
