# The simulated CUDA runtime: build/<preset>/simulator/libcachalot_simulator.so; simulator/driver/libcuda.so.1, which is the same
# file under the driver's name; and simulator/cudart, which programs get that load libcudart by name.

option(CACHALOT_BUILD_SIMULATOR "Build the simulated CUDA runtime, where CUDA's headers are found" ${PROJECT_IS_TOP_LEVEL})

set(CACHALOT_HAS_SIMULATOR OFF)
if(CACHALOT_BUILD_SIMULATOR AND CACHALOT_SANITIZE)
  message(STATUS "cachalot: the simulator is not built under sanitizers: their runtime must be loaded before any library, "
    "and their shadow memory lies where the simulator reserves addresses")
elseif(CACHALOT_BUILD_SIMULATOR)
  find_path(CACHALOT_CUDA_INCLUDE cuda_runtime_api.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include DOC "Folder of CUDA's headers")
  set(version "")
  if(CACHALOT_CUDA_INCLUDE)
    file(STRINGS ${CACHALOT_CUDA_INCLUDE}/cuda_runtime_api.h version REGEX "#define CUDART_VERSION +[0-9]+")
  endif()
  if(version MATCHES " 13[0-9][0-9][0-9]")
    set(CACHALOT_HAS_SIMULATOR ON)
  elseif(version)
    message(STATUS "cachalot: the simulator is not built: it needs the headers of CUDA 13 (set CACHALOT_CUDA_INCLUDE), and "
      "${CACHALOT_CUDA_INCLUDE} has \"${version}\"")
  else()
    message(STATUS "cachalot: the simulator is not built: cuda_runtime_api.h was not found (set CACHALOT_CUDA_INCLUDE)")
  endif()
endif()

function(cachalot_simulator)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;CUDART")
  cachalot_files(sources simulator ${arg_SOURCES})
  cachalot_files(cudart_sources simulator ${arg_CUDART})
  add_library(cachalot_simulator SHARED ${sources})
  set(map ${PROJECT_SOURCE_DIR}/simulator/driver/exports.map)
  set_target_properties(cachalot_simulator PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/simulator NO_SONAME ON LINK_DEPENDS ${map}
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
    -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,--version-script=${map} -Wl,--exclude-libs,ALL
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
endfunction()

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

# What is tested of the simulator where no toolkit's libcudart is for this processor: a program of CUDA 12 and the probe, which is
# of CUDA 13, both linked with the simulator's own runtime.
function(cachalot_simulator_tests_without_toolkit probe program12)
  cachalot_simulated_runtime(12)
  cachalot_simulated_runtime(13)
  add_executable(simulator_probe ${probe})
  add_executable(simulator_program12 ${program12})
  target_link_libraries(simulator_probe PRIVATE cachalot_cudart13 cachalot_simulator cachalot_flags ${CMAKE_DL_LIBS})
  target_link_libraries(simulator_program12 PRIVATE cachalot_cudart12 cachalot_simulator cachalot_flags)
  target_include_directories(simulator_probe PRIVATE ${PROJECT_SOURCE_DIR}/simulator/include)
  target_include_directories(simulator_probe SYSTEM PRIVATE ${CACHALOT_CUDA_INCLUDE})
  # qemu keeps books of every page of a reservation.
  set(few_addresses memory:64MiB,address_space:2GiB)
  cachalot_simulated_environment(small CACHALOT_SIM=devices:2,gpu:l4,${few_addresses})
  add_test(NAME simulator.program12 COMMAND simulator_program12)
  add_test(NAME simulator.allocate COMMAND simulator_probe allocate)
  set_tests_properties(simulator.allocate PROPERTIES
    PASS_REGULAR_EXPRESSION "^cudaSuccess cudaSuccess cudaSuccess cudaSuccess\n$")
  add_test(NAME simulator.unified_memory COMMAND test_device --gtest_filter=UnifiedMemoryCuda.*)
  cachalot_simulated_environment(integrated CACHALOT_SIM=gpu:gb10,${few_addresses})
  set_tests_properties(simulator.unified_memory PROPERTIES
    ENVIRONMENT "${integrated}" FAIL_REGULAR_EXPRESSION SKIPPED LABELS simulator TIMEOUT 300)
  foreach(target IN ITEMS simulator_probe simulator_program12)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  endforeach()
  set_tests_properties(simulator.program12 simulator.allocate PROPERTIES
    ENVIRONMENT "${small}" LABELS simulator TIMEOUT 300)
endfunction()

# build/<preset>/tests/test_simulator: CUDA programs, linked with the real libcudart, that run with the simulator preloaded.
# The GPU tests of other folders run on it too, as simulator.<folder>.
function(cachalot_simulator_tests)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "PROBE;NCCL_RANK;PROGRAM;PROGRAM12" "SOURCES;GPU_TESTS;PYTHON")
  cachalot_files(sources tests/simulator ${arg_SOURCES})
  cachalot_files(probe tests/simulator ${arg_PROBE})
  cachalot_files(nccl_rank tests/simulator ${arg_NCCL_RANK})
  cachalot_files(program12 tests/simulator ${arg_PROGRAM12})
  if(NOT CACHALOT_HAS_CUDART)
    message(STATUS "cachalot: of the simulator little is tested: that needs a toolkit's libcudart to link with")
    cachalot_simulator_tests_without_toolkit(${probe} ${program12})
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(simulator_probe ${probe})
  add_executable(simulator_probe_static ${probe})
  add_executable(simulator_nccl_rank ${nccl_rank})
  add_executable(simulator_program12 ${program12})
  add_executable(test_simulator ${sources})
  foreach(target IN ITEMS simulator_probe simulator_probe_static simulator_nccl_rank simulator_program12 test_simulator)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/simulator/include)
    target_link_libraries(${target} PRIVATE cachalot_flags)
  endforeach()
  target_link_libraries(simulator_probe PRIVATE CUDA::cudart ${CMAKE_DL_LIBS})
  target_link_libraries(simulator_probe_static PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  target_link_libraries(test_simulator PRIVATE CUDA::cudart ${CMAKE_DL_LIBS})
  # NCCL's functions are linked from the simulator itself.
  target_link_libraries(simulator_nccl_rank PRIVATE CUDA::cudart cachalot_simulator)
  foreach(target IN ITEMS simulator_nccl_rank test_simulator)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  endforeach()
  cachalot_simulated_runtime(12)
  target_link_libraries(simulator_program12 PRIVATE cachalot_cudart12 cachalot_simulator)
  target_link_libraries(test_simulator PRIVATE
    GTest::gtest_main fmt::fmt nlohmann_json::nlohmann_json Threads::Threads)
  cachalot_unity(test_simulator)
  cachalot_quick_to_build(test_simulator)
  # Behind the runtime, so that CUDA's functions are bound to libcudart, as in any program.
  target_link_libraries(test_simulator PRIVATE cachalot_simulator)
  target_compile_definitions(test_simulator PRIVATE
    CACHALOT_PROBE="$<TARGET_FILE:simulator_probe>" CACHALOT_NCCL_RANK="$<TARGET_FILE:simulator_nccl_rank>")
  add_dependencies(test_simulator
    simulator_probe simulator_probe_static simulator_nccl_rank simulator_program12 cachalot_simulator)

  set(small_gpus CACHALOT_SIM=devices:2,memory:64MiB)
  cachalot_simulated_environment(small ${small_gpus},gpu:l4)
  cachalot_simulated_environment(without_latencies ${small_gpus},gpu:l4,latency:none)
  cachalot_simulated_environment(with_copies ${small_gpus},gpu:l4,copies:published)
  add_test(NAME simulator COMMAND test_simulator)
  add_test(NAME simulator.without_latencies COMMAND test_simulator)
  add_test(NAME simulator.with_copies COMMAND test_simulator)
  set_tests_properties(simulator PROPERTIES ENVIRONMENT "${small}")
  set_tests_properties(simulator.without_latencies PROPERTIES ENVIRONMENT "${without_latencies}")
  set_tests_properties(simulator.with_copies PROPERTIES ENVIRONMENT "${with_copies}")
  set(tests simulator simulator.without_latencies simulator.with_copies)

  add_test(NAME simulator.program12 COMMAND simulator_program12)
  set_tests_properties(simulator.program12 PROPERTIES ENVIRONMENT "${small}")
  list(APPEND tests simulator.program12)
  # The toolkit's libcudart, which the probe was linked with, is not loaded.
  add_test(NAME simulator.without_toolkit COMMAND simulator_probe allocate)
  set_tests_properties(simulator.without_toolkit PROPERTIES
    ENVIRONMENT "${small};LD_BIND_NOW=1;LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/simulator/cudart"
    PASS_REGULAR_EXPRESSION "^cudaSuccess cudaSuccess cudaSuccess cudaSuccess\n$")
  list(APPEND tests simulator.without_toolkit)
  cachalot_static_runtime_tests(static_tests "${small}")
  list(APPEND tests ${static_tests})

  # The library keeps the strictest rule of contexts, on whatever driver it runs.
  cachalot_simulated_environment(two_devices
    CACHALOT_SIM=devices:2,copy_bytes:1GiB,contexts:all)
  foreach(folder IN LISTS arg_GPU_TESTS)
    add_test(NAME simulator.${folder} COMMAND test_${folder} --gtest_filter=*Cuda*:*Gpu*)
    set_tests_properties(simulator.${folder} PROPERTIES ENVIRONMENT "${two_devices}" RUN_SERIAL ON)
    list(APPEND tests simulator.${folder})
  endforeach()

  # The GPU of a machine whose memory it shares with the processor.
  add_test(NAME simulator.unified_memory COMMAND test_device --gtest_filter=UnifiedMemoryCuda.*)
  cachalot_simulated_environment(integrated CACHALOT_SIM=gpu:gb10,memory:64MiB)
  set_tests_properties(simulator.unified_memory PROPERTIES ENVIRONMENT "${integrated}" FAIL_REGULAR_EXPRESSION SKIPPED)
  list(APPEND tests simulator.unified_memory)

  find_library(CACHALOT_CUDART cudart HINTS ${CUDAToolkit_LIBRARY_DIR})
  add_test(NAME simulator.exports
    COMMAND ${CMAKE_COMMAND} -D NM=${CMAKE_NM} -D SIMULATOR=$<TARGET_FILE:cachalot_simulator>
            -D CUDART=${CACHALOT_CUDART} -D SOURCES=${PROJECT_SOURCE_DIR} -P ${PROJECT_SOURCE_DIR}/tests/simulator/check_exports.cmake)
  list(APPEND tests simulator.exports)

  if(EXISTS "${CUDAToolkit_NVCC_EXECUTABLE}")
    cachalot_files(source tests/simulator ${arg_PROGRAM})
    cachalot_nvcc_programs(program_tests ${source} ${small_gpus})
    list(APPEND tests ${program_tests})
  else()
    message(STATUS "cachalot: no nvcc: that a program compiled by it runs on the simulator is not tested")
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS simulator TIMEOUT 300)
  cachalot_simulator_python_tests(${arg_PYTHON})
endfunction()

# A program by nvcc, with a runtime that is loaded and with one that is linked in, and as a library with one that is linked in.
function(cachalot_nvcc_programs result source settings)
  set(path ${PROJECT_BINARY_DIR}/tests/simulator_program)
  set(shared_flags -cudart shared)
  set(static_flags -cudart static)
  set(library_flags -cudart static -shared -Xcompiler -fPIC)
  foreach(kind IN ITEMS shared static library)
    add_custom_command(OUTPUT ${path}_${kind} DEPENDS ${source} VERBATIM
      COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++17 ${${kind}_flags} -arch sm_80 -o ${path}_${kind} ${source})
  endforeach()
  add_custom_target(simulator_program ALL DEPENDS ${path}_shared ${path}_static ${path}_library)
  # Its code is of 8.0, as machine code and as PTX: an L4 (8.9) runs the first, an H100 (9.0) compiles the second, and for a
  # T4 (7.5) there is none.
  set(tests "")
  foreach(kind_and_gpu IN ITEMS "shared l4 80 80" "shared h100 90 80" "shared t4 75 75" "static l4 80 80" "library l4 80 80")
    string(REPLACE " " ";" words ${kind_and_gpu})
    list(POP_FRONT words kind gpu)
    list(JOIN words " " code)
    set(test simulator.program.${kind}.${gpu})
    if(kind STREQUAL "library")
      add_test(NAME ${test} COMMAND simulator_probe call ${path}_library program)
    else()
      add_test(NAME ${test} COMMAND ${path}_${kind})
    endif()
    cachalot_simulated_environment(environment ${settings},gpu:${gpu})
    set_tests_properties(${test} PROPERTIES
      ENVIRONMENT "${environment}"
      PASS_REGULAR_EXPRESSION "^2 3 cudaErrorInvalidConfiguration ${code}\n$")
    list(APPEND tests ${test})
  endforeach()
  set(${result} ${tests} PARENT_SCOPE)
endfunction()

# The probe with a runtime that is linked in: simulated while it has its symbols; without them it says what is wrong.
function(cachalot_static_runtime_tests result environment)
  set(stripped ${PROJECT_BINARY_DIR}/tests/simulator_probe_stripped)
  add_custom_command(TARGET simulator_probe_static POST_BUILD VERBATIM
    COMMAND ${CMAKE_STRIP} -o ${stripped} $<TARGET_FILE:simulator_probe_static>)
  add_test(NAME simulator.static COMMAND simulator_probe_static allocate)
  add_test(NAME simulator.static_stripped COMMAND ${stripped} count)
  set_tests_properties(simulator.static simulator.static_stripped PROPERTIES ENVIRONMENT "${environment}")
  set_tests_properties(simulator.static PROPERTIES
    PASS_REGULAR_EXPRESSION "^cudaSuccess cudaSuccess cudaSuccess cudaSuccess\n$")
  set_tests_properties(simulator.static_stripped PROPERTIES
    PASS_REGULAR_EXPRESSION "has a CUDA runtime of its own \\(libcudart_static\\) without symbols.*cudaError[A-Za-z]+ ")
  set(${result} simulator.static simulator.static_stripped PARENT_SCOPE)
endfunction()

# build/<preset>/tests/test_plug: the plug-in's hooks without PyTorch, on both heaps, with the simulator preloaded.
function(cachalot_plug_tests)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  cachalot_files(sources tests/plug ${arg_SOURCES})
  if(NOT CACHALOT_HAS_CUDART OR NOT TARGET cachalot_torch)
    return()
  endif()
  add_executable(test_plug ${sources})
  set_target_properties(test_plug PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_definitions(test_plug PRIVATE CACHALOT_WITHOUT_LIBRARY)  # what it links has no C++ API
  target_include_directories(test_plug PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/simulator/include ${PROJECT_SOURCE_DIR}/allocator/include
    ${PROJECT_SOURCE_DIR}/pool/include ${PROJECT_SOURCE_DIR}/allocator)
  target_link_libraries(test_plug PRIVATE
    cachalot_torch CUDA::cudart cachalot_flags GTest::gtest_main fmt::fmt nlohmann_json::nlohmann_json)
  target_link_libraries(test_plug PRIVATE cachalot_simulator)  # behind the runtime, as above
  foreach(heap IN ITEMS segments pages)
    cachalot_simulated_environment(environment CACHALOT_SIM=memory:256MiB CACHALOT_CONF=heap:${heap})
    add_test(NAME plug.${heap} COMMAND test_plug)
    set_tests_properties(plug.${heap} PROPERTIES ENVIRONMENT "${environment}" LABELS simulator TIMEOUT 300)
  endforeach()
endfunction()

# build/<preset>/bench/simulator_calls
function(cachalot_simulator_benchmark source)
  cachalot_files(sources bench ${source})
  if(NOT CACHALOT_HAS_CUDART)
    return()
  endif()
  cmake_path(GET source STEM name)
  add_executable(bench_${name} ${sources})
  set_target_properties(bench_${name} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  target_compile_definitions(bench_${name} PRIVATE CACHALOT_SIMULATOR="$<TARGET_FILE:cachalot_simulator>")
  target_link_libraries(bench_${name} PRIVATE CUDA::cudart cachalot_flags ${CMAKE_DL_LIBS})
  add_dependencies(bench_${name} cachalot_simulator)
endfunction()
