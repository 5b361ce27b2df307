# cmake -D COMPILER=<C++ compiler> -D INCLUDES=<flags> -D HEADERS=<file, a header a line> -P check_cpp14.cmake
# In C++14, each public header's first error says that cachalot needs C++17. The preprocessor says it: nothing need be compiled.

cmake_minimum_required(VERSION 3.25)
file(STRINGS ${HEADERS} headers)
foreach(header IN LISTS headers)
  if(header MATCHES "/version\\.h$")  # for C, too, and for any C++
    continue()
  endif()
  execute_process(COMMAND ${COMPILER} -std=c++14 -E ${INCLUDES} -x c++ -include ${header} /dev/null
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(result EQUAL 0)
    message(SEND_ERROR "${header} compiles as C++14: it does not include cachalot/require_cpp17.h")
  elseif(NOT output MATCHES "error: [^\n]*cachalot needs C\\+\\+17 or newer")
    message(SEND_ERROR "${header}, as C++14, does not say what it needs:\n${output}")
  endif()
endforeach()
