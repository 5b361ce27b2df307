# build/<preset>/tests/test_plug: the plug-in's hooks without PyTorch, on both heaps, with the simulator preloaded.

function(cachalot_plug_tests)
  cachalot_files(plug_tests tests/plug
    c_functions_test.cpp descriptor_exchange_test.cpp fault_sweep_test.cpp pool_hooks_test.cpp)
  if(NOT CACHALOT_HAS_CUDART OR NOT TARGET cachalot_torch)
    return()
  endif()
  add_executable(test_plug ${plug_tests})
  set_target_properties(test_plug PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_definitions(test_plug PRIVATE CACHALOT_WITHOUT_LIBRARY)  # what it links has no C++ API
  target_include_directories(test_plug PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/simulator/include ${PROJECT_SOURCE_DIR}/allocator/include
    ${PROJECT_SOURCE_DIR}/pool/include ${PROJECT_SOURCE_DIR}/c_api/include ${PROJECT_SOURCE_DIR}/allocator)
  target_link_libraries(test_plug PRIVATE
    cachalot_torch CUDA::cudart cachalot_flags GTest::gtest_main fmt::fmt nlohmann_json::nlohmann_json)
  target_link_libraries(test_plug PRIVATE cachalot_simulator)  # behind the runtime, so that CUDA's functions are bound to that
  foreach(heap IN ITEMS segments pages)
    cachalot_simulated_environment(environment CACHALOT_SIM=memory:256MiB CACHALOT_CONF=heap:${heap})
    add_test(NAME plug.${heap} COMMAND test_plug)
    set_tests_properties(plug.${heap} PROPERTIES ENVIRONMENT "${environment}" LABELS simulator TIMEOUT 300)
  endforeach()
endfunction()
cachalot_plug_tests()
