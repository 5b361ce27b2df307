# The simulated CUDA runtime: build/<preset>/simulator/libcachalot_simulator.so; simulator/driver/libcuda.so.1, which is the same
# file under the driver's name; and simulator/cudart, which programs get that load libcudart by name.

option(CACHALOT_BUILD_SIMULATOR "Build the simulated CUDA runtime, where CUDA's headers are found" ${PROJECT_IS_TOP_LEVEL})

set(CACHALOT_HAS_SIMULATOR OFF)
if(CACHALOT_BUILD_SIMULATOR AND CACHALOT_SANITIZE)
  message(STATUS "cachalot: the simulator is not built under sanitizers: their runtime must be loaded before any library, "
    "and their shadow memory lies where the simulator reserves addresses")
elseif(CACHALOT_BUILD_SIMULATOR)
  set(wheels "")
  set(kind STATUS)
  set(without "")
  if(DEFINED SKBUILD)  # who installs the package expects it
    cachalot_cuda_wheels(wheels)
    set(kind FATAL_ERROR)
    set(without "; to do without: pip install . -C cmake.define.CACHALOT_BUILD_SIMULATOR=OFF")
  endif()
  # The one of the headers that needs a package of its own where they come from wheels.
  find_path(CACHALOT_CUDA_INCLUDE cuda_profiler_api.h
    HINTS ${wheels} ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include DOC "Folder of CUDA's headers")
  set(version "")
  if(EXISTS "${CACHALOT_CUDA_INCLUDE}/cuda_runtime_api.h")
    file(STRINGS ${CACHALOT_CUDA_INCLUDE}/cuda_runtime_api.h version REGEX "#define CUDART_VERSION +[0-9]+")
  endif()
  if(version MATCHES " 13[0-9][0-9][0-9]")
    set(CACHALOT_HAS_SIMULATOR ON)
  elseif(version)
    message(${kind} "cachalot: the simulator is not built: it needs the headers of CUDA 13 (set CACHALOT_CUDA_INCLUDE), and "
      "${CACHALOT_CUDA_INCLUDE} has \"${version}\"${without}")
  else()
    message(${kind} "cachalot: the simulator is not built: cuda_profiler_api.h and cuda_runtime_api.h were not found in one folder (set "
      "CACHALOT_CUDA_INCLUDE)${without}")
  endif()
endif()

if(NOT CACHALOT_HAS_SIMULATOR)
  return()
endif()

# build/<preset>/simulator/cudart/libcudart.so.12, of libcudart12.cpp, for programs that load it by name
# (simulator/base/redirection.cpp). It is linked whenever the simulator is, which it needs.
function(cachalot_simulated_cudart source)
  cmake_path(GET source STEM name)
  cmake_path(GET source PARENT_PATH folder)
  string(REPLACE libcudart libcudart.so. library ${name})
  set_property(TARGET cachalot_simulator APPEND PROPERTY LINK_DEPENDS
    ${source} ${folder}/${name}.map ${folder}/cuda12_names.inc)
  add_custom_command(TARGET cachalot_simulator POST_BUILD VERBATIM
    BYPRODUCTS ${PROJECT_BINARY_DIR}/simulator/cudart/${library}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/simulator/cudart
    COMMAND ${CMAKE_CXX_COMPILER} -shared -fPIC -nostdlib -I ${PROJECT_SOURCE_DIR}
      -o ${PROJECT_BINARY_DIR}/simulator/cudart/${library} ${source} -Wl,--no-as-needed $<TARGET_FILE:cachalot_simulator>
      -Wl,-soname,${library} -Wl,--version-script=${folder}/${name}.map -Wl,-rpath,$ORIGIN/../driver)
endfunction()

# Runs a program with the simulator in front of everything else. An emulator of another processor must not load the library itself:
# qemu-user sets what QEMU_SET_ENV says for the program alone.
function(cachalot_simulated_environment result)
  set(variable "LD_PRELOAD")
  if(CMAKE_CROSSCOMPILING)
    set(variable "QEMU_SET_ENV=LD_PRELOAD")
  endif()
  set(${result} "${variable}=$<TARGET_FILE:cachalot_simulator>" ${ARGN} PARENT_SCOPE)
endfunction()

# The target cachalot_cudart<version>, the simulator's libcudart.so.<version>: programs that are linked with it ask for functions
# of that version. Of a file that is not there yet CMake would link -lcudart, the toolkit's, so it is told the soname.
function(cachalot_simulated_runtime version)
  add_library(cachalot_cudart${version} SHARED IMPORTED)
  set_target_properties(cachalot_cudart${version} PROPERTIES
    IMPORTED_LOCATION ${PROJECT_BINARY_DIR}/simulator/cudart/libcudart.so.${version} IMPORTED_SONAME libcudart.so.${version})
endfunction()

cachalot_files(simulator_sources simulator
  base/elf_file.cpp
  base/end_of_process.cpp
  base/kills.cpp
  base/redirection.cpp
  base/report.cpp
  base/static_runtimes.cpp
  base/stripped_runtime.cpp
  base/watch.cpp
  driver/driver_device.cpp
  driver/driver_forms.cpp
  driver/driver_memory.cpp
  driver/driver_modules.cpp
  driver/driver_streams.cpp
  driver/entry_points.cpp
  driver/extensions.cpp
  driver/green_contexts.cpp
  driver/not_simulated.cpp
  driver/nvml.cpp driver/nvml_properties.cpp
  driver/pytorch_memory.cpp
  libraries/cudnn_planner.cpp
  libraries/functions.cpp
  libraries/graph_functions.cpp
  libraries/recurrent_functions.cpp
  models/config.cpp
  models/context_costs.cpp
  models/device_attributes.cpp
  models/gpu_models.cpp
  models/launched_kernels.cpp
  models/shared_memory.cpp
  nccl/collectives.cpp
  nccl/communicator.cpp
  nccl/communicators.cpp
  nccl/messages.cpp
  nccl/nccl_calls.cpp
  runtime/cuda12.cpp
  runtime/runtime_device.cpp
  runtime/runtime_graphs.cpp
  runtime/runtime_launch.cpp
  runtime/runtime_memory.cpp
  runtime/runtime_pools.cpp
  runtime/runtime_streams.cpp
  state/captures.cpp
  state/content.cpp
  state/copies.cpp
  state/devices.cpp
  state/graphs.cpp
  state/launches.cpp
  state/pools.cpp
  state/program_allocations.cpp
  state/program_events.cpp
  state/reuse_races.cpp
  state/simulated_process.cpp
  state/streams.cpp
  state/use_checks.cpp
  state/virtual_memory.cpp)
cachalot_files(cudart_sources simulator runtime/libcudart12.cpp runtime/libcudart13.cpp)
add_library(cachalot_simulator SHARED ${simulator_sources})
set(exports ${PROJECT_SOURCE_DIR}/simulator/driver/exports.map)
set_target_properties(cachalot_simulator PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/simulator NO_SONAME ON LINK_DEPENDS ${exports}
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(cachalot_simulator SYSTEM PRIVATE ${CACHALOT_CUDA_INCLUDE})
target_include_directories(cachalot_simulator PRIVATE
  ${PROJECT_SOURCE_DIR}/simulator/include ${PROJECT_SOURCE_DIR}/allocator/include ${PROJECT_SOURCE_DIR}/allocator
  ${PROJECT_SOURCE_DIR})
cachalot_unity(cachalot_simulator)
# It is loaded when the program starts, so that thread-local variables need no function call.
target_compile_options(cachalot_simulator PRIVATE -ftls-model=initial-exec)
# As libcuda.so.1 it serves whoever needs the driver. Its own calls stay inside (-Bsymbolic), and it needs no other
# library of ours.
target_link_options(cachalot_simulator PRIVATE
  -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,--version-script=${exports} -Wl,--exclude-libs,ALL
  -static-libstdc++ -static-libgcc)
target_link_libraries(cachalot_simulator PRIVATE
  cachalot_simulated_device cachalot_flags ${CMAKE_DL_LIBS})
add_custom_command(TARGET cachalot_simulator POST_BUILD
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/simulator/driver
  COMMAND ${CMAKE_COMMAND} -E create_symlink
    ../$<TARGET_FILE_NAME:cachalot_simulator> ${PROJECT_BINARY_DIR}/simulator/driver/libcuda.so.1)
foreach(source IN LISTS cudart_sources)
  cachalot_simulated_cudart(${source})
endforeach()
# What `cachalot simulate` puts on PYTHONPATH.
foreach(part IN ITEMS sitecustomize.py cachalot_simulator)
  cachalot_link(${PROJECT_SOURCE_DIR}/simulator/python/${part} ${PROJECT_BINARY_DIR}/simulator/python)
endforeach()
