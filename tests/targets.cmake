# Tests: one program a folder, named as the folder it covers. Tests of a wing that is not in this tree are left out.

# cachalot_programs: programs of operations, for tests and fuzz targets.
cachalot_files(program_sources tests/programs player.cpp program.cpp random_program.cpp small_plays.cpp)
if(NOT "simulator/device" IN_LIST CACHALOT_ABSENT_WINGS)
  add_library(cachalot_programs STATIC EXCLUDE_FROM_ALL ${program_sources})
  target_link_libraries(cachalot_programs PUBLIC cachalot_internal cachalot_pool cachalot_kernels)
  cachalot_unity(cachalot_programs)
  cachalot_quick_to_build(cachalot_programs WORKS)
endif()
if(CACHALOT_BUILD_FUZZERS)
  include(tests/fuzz/targets.cmake)
endif()
if(NOT CACHALOT_BUILD_TESTS)
  return()
endif()
enable_testing()
enable_language(C)  # the C API is used by a C program

# ---- The core: without a device, and over the simulated one ------------------------------------------------------------

cachalot_test(base THREADS *
  SOURCES bytes_test.cpp call_stack_test.cpp format_test.cpp json_writer_test.cpp metadata_memory_test.cpp
  mutex_test.cpp own_code_test.cpp suggestions_test.cpp)
set_source_files_properties(tests/base/call_stack_test.cpp PROPERTIES COMPILE_OPTIONS -g)  # its stacks have lines
cachalot_test(blocks THREADS PageMap* SOURCES block_heap_test.cpp counters_test.cpp free_bins_test.cpp page_map_test.cpp)
cachalot_test(caches THREADS * SOURCES depot_test.cpp WITH simulator/device thread_caches_test.cpp)
cachalot_test(policy SOURCES memory_limit_test.cpp option_parser_test.cpp torch_policy_test.cpp
  WITH simulator/device simulation_settings_test.cpp)
cachalot_test(pages NEEDS simulator/device SHARDS 4 THREADS *Threads*:*Thread*
  SOURCES backing_test.cpp driver_costs_test.cpp eviction_test.cpp gaps_test.cpp page_heap_test.cpp peer_access_test.cpp
  placement_test.cpp
  placement_windows_test.cpp sharing_test.cpp sleep_failures_test.cpp sleep_test.cpp
  sleep_to_file_test.cpp stream_clock_test.cpp stream_lifetimes_test.cpp)
cachalot_test(device NEEDS simulator/device GPU CUDART THREADS *Threads*
  SOURCES allocation_table_test.cpp copies_test.cpp cuda_device_test.cpp cuda_subject.cpp device_contract_test.cpp
          hazard_checker_test.cpp simulated_device_test.cpp simulated_subject.cpp unified_memory_test.cpp
  WITH simulator cuda_contexts_test.cpp cuda_handles_test.cpp)
cachalot_test(allocator NEEDS simulator/device SHARDS 2 THREADS *-*AlignedAllocation*:TrimAndReserve.SurviveEach*
  SOURCES added_calls_test.cpp alignment_test.cpp bad_input_test.cpp buffer_test.cpp deferred_frees_test.cpp device_buffer_test.cpp heap_async_test.cpp heap_managed_test.cpp interleavings_test.cpp json_test.cpp limits_test.cpp malloc_test.cpp out_of_memory_test.cpp
          pinned_host_test.cpp
          pinned_memory_resource_test.cpp plain_memory_test.cpp private_pools_test.cpp segment_tracker_test.cpp slow_path_test.cpp slow_work_observer_test.cpp statistics_test.cpp streams_test.cpp threads_test.cpp trim_test.cpp weaknesses_test.cpp)
cachalot_test(pool NEEDS simulator/device THREADS *
  SOURCES dlpack_test.cpp free_slots_test.cpp pool_set_test.cpp streams_test.cpp tensor_pool_test.cpp
          tensor_spec_test.cpp thread_stacks_test.cpp threads_test.cpp)
cachalot_test(kernels NEEDS simulator/device GPU CUDART THREADS SlotPool*
  SOURCES cub_scratch_test.cpp device_code_test.cpp moves_test.cpp overlap_test.cpp pattern_test.cpp
          slot_pool_test.cpp
  CUDA_SOURCES cuda_slot_pool_test.cpp slot_pool_program.cu)
cachalot_test(steady_state PROGRAMS THREADS *WithoutHostMemory* SOURCES host_memory_test.cpp replaced_new.cpp steady_state_test.cpp)
cachalot_test(reliability EACH_CASE PROGRAMS WORKS
  SOURCES driver_rules_test.cpp fault_sweep_test.cpp hostile_input_test.cpp plays_test.cpp)
if(NOT CACHALOT_ABSENT_WINGS)  # it plants bugs in every wing
  include(tests/reliability/planted_bugs.cmake)
endif()
include(tests/soak/targets.cmake)
cachalot_test(c_api NEEDS c_api C_LIBRARY GPU CUDART THREADS *
  SOURCES c_api_compiles.c c_api_gpu_test.cpp c_api_sharing_test.cpp c_api_test.cpp c_guard_test.cpp c_limits_test.cpp
          c_publish_test.cpp c_segments_test.cpp onnxruntime_test.cpp)

# ---- diagnostics/ ----------------------------------------------------------------------------------------------------

cachalot_test(guard NEEDS diagnostics simulator/device THREADS *Threads* SOURCES debug_test.cpp guard_test.cpp guard_world_test.cpp programs_test.cpp)
cachalot_test(leaks NEEDS simulator/device diagnostics THREADS * SOURCES leak_detector_test.cpp trend_test.cpp)
# ThreadSanitizer knows no threads that begin in a child of fork.
cachalot_test(live NEEDS simulator/device diagnostics THREADS *-*AForkedChild*:*WhenTheProcessExits:BudgetProcesses.*
  SOURCES budget_test.cpp device_usage_test.cpp memory_watch_test.cpp publisher_test.cpp)
include(tests/process_life/targets.cmake)

# What `./run test core` runs, the tests of allocator/, pool/ and kernels/; and what the sanitizers run at every change.
set(core base blocks pages caches policy device allocator guard leaks live pool kernels steady_state c_api)
cachalot_test_group(core ${core})
cachalot_test_group(sanitized ${core} reliability)

# ---- adapters/ and tools/ --------------------------------------------------------------------------------------------

include(tests/adapters/targets.cmake)
cachalot_test(exactness EACH_CASE TOOLS WORKS SOURCES golden_test.cpp gpu_log.cpp gpu_traces_test.cpp)
cachalot_test(reference EACH_CASE PROGRAMS TOOLS WORKS
  SOURCES comparison.cpp golden_test.cpp random_test.cpp reference_heap.cpp)
cachalot_test(analysis TOOLS
  SOURCES causes_test.cpp checks_test.cpp difference_test.cpp failing_process_test.cpp foundation_test.cpp log_text_test.cpp
          oom_message_test.cpp)
cachalot_test(exports TOOLS SOURCES exports_test.cpp)
cachalot_test(serving TOOLS COMMAND SOURCES serving_test.cpp)
# What servers printed, and what `cachalot fit` computes: the document's table is that of this command.
find_program(python3 python3 NO_CACHE)
if(TARGET test_serving AND python3 AND NOT CACHALOT_SANITIZE)
  add_test(NAME serving.receipts
    COMMAND ${python3} -B ${PROJECT_SOURCE_DIR}/bench/accuracy/serving.py $<TARGET_FILE:cachalot_cli> --check)
  set_tests_properties(serving.receipts PROPERTIES LABELS serving TIMEOUT 300)
endif()
cachalot_test(top TOOLS COMMAND SOURCES budget_command_test.cpp page_reader_test.cpp prometheus_test.cpp top_test.cpp)
cachalot_test(html TOOLS SOURCES columns_test.cpp html_report_test.cpp ranges_test.cpp)
cachalot_test(tools TOOLS COMMAND
  SOURCES advise_command_test.cpp analysis_commands_test.cpp card_table_test.cpp cli_test.cpp compare_test.cpp expandable_segments_test.cpp fit_test.cpp
          foreign_files_test.cpp help_test.cpp history_test.cpp pickles_test.cpp python_program_test.cpp recorded_snapshots_test.cpp replay_test.cpp simulate_estimates_test.cpp
          simulate_test.cpp snapshot_test.cpp
          report_tree_test.cpp style_test.cpp text_histories_test.cpp trace_reader_test.cpp)
# A CUDA program that test_tools runs on a simulated GPU, where there is a simulator.
cachalot_files(allocating_program tests/tools allocating_program.cpp)
if(TARGET test_tools)
  set(path "")
  if(TARGET cachalot_simulator AND CACHALOT_HAS_CUDART)
    add_executable(allocating_program ${allocating_program})
    set_target_properties(allocating_program PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(allocating_program PRIVATE cachalot_cudart cachalot_flags)
    add_dependencies(test_tools allocating_program cachalot_simulator)
    set(path $<TARGET_FILE:allocating_program>)
  endif()
  target_compile_definitions(test_tools PRIVATE CACHALOT_SIMULATED_PROGRAM="${path}")
endif()
include(tests/agreement/targets.cmake)
cachalot_test(advice TOOLS THREADS *Threads* SOURCES advice_test.cpp choice_test.cpp parallel_test.cpp recorded_programs_test.cpp)

# ---- simulator/ and pytorch/ -----------------------------------------------------------------------------------------

if(CACHALOT_HAS_SIMULATOR)
  include(tests/simulator/targets.cmake)
  include(tests/mr/targets.cmake)
  include(tests/plug/targets.cmake)
endif()
if(NOT CACHALOT_SANITIZE)
  include(tests/pytorch/targets.cmake)
  include(tests/integrations/targets.cmake)
  include(tests/programs/targets.cmake)
endif()

# ---- Public headers, and examples ------------------------------------------------------------------------------------

cachalot_test(headers NEEDS c_api
  SOURCES cpp17_test.cpp layouts_cpp17.cpp layouts_test.cpp span_test.cpp version_test.cpp)
set_source_files_properties(tests/headers/version_test.cpp
  PROPERTIES COMPILE_DEFINITIONS CACHALOT_PROJECT_VERSION="${PROJECT_VERSION}")
set_source_files_properties(tests/headers/cpp17_test.cpp tests/headers/layouts_cpp17.cpp
  PROPERTIES COMPILE_OPTIONS -std=c++17)
cachalot_test(examples NEEDS simulator/device PARTIAL WORKS SOURCES lsm_pricing_test.cpp)
# Parts of an example that it tests.
cachalot_files(lsm_pricing_parts examples/lsm_pricing host_backend.cpp pricer.cpp regression.cpp tree.cpp)
if(TARGET test_examples)
  target_sources(test_examples PRIVATE ${lsm_pricing_parts})
endif()

# ---- The source tree and its documents -------------------------------------------------------------------------------

if(NOT CACHALOT_SANITIZE)  # these look at files, or run what a sanitizer cannot: the release build has them
  include(tests/kernels/device_code.cmake)
  set(looks locks)
  if(TARGET cachalot)
    list(APPEND looks abi headers)
  endif()
  if(NOT CACHALOT_ABSENT_WINGS)  # these look at every folder
    list(APPEND looks documents html_browser interface language layers readme structure types)
  endif()
  foreach(folder IN LISTS looks)
    add_subdirectory(tests/${folder})
  endforeach()
endif()
