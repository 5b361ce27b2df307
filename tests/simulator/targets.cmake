# build/<preset>/tests/test_simulator: CUDA programs, linked with the real libcudart, that run with the simulator preloaded.
# The GPU tests of other folders run on it too, as simulator.<folder>.

set(CACHALOT_CUDART_STATIC "" CACHE FILEPATH
  "libcudart_static.a for the processor that is built for, where no toolkit is for it; empty: runtimes linked in are not tested there")

# What is tested of the simulator where no toolkit's libcudart is for this processor: a program of CUDA 12 and the probe, which is
# of CUDA 13, both linked with the simulator's own runtime; and the probe with NVIDIA's runtime linked in.
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
  if(CACHALOT_CUDART_STATIC)
    add_executable(simulator_probe_static ${probe})
    set_target_properties(simulator_probe_static PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_include_directories(simulator_probe_static PRIVATE ${PROJECT_SOURCE_DIR}/simulator/include)
    target_include_directories(simulator_probe_static SYSTEM PRIVATE ${CACHALOT_CUDA_INCLUDE})
    target_link_libraries(simulator_probe_static PRIVATE
      ${CACHALOT_CUDART_STATIC} cachalot_flags Threads::Threads rt ${CMAKE_DL_LIBS})
    cachalot_static_runtime_tests(static_tests "${small}")
    set_tests_properties(${static_tests} PROPERTIES LABELS simulator TIMEOUT 300)
  endif()
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
  add_custom_command(OUTPUT ${path}_stripped DEPENDS ${path}_static VERBATIM
    COMMAND ${CMAKE_STRIP} -o ${path}_stripped ${path}_static)
  add_custom_target(simulator_program ALL DEPENDS ${path}_shared ${path}_static ${path}_library ${path}_stripped)
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
  # Without symbols it is not known how its kernels are registered.
  add_test(NAME simulator.program.stripped COMMAND ${path}_stripped)
  cachalot_simulated_environment(environment ${settings},gpu:l4)
  set_tests_properties(simulator.program.stripped PROPERTIES
    ENVIRONMENT "${environment}"
    PASS_REGULAR_EXPRESSION "has kernels and a CUDA runtime of its own \\(libcudart_static\\) without symbols")
  list(APPEND tests simulator.program.stripped)
  set(${result} ${tests} PARENT_SCOPE)
endfunction()

# The probe with a runtime that is linked in: simulated with its symbols, and without them, as it has no kernels.
function(cachalot_static_runtime_tests result environment)
  set(stripped ${PROJECT_BINARY_DIR}/tests/simulator_probe_stripped)
  add_custom_command(TARGET simulator_probe_static POST_BUILD VERBATIM
    COMMAND ${CMAKE_STRIP} -o ${stripped} $<TARGET_FILE:simulator_probe_static>)
  add_test(NAME simulator.static COMMAND simulator_probe_static allocate)
  add_test(NAME simulator.static_stripped COMMAND ${CMAKE_CROSSCOMPILING_EMULATOR} ${stripped} allocate)
  set_tests_properties(simulator.static simulator.static_stripped PROPERTIES
    ENVIRONMENT "${environment}" PASS_REGULAR_EXPRESSION "^cudaSuccess cudaSuccess cudaSuccess cudaSuccess\n$")
  set(${result} simulator.static simulator.static_stripped PARENT_SCOPE)
endfunction()

# list_missing.py finds what a package uses, and tells what is simulated from what is not.
function(cachalot_missing_functions_test result)
  cachalot_files(library tests/simulator packages/user/library.cpp)
  add_library(simulator_user_library MODULE ${library})
  set_target_properties(simulator_user_library PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/packages/user)
  add_dependencies(test_simulator simulator_user_library)
  cachalot_python_candidate(python)
  set(script ${PROJECT_SOURCE_DIR}/tests/simulator/list_missing.py)
  add_test(NAME simulator.list_missing
    COMMAND ${python} -B ${script} --check --simulator $<TARGET_FILE:cachalot_simulator>
            ${PROJECT_SOURCE_DIR}/tests/simulator/packages ${PROJECT_BINARY_DIR}/tests/packages)
  set_tests_properties(simulator.list_missing PROPERTIES
    PASS_REGULAR_EXPRESSION
    "driver +3 +2 +1 +0 .*runtime +2 +1 +0 +1 .*lacks 2 functions: nvmlNoSuchFunction cudaNoSuchFunction\n$")
  set(${result} simulator.list_missing PARENT_SCOPE)
endfunction()

# The simulator's tests through Python's packages, tests/simulator/test_<package>.py and test_<package>_<part>.py:
# simulator.<package> by CACHALOT_PYTHON, and simulator.<package>.cuda12 by CACHALOT_PYTHON_CUDA12.
function(cachalot_simulator_python_tests)
  set(python_cuda12 ${CACHALOT_PYTHON_CUDA12})
  if(NOT python_cuda12)
    set(python_cuda12 $ENV{CACHALOT_PYTHON_CUDA12})
  endif()
  cachalot_python_candidate(python)
  foreach(file IN LISTS ARGN)
    string(REGEX REPLACE "^test_(.*)\\.py$" "\\1" name ${file})
    string(REGEX REPLACE "_.*" "" package ${name})
    set(arguments -m pytest -q -p no:cacheprovider ${PROJECT_SOURCE_DIR}/tests/simulator/${file})
    cachalot_python_lacks(lack "${python}" ${package} pytest)
    cachalot_add_python_test(simulator.${name} simulator 300 "${python}" "${lack}" ${arguments})
    if(python_cuda12)
      cachalot_python_lacks(lack "${python_cuda12}" ${package} pytest)
    else()
      set(lack "CACHALOT_PYTHON_CUDA12 is not set")
    endif()
    cachalot_add_python_test(simulator.${name}.cuda12 simulator 300 "${python_cuda12}" "${lack}" ${arguments})
    if(NOT lack)
      set_property(TEST simulator.${name}.cuda12 APPEND PROPERTY ENVIRONMENT CACHALOT_TEST_CUDA=12)
    endif()
  endforeach()
endfunction()

function(cachalot_simulator_tests)
  cachalot_files(simulator_tests tests/simulator
    contexts_test.cpp copies_test.cpp graphs_test.cpp known_content_test.cpp memory_test.cpp nccl_processes_test.cpp nccl_test.cpp
    processes_test.cpp races_test.cpp streams_test.cpp versions_test.cpp)
  cachalot_files(probe tests/simulator probe.cpp)
  cachalot_files(nccl_rank tests/simulator nccl_rank.cpp)
  cachalot_files(program12 tests/simulator program12.cpp)
  cachalot_files(math_library tests/simulator math_library.cpp)
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
  add_executable(test_simulator ${simulator_tests})
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
    CACHALOT_MATH_LIBRARY="$<TARGET_FILE:simulator_math_library>"
    CACHALOT_PROBE="$<TARGET_FILE:simulator_probe>" CACHALOT_NCCL_RANK="$<TARGET_FILE:simulator_nccl_rank>")
  add_library(simulator_math_library MODULE ${math_library})
  set_target_properties(simulator_math_library PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_dependencies(test_simulator
    simulator_math_library simulator_probe simulator_probe_static simulator_nccl_rank simulator_program12 cachalot_simulator)

  set(small_gpus CACHALOT_SIM=devices:2,memory:64MiB)
  cachalot_simulated_environment(small ${small_gpus},gpu:l4)
  cachalot_simulated_environment(without_latencies ${small_gpus},gpu:l4,latency:none)
  cachalot_simulated_environment(with_copies ${small_gpus},gpu:l4,copies:published)
  cachalot_simulated_environment(with_races ${small_gpus},gpu:l4,races:1)
  add_test(NAME simulator COMMAND test_simulator)
  add_test(NAME simulator.without_latencies COMMAND test_simulator)
  add_test(NAME simulator.with_copies COMMAND test_simulator)
  set_tests_properties(simulator PROPERTIES ENVIRONMENT "${small}")
  set_tests_properties(simulator.without_latencies PROPERTIES ENVIRONMENT "${without_latencies}")
  set_tests_properties(simulator.with_copies PROPERTIES ENVIRONMENT "${with_copies}")
  add_test(NAME simulator.races COMMAND test_simulator --gtest_filter=SimulatorRaces.*)
  set_tests_properties(simulator.races PROPERTIES ENVIRONMENT "${with_races}" FAIL_REGULAR_EXPRESSION SKIPPED)
  set(tests simulator simulator.without_latencies simulator.with_copies simulator.races)

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
  foreach(folder IN ITEMS device c_api kernels)
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

  cachalot_missing_functions_test(missing_tests)
  list(APPEND tests ${missing_tests})

  if(EXISTS "${CUDAToolkit_NVCC_EXECUTABLE}")
    cachalot_files(source tests/simulator program.cu)
    cachalot_nvcc_programs(program_tests ${source} ${small_gpus})
    list(APPEND tests ${program_tests})
  else()
    message(STATUS "cachalot: no nvcc: that a program compiled by it runs on the simulator is not tested")
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS simulator TIMEOUT 300)
  cachalot_simulator_python_tests(test_torch.py test_torch_cudnn.py test_cupy.py test_cupy_pinned.py test_numba.py)
  cachalot_drawn(simulator.torch_cudnn)
endfunction()
cachalot_simulator_tests()
