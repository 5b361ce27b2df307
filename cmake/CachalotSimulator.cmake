# The simulated CUDA runtime: build/<preset>/simulator/libcachalot_simulator.so, and simulator/driver/libcuda.so.1, which is
# the same file under the driver's name.

option(CACHALOT_BUILD_SIMULATOR "Build the simulated CUDA runtime, where CUDA's headers are found" ${PROJECT_IS_TOP_LEVEL})

set(CACHALOT_HAS_SIMULATOR OFF)
if(CACHALOT_BUILD_SIMULATOR AND CACHALOT_SANITIZE)
  message(STATUS "cachalot: the simulator is not built under sanitizers: their runtime must be loaded before any library, "
    "and their shadow memory lies where the simulator reserves addresses")
elseif(CACHALOT_BUILD_SIMULATOR)
  find_path(CACHALOT_CUDA_INCLUDE cuda_runtime_api.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include DOC "Folder of CUDA's headers")
  if(CACHALOT_CUDA_INCLUDE)
    set(CACHALOT_HAS_SIMULATOR ON)
  else()
    message(STATUS "cachalot: the simulator is not built: cuda_runtime_api.h was not found (set CACHALOT_CUDA_INCLUDE)")
  endif()
endif()

function(cachalot_simulator)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  cachalot_files(sources simulator ${arg_SOURCES})
  add_library(cachalot_simulator SHARED ${sources})
  set(map ${PROJECT_SOURCE_DIR}/simulator/exports.map)
  set_target_properties(cachalot_simulator PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/simulator NO_SONAME ON LINK_DEPENDS ${map}
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_include_directories(cachalot_simulator SYSTEM PRIVATE ${CACHALOT_CUDA_INCLUDE})
  target_include_directories(cachalot_simulator PRIVATE
    ${PROJECT_SOURCE_DIR}/simulator/include ${PROJECT_SOURCE_DIR}/allocator/include ${PROJECT_SOURCE_DIR}/allocator
    ${PROJECT_SOURCE_DIR})
  # It is loaded when the program starts, so that thread-local variables need no function call.
  target_compile_options(cachalot_simulator PRIVATE ${CACHALOT_LTO_COMPILE} -ftls-model=initial-exec)
  # As libcuda.so.1 it serves whoever needs the driver. Its own calls stay inside (-Bsymbolic), and it needs no other
  # library of ours.
  target_link_options(cachalot_simulator PRIVATE ${CACHALOT_LTO_LINK}
    -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,--version-script=${map} -static-libstdc++ -static-libgcc)
  # The core by its file: as a target it would bring the real libcudart along.
  add_dependencies(cachalot_simulator cachalot_core)
  target_link_libraries(cachalot_simulator PRIVATE
    $<TARGET_FILE:cachalot_core> cachalot_flags fmt::fmt-header-only nlohmann_json::nlohmann_json Threads::Threads
    ${CMAKE_DL_LIBS})
  add_custom_command(TARGET cachalot_simulator POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/simulator/driver
    COMMAND ${CMAKE_COMMAND} -E create_symlink
      ../$<TARGET_FILE_NAME:cachalot_simulator> ${PROJECT_BINARY_DIR}/simulator/driver/libcuda.so.1)
endfunction()
