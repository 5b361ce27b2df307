# How tests are made: programs of GoogleTest, and runs of Python. tests/, bench/ and examples/ have tests.

set(CACHALOT_PYTHON "" CACHE FILEPATH
  "Python with torch and pytest, for the tests through PyTorch; empty: $CACHALOT_PYTHON, or python3 on PATH")
set(CACHALOT_PYTHON_CUDA12 "" CACHE FILEPATH
  "Python with packages of CUDA 12, for the simulator's tests; empty: $CACHALOT_PYTHON_CUDA12")
set(CACHALOT_PYTHON_LIBRARIES "" CACHE FILEPATH
  "Python with the packages of tests/programs/requirements.txt, for programs.draw and programs.engines; empty: $CACHALOT_PYTHON_LIBRARIES")
set(CACHALOT_PYTHON_INTEGRATIONS "" CACHE FILEPATH
  "Python with the packages of tests/integrations/requirements.txt, for the tests integrations.*; empty: $CACHALOT_PYTHON_INTEGRATIONS")

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
#   NEEDS      wings, without which there are no such tests.
#   WITH       a wing, then the files that are left out without it.
#   SHARDS <n> ctest runs the program n times side by side, each time a part of its cases.
#   THREADS    the cases that start threads, a filter of GoogleTest: ThreadSanitizer can find nothing in others, and runs
#              these alone.
#   WORKS      the tests' own code takes time, as a second implementation does: see cachalot_quick_to_build.
#   PARTIAL    tests of the same label need more than this program: `./run test <folder>` builds everything.
#   CUDART     the tests call the CUDA runtime, where CACHALOT_HAS_CUDART says that it is there.
#   CUDA_SOURCES  files that are built where nvcc is at hand, .cu among them.
function(cachalot_test folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "EACH_CASE;GPU;C_LIBRARY;PROGRAMS;TOOLS;COMMAND;PARTIAL;CUDART;WORKS" "THREADS;SHARDS" "SOURCES;CUDA_SOURCES;NEEDS;WITH")
  find_package(GTest REQUIRED)
  include(GoogleTest)
  cachalot_files(sources tests/${folder} ${arg_SOURCES})
  cachalot_files(cuda_sources tests/${folder} ${arg_CUDA_SOURCES})
  list(POP_FRONT arg_WITH wing)
  cachalot_files(sources_of_wing tests/${folder} ${arg_WITH})
  if(NOT wing IN_LIST CACHALOT_ABSENT_WINGS)
    list(APPEND sources ${sources_of_wing})
  endif()
  foreach(wing IN LISTS arg_NEEDS)
    if(wing IN_LIST CACHALOT_ABSENT_WINGS)
      return()
    endif()
  endforeach()
  if((arg_TOOLS AND NOT TARGET cachalot_replay) OR (arg_PROGRAMS AND NOT TARGET cachalot_programs))
    return()
  endif()
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

# Gives tests the label drawn: `./run test` leaves them to `./run test drawn`.
function(cachalot_drawn)
  foreach(test IN LISTS ARGN)
    if(TEST ${test})
      set_property(TEST ${test} APPEND PROPERTY LABELS drawn)
    endif()
  endforeach()
endfunction()

# A test that is one run of Python, over the simulated CUDA runtime. Where it cannot run, it is skipped and says why.
# Arguments: the test's name, its label, its limit in seconds, then Python's arguments.
function(cachalot_python_test name label seconds)
  if(CACHALOT_SANITIZE)  # PyTorch's libraries are not built for sanitizers
    return()
  endif()
  cachalot_python_for_tests(python why_not)
  cachalot_add_python_test(${name} ${label} ${seconds} "${python}" "${why_not}" ${ARGN})
endfunction()

# The same by any Python. `why_not` is why it cannot run, or empty.
function(cachalot_add_python_test name label seconds python why_not)
  if(why_not)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${why_not}")
    set_tests_properties(${name} PROPERTIES LABELS ${label} SKIP_REGULAR_EXPRESSION "^skipped: ")
    return()
  endif()
  add_test(NAME ${name} COMMAND ${python} -B ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${seconds}
    ENVIRONMENT "CACHALOT_CACHE_DIR=${PROJECT_BINARY_DIR}/python/cache;\
CACHALOT_COMMAND=${PROJECT_BINARY_DIR}/tools/cachalot;\
PYTHONPATH=${PROJECT_BINARY_DIR}/python;LD_PRELOAD=$<TARGET_FILE:cachalot_simulator>;\
LD_LIBRARY_PATH=$<TARGET_FILE_DIR:cachalot_simulator>/driver;\
CACHALOT_SIM=devices:2,memory:8GiB"
    ENVIRONMENT_MODIFICATION
      "CACHALOT_CONF=unset:;CACHALOT_DEBUG=unset:;PYTORCH_CUDA_ALLOC_CONF=unset:;PYTORCH_ALLOC_CONF=unset:;PYTORCH_NO_CUDA_MEMORY_CACHING=unset:")
endfunction()

# The Python that may have torch: $CACHALOT_PYTHON, else python3 on PATH; empty where there is none.
function(cachalot_python_candidate result)
  set(candidate ${CACHALOT_PYTHON})
  if(NOT candidate)
    set(candidate $ENV{CACHALOT_PYTHON})
  endif()
  if(NOT candidate)
    find_program(candidate python3 NO_CACHE)
  endif()
  if(NOT candidate)
    set(candidate "")
  endif()
  set(${result} "${candidate}" PARENT_SCOPE)
endfunction()

# Sets `python` to the interpreter to use, or `why_not`; looks once.
function(cachalot_python_for_tests python why_not)
  get_property(known GLOBAL PROPERTY cachalot_python_for_tests SET)
  if(NOT known)
    cachalot_find_python_for_tests(found lack)
    if(lack)
      message(STATUS "cachalot: the tests through PyTorch are skipped: ${lack}")
    endif()
    set_property(GLOBAL PROPERTY cachalot_python_for_tests "${found}")
    set_property(GLOBAL PROPERTY cachalot_python_lack "${lack}")
  endif()
  get_property(found GLOBAL PROPERTY cachalot_python_for_tests)
  get_property(lack GLOBAL PROPERTY cachalot_python_lack)
  set(${python} "${found}" PARENT_SCOPE)
  set(${why_not} "${lack}" PARENT_SCOPE)
endfunction()

function(cachalot_find_python_for_tests python why_not)
  set(${python} "" PARENT_SCOPE)
  set(${why_not} "" PARENT_SCOPE)
  if(NOT TARGET cachalot_torch OR NOT TARGET cachalot_simulator OR NOT TARGET cachalot_cli)
    set(${why_not} "the plug-in, the command or the simulated CUDA runtime is not built" PARENT_SCOPE)
    return()
  endif()
  cachalot_python_candidate(candidate)
  if(NOT candidate)
    set(${why_not} "there is no python3 on PATH" PARENT_SCOPE)
    return()
  endif()
  cachalot_python_lacks(lack ${candidate} torch pytest)
  set(${why_not} "${lack}" PARENT_SCOPE)
  set(${python} ${candidate} PARENT_SCOPE)
endfunction()

# Sets `result` to why the interpreter cannot run tests that need these packages; empty where it can.
function(cachalot_python_lacks result python)
  set(${result} "" PARENT_SCOPE)
  if(NOT python)
    set(${result} "there is no python3 on PATH" PARENT_SCOPE)
    return()
  endif()
  # torch itself takes seconds to import.
  execute_process(COMMAND ${python} -c [[
import importlib.util, pathlib, runpy, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
if missing:
    print("no", " and no ".join(missing))
elif "torch" in sys.argv:
    version = pathlib.Path(importlib.util.find_spec("torch").origin).with_name("version.py")
    if runpy.run_path(str(version))["cuda"] is None:
        print("a torch without CUDA")
]] ${ARGN} OUTPUT_VARIABLE lack ERROR_VARIABLE broken RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    set(${result} "${python} does not work: ${broken}" PARENT_SCOPE)
  elseif(lack)
    set(${result} "${python} has ${lack}" PARENT_SCOPE)
  endif()
endfunction()

# The folder of a Python package that the interpreter has; empty where it has not.
function(cachalot_python_folder result python package)
  set(folder "")
  if(python)
    execute_process(
      COMMAND ${python} -c "import importlib.util; print(*importlib.util.find_spec('${package}').submodule_search_locations)"
      OUTPUT_VARIABLE folder ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()
