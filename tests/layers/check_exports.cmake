# cmake -D NM=<nm> -D LIBRARY=<libcachalot.so> -D HEADER=<c_api.h> -P check_exports.cmake
# libcachalot.so exports every function of the C API and nothing else.

cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${NM} --dynamic --defined-only --format=posix ${LIBRARY} OUTPUT_VARIABLE symbols
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
set(exported "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE " .*" "" symbol "${line}")
  list(APPEND exported ${symbol})
endforeach()

file(READ ${HEADER} header)
string(REGEX MATCHALL "CACHALOT_API [^;(]*[ *](cachalot_[a-z_0-9]+)\\(" declarations "${header}")
set(declared "")
foreach(declaration IN LISTS declarations)
  string(REGEX REPLACE ".*[ *](cachalot_[a-z_0-9]+)\\($" "\\1" function "${declaration}")
  list(APPEND declared ${function})
endforeach()

list(SORT exported)
list(SORT declared)
list(LENGTH declared count)
if(count EQUAL 0)
  message(FATAL_ERROR "no CACHALOT_API function found in ${HEADER}")
endif()
if(NOT exported STREQUAL declared)
  string(JOIN " " exported_text ${exported})
  string(JOIN " " declared_text ${declared})
  message(FATAL_ERROR "exported: ${exported_text}\ndeclared: ${declared_text}")
endif()
message(STATUS "${LIBRARY} exports the ${count} functions of ${HEADER}")
