# Decides whether the parts that call CUDA are built. Sets CACHALOT_HAS_CUDA and CACHALOT_CUDA_SUMMARY.

set(CACHALOT_CUDA AUTO CACHE STRING "Build what needs the CUDA toolkit: AUTO (when found), ON or OFF")
set_property(CACHE CACHALOT_CUDA PROPERTY STRINGS AUTO ON OFF)

# CUDA::cudart from the wheel nvidia-cuda-runtime, which the build of our own wheel brings along: headers and library are
# all it takes.
function(cachalot_find_cuda_wheel)
  find_package(Python COMPONENTS Interpreter REQUIRED)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import nvidia; print(*nvidia.__path__, sep=';')"
    OUTPUT_VARIABLE folders ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(GLOB wheels ${folders}/cu[0-9]*)
  find_path(CACHALOT_CUDART_INCLUDE cuda_runtime_api.h HINTS ${wheels} PATH_SUFFIXES include NO_CACHE NO_DEFAULT_PATH)
  file(GLOB library ${CACHALOT_CUDART_INCLUDE}/../lib/libcudart.so.*)
  if(library)
    add_library(CUDA::cudart SHARED IMPORTED GLOBAL)
    set_target_properties(CUDA::cudart PROPERTIES
      IMPORTED_LOCATION ${library} INTERFACE_INCLUDE_DIRECTORIES ${CACHALOT_CUDART_INCLUDE})
    file(STRINGS ${CACHALOT_CUDART_INCLUDE}/cuda_runtime_api.h version REGEX "#define CUDART_VERSION +[0-9]+")
    string(REGEX REPLACE ".* ([0-9]+)0([0-9]+)0" "\\1.\\2" version "${version}")
    set(CUDAToolkit_VERSION ${version} PARENT_SCOPE)
  endif()
endfunction()

set(CACHALOT_HAS_CUDA OFF)
if(CACHALOT_CUDA STREQUAL "AUTO" OR CACHALOT_CUDA STREQUAL "ON")
  find_package(CUDAToolkit QUIET)  # on PATH, in CUDAToolkit_ROOT, and in /usr/local/cuda
  if(NOT TARGET CUDA::cudart AND DEFINED SKBUILD)
    cachalot_find_cuda_wheel()
  endif()
  if(TARGET CUDA::cudart)
    set(CACHALOT_HAS_CUDA ON)
  elseif(CACHALOT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CACHALOT_CUDA=ON, but no CUDA toolkit was found: put nvcc on PATH or set CUDAToolkit_ROOT (a build by "
      "pip also takes the wheel nvidia-cuda-runtime)")
  endif()
elseif(NOT CACHALOT_CUDA STREQUAL "OFF")
  message(FATAL_ERROR "CACHALOT_CUDA is '${CACHALOT_CUDA}'; it must be AUTO, ON or OFF")
endif()

if(CACHALOT_HAS_CUDA)
  set(CACHALOT_CUDA_SUMMARY "with CUDA ${CUDAToolkit_VERSION}: CudaDevice and the simulated device")
elseif(CACHALOT_CUDA STREQUAL "OFF")
  set(CACHALOT_CUDA_SUMMARY "without CUDA (CACHALOT_CUDA=OFF): CudaDevice and the GPU tests are not built; everything runs on the simulated device")
else()
  set(CACHALOT_CUDA_SUMMARY "without CUDA (no toolkit found): CudaDevice and the GPU tests are not built; everything runs on the simulated device")
endif()
