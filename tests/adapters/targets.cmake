# build/<preset>/tests/test_adapters. Cases with Gpu in their name run on the simulated runtime too, as simulator.adapters. They need
# the CUDA runtime; what needs more is left out where that is missing, aloud.

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

function(cachalot_adapter_tests)
  set(sources caching_device_allocator_test.cpp cub_comparison_test.cpp nvtx_test.cpp nvtx_tool.cpp)
  cachalot_files(listed tests/adapters ${sources})
  cachalot_files(cccl_sources tests/adapters cub_environment_test.cu)  # need nvcc and CCCL 3.1 or newer
  cachalot_files(tensorrt_sources tests/adapters tensorrt_test.cpp)    # need TensorRT's headers
  if("adapters" IN_LIST CACHALOT_ABSENT_WINGS OR "simulator/device" IN_LIST CACHALOT_ABSENT_WINGS)
    return()
  endif()
  cachalot_find_cub()
  if(NOT CACHALOT_HAS_CUDART OR NOT CACHALOT_CUB_INCLUDE OR CACHALOT_SANITIZE)
    message(STATUS "cachalot: the adapters are not tested: that needs a CUDA toolkit with CUB, and no sanitizers")
    return()
  endif()
  cachalot_test(adapters GPU CUDART SOURCES ${sources} CUDA_SOURCES thrust_test.cu)
  target_include_directories(test_adapters SYSTEM PRIVATE ${CACHALOT_CUB_INCLUDE})
  # It includes NVTX without its functions.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/adapters/nvtx_tool.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

  cachalot_find_cccl(cccl)
  if(CACHALOT_HAS_NVCC AND cccl)
    set_source_files_properties(${cccl_sources} PROPERTIES INCLUDE_DIRECTORIES ${cccl})
    cachalot_nvcc(test_adapters ${cccl_sources})
    cachalot_cccl_tests(${PROJECT_SOURCE_DIR}/examples/cub_environment.cu ${cccl})
  else()
    message(STATUS "cachalot: CubEnvironment is not tested: that needs nvcc and CCCL 3.1 or newer (set CACHALOT_CCCL_DIR)")
  endif()

  cachalot_find_tensorrt(tensorrt)
  if(tensorrt)
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
cachalot_adapter_tests()
