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

cachalot_integration_tests(
  TESTS
    "cuda_core cuda.core"
    "cupy cupy"
    "enable_all cuda.core cupy numba_cuda warp"
    "numba numba_cuda"
    "onnxruntime onnxruntime onnx"
    "rmm rmm"
    "warp warp"
  EXAMPLES
    "device_report cupy"
    "one_heap cupy numba_cuda"
    "onnxruntime_session onnxruntime onnx"
    "rmm_buffers rmm")
cachalot_simulated_cudnn(examples.onnxruntime_session)
