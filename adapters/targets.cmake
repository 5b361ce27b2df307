# Headers that adapt other libraries, whose headers their users bring. Nothing is compiled with them but tests, benchmarks and
# examples; what those need of the libraries is found here. Nothing is downloaded.

set(CACHALOT_CCCL_DIR "$ENV{CACHALOT_CCCL_DIR}" CACHE PATH
  "Folder with one folder per package nvidia-cuda-cccl (pip install --target), for the tests mr.* and those of CubEnvironment; empty: the toolkit's CCCL alone")
set(CACHALOT_RMM_DIR "" CACHE PATH
  "Folder with the packages librmm and rapids_logger, for bench/peers and tests/mr; empty: where CACHALOT_PYTHON has them")
set(CACHALOT_RMM_NEWEST_DIR "" CACHE PATH
  "Folder with the packages librmm and rapids_logger of RMM 26, whose headers tests/mr compiles")
set(CACHALOT_TENSORRT_INCLUDE "" CACHE PATH
  "Folder of TensorRT's headers, 10.0 or newer (github.com/NVIDIA/TensorRT has them in include/); empty: the system's")

# A file set of its own, as nobody compiles all of them.
cachalot_files(adapter_headers adapters/include/cachalot
  caching_device_allocator.h cub_environment.h nvtx.h tensorrt.h thrust.h)
target_sources(cachalot_core PUBLIC
  FILE_SET adapter_headers TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/adapters/include FILES ${adapter_headers})
set_target_properties(cachalot_core PROPERTIES INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)

# cachalot::mr, headers alone: the memory resource for CCCL and RMM. Its users need CCCL's headers and the CUDA runtime.
cachalot_files(mr_headers adapters/include/cachalot mr.h resource_calls.h)
add_library(cachalot_mr INTERFACE)
add_library(cachalot::mr ALIAS cachalot_mr)
set_target_properties(cachalot_mr PROPERTIES EXPORT_NAME mr VERIFY_INTERFACE_HEADER_SETS OFF)  # it does not bring CCCL
target_sources(cachalot_mr INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/adapters/include FILES ${mr_headers})
target_link_libraries(cachalot_mr INTERFACE cachalot::core)

# CACHALOT_CUB_INCLUDE, the folder of the toolkit's CUB and CCCL.
function(cachalot_find_cub)
  find_path(CACHALOT_CUB_INCLUDE cub/util_allocator.cuh
    HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES cccl DOC "Folder of CUB's headers")
endfunction()

# The toolkit's CCCL; empty where there is none.
function(cachalot_toolkit_cccl result)
  cachalot_find_cub()
  set(${result} "" PARENT_SCOPE)
  if(EXISTS "${CACHALOT_CUB_INCLUDE}/cuda/memory_resource")
    set(${result} ${CACHALOT_CUB_INCLUDE} PARENT_SCOPE)
  endif()
endfunction()

# The folders of headers in the packages of CACHALOT_CCCL_DIR, the newest first.
function(cachalot_cccl_packages result)
  file(GLOB packages ${CACHALOT_CCCL_DIR}/*/nvidia/cu*/include/cccl)
  list(SORT packages COMPARE NATURAL ORDER DESCENDING)
  set(${result} ${packages} PARENT_SCOPE)
endfunction()

# Sets `result` to the version of the CCCL in a folder as a number, 3001004 for 3.1.4; 0 where there is none.
function(cachalot_cccl_version result place)
  set(${result} 0 PARENT_SCOPE)
  set(header ${place}/cuda/std/__cccl/version.h)
  if(EXISTS ${header})
    file(STRINGS ${header} line REGEX "#define CCCL_VERSION +[0-9]+")
    string(REGEX REPLACE ".* ([0-9]+).*" "\\1" version "${line}")
    set(${result} ${version} PARENT_SCOPE)
  endif()
endfunction()

# Sets `result` to the folder of the newest CCCL, of a package or else of the toolkit, if that is 3.1 or newer; empty otherwise.
function(cachalot_find_cccl result)
  set(${result} "" PARENT_SCOPE)
  cachalot_cccl_packages(packages)
  cachalot_toolkit_cccl(toolkit)
  foreach(place IN LISTS packages toolkit)
    cachalot_cccl_version(version ${place})
    if(version GREATER_EQUAL 3001000)
      set(${result} ${place} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# RMM 25.4, all headers, as cachalot_rmm_includes, cachalot_rmm_library and cachalot_rmm_definitions; otherwise cachalot_rmm_lacks
# says why not. Newer ones have a CUDA runtime of their own inside, which no simulated one can replace.
function(cachalot_find_rmm python)
  foreach(package IN ITEMS librmm rapids_logger)
    if(CACHALOT_RMM_DIR)
      set(${package} ${CACHALOT_RMM_DIR}/${package})
    else()
      cachalot_python_folder(${package} "${python}" ${package})
    endif()
  endforeach()
  set(logger ${rapids_logger}/lib64/librapids_logger.so)
  set(cachalot_rmm_lacks "" PARENT_SCOPE)
  if(NOT EXISTS "${librmm}/include/rmm/mr/device/pool_memory_resource.hpp" OR NOT EXISTS "${logger}")
    set(cachalot_rmm_lacks "no librmm and rapids_logger (set CACHALOT_RMM_DIR or CACHALOT_PYTHON)" PARENT_SCOPE)
    return()
  endif()
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(cachalot_rmm_lacks "its headers do not compile with ${CMAKE_CXX_COMPILER_ID}'s compiler" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS ${librmm}/VERSION version LIMIT_COUNT 1)
  if(NOT version MATCHES "^25\\.0?4\\.")
    set(cachalot_rmm_lacks "librmm is ${version}, not 25.4" PARENT_SCOPE)
    return()
  endif()
  set(rapids ${librmm}/include/rapids)
  set(cachalot_rmm_includes ${librmm}/include ${rapids} ${rapids}/libcudacxx ${rapids_logger}/include PARENT_SCOPE)
  set(cachalot_rmm_library ${logger} PARENT_SCOPE)
  set(cachalot_rmm_definitions LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE PARENT_SCOPE)
endfunction()

# Sets `result` to the folder of TensorRT's headers; empty where there are none.
function(cachalot_find_tensorrt result)
  set(headers headers-NOTFOUND)  # find_path leaves a variable alone that has another value
  find_path(headers NvInferRuntime.h HINTS ${CACHALOT_TENSORRT_INCLUDE} NO_CACHE)
  if(headers)
    set(${result} ${headers} PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()
