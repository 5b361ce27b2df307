# mr (GoogleTest, with the toolkit's CCCL), mr.rmm (with RMM 25.4), mr.rmm_newest (26), mr.cccl.<version>.cpp<standard> (conformance.cpp
# with each CCCL) and mr.cub_environment.

# A program of tests/mr over the simulated runtime, named test_<name>; INCLUDE is the CCCL that it is compiled with.
function(cachalot_mr_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;INCLUDE;LIBRARIES;DEFINITIONS")
  find_package(GTest REQUIRED)
  add_executable(test_${name} ${arg_SOURCES})
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(test_${name} SYSTEM BEFORE PRIVATE ${arg_INCLUDE})
  target_include_directories(test_${name} PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/allocator ${PROJECT_SOURCE_DIR}/simulator/include)
  target_compile_definitions(test_${name} PRIVATE ${arg_DEFINITIONS})
  cachalot_quick_to_build(test_${name})
  target_link_libraries(test_${name} PRIVATE
    cachalot_mr CUDA::cudart cachalot_flags ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  target_link_libraries(test_${name} PRIVATE cachalot_simulator)  # behind the runtime, so that CUDA's functions are bound to that
  cachalot_simulated_environment(two_devices CACHALOT_SIM=devices:2,memory:8GiB)
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES LABELS mr TIMEOUT 300 ENVIRONMENT "${two_devices}"
    ENVIRONMENT_MODIFICATION "CACHALOT_CONF=unset:;CACHALOT_DEBUG=unset:")
  cachalot_tests_need(mr test_${name})
endfunction()

# mr.<name>: a source that prints its failures, compiled with a CCCL and run over the simulated runtime. One of them runs at every
# change.
function(cachalot_compiled_mr_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "COMPILER;STANDARD;SOURCE;CCCL;FLAGS" "")
  set(includes "-I${PROJECT_SOURCE_DIR}/adapters/include -I${PROJECT_SOURCE_DIR}/simulator/device/include -I${PROJECT_SOURCE_DIR}/allocator/include -isystem ${CACHALOT_CUDA_INCLUDE}")
  set(libraries "$<TARGET_FILE:cachalot_simulated_device> $<TARGET_FILE:cachalot_core> $<TARGET_FILE:CUDA::cudart> ${CACHALOT_BACKTRACE_LIBRARY} -lpthread -ldl")
  add_test(NAME mr.${name}
    COMMAND ${CMAKE_COMMAND} -D COMPILER=${arg_COMPILER} -D STANDARD=${arg_STANDARD} -D SOURCE=${arg_SOURCE} -D CCCL=${arg_CCCL}
            "-D FLAGS=${arg_FLAGS}" "-D INCLUDES=${includes}" "-D LIBRARIES=${libraries}"
            -D SIMULATOR=$<TARGET_FILE:cachalot_simulator> -D PROGRAM=${PROJECT_BINARY_DIR}/tests/mr/${name}
            -P ${PROJECT_SOURCE_DIR}/tests/mr/check_conformance.cmake)
  set_tests_properties(mr.${name} PROPERTIES LABELS mr TIMEOUT 300)
  if(NOT name STREQUAL cccl.toolkit.cpp20)
    cachalot_drawn(mr.${name})
  endif()
endfunction()

# CONFORMANCE with a CCCL by the build's compiler; with the toolkit's by Clang, too, where it is at hand.
function(cachalot_conformance_test version cccl source)
  find_program(clang NAMES clang++ clang++-14 NO_CACHE)
  if(version STREQUAL toolkit AND NOT clang)
    message(STATUS "cachalot: memory resources are not compiled with Clang: there is no clang++")
  endif()
  set(flags "-O0 -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror")
  foreach(standard IN ITEMS 17 20)
    set(common STANDARD ${standard} SOURCE ${source} CCCL ${cccl} FLAGS ${flags})
    cachalot_compiled_mr_test(cccl.${version}.cpp${standard} COMPILER ${CMAKE_CXX_COMPILER} ${common})
    if(version STREQUAL toolkit AND clang)
      cachalot_compiled_mr_test(cccl.${version}.cpp${standard}.clang COMPILER ${clang} ${common})
    endif()
  endforeach()
endfunction()

# CUB's algorithms with a resource as their environment, by nvcc with the newest CCCL, if that has such environments.
function(cachalot_cub_environment_test source)
  cachalot_find_cccl(newest)
  cachalot_cccl_version(version "${newest}")
  if(version LESS 3004000 OR NOT CACHALOT_HAS_NVCC)
    message(STATUS "cachalot: a resource is not tested as CUB's environment: that needs nvcc, and CCCL 3.4 in CACHALOT_CCCL_DIR")
    return()
  endif()
  cachalot_compiled_mr_test(cub_environment COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} STANDARD 17 SOURCE ${source} CCCL ${newest}
    FLAGS "-cudart shared -arch=sm_90 -Werror all-warnings -Xcompiler=-Wall,-Wextra")
endfunction()

# RMM 26: its library has a CUDA runtime of its own inside. The program says what serves nevertheless.
function(cachalot_newest_rmm_test source)
  set(folder ${CACHALOT_RMM_NEWEST_DIR})
  set(libraries ${folder}/librmm/lib64/librmm.so ${folder}/rapids_logger/lib64/librapids_logger.so)
  if(NOT EXISTS "${folder}/librmm/lib64/librmm.so" OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    message(STATUS "cachalot: memory resources are not tested with RMM 26: no librmm, or no GCC (set CACHALOT_RMM_NEWEST_DIR)")
    return()
  endif()
  set(include ${folder}/librmm/include)
  add_executable(test_mr.rmm_newest ${source})
  set_target_properties(test_mr.rmm_newest PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_include_directories(test_mr.rmm_newest SYSTEM BEFORE PRIVATE
    ${include} ${include}/rapids ${folder}/rapids_logger/include)
  cachalot_quick_to_build(test_mr.rmm_newest)
  target_link_libraries(test_mr.rmm_newest PRIVATE cachalot_mr ${libraries} CUDA::cudart cachalot_flags)
  cachalot_simulated_environment(simulated)
  add_test(NAME mr.rmm_newest COMMAND test_mr.rmm_newest)
  set_tests_properties(mr.rmm_newest PROPERTIES LABELS mr TIMEOUT 300 ENVIRONMENT "${simulated}"
    PASS_REGULAR_EXPRESSION "\n0 parts fail; 0 bytes are allocated\n")
  cachalot_tests_need(mr test_mr.rmm_newest)
endfunction()

function(cachalot_mr_tests)
  cachalot_files(mr_tests tests/mr memory_resource_test.cpp)
  cachalot_files(conformance tests/mr conformance.cpp)
  cachalot_files(rmm_source tests/mr rmm_test.cpp)
  cachalot_files(newest tests/mr rmm_newest.cpp)
  cachalot_files(cub_source tests/mr cub_environment.cu)
  if("adapters" IN_LIST CACHALOT_ABSENT_WINGS)
    return()
  endif()
  cachalot_toolkit_cccl(cccl)
  if( NOT CACHALOT_HAS_CUDART OR NOT cccl)
    message(STATUS "cachalot: memory resources are not tested: that needs a CUDA toolkit with CCCL, and the simulator")
    return()
  endif()
  cachalot_mr_test(mr SOURCES ${mr_tests} INCLUDE ${cccl}
    DEFINITIONS LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
  cachalot_conformance_test(toolkit ${cccl} ${conformance})
  cachalot_cccl_packages(packages)
  foreach(package IN LISTS packages)
    string(REGEX REPLACE ".*/([^/]+)/nvidia/.*" "\\1" version ${package})
    cachalot_conformance_test(${version} ${package} ${conformance})
  endforeach()
  if(NOT packages)
    message(STATUS "cachalot: memory resources are tested with the toolkit's CCCL alone (set CACHALOT_CCCL_DIR)")
  endif()
  cachalot_cub_environment_test(${cub_source})
  cachalot_python_candidate(python)
  cachalot_find_rmm("${python}")
  if(cachalot_rmm_lacks)
    message(STATUS "cachalot: memory resources are not tested with RMM 25.4: ${cachalot_rmm_lacks}")
  else()
    cachalot_mr_test(mr.rmm SOURCES ${rmm_source} INCLUDE ${cachalot_rmm_includes} LIBRARIES ${cachalot_rmm_library}
      DEFINITIONS ${cachalot_rmm_definitions})
    set_source_files_properties(${rmm_source} PROPERTIES COMPILE_OPTIONS -std=c++17)  # RMM 25.4's own standard
  endif()
  cachalot_newest_rmm_test(${newest})
endfunction()
cachalot_mr_tests()
