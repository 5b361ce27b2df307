# cmake -D NM=<nm> -D SIMULATOR=<libcachalot_simulator.so> -D CUDART=<libcudart.so> -D SOURCES=<the project>
#       -P check_exports.cmake
# The simulator defines every function that the CUDA runtime exports, this toolkit's and those of exports/libcudart12.txt and
# exports/libcudart13.txt; every function of the driver in simulator/driver/entry_points.inc; both meanings of the names of
# simulator/runtime/cuda12_names.inc, and no third; and exports nothing else.

cmake_minimum_required(VERSION 3.25)

# The names that nm prints: "cudaMalloc", "cudaMemAdvise@libcudart.so.12", "cudaMemAdvise@@libcudart.so.13".
function(exported_symbols library result)
  execute_process(COMMAND ${NM} --dynamic --defined-only --format=posix ${library} OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  set(names "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^([A-Za-z0-9_]+(@+[^ ]+)?) [TWi] ")
      list(APPEND names ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${result} "${names}" PARENT_SCOPE)
endfunction()

function(without_versions result)
  list(TRANSFORM ARGN REPLACE "@.*" "")
  list(REMOVE_DUPLICATES ARGN)
  set(${result} "${ARGN}" PARENT_SCOPE)
endfunction()

# Fails unless `defined` has all of the names, of which there must be at least `least`.
function(require_defined origin least)
  list(LENGTH ARGN count)
  if(count LESS least)
    message(FATAL_ERROR "only ${count} functions found in ${origin}: nothing was checked")
  endif()
  set(missing ${ARGN})
  list(REMOVE_ITEM missing ${defined})
  if(missing)
    string(JOIN " " text ${missing})
    message(FATAL_ERROR "${origin} has what the simulator lacks: ${text}")
  endif()
  message(STATUS "all ${count} functions of ${origin} are defined")
endfunction()

# Fails unless the two lists have the same names.
function(require_same what expected actual)
  list(SORT expected)
  list(SORT actual)
  if(NOT expected STREQUAL actual)
    message(FATAL_ERROR "${what}: ${actual}; they should be ${expected}")
  endif()
endfunction()

exported_symbols(${SIMULATOR} symbols)
without_versions(defined ${symbols})

exported_symbols(${CUDART} toolkit)
without_versions(toolkit ${toolkit})
require_defined(${CUDART} 100 ${toolkit})
foreach(list IN ITEMS libcudart12.txt libcudart13.txt)
  file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/exports/${list} names REGEX "^[^#]")
  require_defined(${list} 400 ${names})
endforeach()

file(STRINGS ${SOURCES}/simulator/driver/entry_points.inc lines REGEX "^(FORM|PER_THREAD)")
string(REGEX MATCHALL "(FORMS?|PER_THREAD)\\([^)]*\\)" entries "${lines}")
set(forms "")
foreach(line IN LISTS entries)
  if(line MATCHES "^FORM\\(.*, (.*)\\)$")
    list(APPEND forms ${CMAKE_MATCH_1})
    continue()
  elseif(line MATCHES "^PER_THREAD\\((.*), (.*)\\)$")
    list(APPEND forms ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
    continue()
  endif()
  string(REGEX MATCHALL "[A-Za-z0-9]+" versions "${line}")
  list(POP_FRONT versions macro name)
  list(APPEND forms ${name})
  list(LENGTH versions count)
  foreach(form RANGE 2 ${count})
    if(count GREATER 1)
      list(APPEND forms ${name}_v${form})
    endif()
  endforeach()
endforeach()
require_defined(entry_points.inc 600 ${forms})

file(STRINGS ${SOURCES}/simulator/runtime/cuda12_names.inc lines REGEX "^NAME")
list(TRANSFORM lines REPLACE "NAME\\((.*)\\)" "\\1" OUTPUT_VARIABLE twofold)
foreach(version IN ITEMS @libcudart.so.12 @@libcudart.so.13)
  set(versioned ${symbols})
  list(FILTER versioned INCLUDE REGEX "[^@]${version}$")
  without_versions(versioned ${versioned})
  require_same("names with the version ${version}" "${twofold}" "${versioned}")
endforeach()
list(TRANSFORM twofold PREPEND cudart12_ OUTPUT_VARIABLE expected)
set(renamed ${defined})
list(FILTER renamed INCLUDE REGEX "^cudart12_")
require_same("names of CUDA 12's meanings" "${expected}" "${renamed}")

# Each function of NCCL has a second name.
set(nccl ${defined})
list(FILTER nccl INCLUDE REGEX "^nccl")
list(TRANSFORM nccl PREPEND p)
require_defined("NCCL under its second names" 60 ${nccl})

# Of PyTorch, those of pytorch_memory.cpp alone.
set(pytorch ${defined})
list(FILTER pytorch INCLUDE REGEX "^_Z")
require_same("PyTorch's functions"
  "_ZN3c1022memoryProfilingEnabledEv;_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE" "${pytorch}")

foreach(name IN LISTS defined)
  if(NOT name MATCHES "^(cu|__cuda|p?nccl[A-Z]|nvml[A-Z]|cachalot_sim_|_ZN3c10)|^(dlm?open|dlsym|_exit|_Exit|kill|killpg)$")
    message(FATAL_ERROR "the simulator exports ${name}")
  endif()
endforeach()
