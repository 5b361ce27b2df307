# What nvcc compiles, where the toolkit has one: kernels/ and the examples in CUDA.
#
# Objects are made by commands of our own, so that every target stays one of C++: who links cachalot::kernels needs no
# CUDA language, and CMake need not try the compiler out.

set(CACHALOT_CUDA_ARCHITECTURES "75;80;90" CACHE STRING
  "Compute capabilities that kernels are compiled for; newer GPUs compile the last themselves; native: this machine's GPU")

set(CACHALOT_HAS_NVCC OFF)
if(CACHALOT_HAS_CUDA AND EXISTS "${CUDAToolkit_NVCC_EXECUTABLE}")
  set(CACHALOT_HAS_NVCC ON)
  string(APPEND CACHALOT_CUDA_SUMMARY "; kernels for ${CACHALOT_CUDA_ARCHITECTURES}")
else()
  string(APPEND CACHALOT_CUDA_SUMMARY "; no nvcc: kernels/ has its host twins alone")
endif()

function(cachalot_nvcc_architectures result)
  if(CACHALOT_CUDA_ARCHITECTURES STREQUAL "native")
    set(${result} -arch=native PARENT_SCOPE)
    return()
  endif()
  set(flags "")
  foreach(architecture IN LISTS CACHALOT_CUDA_ARCHITECTURES)
    if(NOT architecture MATCHES "^[0-9]+[af]?$")
      message(FATAL_ERROR "CACHALOT_CUDA_ARCHITECTURES has '${architecture}'; it must be native, or compute capabilities "
        "like 75;80;90")
    endif()
    list(APPEND flags -gencode arch=compute_${architecture},code=sm_${architecture})
    set(newest ${architecture})
  endforeach()
  set(${result} ${flags} -gencode arch=compute_${newest},code=compute_${newest} PARENT_SCOPE)
endfunction()

# Adds the objects of .cu files to a target. Headers it includes are followed; ccache is used where C++ does.
function(cachalot_nvcc target)
  cachalot_nvcc_architectures(architectures)
  set(flags -std=c++20 -O3 -Xcompiler=-fPIC,-Wall,-Wextra ${architectures})
  if(CACHALOT_WERROR)
    list(APPEND flags -Werror all-warnings)
  endif()
  foreach(folder IN ITEMS allocator/include kernels/include allocator .)
    list(APPEND flags -I ${PROJECT_SOURCE_DIR}/${folder})
  endforeach()
  foreach(source IN LISTS ARGN)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    set(object ${PROJECT_BINARY_DIR}/nvcc/${name}.o)
    cmake_path(GET object PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
      COMMENT "Building CUDA object ${name}.o"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${flags}
              -MD -MF ${object}.d -c ${source} -o ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    target_sources(${target} PRIVATE ${object})
  endforeach()
endfunction()

# cachalot::kernels. CUDA_SOURCES and CUDA_HEADERS need nvcc; without it there are the host twins.
function(cachalot_kernels)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;CUDA_SOURCES;HEADERS;CUDA_HEADERS")
  cachalot_static_library(kernels kernels SOURCES ${arg_SOURCES} HEADERS ${arg_HEADERS})
  cachalot_files(cuda_sources kernels ${arg_CUDA_SOURCES})
  cachalot_files(cuda_headers kernels/include/cachalot ${arg_CUDA_HEADERS})
  # A file set of its own: Clang checks each header of the other by itself, and these are nvcc's.
  target_sources(cachalot_kernels PUBLIC
    FILE_SET cuda_headers TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/kernels/include FILES ${cuda_headers})
  set_target_properties(cachalot_kernels PROPERTIES INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)
  target_include_directories(cachalot_kernels PRIVATE ${PROJECT_SOURCE_DIR}/allocator ${PROJECT_SOURCE_DIR})
  target_compile_definitions(cachalot_kernels PRIVATE
    CACHALOT_HAS_CUDA=$<BOOL:${CACHALOT_HAS_CUDA}> CACHALOT_HAS_CUDA_KERNELS=$<BOOL:${CACHALOT_HAS_NVCC}>)
  target_link_libraries(cachalot_kernels PUBLIC cachalot_core)
  if(CACHALOT_HAS_CUDA)
    target_link_libraries(cachalot_kernels PRIVATE CUDA::cudart)
  endif()
  if(CACHALOT_HAS_NVCC)
    cachalot_files_by_language(cpp cu ${cuda_sources})
    target_sources(cachalot_kernels PRIVATE ${cpp})
    cachalot_nvcc(cachalot_kernels ${cu})
  endif()
endfunction()

# Parts files into those of C++ and those of CUDA.
function(cachalot_files_by_language cpp cu)
  set(others ${ARGN})
  set(cuda ${ARGN})
  list(FILTER others EXCLUDE REGEX "\\.cu$")
  list(FILTER cuda INCLUDE REGEX "\\.cu$")
  set(${cpp} ${others} PARENT_SCOPE)
  set(${cu} ${cuda} PARENT_SCOPE)
endfunction()

# As cachalot_examples, of CUDA files. They are tested on the simulated runtime, where kernels compute nothing, and whose
# GPU is one of compute capability 9.0: CUB asks whether its kernels were compiled for it. Under sanitizers, which the
# runtime does not run with, they are not built: CUB takes nvcc twenty seconds.
function(cachalot_cuda_examples)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  cachalot_files(sources examples ${arg_SOURCES})
  if(NOT CACHALOT_HAS_NVCC OR CACHALOT_SANITIZE)
    return()
  endif()
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    add_executable(example_${name})
    cachalot_nvcc(example_${name} ${source})
    set_target_properties(example_${name} PROPERTIES
      LINKER_LANGUAGE CXX OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
    target_link_libraries(example_${name} PRIVATE cachalot::kernels CUDA::cudart cachalot_flags)
    if(CACHALOT_BUILD_TESTS AND CACHALOT_HAS_SIMULATOR AND 90 IN_LIST CACHALOT_CUDA_ARCHITECTURES)
      cachalot_simulated_environment(simulated CACHALOT_SIM_GPU=h100)
      add_test(NAME examples.${name} COMMAND example_${name})
      set_tests_properties(examples.${name} PROPERTIES
        LABELS examples TIMEOUT 120 ENVIRONMENT "${simulated}" ENVIRONMENT_MODIFICATION "CACHALOT_CONF=unset:;CACHALOT_DEBUG=unset:"
        FAIL_REGULAR_EXPRESSION "no GPU here")
    endif()
  endforeach()
endfunction()
