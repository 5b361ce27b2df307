# Tests of the adapters: headers that need another library's. They need the CUDA runtime; what needs more is left out where that
# is missing, aloud. Nothing is downloaded.

set(CACHALOT_TENSORRT_INCLUDE "" CACHE PATH
  "Folder of TensorRT's headers, 10.0 or newer (github.com/NVIDIA/TensorRT has them in include/); empty: the system's")

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

# adapters.cccl_<version>: cub_environment.h compiles with each package of CCCL 3.1 or newer but `used`, which the other tests use, as
# C++17, the least that it needs.
function(cachalot_cccl_tests source used)
  cachalot_cccl_packages(packages)
  list(REMOVE_ITEM packages ${used})
  foreach(place IN LISTS packages)
    cachalot_cccl_version(version ${place})
    if(version LESS 3001000)
      continue()
    endif()
    add_test(NAME adapters.cccl_${version}
      COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++17 -arch=sm_80 -Werror all-warnings -Xcompiler=-Wall,-Wextra -I${place}
              -I${PROJECT_SOURCE_DIR}/allocator/include -I${PROJECT_SOURCE_DIR}/simulator/device/include
              -I${PROJECT_SOURCE_DIR}/adapters/include -c ${source} -o ${PROJECT_BINARY_DIR}/nvcc/cccl_${version}.o)
    set_tests_properties(adapters.cccl_${version} PROPERTIES LABELS adapters TIMEOUT 300)
    cachalot_drawn(adapters.cccl_${version})
  endforeach()
endfunction()

# build/<preset>/tests/test_adapters. Cases with Gpu in their name run on the simulated runtime too, as simulator.adapters.
#   SOURCES        files for any compiler, with the headers of CUDA and CUB
#   CUDA_SOURCES   files that need nvcc
#   CCCL_SOURCES   files that need nvcc and CCCL 3.1 or newer
#   TENSORRT_SOURCES  files that need TensorRT's headers
function(cachalot_adapter_tests)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;CUDA_SOURCES;CCCL_SOURCES;TENSORRT_SOURCES")
  cachalot_files(sources tests/adapters ${arg_SOURCES} ${arg_CUDA_SOURCES} ${arg_CCCL_SOURCES} ${arg_TENSORRT_SOURCES})
  cachalot_find_cub()
  if(NOT CACHALOT_HAS_CUDART OR NOT CACHALOT_CUB_INCLUDE OR CACHALOT_SANITIZE)
    message(STATUS "cachalot: the adapters are not tested: that needs a CUDA toolkit with CUB, and no sanitizers")
    return()
  endif()
  cachalot_test(adapters GPU CUDART SOURCES ${arg_SOURCES} CUDA_SOURCES ${arg_CUDA_SOURCES})
  target_include_directories(test_adapters SYSTEM PRIVATE ${CACHALOT_CUB_INCLUDE})
  # It includes NVTX without its functions.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/adapters/nvtx_tool.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

  cachalot_find_cccl(cccl)
  if(CACHALOT_HAS_NVCC AND cccl)
    cachalot_files(cccl_sources tests/adapters ${arg_CCCL_SOURCES})
    set_source_files_properties(${cccl_sources} PROPERTIES INCLUDE_DIRECTORIES ${cccl})
    cachalot_nvcc(test_adapters ${cccl_sources})
    cachalot_cccl_tests(${PROJECT_SOURCE_DIR}/examples/cub_environment.cu ${cccl})
  else()
    message(STATUS "cachalot: CubEnvironment is not tested: that needs nvcc and CCCL 3.1 or newer (set CACHALOT_CCCL_DIR)")
  endif()

  cachalot_find_tensorrt(tensorrt)
  if(tensorrt)
    cachalot_files(tensorrt_sources tests/adapters ${arg_TENSORRT_SOURCES})
    target_sources(test_adapters PRIVATE ${tensorrt_sources})
    target_include_directories(test_adapters SYSTEM PRIVATE ${tensorrt})
  else()
    message(STATUS "cachalot: TensorRtAllocator is not tested: there are no headers of TensorRT (set CACHALOT_TENSORRT_INCLUDE)")
  endif()

  if(CACHALOT_HAS_SIMULATOR AND 90 IN_LIST CACHALOT_CUDA_ARCHITECTURES)
    cachalot_simulated_environment(environment
      CACHALOT_SIM=gpu:h100,devices:2,latency:none,launch_ns:60000000000)  # work is done when somebody waits, and not before
    add_test(NAME simulator.adapters COMMAND test_adapters --gtest_filter=*Cuda*:*Gpu*)
    set_tests_properties(simulator.adapters PROPERTIES
      ENVIRONMENT "${environment}" ENVIRONMENT_MODIFICATION "CACHALOT_CONF=unset:" RUN_SERIAL ON LABELS adapters TIMEOUT 300)
  endif()
endfunction()

# build/<preset>/examples/<name>, of examples that need TensorRT's headers; each is a test, too.
function(cachalot_tensorrt_examples)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  cachalot_files(sources examples ${arg_SOURCES})
  cachalot_find_tensorrt(tensorrt)
  if(NOT tensorrt OR NOT CACHALOT_HAS_CUDART)
    message(STATUS "cachalot: ${arg_SOURCES} of examples/ is not built: that needs headers of CUDA and of TensorRT (set "
      "CACHALOT_TENSORRT_INCLUDE)")
    return()
  endif()
  cachalot_examples(SOURCES ${arg_SOURCES})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    target_include_directories(example_${name} SYSTEM PRIVATE ${tensorrt} ${CACHALOT_CUDA_HEADERS})
  endforeach()
endfunction()
