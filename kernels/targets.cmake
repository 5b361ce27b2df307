# cachalot::kernels, static: CUDA kernels and their host twins, slots that kernels take, scratch for CUB. The kernels need cuda.h;
# without it there are the host twins alone. device_code.ptx is text in the library, and device_code.cu beside it that
# of which it was made.

cachalot_static_library(kernels kernels
  SOURCES cub_scratch.cpp host_kernels.cpp kernels_for.cpp slot_pool.cpp
  HEADERS cub_scratch.h host_device.h kernels.h one_thread.h slot_pool.h slot_pool_view.h)
cachalot_files(kernel_sources kernels cuda_kernels.cpp)
cachalot_files(device_code kernels device_code.cu device_code.ptx)
cachalot_files(cuda_headers kernels/include/cachalot slot_pool.cuh warp_group.cuh)  # for nvcc
# A file set of its own: Clang checks each header of the other by itself, and these are nvcc's.
target_sources(cachalot_kernels PUBLIC
  FILE_SET cuda_headers TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/kernels/include FILES ${cuda_headers})
set_target_properties(cachalot_kernels PROPERTIES INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)
target_include_directories(cachalot_kernels PRIVATE ${PROJECT_SOURCE_DIR}/allocator ${PROJECT_SOURCE_DIR})
target_link_libraries(cachalot_kernels PUBLIC cachalot_core)
cachalot_uses_cuda(cachalot_kernels)
if(CACHALOT_HAS_CUDA)
  set(ptx ${PROJECT_SOURCE_DIR}/kernels/device_code.ptx)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ptx})
  file(READ ${ptx} CACHALOT_DEVICE_CODE)
  set(image ${PROJECT_BINARY_DIR}/kernels/device_code_image.cpp)
  configure_file(${PROJECT_SOURCE_DIR}/kernels/device_code_image.cpp.in ${image} @ONLY)
  target_sources(cachalot_kernels PRIVATE ${kernel_sources} ${image})
endif()

# The Clang that writes device code: $CACHALOT_DEVICE_CLANG, else clang++ on PATH.
find_program(CACHALOT_DEVICE_CLANG NAMES clang++-14 clang++ DOC "Clang that compiles kernels/*.cu to PTX")
mark_as_advanced(CACHALOT_DEVICE_CLANG)

# The target device_code, which is built by name alone, writes kernels/device_code.ptx of kernels/device_code.cu.
if(CACHALOT_DEVICE_CLANG AND PROJECT_IS_TOP_LEVEL)
  add_custom_target(device_code VERBATIM
    COMMAND ${CMAKE_COMMAND} -D CLANG=${CACHALOT_DEVICE_CLANG} -D NAME=device_code -D WRITE=ON
            -P ${PROJECT_SOURCE_DIR}/kernels/write_device_code.cmake)
endif()
