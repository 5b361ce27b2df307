# With BUILD_SHARED_LIBS, libcachalot_cpp.so in place of the static libraries: one allocator for all libraries of a process that
# use it. cachalot::core, cachalot::simulated_device, cachalot::diagnostics, cachalot::pool and cachalot::kernels then stand
# for it. It exports what the public headers declare (CACHALOT_BEGIN_API). Programs of this repository, which use what is not exported, link the static libraries as ever.

if(NOT BUILD_SHARED_LIBS)
  return()
endif()
add_library(cachalot_cpp SHARED)
set_target_properties(cachalot_cpp PROPERTIES
  EXPORT_NAME cpp VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LINKER_LANGUAGE CXX
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libcachalot_cpp.map)
target_compile_definitions(cachalot_cpp INTERFACE CACHALOT_SHARED)
target_compile_features(cachalot_cpp INTERFACE cxx_std_17)
target_link_options(cachalot_cpp PRIVATE
  ${CACHALOT_SHARED_LINK} -Wl,-z,defs -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/libcachalot_cpp.map)
target_link_libraries(cachalot_cpp PUBLIC Threads::Threads PRIVATE ${CMAKE_DL_LIBS})
if(CACHALOT_HAS_LIBBACKTRACE)
  target_link_libraries(cachalot_cpp PRIVATE cachalot_backtrace)
endif()
foreach(name IN LISTS CACHALOT_LIBRARIES)
  target_sources(cachalot_cpp PRIVATE $<TARGET_OBJECTS:cachalot_${name}>)
  add_library(cachalot_shared_${name} INTERFACE)
  add_library(cachalot::${name} ALIAS cachalot_shared_${name})
  set_target_properties(cachalot_shared_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(cachalot_shared_${name} INTERFACE cachalot_cpp)
  get_target_property(sets cachalot_${name} HEADER_SETS)
  foreach(set IN LISTS sets)
    get_target_property(folder cachalot_${name} HEADER_DIRS_${set})
    get_target_property(files cachalot_${name} HEADER_SET_${set})
    target_sources(cachalot_shared_${name} INTERFACE FILE_SET ${set} TYPE HEADERS BASE_DIRS ${folder} FILES ${files})
  endforeach()
endforeach()
