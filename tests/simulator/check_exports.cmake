# cmake -D NM=<nm> -D SIMULATOR=<libcachalot_simulator.so> -D CUDART=<libcudart.so> -P check_exports.cmake
# The simulator defines every function that the CUDA runtime exports, and lists nothing else as not simulated.

cmake_minimum_required(VERSION 3.25)

function(exported_symbols library result)
  execute_process(COMMAND ${NM} --dynamic --defined-only --format=posix ${library} OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  set(names "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^([A-Za-z0-9_]+)[^ ]* [TWi] ")
      list(APPEND names ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${result} "${names}" PARENT_SCOPE)
endfunction()

exported_symbols(${CUDART} wanted)
exported_symbols(${SIMULATOR} defined)
list(LENGTH wanted count)
if(count LESS 100)
  message(FATAL_ERROR "only ${count} functions found in ${CUDART}: nothing was checked")
endif()
set(missing ${wanted})
list(REMOVE_ITEM missing ${defined})
if(missing)
  string(JOIN " " text ${missing})
  message(FATAL_ERROR "${CUDART} exports what the simulator lacks: ${text}")
endif()

foreach(name IN LISTS defined)
  if(NOT name MATCHES "^(cu|__cuda|cachalot_sim_)")
    message(FATAL_ERROR "the simulator exports ${name}")
  endif()
endforeach()
message(STATUS "all ${count} functions of ${CUDART} are defined")
