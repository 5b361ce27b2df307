# How each kind of target is made; what there is to make is listed in the top CMakeLists.txt.

find_package(Threads REQUIRED)

# The files of a folder as absolute paths; remembers that they are listed.
function(cachalot_files result folder)
  set(files ${ARGN})
  list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/${folder}/)
  set_property(GLOBAL APPEND PROPERTY cachalot_listed ${files})
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# A source file that no list names is a mistake. Call it last; where a part is not built, its lists are not read.
function(cachalot_require_all_listed)
  if(NOT (CACHALOT_BUILD_TESTS AND CACHALOT_BUILD_BENCHMARKS AND CACHALOT_BUILD_TOOLS AND CACHALOT_BUILD_EXAMPLES))
    return()
  endif()
  file(GLOB_RECURSE found CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/allocator/*.cpp ${PROJECT_SOURCE_DIR}/allocator/include/*.h ${PROJECT_SOURCE_DIR}/tools/*.cpp
    ${PROJECT_SOURCE_DIR}/diagnostics/*.cpp ${PROJECT_SOURCE_DIR}/diagnostics/include/*.h
    ${PROJECT_SOURCE_DIR}/simulator/device/*.cpp ${PROJECT_SOURCE_DIR}/simulator/device/include/*.h
    ${PROJECT_SOURCE_DIR}/pool/*.cpp ${PROJECT_SOURCE_DIR}/pool/include/*.h ${PROJECT_SOURCE_DIR}/adapters/include/*.h
    ${PROJECT_SOURCE_DIR}/kernels/*.cpp ${PROJECT_SOURCE_DIR}/kernels/*.cu
    ${PROJECT_SOURCE_DIR}/kernels/include/*.h ${PROJECT_SOURCE_DIR}/kernels/include/*.cuh
    ${PROJECT_SOURCE_DIR}/tests/*.cpp ${PROJECT_SOURCE_DIR}/tests/*.c ${PROJECT_SOURCE_DIR}/bench/*.cpp
    ${PROJECT_SOURCE_DIR}/examples/*.cpp ${PROJECT_SOURCE_DIR}/examples/*.c)
  if(TARGET cachalot_simulator)
    file(GLOB_RECURSE simulator CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/simulator/*.cpp)
    list(APPEND found ${simulator})
  endif()
  if(TARGET cachalot_torch)
    file(GLOB plugin CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pytorch/plug/*.cpp)
    list(APPEND found ${plugin})
  endif()
  list(FILTER found EXCLUDE REGEX "/(bench|tests)/pytorch/")                        # compiled by Python programs
  if(NOT CACHALOT_BUILD_FUZZERS)
    list(FILTER found EXCLUDE REGEX "/tests/fuzz/")
  endif()
  if(NOT CACHALOT_BUILD_GPU_CHECKS)
    list(FILTER found EXCLUDE REGEX "/bench/gpu/")
  endif()
  if(NOT TARGET test_adapters)
    list(FILTER found EXCLUDE REGEX "/tests/adapters/")
  endif()
  if(NOT TARGET test_simulator)
    list(FILTER found EXCLUDE REGEX "/(tests/(mr|plug|simulator)/|bench/simulator_calls)")
  endif()
  list(FILTER found EXCLUDE REGEX "/tests/package/")                                # a project of its own
  list(FILTER found EXCLUDE REGEX "/tests/locks/")                                  # what compilers must refuse, too
  get_property(listed GLOBAL PROPERTY cachalot_listed)
  list(REMOVE_ITEM found ${listed})
  if(found)
    string(JOIN "\n  " files ${found})
    message(FATAL_ERROR "in no list of CMakeLists.txt:\n  ${files}")
  endif()
endfunction()

# What our own code sees beyond the public headers: the layers' headers and the folders of the repository. Nothing of it is
# in what we install.
add_library(cachalot_layers INTERFACE)
target_include_directories(cachalot_layers INTERFACE ${PROJECT_SOURCE_DIR}/allocator ${PROJECT_SOURCE_DIR})
target_link_libraries(cachalot_layers INTERFACE cachalot_diagnostics cachalot_simulated_device cachalot_core cachalot_flags Threads::Threads)
target_compile_definitions(cachalot_layers INTERFACE CACHALOT_HAS_CUDA=$<BOOL:${CACHALOT_HAS_CUDA}>)

# What programs of tools/, tests/, bench/ and examples/ use besides: libraries that the allocator does without.
if(CACHALOT_BUILD_TOOLS OR CACHALOT_BUILD_TESTS OR CACHALOT_BUILD_BENCHMARKS OR CACHALOT_BUILD_EXAMPLES OR
   CACHALOT_BUILD_FUZZERS)
  find_package(fmt REQUIRED)
  find_package(nlohmann_json 3.11 REQUIRED)
  add_library(cachalot_internal INTERFACE)
  set(fmt $<IF:$<BOOL:${CACHALOT_PORTABLE_COMMAND}>,fmt::fmt-header-only,fmt::fmt>)
  target_link_libraries(cachalot_internal INTERFACE cachalot_layers ${fmt} nlohmann_json::nlohmann_json)
  target_compile_definitions(cachalot_internal INTERFACE CACHALOT_DATA_DIR="${PROJECT_SOURCE_DIR}/data")
endif()

# cachalot::<name>, static, of files in a folder. Hidden visibility and position-independent, so that shared libraries can be
# made of it.
function(cachalot_static_library name folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "SOURCES;HEADERS;UNITY_GROUPS")
  cachalot_files(sources ${folder} ${arg_SOURCES})
  cachalot_files(headers ${folder}/include/cachalot ${arg_HEADERS})
  set(library cachalot_${name})
  add_library(${library} STATIC ${sources})
  if(BUILD_SHARED_LIBS)
    target_compile_definitions(${library} PUBLIC CACHALOT_SHARED)  # objects of cachalot_cpp
  else()
    add_library(cachalot::${name} ALIAS ${library})
  endif()
  set_target_properties(${library} PROPERTIES
    EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_sources(${library} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/${folder}/include FILES ${headers})
  cachalot_unity(${library} GROUPS ${arg_UNITY_GROUPS})
  target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:cachalot_flags>)
endfunction()

# ADAPTER_HEADERS need another library's headers: a file set of its own, as nobody compiles all of them.
function(cachalot_core_library)
  cmake_parse_arguments(PARSE_ARGV 0 adapters "" "" "ADAPTER_HEADERS")
  # The files that a malloc and a free pass through are one group.
  cachalot_static_library(core allocator ${adapters_UNPARSED_ARGUMENTS} UNITY_GROUPS
    base=allocator/base
    device=allocator/device
    heap=allocator,allocator/blocks,allocator/segments,allocator/pages,allocator/caches,allocator/heap,allocator/growth,allocator/inspection
    reports=allocator/policy,allocator/observe,allocator/groups)
  cachalot_files(adapter_headers adapters/include/cachalot ${adapters_ADAPTER_HEADERS})
  target_sources(cachalot_core PUBLIC
    FILE_SET adapter_headers TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/adapters/include FILES ${adapter_headers})
  set_target_properties(cachalot_core PROPERTIES INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)
  target_include_directories(cachalot_core PRIVATE ${PROJECT_SOURCE_DIR}/allocator)
  # Compiled as C++20, and used by programs of C++17: what headers say must mean the same in both (tests/headers).
  target_compile_features(cachalot_core PUBLIC cxx_std_17 PRIVATE cxx_std_20)
  target_compile_definitions(cachalot_core PRIVATE CACHALOT_HAS_LIBBACKTRACE=$<BOOL:${CACHALOT_HAS_LIBBACKTRACE}>)
  cachalot_uses_cuda(cachalot_core)
  target_link_libraries(cachalot_core
    PUBLIC Threads::Threads PRIVATE ${CMAKE_DL_LIBS})
  if(CACHALOT_HAS_LIBBACKTRACE)
    target_link_libraries(cachalot_core PRIVATE cachalot_backtrace)
  endif()
endfunction()

# Devices of cachalot::core that are simulated.
function(cachalot_simulated_device_library)
  cachalot_static_library(simulated_device simulator/device ${ARGN})
  target_include_directories(cachalot_simulated_device PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/allocator)
  target_link_libraries(cachalot_simulated_device PUBLIC cachalot_core)
endfunction()

# What observes cachalot::core.
function(cachalot_diagnostics_library)
  cachalot_static_library(diagnostics diagnostics ${ARGN})
  target_include_directories(cachalot_diagnostics PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/allocator)
  target_link_libraries(cachalot_diagnostics PUBLIC cachalot_core)
endfunction()

# Tensor pools over cachalot::core.
function(cachalot_pool_library)
  cachalot_static_library(pool pool ${ARGN})
  target_include_directories(cachalot_pool PRIVATE ${PROJECT_SOURCE_DIR}/pool ${PROJECT_SOURCE_DIR}/allocator)
  target_link_libraries(cachalot_pool PUBLIC cachalot_core)
endfunction()

# A library that is loaded stays (nodelete): what it has allocated, its threads' caches and its handlers of fork and exit
# outlive every dlclose. And its own calls stay inside (-Bsymbolic), whatever else of the process exports such names.
set(CACHALOT_SHARED_LINK -Wl,-z,nodelete -Wl,-Bsymbolic)

# With BUILD_SHARED_LIBS, libcachalot_cpp.so in place of the static libraries: one allocator for all libraries of a process that
# use it. cachalot::core, cachalot::simulated_device, cachalot::diagnostics, cachalot::pool and cachalot::kernels then stand
# for it. It exports what the public headers declare
# (CACHALOT_BEGIN_API). Programs of this repository, which use what is not exported, link the static libraries as ever.
function(cachalot_shared_cpp_library)
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
  foreach(name IN ITEMS core simulated_device diagnostics pool kernels)
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
endfunction()

# cachalot::cachalot, libcachalot.so. It has the CUDA kernels for the allocator's guard. The version script keeps in what
# hidden visibility lets out: instantiations of the standard library's templates.
function(cachalot_c_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;HEADERS")
  cachalot_files(sources allocator ${arg_SOURCES})
  cachalot_files(headers allocator/include/cachalot ${arg_HEADERS})
  add_library(cachalot SHARED ${sources})
  add_library(cachalot::cachalot ALIAS cachalot)
  set_target_properties(cachalot PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}  # 0.x: each minor version may break
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
  target_sources(cachalot PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/allocator/include FILES ${headers})
  target_link_options(cachalot PRIVATE
    ${CACHALOT_SHARED_LINK} -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
  target_link_libraries(cachalot PRIVATE $<BUILD_INTERFACE:cachalot_kernels> $<BUILD_INTERFACE:cachalot_layers>)
endfunction()

# libcachalot_torch.so, in build/<preset>/pytorch. The allocator in it is hidden, like libcachalot.so's.
function(cachalot_torch_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  cachalot_files(sources pytorch ${arg_SOURCES})
  add_library(cachalot_torch SHARED ${sources})
  set_target_properties(cachalot_torch PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/pytorch
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
  cachalot_unity(cachalot_torch)
  target_link_options(cachalot_torch PRIVATE
    ${CACHALOT_SHARED_LINK} -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/libcachalot.map)
  target_link_libraries(cachalot_torch PRIVATE
    $<BUILD_INTERFACE:cachalot_kernels> $<BUILD_INTERFACE:cachalot_layers> cachalot_pool)
endfunction()

# Reading traces and replaying them: shared by the command, the tests and the benchmarks.
function(cachalot_replay_library)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  find_package(ZLIB REQUIRED)
  cachalot_files(sources tools ${arg_SOURCES})
  add_library(cachalot_replay STATIC ${sources})
  # By folder: as one file they would take one core for minutes.
  cachalot_unity(cachalot_replay GROUPS analysis=tools/analysis history=tools/history,tools/exports
    others=tools/advice,tools/live,tools/pages)
  target_link_libraries(cachalot_replay PUBLIC cachalot_internal ZLIB::ZLIB)
endfunction()

# Test programs are most of what is compiled, and their own speed matters little: the library is what is tested as it is
# shipped. So it is with the command, whose work is cachalot_replay's. Half of the compilers' time in a sanitizer build went into
# optimizing tests.
#   WORKS  the target's own code takes time as well: it is optimized a little, except in Debug builds.
function(cachalot_quick_to_build target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WORKS" "" "")
  set(level -O0)
  if(arg_WORKS)
    set(level $<IF:$<CONFIG:Debug>,-O0,-O1>)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:${level}>)
endfunction()

# build/<preset>/tools/cachalot
function(cachalot_command)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  find_package(CLI11 REQUIRED)
  cachalot_files(sources tools ${arg_SOURCES})
  add_executable(cachalot_cli ${sources})
  set_target_properties(cachalot_cli PROPERTIES
    OUTPUT_NAME cachalot RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tools)
  cachalot_unity(cachalot_cli GROUPS commands=tools/commands)
  cachalot_quick_to_build(cachalot_cli WORKS)
  target_link_libraries(cachalot_cli PRIVATE cachalot_replay CLI11::CLI11)
  if(CACHALOT_PORTABLE_COMMAND)
    target_link_options(cachalot_cli PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  target_sources(cachalot_cli PRIVATE ${PROJECT_SOURCE_DIR}/simulator/models/context_costs.cpp
    ${PROJECT_SOURCE_DIR}/simulator/models/gpu_models.cpp)  # the tables, for `simulate`
  target_compile_definitions(cachalot_cli PRIVATE CACHALOT_SIMULATOR_INSTALL_DIR="${CACHALOT_SIMULATOR_INSTALL_DIR}")
endfunction()

# Programs of operations (tests/programs), for tests and fuzz targets.
function(cachalot_programs)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  cachalot_files(sources tests/programs ${arg_SOURCES})
  add_library(cachalot_programs STATIC EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(cachalot_programs PUBLIC cachalot_internal cachalot_pool cachalot_kernels)
  cachalot_unity(cachalot_programs)
  cachalot_quick_to_build(cachalot_programs WORKS)
endfunction()

# The target tests_of_<label> builds what the tests of a label need; build/<preset>/test-labels.txt lists these labels, for `./run
# test <label>`.
function(cachalot_tests_need label)
  if(NOT TARGET tests_of_${label})
    add_custom_target(tests_of_${label})
    set_property(GLOBAL APPEND_STRING PROPERTY cachalot_test_labels "${label}\n")
    get_property(labels GLOBAL PROPERTY cachalot_test_labels)
    file(WRITE ${PROJECT_BINARY_DIR}/test-labels.txt "${labels}")
  endif()
  add_dependencies(tests_of_${label} ${ARGN})
endfunction()

# The target tests_of_<group> builds what the tests of several labels need; build/<preset>/test-groups.txt has a line
# <group>=<label>|<label>…
function(cachalot_test_group group)
  set(labels "")
  foreach(label IN LISTS ARGN)
    if(TARGET tests_of_${label})
      list(APPEND labels ${label})
    endif()
  endforeach()
  list(TRANSFORM labels PREPEND tests_of_ OUTPUT_VARIABLE targets)
  add_custom_target(tests_of_${group} DEPENDS ${targets})
  list(JOIN labels "|" labels)
  set_property(GLOBAL APPEND_STRING PROPERTY cachalot_test_groups "${group}=${labels}\n")
  get_property(groups GLOBAL PROPERTY cachalot_test_groups)
  file(WRITE ${PROJECT_BINARY_DIR}/test-groups.txt "${groups}")
endfunction()

# One test program, build/<preset>/tests/test_<folder>, of files in tests/<folder>.
#   EACH_CASE  ctest runs each case by itself, so that long ones run side by side; else the program is one test.
#   GPU        cases with Cuda or Gpu in their name are tests of their own with the label gpu: where there is no GPU,
#              ctest shows them as skipped.
#   C_LIBRARY  the tests are programs of the C API: they are linked with libcachalot.so, not with the C++ library.
#   PROGRAMS   the tests play programs of operations.
#   TOOLS      the tests use the code of tools/; the tests of the core are built without it.
#   COMMAND    the tests run the cachalot command: CACHALOT_COMMAND is its path.
#   SHARDS <n> ctest runs the program n times side by side, each time a part of its cases.
#   THREADS    the cases that start threads, a filter of GoogleTest: ThreadSanitizer can find nothing in others, and runs
#              these alone.
#   WORKS      the tests' own code takes time, as a second implementation does: see cachalot_quick_to_build.
#   PARTIAL    tests of the same label need more than this program: `./run test <folder>` builds everything.
#   CUDART     the tests call the CUDA runtime, where CACHALOT_HAS_CUDART says that it is there.
#   CUDA_SOURCES  files that are built where nvcc is at hand, .cu among them.
function(cachalot_test folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "EACH_CASE;GPU;C_LIBRARY;PROGRAMS;TOOLS;COMMAND;PARTIAL;CUDART;WORKS" "THREADS;SHARDS" "SOURCES;CUDA_SOURCES")
  find_package(GTest REQUIRED)
  include(GoogleTest)
  cachalot_files(sources tests/${folder} ${arg_SOURCES})
  cachalot_files(cuda_sources tests/${folder} ${arg_CUDA_SOURCES})
  set(cases *)
  if(CACHALOT_SANITIZE STREQUAL thread)
    set(cases ${arg_THREADS})
    if(NOT cases)
      return()
    endif()
  endif()
  set(target test_${folder})
  add_executable(${target} ${sources})
  if(CACHALOT_HAS_NVCC AND cuda_sources)
    cachalot_files_by_language(cpp cu ${cuda_sources})
    target_sources(${target} PRIVATE ${cpp})
    cachalot_nvcc(${target} ${cu})
  endif()
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests C_STANDARD 11)
  target_link_libraries(${target} PRIVATE GTest::gtest_main)
  if(arg_C_LIBRARY)
    target_link_libraries(${target} PRIVATE cachalot cachalot_flags nlohmann_json::nlohmann_json Threads::Threads)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  else()
    target_link_libraries(${target} PRIVATE
      $<$<BOOL:${arg_PROGRAMS}>:cachalot_programs> $<$<BOOL:${arg_TOOLS}>:cachalot_replay> cachalot_internal cachalot_pool cachalot_kernels)
  endif()
  cachalot_unity(${target})
  if(arg_CUDART)
    target_link_libraries(${target} PRIVATE cachalot_cudart)
  endif()
  set(works "")
  if(arg_WORKS)
    set(works WORKS)
  endif()
  cachalot_quick_to_build(${target} ${works})
  if(arg_COMMAND)
    target_compile_definitions(${target} PRIVATE CACHALOT_COMMAND="$<TARGET_FILE:cachalot_cli>")
    add_dependencies(${target} cachalot_cli)
  endif()

  if(NOT arg_PARTIAL)
    cachalot_tests_need(${folder} ${target})
  endif()

  # The caller's options must not change what tests see.
  set(common TIMEOUT 1200 ENVIRONMENT_MODIFICATION CACHALOT_CONF=unset:)
  if(arg_EACH_CASE)
    gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES LABELS ${folder} ${common})
    return()
  endif()
  set(gpu_cases "*Cuda*:*Gpu*")
  if(arg_GPU)
    add_test(NAME ${folder} COMMAND ${target} --gtest_filter=${cases}-${gpu_cases})
    gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES TEST_FILTER ${gpu_cases}
      PROPERTIES RUN_SERIAL ON ${common})
    # gtest_discover_tests takes a list of labels apart: the second would be the name of a property.
    set(labels ${PROJECT_BINARY_DIR}/${target}_labels.cmake)
    file(WRITE ${labels}
      "if(${target}_TESTS)\n  set_tests_properties(\${${target}_TESTS} PROPERTIES LABELS \"${folder};gpu\")\nendif()\n")
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY TEST_INCLUDE_FILES ${labels})
  elseif(arg_SHARDS)
    math(EXPR last "${arg_SHARDS} - 1")
    foreach(shard RANGE ${last})
      add_test(NAME ${folder}.${shard} COMMAND ${target} --gtest_filter=${cases})
      set_tests_properties(${folder}.${shard} PROPERTIES
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard}" LABELS ${folder} ${common})
    endforeach()
    return()
  else()
    add_test(NAME ${folder} COMMAND ${target} --gtest_filter=${cases})
  endif()
  set_tests_properties(${folder} PROPERTIES LABELS ${folder} ${common})
endfunction()

# A CUDA program that test_<folder> runs on a simulated GPU: CACHALOT_SIMULATED_PROGRAM is its path, empty where there is
# no simulator.
function(cachalot_simulated_program folder source)
  cachalot_files(sources tests/${folder} ${source})
  if(NOT TARGET test_${folder})
    return()
  endif()
  set(path "")
  if(TARGET cachalot_simulator AND CACHALOT_HAS_CUDART)
    cmake_path(GET source STEM name)
    add_executable(${name} ${sources})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(${name} PRIVATE cachalot_cudart cachalot_flags)
    add_dependencies(test_${folder} ${name} cachalot_simulator)
    set(path $<TARGET_FILE:${name}>)
  endif()
  target_compile_definitions(test_${folder} PRIVATE CACHALOT_SIMULATED_PROGRAM="${path}")
endfunction()

# The program whose ends and libraries test_process_life looks at. It has the static library in it, and loads the shared ones.
function(cachalot_life_program source)
  cachalot_files(sources tests/process_life ${source})
  add_executable(process_life_program ${sources})
  set_target_properties(process_life_program PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(process_life_program PRIVATE
    cachalot_internal cachalot_pool cachalot_kernels cachalot_cudart ${CMAKE_DL_LIBS})
  cachalot_quick_to_build(process_life_program)
  add_dependencies(process_life_program cachalot)
  set(plug_in "")
  if(TARGET cachalot_torch)
    set(plug_in $<TARGET_FILE:cachalot_torch>)
    add_dependencies(process_life_program cachalot_torch)
  endif()
  target_compile_definitions(process_life_program PRIVATE
    CACHALOT_LIBRARY="$<TARGET_FILE:cachalot>" CACHALOT_TORCH_LIBRARY="${plug_in}")

  set(simulator "")
  if(TARGET cachalot_simulator AND CACHALOT_HAS_CUDA)
    set(simulator $<TARGET_FILE:cachalot_simulator>)
    add_dependencies(test_process_life cachalot_simulator)
  endif()
  target_compile_definitions(test_process_life PRIVATE
    CACHALOT_LIFE_PROGRAM="$<TARGET_FILE:process_life_program>" CACHALOT_SIMULATOR="${simulator}")
  add_dependencies(test_process_life process_life_program)
endfunction()

# One program a file: build/<preset>/bench/<file>. Those of GOOGLE_BENCHMARK need Google Benchmark, which CACHALOT_DEPS does not
# have.
function(cachalot_benchmarks)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;GOOGLE_BENCHMARK")
  cachalot_files(sources bench ${arg_SOURCES})
  cachalot_files(framed bench ${arg_GOOGLE_BENCHMARK})
  if(CACHALOT_DEPS)
    find_package(benchmark QUIET)
  else()
    find_package(benchmark REQUIRED)
  endif()
  if(NOT benchmark_FOUND)
    message(STATUS "cachalot: without Google Benchmark ${arg_GOOGLE_BENCHMARK} of bench/ are not built")
    set(framed "")
  endif()
  foreach(source IN LISTS sources framed)
    cmake_path(GET source STEM name)
    add_executable(bench_${name} ${source})
    set_target_properties(bench_${name} PROPERTIES
      OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
    target_link_libraries(bench_${name} PRIVATE cachalot_replay cachalot_pool cachalot_kernels)
    if(source IN_LIST framed)
      target_link_libraries(bench_${name} PRIVATE benchmark::benchmark)
    endif()
  endforeach()
endfunction()

# build/<preset>/tests/soak; as a test a few seconds on each heap.
function(cachalot_soak)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  find_package(CLI11 REQUIRED)
  cachalot_files(sources tests/soak ${arg_SOURCES})
  add_executable(soak ${sources})
  set_target_properties(soak PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  cachalot_unity(soak)
  cachalot_quick_to_build(soak)
  target_link_libraries(soak PRIVATE cachalot_internal cachalot_pool CLI11::CLI11)
  cachalot_tests_need(reliability soak)
  foreach(heap IN ITEMS segments pages)
    add_test(NAME soak.${heap} COMMAND soak --seconds 4 --options heap:${heap})
    set_tests_properties(soak.${heap} PROPERTIES LABELS reliability TIMEOUT 300)
  endforeach()
endfunction()

# Bugs are planted in the product, one at a time, and the tests must find each (tests/reliability/planted_bugs.py). That they can be
# planted is a test everywhere: a change of a line that a bug stands in shows at once. Planting one costs compilations, a link and
# tests: in builds for development, whose files are compiled one by one, eight of them are a test, drawn by the commit.
function(cachalot_planted_bugs)
  find_program(python python3 NO_CACHE)
  if(NOT python)
    message(STATUS "cachalot: no bugs are planted: that needs python3")
    return()
  endif()
  set(planted_bugs ${python} -B ${PROJECT_SOURCE_DIR}/tests/reliability/planted_bugs.py)
  add_test(NAME reliability.planted_bugs_apply COMMAND ${planted_bugs} --check)
  set_tests_properties(reliability.planted_bugs_apply PROPERTIES LABELS reliability TIMEOUT 60)
  if(CACHALOT_SANITIZE OR CACHALOT_UNITY_BUILD OR NOT CMAKE_GENERATOR STREQUAL Ninja)
    return()
  endif()
  add_test(NAME reliability.planted_bugs COMMAND ${planted_bugs} ${PROJECT_BINARY_DIR} --draw 8)
  set_tests_properties(reliability.planted_bugs PROPERTIES LABELS reliability TIMEOUT 1200)
endfunction()

# build/<preset>/fuzz/<name>, of tests/fuzz/<name>.cpp; C_LIBRARY_SOURCES are linked with libcachalot.so, not with the C++
# library.
function(cachalot_fuzzers)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;C_LIBRARY_SOURCES")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "CACHALOT_BUILD_FUZZERS needs Clang, for libFuzzer; the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  cachalot_files(sources tests/fuzz ${arg_SOURCES} ${arg_C_LIBRARY_SOURCES})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    cmake_path(GET source FILENAME file)
    add_executable(fuzz_${name} ${source})
    set_target_properties(fuzz_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
    if(file IN_LIST arg_C_LIBRARY_SOURCES)
      target_link_libraries(fuzz_${name} PRIVATE cachalot cachalot_flags)
      target_include_directories(fuzz_${name} PRIVATE ${PROJECT_SOURCE_DIR})
    else()
      target_link_libraries(fuzz_${name} PRIVATE cachalot_programs cachalot_replay)
    endif()
    target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endfunction()

# One program a file: build/<preset>/examples/<file>, built as a user would, with the public headers alone. The ones in C
# use libcachalot.so. Each is also a test: it must run and succeed.
function(cachalot_examples)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
  cachalot_files(sources examples ${arg_SOURCES})
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    add_executable(example_${name} ${source})
    set_target_properties(example_${name} PROPERTIES
      OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples C_STANDARD 11)
    if(source MATCHES "\\.c$")
      target_link_libraries(example_${name} PRIVATE cachalot::cachalot cachalot_flags)
    else()
      target_link_libraries(example_${name} PRIVATE cachalot::core cachalot::simulated_device cachalot::pool cachalot::kernels cachalot_flags)
    endif()
    if(CACHALOT_BUILD_TESTS)
      add_test(NAME examples.${name} COMMAND example_${name})
      set_tests_properties(examples.${name} PROPERTIES
        LABELS examples TIMEOUT 120 ENVIRONMENT_MODIFICATION "CACHALOT_CONF=unset:;CACHALOT_DEBUG=unset:")
    endif()
  endforeach()
endfunction()
