# The kernels of cachalot::kernels, and what nvcc compiles, where it is at hand: examples, and programs of tests.
#
# Objects of nvcc are made by commands of our own, so that every target stays one of C++ and CMake need not try the compiler
# out.

set(CACHALOT_CUDA_ARCHITECTURES "75;80;90" CACHE STRING
  "Compute capabilities that nvcc compiles tests and examples for; newer GPUs compile the last themselves; native: this machine's GPU")

set(CACHALOT_HAS_NVCC OFF)
if(CACHALOT_HAS_CUDART AND EXISTS "${CUDAToolkit_NVCC_EXECUTABLE}")
  set(CACHALOT_HAS_NVCC ON)
  string(APPEND CACHALOT_CUDA_SUMMARY "; nvcc's code for ${CACHALOT_CUDA_ARCHITECTURES}")
elseif(CACHALOT_HAS_CUDA)
  string(APPEND CACHALOT_CUDA_SUMMARY "; no nvcc: examples and tests with kernels of their own are not built")
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
  foreach(folder IN ITEMS allocator/include kernels/include adapters/include simulator/device/include allocator .)
    list(APPEND flags -I ${PROJECT_SOURCE_DIR}/${folder})
  endforeach()
  foreach(source IN LISTS ARGN)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
    set(object ${PROJECT_BINARY_DIR}/nvcc/${name}.o)
    cmake_path(GET object PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    get_source_file_property(own_folders ${source} INCLUDE_DIRECTORIES)  # before all others: another CCCL than the toolkit's
    set(own_flags "")
    if(own_folders)
      list(TRANSFORM own_folders PREPEND -I OUTPUT_VARIABLE own_flags)
    endif()
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
      COMMENT "Building CUDA object ${name}.o"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${own_flags} ${flags}
              -MD -MF ${object}.d -c ${source} -o ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    target_sources(${target} PRIVATE ${object})
  endforeach()
endfunction()

# cachalot::kernels. CUDA_SOURCES need cuda.h; without it there are the host twins alone. DEVICE_CODE names the kernels, a file
# of PTX which is text in the library, and the .cu beside it of which it was made. CUDA_HEADERS are for nvcc.
function(cachalot_kernels)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "DEVICE_CODE" "SOURCES;CUDA_SOURCES;HEADERS;CUDA_HEADERS")
  cachalot_static_library(kernels kernels SOURCES ${arg_SOURCES} HEADERS ${arg_HEADERS})
  cachalot_files(cuda_sources kernels ${arg_CUDA_SOURCES})
  cachalot_files(device_code kernels ${arg_DEVICE_CODE}.cu ${arg_DEVICE_CODE}.ptx)
  cachalot_files(cuda_headers kernels/include/cachalot ${arg_CUDA_HEADERS})
  # A file set of its own: Clang checks each header of the other by itself, and these are nvcc's.
  target_sources(cachalot_kernels PUBLIC
    FILE_SET cuda_headers TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/kernels/include FILES ${cuda_headers})
  set_target_properties(cachalot_kernels PROPERTIES INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)
  target_include_directories(cachalot_kernels PRIVATE ${PROJECT_SOURCE_DIR}/allocator ${PROJECT_SOURCE_DIR})
  target_link_libraries(cachalot_kernels PUBLIC cachalot_core)
  cachalot_uses_cuda(cachalot_kernels)
  if(CACHALOT_HAS_CUDA)
    set(ptx ${PROJECT_SOURCE_DIR}/kernels/${arg_DEVICE_CODE}.ptx)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ptx})
    file(READ ${ptx} CACHALOT_DEVICE_CODE)
    set(image ${PROJECT_BINARY_DIR}/kernels/${arg_DEVICE_CODE}_image.cpp)
    configure_file(${PROJECT_SOURCE_DIR}/kernels/${arg_DEVICE_CODE}_image.cpp.in ${image} @ONLY)
    target_sources(cachalot_kernels PRIVATE ${cuda_sources} ${image})
  endif()
  cachalot_device_code(${arg_DEVICE_CODE})
endfunction()

# The Clang that writes device code: $CACHALOT_DEVICE_CLANG, else clang++ on PATH.
find_program(CACHALOT_DEVICE_CLANG NAMES clang++-14 clang++ DOC "Clang that compiles kernels/*.cu to PTX")
mark_as_advanced(CACHALOT_DEVICE_CLANG)

# The target device_code, which is built by name alone, writes kernels/<name>.ptx of kernels/<name>.cu.
function(cachalot_device_code name)
  if(CACHALOT_DEVICE_CLANG AND PROJECT_IS_TOP_LEVEL)
    add_custom_target(device_code VERBATIM
      COMMAND ${CMAKE_COMMAND} -D CLANG=${CACHALOT_DEVICE_CLANG} -D NAME=${name} -D WRITE=ON
              -P ${PROJECT_SOURCE_DIR}/kernels/write_device_code.cmake)
  endif()
endfunction()

# kernels.device_code: the PTX is what its Clang makes of the source. kernels.assembles: the toolkit's assembler takes it for
# every GPU it knows, as a driver would; CACHALOT_PTXAS names further assemblers.
set(CACHALOT_PTXAS "" CACHE STRING "More programs ptxas, of other toolkits, that must take the kernels")
function(cachalot_device_code_tests name)
  add_test(NAME kernels.device_code
    COMMAND ${CMAKE_COMMAND} -D CLANG=${CACHALOT_DEVICE_CLANG} -D NAME=${name}
            -D WORK_DIR=${PROJECT_BINARY_DIR}/kernels -P ${PROJECT_SOURCE_DIR}/kernels/write_device_code.cmake)
  find_program(ptxas ptxas HINTS ${CUDAToolkit_BIN_DIR} NO_CACHE)
  if(NOT ptxas)
    set(ptxas "")
  endif()
  add_test(NAME kernels.assembles
    COMMAND ${CMAKE_COMMAND} "-DPTXAS=${ptxas};${CACHALOT_PTXAS}" -D PTX=${PROJECT_SOURCE_DIR}/kernels/${name}.ptx
            -P ${PROJECT_SOURCE_DIR}/tests/kernels/check_assembles.cmake)
  set_tests_properties(kernels.device_code kernels.assembles PROPERTIES
    LABELS kernels TIMEOUT 300 SKIP_REGULAR_EXPRESSION "skipped: ")
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
#   CCCL_SOURCES  files that need CCCL 3.1 or newer
function(cachalot_cuda_examples)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;CCCL_SOURCES")
  cachalot_files(sources examples ${arg_SOURCES})
  if(NOT CACHALOT_HAS_NVCC OR CACHALOT_SANITIZE)
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
