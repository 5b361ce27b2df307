# The Python package: laid out in the build tree for tests, installed as the component `python` for wheels; and the tests
# that run through PyTorch.

set(CACHALOT_PYTHON "" CACHE FILEPATH
  "Python with torch and pytest, for the tests through PyTorch; empty: $CACHALOT_PYTHON, or python3 on PATH")
set(CACHALOT_PYTHON_CUDA12 "" CACHE FILEPATH
  "Python with packages of CUDA 12, for the simulator's tests; empty: $CACHALOT_PYTHON_CUDA12")
set(CACHALOT_PYTHON_LIBRARIES "" CACHE FILEPATH
  "Python with the packages of tests/programs/requirements.txt, for the test programs.draw; empty: $CACHALOT_PYTHON_LIBRARIES")
set(CACHALOT_PYTHON_INTEGRATIONS "" CACHE FILEPATH
  "Python with the packages of tests/integrations/requirements.txt, for the tests integrations.*; empty: $CACHALOT_PYTHON_INTEGRATIONS")

set(CACHALOT_ADAPTERS "" CACHE PATH
  "Folder of ready adapters (packaging/adapters.py) for the wheel; empty: one for the PyTorch that the build finds, if any")

# build/<preset>/python/cachalot, of links: PYTHONPATH=build/<preset>/python imports it as it stands in the source tree.
function(cachalot_python_package)
  set(package ${PROJECT_BINARY_DIR}/python/cachalot)
  file(GLOB modules CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pytorch/cachalot/*.py)
  file(GLOB integrations CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pytorch/cachalot/integrations/*.py)
  file(REMOVE_RECURSE ${package})
  file(MAKE_DIRECTORY ${package}/native/include)
  foreach(file IN LISTS modules ITEMS ${PROJECT_SOURCE_DIR}/pytorch/cachalot/py.typed)
    cachalot_link(${file} ${package})
  endforeach()
  foreach(file IN LISTS integrations)
    cachalot_link(${file} ${package}/integrations)
  endforeach()
  cachalot_link(${PROJECT_SOURCE_DIR}/pytorch/adapter ${package}/native)
  cachalot_link(${PROJECT_SOURCE_DIR}/pytorch/plug/plug.h ${package}/native)
  cachalot_link(${PROJECT_SOURCE_DIR}/pytorch/plug/host_plug.h ${package}/native)
  cachalot_link(${PROJECT_SOURCE_DIR}/allocator/include/cachalot ${package}/native/include)
  set(library ${package}/native/libcachalot_torch.so)
  file(CREATE_LINK ${PROJECT_BINARY_DIR}/pytorch/libcachalot_torch.so ${library} SYMBOLIC)  # built later
  file(CONFIGURE OUTPUT ${package}/_version.py CONTENT "__version__ = \"@PROJECT_VERSION@\"\n" @ONLY)

  # Wheels: scikit-build-core puts the .py files in, and this beside them, at cachalot/native.
  install(TARGETS cachalot_torch LIBRARY DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/pytorch/adapter DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  install(FILES ${PROJECT_SOURCE_DIR}/pytorch/plug/plug.h ${PROJECT_SOURCE_DIR}/pytorch/plug/host_plug.h DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/allocator/include/cachalot DESTINATION include COMPONENT python EXCLUDE_FROM_ALL)
  if(DEFINED SKBUILD)
    install(FILES ${package}/_version.py DESTINATION ${SKBUILD_PLATLIB_DIR}/cachalot COMPONENT python EXCLUDE_FROM_ALL)
    if(CACHALOT_ADAPTERS)
      install(DIRECTORY ${CACHALOT_ADAPTERS}/ DESTINATION prebuilt COMPONENT python EXCLUDE_FROM_ALL)
    else()
      cachalot_install_prebuilt_adapter()
    endif()
  endif()
endfunction()

# The target that a wheel is made of: what is there of plug-in, command and simulator. The command goes where Python's programs
# are, and the rest where it looks for it. Shells find its completions there.
function(cachalot_python_wheel)
  add_custom_target(cachalot_python)
  foreach(target IN ITEMS cachalot_torch cachalot_cli cachalot_simulator)
    if(TARGET ${target})
      add_dependencies(cachalot_python ${target})
    endif()
  endforeach()
  if(NOT DEFINED SKBUILD OR NOT TARGET cachalot_cli)
    return()
  endif()
  set(data ${SKBUILD_DATA_DIR})
  install(TARGETS cachalot_cli RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python EXCLUDE_FROM_ALL)
  foreach(shell_and_file IN ITEMS
      "bash share/bash-completion/completions cachalot" "zsh share/zsh/site-functions _cachalot"
      "fish share/fish/vendor_completions.d cachalot.fish")
    separate_arguments(words UNIX_COMMAND ${shell_and_file})
    list(POP_FRONT words shell folder file)
    install(CODE "
      file(MAKE_DIRECTORY ${data}/${folder})
      execute_process(COMMAND $<TARGET_FILE:cachalot_cli> completion ${shell} OUTPUT_FILE ${data}/${folder}/${file}
        COMMAND_ERROR_IS_FATAL ANY)" COMPONENT python EXCLUDE_FROM_ALL)
  endforeach()
  if(TARGET cachalot_simulator)
    set(simulator ${data}/${CACHALOT_SIMULATOR_INSTALL_DIR})
    install(TARGETS cachalot_simulator LIBRARY DESTINATION ${simulator} COMPONENT python EXCLUDE_FROM_ALL)
    install(DIRECTORY ${PROJECT_BINARY_DIR}/simulator/cudart DESTINATION ${simulator} COMPONENT python EXCLUDE_FROM_ALL)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/simulator/python/ DESTINATION ${simulator}/python
      COMPONENT python EXCLUDE_FROM_ALL FILES_MATCHING PATTERN *.py)
  endif()
endfunction()

# The adapter for the torch that the interpreter has while the wheel is made, if it has one. PYTHONPATH replaces the one
# by which pip isolates builds: what is compiled is for this very torch, or is not looked at.
function(cachalot_install_prebuilt_adapter)
  find_package(Python COMPONENTS Interpreter REQUIRED)
  install(CODE "
    execute_process(
      COMMAND \${CMAKE_COMMAND} -E env PYTHONPATH=${PROJECT_BINARY_DIR}/python
              ${Python_EXECUTABLE} -c
              \"import pathlib; from cachalot import _adapter; _adapter.prebuild(pathlib.Path('\${CMAKE_INSTALL_PREFIX}/prebuilt'))\"
      RESULT_VARIABLE status ERROR_VARIABLE error OUTPUT_QUIET)
    if(NOT status EQUAL 0)
      string(STRIP \"\${error}\" error)
      string(REGEX REPLACE \".*\\n\" \"\" error \"\${error}\")
      message(STATUS \"no adapter is prebuilt; it is compiled at first use (\${error})\")
    endif()" COMPONENT python EXCLUDE_FROM_ALL)
endfunction()

# A link to `target` in `folder`, of the same name.
function(cachalot_link target folder)
  file(MAKE_DIRECTORY ${folder})
  cmake_path(GET target FILENAME name)
  file(CREATE_LINK ${target} ${folder}/${name} SYMBOLIC)
endfunction()

# Tests of a mode are one run of pytest: native (PyTorch's own allocator, the oracle), plug, full, pages (full, on the
# page heap). Those of `cachalot simulate` and `fit` are of their own, which run beside the others, as are those of pinned memory,
# which needs torch's host allocator to be changed in the whole process. Every change runs all tests once, and on the page heap those
# that the heap changes most; the other modes, and what takes minutes, have the label drawn.
function(cachalot_python_tests)
  set(heap conformance differential functions models pools sharing sleep snapshots weaknesses)
  set(simulate simulate)
  set(fit advise fit owners)
  set(simulate_more computing simulate_distributed)
  set(pinned pinned pinned_processes)
  set(programs convert pytest_plugin ranks stage)  # of programs as a whole, which the heap does not change
  set(recorded expandable_segments)
  foreach(group IN ITEMS heap simulate simulate_more fit pinned programs recorded)
    list(TRANSFORM ${group} REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/tests/pytorch/test_\\1.py" OUTPUT_VARIABLE of_${group})
    list(TRANSFORM of_${group} PREPEND --ignore= OUTPUT_VARIABLE but_${group})
  endforeach()
  set(all ${but_simulate} ${but_simulate_more} ${but_fit} ${but_pinned} ${but_programs} ${PROJECT_SOURCE_DIR}/tests/pytorch)
  cachalot_pytest(pytorch.full full ${but_recorded} ${all})
  cachalot_pytest(pytorch.pages pages ${of_heap})
  cachalot_pytest(pytorch.simulate full ${of_simulate})
  cachalot_pytest(pytorch.pinned full ${of_pinned})
  cachalot_pytest(pytorch.programs full ${of_programs})

  cachalot_pytest(pytorch.native native ${all})
  cachalot_pytest(pytorch.plug plug ${all})
  cachalot_pytest(pytorch.pages_more pages ${but_heap} ${all})
  cachalot_pytest(pytorch.recorded full ${of_recorded})
  cachalot_pytest(pytorch.simulate_more full ${of_simulate_more})
  cachalot_pytest(pytorch.fit full ${of_fit})
  cachalot_pytest(pytorch.pinned_native native ${PROJECT_SOURCE_DIR}/tests/pytorch/test_pinned.py)
  cachalot_pytest(pytorch.programs_native native ${of_programs})
  cachalot_drawn(pytorch.native pytorch.plug pytorch.pages_more pytorch.recorded pytorch.simulate_more pytorch.fit pytorch.pinned_native
    pytorch.programs_native)
endfunction()

# Gives tests the label drawn: `./run test` leaves them to `./run test drawn`.
function(cachalot_drawn)
  foreach(test IN LISTS ARGN)
    if(TEST ${test})
      set_property(TEST ${test} APPEND PROPERTY LABELS drawn)
    endif()
  endforeach()
endfunction()

function(cachalot_pytest name mode)
  cachalot_python_test(${name} pytorch 1800 -m pytest -q -p no:cacheprovider ${ARGN})
  if(TEST ${name})  # not under sanitizers
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT CACHALOT_TEST_MODE=${mode})
    set_property(TEST ${name} PROPERTY COST 1000)  # the longest begin first, beside the others
  endif()
endfunction()

# The examples in Python, examples/<name>/<name>.py: each is a test, which fails where its own checks do; and their parts.
function(cachalot_python_examples)
  if(NOT CACHALOT_BUILD_TESTS)
    return()
  endif()
  foreach(name IN LISTS ARGN)
    cachalot_python_test(examples.${name} examples 300 ${PROJECT_SOURCE_DIR}/examples/${name}/${name}.py)
    cachalot_drawn(examples.${name})
  endforeach()
  cachalot_python_test(examples.python examples 600 -m pytest -q -p no:cacheprovider ${PROJECT_SOURCE_DIR}/tests/examples)
  cachalot_drawn(examples.python)
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

# The tests of the libraries that share the heap, tests/integrations/test_<name>.py, and their examples, by
# CACHALOT_PYTHON_INTEGRATIONS: integrations.<name> and examples.<name>. Arguments: TESTS, then "<name> <package that it needs>…"
# each; EXAMPLES, likewise.
function(cachalot_integration_tests)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "TESTS;EXAMPLES")
  set(python ${CACHALOT_PYTHON_INTEGRATIONS})
  if(NOT python)
    set(python $ENV{CACHALOT_PYTHON_INTEGRATIONS})
  endif()
  foreach(entry IN LISTS arg_TESTS)
    separate_arguments(words UNIX_COMMAND ${entry})
    list(POP_FRONT words name)
    cachalot_integration_test(integrations.${name} "${python}" "pytest;${words}"
      -m pytest -q -p no:cacheprovider ${PROJECT_SOURCE_DIR}/tests/integrations/test_${name}.py)
  endforeach()
  foreach(entry IN LISTS arg_EXAMPLES)
    separate_arguments(words UNIX_COMMAND ${entry})
    list(POP_FRONT words name)
    cachalot_integration_test(examples.${name} "${python}" "${words}" ${PROJECT_SOURCE_DIR}/examples/${name}.py)
  endforeach()
endfunction()

function(cachalot_integration_test name python packages)
  if(CACHALOT_SANITIZE OR NOT TARGET cachalot_torch OR NOT TARGET cachalot_simulator)
    return()
  endif()
  if(python)
    cachalot_python_lacks(lack "${python}" ${packages})
  else()
    set(lack "CACHALOT_PYTHON_INTEGRATIONS is not set")
  endif()
  cachalot_add_python_test(${name} integrations 300 "${python}" "${lack}" ${ARGN})
endfunction()

# A test whose program opens cuDNN by its name, which is then the simulated one; libraries that are linked with cuDNN find
# it without this.
function(cachalot_simulated_cudnn test)
  if(NOT TEST ${test})
    return()
  endif()
  set(folder ${PROJECT_BINARY_DIR}/simulator/cudnn)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${PROJECT_BINARY_DIR}/simulator/libcachalot_simulator.so ${folder}/libcudnn.so.9 SYMBOLIC)
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT_MODIFICATION "LD_LIBRARY_PATH=path_list_append:${folder}")
endfunction()

# A draw of the programs tests/programs/*.py, by `cachalot simulate`.
function(cachalot_library_programs)
  if(NOT TARGET cachalot_cli OR NOT TARGET cachalot_simulator)
    return()
  endif()
  set(python ${CACHALOT_PYTHON_LIBRARIES})
  if(NOT python)
    set(python $ENV{CACHALOT_PYTHON_LIBRARIES})
  endif()
  if(python)
    cachalot_python_lacks(lack "${python}" torch transformers)
  else()
    set(lack "CACHALOT_PYTHON_LIBRARIES is not set")
  endif()
  if(lack)
    cachalot_add_python_test(programs.draw programs 300 "" "${lack}")
    return()
  endif()
  add_test(NAME programs.draw COMMAND ${python} -B ${PROJECT_SOURCE_DIR}/tests/programs/run
    --command $<TARGET_FILE:cachalot_cli> --python ${python} --draw 6 --seconds 150)
  set_tests_properties(programs.draw PROPERTIES LABELS programs TIMEOUT 400 COST 900)
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
  if(NOT TARGET cachalot_torch OR NOT TARGET cachalot_simulator)
    set(${why_not} "the plug-in or the simulated CUDA runtime is not built" PARENT_SCOPE)
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
