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

# test_<folder> tests these files of an example.
function(cachalot_example_parts folder name)
  cachalot_files(sources examples/${name} ${ARGN})
  if(TARGET test_${folder})
    target_sources(test_${folder} PRIVATE ${sources})
  endif()
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
