# cmake -D NVCC=<nvcc> -D STANDARD=c++17 -D INCLUDES=<flags> -D DOCUMENTS=<README.md,…> -D HEADERS=<a .cu of all headers>
#       -D WORK_DIR=<scratch folder> -P check_nvcc.cmake
# nvcc compiles all public headers together, and the C++ snippets of documents as a .cu file: their #include lines at the top,
# and of each the rest in a function. Names that a snippet takes from its surroundings, or from an earlier snippet, are
# parameters of that function. A snippet that is a program is a file of its own.

cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})

set(flags -std=${STANDARD} -arch=sm_80 -Werror all-warnings -Xcompiler=-Wall,-Wextra ${INCLUDES})

function(compile source)
  execute_process(COMMAND ${NVCC} ${flags} ${ARGN} -c ${source} -o ${source}.o
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(SEND_ERROR "${source} does not compile as ${STANDARD} by nvcc:\n${output}")
  endif()
endfunction()

file(COPY ${HEADERS} DESTINATION ${WORK_DIR})
compile(${WORK_DIR}/all_in_one.cu)

# Snippets define names that their readers go on to use: nvcc's warnings 177 and 550 are of names without a use.
set(unused -diag-suppress=177,550 -Xcompiler=-Wno-unused)
set(includes "#include <cstddef>\n#include <cstdio>\n#include \"cachalot/caching_allocator.h\"\n")
set(functions "static __global__ void kernel(void*) {}\n")
set(parameters "cudaStream_t stream, cachalot::CachingAllocator& allocator, void* p, dim3 grid, dim3 block")

string(REPLACE "," ";" documents ${DOCUMENTS})
set(text "")
foreach(document IN LISTS documents)
  file(READ ${document} part)
  string(APPEND text "${part}")
endforeach()
set(count 0)
string(FIND "${text}" "```cpp\n" begin)
while(NOT begin EQUAL -1)
  math(EXPR begin "${begin} + 7")
  string(SUBSTRING "${text}" ${begin} -1 text)
  string(FIND "${text}" "```" end)
  string(SUBSTRING "${text}" 0 ${end} snippet)
  math(EXPR end "${end} + 3")
  string(SUBSTRING "${text}" ${end} -1 text)
  math(EXPR count "${count} + 1")

  if(snippet MATCHES "int main\\(")
    file(WRITE ${WORK_DIR}/program_${count}.cu "${snippet}")
    compile(${WORK_DIR}/program_${count}.cu ${unused})
  else()
    string(REGEX MATCHALL "#include [^\n]*\n" lines "${snippet}")
    list(JOIN lines "" lines)
    string(APPEND includes "${lines}")
    string(REGEX REPLACE "#include [^\n]*\n" "" body "${snippet}")
    string(APPEND functions "void snippet_${count}(${parameters}) {\n{\n${body}}\n}\n")
  endif()
  string(FIND "${text}" "```cpp\n" begin)
endwhile()
if(count EQUAL 0)
  message(SEND_ERROR "${DOCUMENTS} has no C++ snippet: nothing was checked")
endif()
file(WRITE ${WORK_DIR}/snippets.cu "${includes}${functions}")
compile(${WORK_DIR}/snippets.cu ${unused})
