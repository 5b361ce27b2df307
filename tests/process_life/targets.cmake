# test_process_life, and the program whose ends and libraries it looks at. That has the static library in it, and loads the shared ones.

function(cachalot_life_tests)
  cachalot_test(process_life NEEDS c_api THREADS * SOURCES fork_test.cpp program_test.cpp threads_test.cpp)
  cachalot_files(life_sources tests/process_life program.cpp)
  if(NOT TARGET test_process_life)
    return()
  endif()
  add_executable(process_life_program ${life_sources})
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
cachalot_life_tests()
