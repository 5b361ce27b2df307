# Decides what of CUDA is built with. Sets
#   CACHALOT_HAS_CUDA      cuda.h is there: CudaDevice and the kernels are built. They call the driver alone, which they find at
#                          run time, so that nothing of CUDA is linked.
#   CACHALOT_HAS_CUDART    the CUDA runtime is there (CUDA::cudart) and for this processor, for tests, benchmarks and examples that
#                          call it
#   CACHALOT_CUDA_SUMMARY  a line for whoever builds

set(CACHALOT_CUDA AUTO CACHE STRING "Build what needs CUDA's headers: AUTO (when found), ON or OFF")
set_property(CACHE CACHALOT_CUDA PROPERTY STRINGS AUTO ON OFF)

# The folders of headers in the wheels nvidia-cuda-runtime (with others of pyproject.toml) and nvidia-cuda-runtime-cu12, which the
# build of our own wheel brings along.
function(cachalot_cuda_wheels result)
  find_package(Python COMPONENTS Interpreter REQUIRED)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nvidia; print(*nvidia.__path__, sep=';')"
    OUTPUT_VARIABLE folders ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(wheels "")
  foreach(folder IN LISTS folders)
    file(GLOB found ${folder}/cu[0-9]*/include ${folder}/cuda_runtime/include)
    list(APPEND wheels ${found})
  endforeach()
  set(${result} ${wheels} PARENT_SCOPE)
endfunction()

# Sets CACHALOT_CUDA_HEADERS, the folder of cuda.h, and CACHALOT_CUDA_VERSION, or neither.
function(cachalot_find_cuda_headers)
  set(hints ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT hints AND DEFINED SKBUILD)
    cachalot_cuda_wheels(hints)
  endif()
  find_path(headers cudaTypedefs.h HINTS ${hints} /usr/local/cuda/include NO_CACHE)
  if(headers)
    file(STRINGS ${headers}/cuda.h version REGEX "#define CUDA_VERSION +[0-9]+")
    string(REGEX REPLACE ".* ([0-9]+)0([0-9]+)0.*" "\\1.\\2" version "${version}")
    set(CACHALOT_CUDA_HEADERS ${headers} PARENT_SCOPE)
    set(CACHALOT_CUDA_VERSION ${version} PARENT_SCOPE)
  endif()
endfunction()

# Whether a shared library is for the processor that is built for. A toolkit on a machine that cross-compiles is often that of
# the machine itself: its headers serve, its libraries and its nvcc do not. ELF has the processor in the bytes 18 and 19.
function(cachalot_is_for_this_processor result library)
  set(x86_64 3e00)
  set(AMD64 3e00)
  set(aarch64 b700)
  set(arm64 b700)
  file(REAL_PATH "${library}" file)
  file(READ "${file}" processor OFFSET 18 LIMIT 2 HEX)
  set(wanted "${${CMAKE_SYSTEM_PROCESSOR}}")
  if(wanted STREQUAL "" OR processor STREQUAL wanted)
    set(${result} ON PARENT_SCOPE)
  else()
    set(${result} OFF PARENT_SCOPE)
  endif()
endfunction()

set(CACHALOT_HAS_CUDA OFF)
set(CACHALOT_HAS_CUDART OFF)
if(CACHALOT_CUDA STREQUAL "AUTO" OR CACHALOT_CUDA STREQUAL "ON")
  find_package(CUDAToolkit QUIET)  # on PATH, in CUDAToolkit_ROOT, and in /usr/local/cuda
  cachalot_find_cuda_headers()
  if(CACHALOT_CUDA_HEADERS)
    set(CACHALOT_HAS_CUDA ON)
  elseif(CACHALOT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CACHALOT_CUDA=ON, but cuda.h was not found: put nvcc on PATH or set CUDAToolkit_ROOT (a build by pip "
      "also takes the wheel nvidia-cuda-runtime)")
  endif()
  if(CACHALOT_HAS_CUDA AND TARGET CUDA::cudart)
    get_target_property(cudart_file CUDA::cudart IMPORTED_LOCATION)
    cachalot_is_for_this_processor(CACHALOT_HAS_CUDART ${cudart_file})
  endif()
elseif(NOT CACHALOT_CUDA STREQUAL "OFF")
  message(FATAL_ERROR "CACHALOT_CUDA is '${CACHALOT_CUDA}'; it must be AUTO, ON or OFF")
endif()

# CUDA's headers for a target's own files, and CACHALOT_HAS_CUDA.
function(cachalot_uses_cuda target)
  target_compile_definitions(${target} PRIVATE CACHALOT_HAS_CUDA=$<BOOL:${CACHALOT_HAS_CUDA}>)
  if(CACHALOT_HAS_CUDA)
    target_include_directories(${target} SYSTEM PRIVATE ${CACHALOT_CUDA_HEADERS})
  endif()
endfunction()

# Our own programs that call the CUDA runtime themselves link this: the runtime, where it is there, and CACHALOT_HAS_CUDART.
add_library(cachalot_cudart INTERFACE)
target_compile_definitions(cachalot_cudart INTERFACE CACHALOT_HAS_CUDART=$<BOOL:${CACHALOT_HAS_CUDART}>)
if(CACHALOT_HAS_CUDART)
  target_link_libraries(cachalot_cudart INTERFACE CUDA::cudart)
endif()

if(CACHALOT_HAS_CUDA)
  set(CACHALOT_CUDA_SUMMARY "with CUDA ${CACHALOT_CUDA_VERSION}: CudaDevice and the simulated device")
elseif(CACHALOT_CUDA STREQUAL "OFF")
  set(CACHALOT_CUDA_SUMMARY "without CUDA (CACHALOT_CUDA=OFF): CudaDevice and the GPU tests are not built; everything runs on the simulated device")
else()
  set(CACHALOT_CUDA_SUMMARY "without CUDA (no cuda.h found): CudaDevice and the GPU tests are not built; everything runs on the simulated device")
endif()

# ---- What nvcc compiles, where it is at hand: examples, and programs of tests ------------------------------------------
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

# Parts files into those of C++ and those of CUDA.
function(cachalot_files_by_language cpp cu)
  set(others ${ARGN})
  set(cuda ${ARGN})
  list(FILTER others EXCLUDE REGEX "\\.cu$")
  list(FILTER cuda INCLUDE REGEX "\\.cu$")
  set(${cpp} ${others} PARENT_SCOPE)
  set(${cu} ${cuda} PARENT_SCOPE)
endfunction()
