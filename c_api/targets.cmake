# cachalot::cachalot, libcachalot.so: the C API and nothing else. It has the CUDA kernels for the allocator's guard. The version
# script keeps in what hidden visibility lets out: instantiations of the standard library's templates.
cachalot_files(c_functions c_api c_api.cpp last_error.cpp)  # what libcachalot_torch.so has as well
cachalot_files(c_library c_api environment_allocator.cpp malloc_and_free.cpp)
cachalot_files(c_library_headers c_api/include/cachalot c_api.h c_processes.h c_tags.h)
cachalot_files(version_header allocator/include/cachalot version.h)  # which C programs include as well
if("simulator/device" IN_LIST CACHALOT_ABSENT_WINGS OR "diagnostics" IN_LIST CACHALOT_ABSENT_WINGS)
  message(STATUS "cachalot: libcachalot.so is not built: it needs simulator/device and diagnostics")
  list(APPEND CACHALOT_ABSENT_WINGS c_api)
  return()
endif()

add_library(cachalot SHARED ${c_functions} ${c_library})
add_library(cachalot::cachalot ALIAS cachalot)
set_target_properties(cachalot PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}  # 0.x: each minor version may break
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
cachalot_unity(cachalot)
target_sources(cachalot PUBLIC FILE_SET HEADERS
  BASE_DIRS ${PROJECT_SOURCE_DIR}/c_api/include ${PROJECT_SOURCE_DIR}/allocator/include FILES ${c_library_headers} ${version_header})
target_link_options(cachalot PRIVATE
  ${CACHALOT_SHARED_LINK} -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
target_link_libraries(cachalot PRIVATE $<BUILD_INTERFACE:cachalot_kernels> $<BUILD_INTERFACE:cachalot_layers>)
