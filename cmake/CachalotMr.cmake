# cachalot::mr, headers alone: cachalot's memory resource for CCCL and RMM. Its users need CCCL's headers and the CUDA runtime;
# nothing here is compiled with them but tests, benchmarks and examples.

set(CACHALOT_CCCL_DIR "$ENV{CACHALOT_CCCL_DIR}" CACHE PATH
  "Folder with one folder per package nvidia-cuda-cccl (pip install --target), for the tests mr.* and those of CubEnvironment; empty: the toolkit's CCCL alone")
set(CACHALOT_RMM_DIR "" CACHE PATH
  "Folder with the packages librmm and rapids_logger, for bench/peers and tests/mr; empty: where CACHALOT_PYTHON has them")
set(CACHALOT_RMM_NEWEST_DIR "" CACHE PATH
  "Folder with the packages librmm and rapids_logger of RMM 26, whose headers tests/mr compiles")

function(cachalot_mr_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "HEADERS")
  cachalot_files(headers adapters/include/cachalot ${arg_HEADERS})
  add_library(cachalot_mr INTERFACE)
  add_library(cachalot::mr ALIAS cachalot_mr)
  set_target_properties(cachalot_mr PROPERTIES EXPORT_NAME mr VERIFY_INTERFACE_HEADER_SETS OFF)  # it does not bring CCCL
  target_sources(cachalot_mr INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/adapters/include FILES ${headers})
  target_link_libraries(cachalot_mr INTERFACE cachalot::core)
endfunction()

# CACHALOT_CUB_INCLUDE, the folder of the toolkit's CUB and CCCL.
function(cachalot_find_cub)
  find_path(CACHALOT_CUB_INCLUDE cub/util_allocator.cuh
    HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES cccl DOC "Folder of CUB's headers")
endfunction()

# The toolkit's CCCL; empty where there is none.
function(cachalot_toolkit_cccl result)
  cachalot_find_cub()
  set(${result} "" PARENT_SCOPE)
  if(EXISTS "${CACHALOT_CUB_INCLUDE}/cuda/memory_resource")
    set(${result} ${CACHALOT_CUB_INCLUDE} PARENT_SCOPE)
  endif()
endfunction()

# The folders of headers in the packages of CACHALOT_CCCL_DIR, the newest first.
function(cachalot_cccl_packages result)
  file(GLOB packages ${CACHALOT_CCCL_DIR}/*/nvidia/cu*/include/cccl)
  list(SORT packages COMPARE NATURAL ORDER DESCENDING)
  set(${result} ${packages} PARENT_SCOPE)
endfunction()

# Sets `result` to the version of the CCCL in a folder as a number, 3001004 for 3.1.4; 0 where there is none.
function(cachalot_cccl_version result place)
  set(${result} 0 PARENT_SCOPE)
  set(header ${place}/cuda/std/__cccl/version.h)
  if(EXISTS ${header})
    file(STRINGS ${header} line REGEX "#define CCCL_VERSION +[0-9]+")
    string(REGEX REPLACE ".* ([0-9]+).*" "\\1" version "${line}")
    set(${result} ${version} PARENT_SCOPE)
  endif()
endfunction()

# Sets `result` to the folder of the newest CCCL, of a package or else of the toolkit, if that is 3.1 or newer; empty otherwise.
function(cachalot_find_cccl result)
  set(${result} "" PARENT_SCOPE)
  cachalot_cccl_packages(packages)
  cachalot_toolkit_cccl(toolkit)
  foreach(place IN LISTS packages toolkit)
    cachalot_cccl_version(version ${place})
    if(version GREATER_EQUAL 3001000)
      set(${result} ${place} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# RMM 25.4, all headers, as cachalot_rmm_includes, cachalot_rmm_library and cachalot_rmm_definitions; otherwise cachalot_rmm_lacks
# says why not. Newer ones have a CUDA runtime of their own inside, which no simulated one can replace.
function(cachalot_find_rmm python)
  foreach(package IN ITEMS librmm rapids_logger)
    if(CACHALOT_RMM_DIR)
      set(${package} ${CACHALOT_RMM_DIR}/${package})
    else()
      cachalot_python_folder(${package} "${python}" ${package})
    endif()
  endforeach()
  set(logger ${rapids_logger}/lib64/librapids_logger.so)
  set(cachalot_rmm_lacks "" PARENT_SCOPE)
  if(NOT EXISTS "${librmm}/include/rmm/mr/device/pool_memory_resource.hpp" OR NOT EXISTS "${logger}")
    set(cachalot_rmm_lacks "no librmm and rapids_logger (set CACHALOT_RMM_DIR or CACHALOT_PYTHON)" PARENT_SCOPE)
    return()
  endif()
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(cachalot_rmm_lacks "its headers do not compile with ${CMAKE_CXX_COMPILER_ID}'s compiler" PARENT_SCOPE)
    return()
  endif()
  file(STRINGS ${librmm}/VERSION version LIMIT_COUNT 1)
  if(NOT version MATCHES "^25\\.0?4\\.")
    set(cachalot_rmm_lacks "librmm is ${version}, not 25.4" PARENT_SCOPE)
    return()
  endif()
  set(rapids ${librmm}/include/rapids)
  set(cachalot_rmm_includes ${librmm}/include ${rapids} ${rapids}/libcudacxx ${rapids_logger}/include PARENT_SCOPE)
  set(cachalot_rmm_library ${logger} PARENT_SCOPE)
  set(cachalot_rmm_definitions LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE PARENT_SCOPE)
endfunction()

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

# mr (GoogleTest, with the toolkit's CCCL), mr.rmm (with RMM 25.4), mr.rmm_newest (26), mr.cccl.<version>.cpp<standard> (CONFORMANCE
# with each CCCL) and mr.cub_environment.
function(cachalot_mr_tests)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFORMANCE;CUB;RMM;RMM_NEWEST" "SOURCES")
  cachalot_files(sources tests/mr ${arg_SOURCES})
  cachalot_files(conformance tests/mr ${arg_CONFORMANCE})
  cachalot_files(rmm_source tests/mr ${arg_RMM})
  cachalot_files(newest tests/mr ${arg_RMM_NEWEST})
  cachalot_files(cub_source tests/mr ${arg_CUB})
  cachalot_toolkit_cccl(cccl)
  if(NOT TARGET cachalot_simulator OR NOT CACHALOT_HAS_CUDART OR NOT cccl)
    message(STATUS "cachalot: memory resources are not tested: that needs a CUDA toolkit with CCCL, and the simulator")
    return()
  endif()
  cachalot_mr_test(mr SOURCES ${sources} INCLUDE ${cccl}
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
