# Examples: build/<preset>/examples/<name>. They are built as a user would build them, with the public headers alone.

if("simulator/device" IN_LIST CACHALOT_ABSENT_WINGS)
  message(STATUS "cachalot: examples/ is not built: it needs simulator/device")
  return()
endif()
enable_language(C)  # for from_c.c, also where the tests are not built

# One program a file: build/<preset>/examples/<file>, built as a user would, with the public headers alone. The ones in C
# use libcachalot.so. Each is also a test: it must run and succeed.
#   ON_BOTH  names of those that are tests on the simulated runtime, too, where they find a CudaDevice
function(cachalot_examples)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;ON_BOTH")
  cachalot_files(sources examples ${arg_SOURCES})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    if(source MATCHES "\\.c$" AND NOT TARGET cachalot)
      continue()
    endif()
    add_executable(example_${name} ${source})
    set_target_properties(example_${name} PROPERTIES
      OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples C_STANDARD 11)
    if(source MATCHES "\\.c$")
      target_link_libraries(example_${name} PRIVATE cachalot::cachalot cachalot_flags)
    else()
      target_link_libraries(example_${name} PRIVATE cachalot::core cachalot::simulated_device cachalot::pool cachalot::kernels cachalot_flags)
    endif()
    if(CACHALOT_BUILD_TESTS)
      add_test(NAME examples.${name} COMMAND example_${name})
      set_tests_properties(examples.${name} PROPERTIES
        LABELS examples TIMEOUT 120 ENVIRONMENT_MODIFICATION "CACHALOT_CONF=unset:;CACHALOT_DEBUG=unset:")
    endif()
    if(CACHALOT_BUILD_TESTS AND CACHALOT_HAS_SIMULATOR AND CACHALOT_HAS_CUDA AND name IN_LIST arg_ON_BOTH)
      cachalot_simulated_environment(simulated CACHALOT_SIM=memory:8GiB)
      add_test(NAME examples.${name}.simulated COMMAND example_${name})
      set_tests_properties(examples.${name}.simulated PROPERTIES
        LABELS examples TIMEOUT 120 ENVIRONMENT "${simulated}" ENVIRONMENT_MODIFICATION "CACHALOT_CONF=unset:;CACHALOT_DEBUG=unset:")
    endif()
  endforeach()
endfunction()

# As cachalot_examples, of CUDA files. They are tested on the simulated runtime, where kernels compute nothing, and whose
# GPU is one of compute capability 9.0: CUB asks whether its kernels were compiled for it. Under sanitizers, which the
# runtime does not run with, they are not built: CUB takes nvcc twenty seconds.
#   CCCL_SOURCES  files that need CCCL 3.1 or newer
function(cachalot_cuda_examples)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;CCCL_SOURCES")
  cachalot_files(sources examples ${arg_SOURCES})
  if(NOT CACHALOT_HAS_NVCC OR CACHALOT_SANITIZE OR "adapters" IN_LIST CACHALOT_ABSENT_WINGS)
    return()
  endif()
  cachalot_find_cccl(cccl)
  if(cccl)
    cachalot_files(cccl_sources examples ${arg_CCCL_SOURCES})
    set_source_files_properties(${cccl_sources} PROPERTIES INCLUDE_DIRECTORIES ${cccl})
    list(APPEND sources ${cccl_sources})
  else()
    message(STATUS "cachalot: ${arg_CCCL_SOURCES} of examples/ is not built: there is no CCCL 3.1 or newer (set CACHALOT_CCCL_DIR)")
  endif()
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    add_executable(example_${name})
    cachalot_nvcc(example_${name} ${source})
    set_target_properties(example_${name} PROPERTIES
      LINKER_LANGUAGE CXX OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
    target_link_libraries(example_${name} PRIVATE cachalot::kernels cachalot_cudart cachalot_flags)
    if(CACHALOT_BUILD_TESTS AND CACHALOT_HAS_SIMULATOR AND 90 IN_LIST CACHALOT_CUDA_ARCHITECTURES)
      cachalot_simulated_environment(simulated CACHALOT_SIM=gpu:h100)
      add_test(NAME examples.${name} COMMAND example_${name})
      set_tests_properties(examples.${name} PROPERTIES
        LABELS examples TIMEOUT 120 ENVIRONMENT "${simulated}" ENVIRONMENT_MODIFICATION "CACHALOT_CONF=unset:;CACHALOT_DEBUG=unset:"
        FAIL_REGULAR_EXPRESSION "no GPU here")
    endif()
  endforeach()
endfunction()

# build/<preset>/examples/<name>, of examples that need TensorRT's headers; each is a test, too.
function(cachalot_tensorrt_examples)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  cachalot_files(sources examples ${arg_SOURCES})
  if(NOT "adapters" IN_LIST CACHALOT_ABSENT_WINGS)
    cachalot_find_tensorrt(tensorrt)
  endif()
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

# The examples in Python, examples/<name>/<name>.py: each is a test, which fails where its own checks do; and their parts.
function(cachalot_python_examples)
  if(NOT CACHALOT_BUILD_TESTS)
    return()
  endif()
  foreach(name IN LISTS ARGN)
    cachalot_python_test(examples.${name} examples 300 ${PROJECT_SOURCE_DIR}/examples/${name}/${name}.py)
    cachalot_drawn(examples.${name})
  endforeach()
  cachalot_python_test(examples.python examples 600 -m pytest -q -p no:cacheprovider ${PROJECT_SOURCE_DIR}/tests/examples)
  cachalot_drawn(examples.python)
endfunction()

# Why nothing of CUDA can be built; empty where it can. CUB takes nvcc twenty seconds, and what runs on the simulated
# runtime does not run under sanitizers.
function(cachalot_example_lacks result)
  set(missing ${ARGN})
  foreach(library IN LISTS ARGN)
    if(TARGET ${library})
      list(REMOVE_ITEM missing ${library})
    endif()
  endforeach()
  set(lacks "")
  if(CACHALOT_SANITIZE)
    set(lacks "sanitizers are on")
  elseif(NOT CACHALOT_HAS_NVCC)
    set(lacks "there is no nvcc")
  elseif(missing)
    set(lacks "there is no ${missing}")
  endif()
  set(${result} "${lacks}" PARENT_SCOPE)
endfunction()

# Examples of several files: build/<preset>/examples/<name>, of the files in examples/<name>. They use the public headers,
# what is in examples/common, fmt and CLI11.
#   SOURCES       files
#   CUDA_SOURCES  files that need nvcc, .cu among them; the program sees CACHALOT_EXAMPLE_HAS_CUDA
#   CUDA_LIBRARIES  what those are linked with; where one is missing it is as if nvcc were
#   NEEDS_CUDA    without nvcc there is no such example, which is said aloud
function(cachalot_example name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NEEDS_CUDA" "" "SOURCES;CUDA_SOURCES;CUDA_LIBRARIES")
  cachalot_files(sources examples/${name} ${arg_SOURCES})
  cachalot_files(cuda_sources examples/${name} ${arg_CUDA_SOURCES})
  cachalot_example_lacks(lacks ${arg_CUDA_LIBRARIES})
  if(lacks AND arg_NEEDS_CUDA)
    message(STATUS "cachalot: the example ${name} is not built: ${lacks}")
    return()
  elseif(lacks)
    message(STATUS "cachalot: the example ${name} is built for the host alone: ${lacks}")
  endif()
  find_package(CLI11 REQUIRED)
  add_executable(example_${name} ${sources})
  set_target_properties(example_${name} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  target_include_directories(example_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(example_${name} PRIVATE
    cachalot::simulated_device cachalot::pool cachalot::kernels cachalot_flags fmt::fmt CLI11::CLI11)
  cachalot_unity(example_${name})
  if(NOT lacks)
    cachalot_files_by_language(cpp cu ${cuda_sources})
    target_sources(example_${name} PRIVATE ${cpp})
    cachalot_nvcc(example_${name} ${cu})
    target_link_libraries(example_${name} PRIVATE cachalot_cudart ${arg_CUDA_LIBRARIES})
  endif()
  set_target_properties(example_${name} PROPERTIES CACHALOT_HOST_ALONE "${lacks}")
  target_compile_definitions(example_${name} PRIVATE CACHALOT_EXAMPLE_HAS_CUDA=$<NOT:$<BOOL:${lacks}>>)
endfunction()

# A run of the example as a test: examples.<test>.
#   ARGUMENTS  of the program
#   SIMULATED  on the simulated runtime, with these settings (CACHALOT_SIM); a test where that is built, and the example with CUDA
function(cachalot_example_test test name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "SIMULATED" "ARGUMENTS")
  if(NOT CACHALOT_BUILD_TESTS OR NOT TARGET example_${name})
    return()
  endif()
  set(environment "")
  if(arg_SIMULATED)
    get_target_property(host_alone example_${name} CACHALOT_HOST_ALONE)
    if(host_alone OR NOT CACHALOT_HAS_SIMULATOR OR NOT 90 IN_LIST CACHALOT_CUDA_ARCHITECTURES)
      return()
    endif()
    cachalot_simulated_environment(environment CACHALOT_SIM=gpu:h100,${arg_SIMULATED})
  endif()
  add_test(NAME examples.${test} COMMAND example_${name} ${arg_ARGUMENTS})
  set_tests_properties(examples.${test} PROPERTIES
    LABELS examples TIMEOUT 120 ENVIRONMENT "${environment}" ENVIRONMENT_MODIFICATION "CACHALOT_CONF=unset:;CACHALOT_DEBUG=unset:"
    FAIL_REGULAR_EXPRESSION "no GPU here")
endfunction()

cachalot_examples(SOURCES fragmentation.cpp free_memory.cpp from_c.c onnxruntime_memory.c owned_memory.cpp tensor_pool.cpp
  ON_BOTH owned_memory tensor_pool)
cachalot_python_examples(
  cleanup gpu_limits gradient_accumulation leak_hunt memory_report mixed_precision oom_report pinned_memory ranks
  saved_tensors serving_limits stage)
cachalot_cuda_examples(SOURCES cub_drop_in.cu cub_scratch.cu memory_resource.cu nvtx.cu thrust_sort.cu CCCL_SOURCES cub_environment.cu)
cachalot_tensorrt_examples(SOURCES tensorrt_memory.cpp)
cachalot_example(async_transfer NEEDS_CUDA
  CUDA_SOURCES async_transfer.cpp batches.cpp break_even.cpp schemes.cpp work.cu)
cachalot_example_test(async_transfer async_transfer
  SIMULATED copies:published,copy_bytes:1GiB)
cachalot_example_test(async_transfer.fixed_copies async_transfer
  ARGUMENTS --mib 1 --steps 5 SIMULATED copy_bytes:0)
cachalot_example(lsm_pricing
  SOURCES host_backend.cpp lsm_pricing.cpp memory.cpp pricer.cpp regression.cpp tree.cpp
  CUDA_SOURCES cuda_backend.cu CUDA_LIBRARIES CUDA::curand)
cachalot_example_test(lsm_pricing lsm_pricing ARGUMENTS --on host)
cachalot_example_test(lsm_pricing.launches lsm_pricing ARGUMENTS --on gpu SIMULATED memory:8GiB)
