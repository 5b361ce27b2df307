# bench/gpu: programs that look at a real GPU, which bench/gpu/run builds, runs and reports on. They need nvcc and no library but
# ours, so that they can be built where nothing else is installed.

# Sets `lack` to why the programs cannot be built, or `driver` to the library to link with.
function(cachalot_gpu_checks_lack lack driver)
  find_library(CACHALOT_CUDA_DRIVER cuda
    HINTS ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES stubs DOC "libcuda.so, or the toolkit's stub of it")
  mark_as_advanced(CACHALOT_CUDA_DRIVER)
  set(${lack} "" PARENT_SCOPE)
  set(${driver} "${CACHALOT_CUDA_DRIVER}" PARENT_SCOPE)
  if("simulator/device" IN_LIST CACHALOT_ABSENT_WINGS)
    set(${lack} "it needs simulator/device" PARENT_SCOPE)
  elseif(CACHALOT_SANITIZE)
    set(${lack} "neither a GPU nor the simulated runtime is used under sanitizers" PARENT_SCOPE)
  elseif(NOT CACHALOT_HAS_NVCC)
    set(${lack} "there is no nvcc" PARENT_SCOPE)
  elseif(CUDAToolkit_VERSION VERSION_LESS 13)
    set(${lack} "nvcc is ${CUDAToolkit_VERSION}, and 13 is needed" PARENT_SCOPE)
  elseif(NOT CACHALOT_CUDA_DRIVER)
    set(${lack} "there is no libcuda.so (set CACHALOT_CUDA_DRIVER)" PARENT_SCOPE)
  endif()
endfunction()

# build/<preset>/bench/gpu/<name>, of each of PROGRAMS (<name>.cpp) with the SOURCES and CUDA_SOURCES that all have in common. The
# target gpu_checks builds them all.
function(cachalot_gpu_checks)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "PROGRAMS;SOURCES;CUDA_SOURCES")
  cachalot_files(programs bench/gpu ${arg_PROGRAMS})
  cachalot_files(sources bench/gpu ${arg_SOURCES})
  cachalot_files(cuda_sources bench/gpu ${arg_CUDA_SOURCES})
  cachalot_gpu_checks_lack(lack driver)
  if(lack)
    message(STATUS "cachalot: bench/gpu is not built: ${lack}")
    return()
  endif()
  add_library(cachalot_gpu STATIC EXCLUDE_FROM_ALL ${sources})
  cachalot_nvcc(cachalot_gpu ${cuda_sources})
  # The driver's stub is linked by name, not by path: its folder must not be where a program looks for the driver.
  cmake_path(GET driver PARENT_PATH folder)
  target_link_options(cachalot_gpu INTERFACE -L${folder})
  target_link_libraries(cachalot_gpu PUBLIC cachalot_layers cachalot_cudart cuda ${CMAKE_DL_LIBS})
  add_custom_target(gpu_checks)
  foreach(program IN LISTS programs)
    cmake_path(GET program STEM name)
    add_executable(gpu_${name} ${program})
    set_target_properties(gpu_${name} PROPERTIES
      OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench/gpu)
    target_link_libraries(gpu_${name} PRIVATE cachalot_gpu)
    cachalot_quick_to_build(gpu_${name} WORKS)
    add_dependencies(gpu_checks gpu_${name})
  endforeach()
endfunction()
cachalot_gpu_checks(
  PROGRAMS aliasing.cpp captures.cpp contexts.cpp costs.cpp driver.cpp heap.cpp sharing.cpp sleep.cpp streams.cpp
  SOURCES child.cpp cuda_calls.cpp report.cpp
  CUDA_SOURCES kernels.cu)

# gpu.rehearsal: bench/gpu/run from end to end over the simulated runtime, with what of PyTorch is there. gpu.run: its arguments and
# verdicts.
function(cachalot_gpu_tests test)
  find_program(python python3 NO_CACHE)
  if(NOT CACHALOT_BUILD_TESTS OR NOT python OR CACHALOT_SANITIZE OR CACHALOT_ABSENT_WINGS)
    return()
  endif()
  add_test(NAME gpu.run COMMAND ${python} -B ${PROJECT_SOURCE_DIR}/tests/bench/${test})
  set_tests_properties(gpu.run PROPERTIES LABELS bench TIMEOUT 120)
  if(NOT TARGET gpu_checks OR NOT CACHALOT_HAS_SIMULATOR OR NOT CACHALOT_BUILD_BENCHMARKS OR NOT CACHALOT_BUILD_EXAMPLES OR
     NOT 90 IN_LIST CACHALOT_CUDA_ARCHITECTURES)
    return()
  endif()
  cachalot_python_candidate(with_torch)
  add_test(NAME gpu.rehearsal
    COMMAND ${python} -B ${PROJECT_SOURCE_DIR}/bench/gpu/run --rehearse --build ${PROJECT_BINARY_DIR}
            --out ${PROJECT_BINARY_DIR}/rehearsal)
  set_tests_properties(gpu.rehearsal PROPERTIES
    LABELS bench TIMEOUT 600 COST 900 ENVIRONMENT "CACHALOT_PYTHON=${with_torch}")
  cachalot_drawn(gpu.rehearsal)
endfunction()
cachalot_gpu_tests(test_gpu_run.py)
