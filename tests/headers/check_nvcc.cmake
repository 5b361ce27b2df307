# cmake -D NVCC=<nvcc> -D STANDARD=c++17 -D INCLUDES=<flags> -D README=<README.md> -D HEADERS=<a .cu of all headers>
#       -D WORK_DIR=<scratch folder> -P check_nvcc.cmake
# nvcc compiles all public headers together, and each C++ snippet of README.md as a stranger would paste it into a .cu file:
# its #include lines at the top, the rest in a function. Names that a snippet takes from its surroundings, or from an earlier
# snippet, are parameters of that function.

cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})

set(flags -std=${STANDARD} -arch=sm_80 -Werror all-warnings -Xcompiler=-Wall,-Wextra ${INCLUDES})

function(compile what source)
  execute_process(COMMAND ${NVCC} ${flags} ${ARGN} -c ${source} -o ${source}.o
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(SEND_ERROR "${what} does not compile as ${STANDARD} by nvcc:\n${output}")
  endif()
endfunction()

file(COPY ${HEADERS} DESTINATION ${WORK_DIR})
compile("the public headers" ${WORK_DIR}/all_in_one.cu)

# Snippets define names for their readers, not for themselves.
set(preamble [[
#include <cstddef>
#include <cstdio>
#include "cachalot/caching_allocator.h"
static __global__ void kernel(void*) {}
]])
set(parameters "cudaStream_t stream, cachalot::CachingAllocator& allocator, void* p, dim3 grid, dim3 block")

file(READ ${README} text)
set(count 0)
string(FIND "${text}" "```cpp\n" begin)
while(NOT begin EQUAL -1)
  string(SUBSTRING "${text}" ${begin} -1 text)
  string(SUBSTRING "${text}" 7 -1 text)
  string(FIND "${text}" "```" end)
  string(SUBSTRING "${text}" 0 ${end} snippet)
  math(EXPR end "${end} + 3")
  string(SUBSTRING "${text}" ${end} -1 text)
  math(EXPR count "${count} + 1")

  string(REGEX MATCHALL "#include [^\n]*\n" includes "${snippet}")
  string(JOIN "" includes ${includes})
  string(REGEX REPLACE "#include [^\n]*\n" "" body "${snippet}")
  set(source ${WORK_DIR}/readme_${count}.cu)
  if(body MATCHES "int main\\(")
    file(WRITE ${source} "${snippet}")
  else()
    file(WRITE ${source} "${preamble}${includes}void snippet(${parameters}) {\n{\n${body}}\n}\n")
  endif()
  compile("snippet ${count} of README.md, in ${source}," ${source} -Xcompiler=-Wno-unused
    -diag-suppress=declared_but_not_referenced,set_but_not_used)
  string(FIND "${text}" "```cpp\n" begin)
endwhile()
if(count EQUAL 0)
  message(SEND_ERROR "README.md has no C++ snippet: nothing was checked")
endif()
