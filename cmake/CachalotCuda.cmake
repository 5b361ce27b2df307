# Decides whether the parts that call CUDA are built. Sets CACHALOT_HAS_CUDA and CACHALOT_CUDA_SUMMARY.

set(CACHALOT_CUDA AUTO CACHE STRING "Build what needs the CUDA toolkit: AUTO (when found), ON or OFF")
set_property(CACHE CACHALOT_CUDA PROPERTY STRINGS AUTO ON OFF)

set(CACHALOT_HAS_CUDA OFF)
if(CACHALOT_CUDA STREQUAL "AUTO" OR CACHALOT_CUDA STREQUAL "ON")
  find_package(CUDAToolkit QUIET)  # on PATH, in CUDAToolkit_ROOT, and in /usr/local/cuda
  if(TARGET CUDA::cudart)
    set(CACHALOT_HAS_CUDA ON)
  elseif(CACHALOT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CACHALOT_CUDA=ON, but no CUDA toolkit was found: put nvcc on PATH or set CUDAToolkit_ROOT")
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
