# cachalot_replay, what reads traces and replays them, for the tests and the benchmarks as well, and the command `cachalot`.

if("simulator" IN_LIST CACHALOT_ABSENT_WINGS OR "diagnostics" IN_LIST CACHALOT_ABSENT_WINGS)
  message(STATUS "cachalot: tools/ is not built: it needs simulator/ and diagnostics/")
  return()
endif()

include(tools/html/embed.cmake)
if(CACHALOT_BUILD_TOOLS OR CACHALOT_BUILD_TESTS OR CACHALOT_BUILD_BENCHMARKS OR CACHALOT_BUILD_FUZZERS)
  find_package(ZLIB REQUIRED)
  cachalot_files(replay_sources tools
    analysis/categories.cpp analysis/causes.cpp analysis/checks.cpp analysis/difference.cpp
    analysis/explanation.cpp analysis/explanation_report.cpp analysis/failing_process.cpp analysis/holders.cpp analysis/log_text.cpp
    analysis/message_report.cpp
    analysis/oom_figures.cpp analysis/oom_message.cpp analysis/program_settings.cpp analysis/recorded_trace.cpp analysis/remedies.cpp analysis/sites.cpp
    analysis/timeline.cpp analysis/written_sizes.cpp base/input_file.cpp base/output_file.cpp base/parallel.cpp base/report_tree.cpp
    base/text_layout.cpp history/history.cpp history/memory_ranges.cpp history/parts.cpp
    history/pickle_program.cpp history/snapshot_builder.cpp history/snapshot_history.cpp history/tables.cpp
    history/text_histories.cpp live/prometheus_server.cpp live/sample.cpp live/sample_formats.cpp live/sample_series.cpp
    output/export_formats.cpp output/html_report.cpp output/html_tables.cpp output/perfetto.cpp output/snapshot_report.cpp
    output/torch_snapshot.cpp replay/comparison.cpp replay/expandable_segments.cpp replay/policies.cpp
    replay/replay.cpp replay/trace_reader.cpp simulation/advice.cpp simulation/card_table.cpp
    serving/config_reader.cpp serving/model_families.cpp serving/quantization.cpp serving/safetensors.cpp
    serving/served_memory.cpp serving/served_model.cpp serving/serving_fit.cpp serving/serving_report.cpp
    simulation/fit_search.cpp simulation/python_program.cpp simulation/recorded_programs.cpp
    simulation/simulation_files.cpp simulation/sized_memory.cpp)
  add_library(cachalot_replay STATIC ${replay_sources})
  # By folder: as one file they would take one core for minutes.
  cachalot_unity(cachalot_replay GROUPS analysis=tools/analysis history=tools/history output=tools/output,tools/live)
  target_link_libraries(cachalot_replay PUBLIC cachalot_internal ZLIB::ZLIB)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS tools/analysis/category_rules.json)
  file(READ tools/analysis/category_rules.json rules)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tools/category_rules.inc CONTENT "R\"json(\n@rules@)json\"" @ONLY)
  target_include_directories(cachalot_replay PRIVATE ${PROJECT_BINARY_DIR})
  cachalot_embed_html(cachalot_replay report.html whale.svg report.css vendor/uPlot.min.css vendor/uPlot.iife.min.js
    script/dom.js script/columns.js script/theme.js script/run.js script/pyramid.js script/moment.js script/chart.js script/overview.js script/timeline.js
    script/memory_map.js script/flame.js script/sites.js script/tables.js script/comparison.js script/report.js)
endif()

# Tests and benchmarks run the command, too, but for the tests of threads.
set(tests_run_command ${CACHALOT_BUILD_TESTS})
if(CACHALOT_SANITIZE STREQUAL thread)
  set(tests_run_command OFF)
endif()
if(CACHALOT_BUILD_TOOLS OR tests_run_command OR CACHALOT_BUILD_BENCHMARKS)
  find_package(CLI11 REQUIRED)
  cachalot_files(command_sources tools
    commands/advise_command.cpp commands/budget_command.cpp commands/check_command.cpp commands/command_line.cpp
    commands/compare_command.cpp commands/completion_command.cpp commands/convert_command.cpp commands/diff_command.cpp
    commands/explain_command.cpp commands/fit_command.cpp commands/fit_server.cpp commands/gpus_command.cpp commands/help_command.cpp
    commands/replay_command.cpp commands/run_command.cpp commands/shared_options.cpp commands/simulate_command.cpp
    commands/snapshot_command.cpp commands/top_command.cpp simulation/fit.cpp simulation/python_server.cpp
    simulation/running_child.cpp simulation/simulation.cpp simulation/simulation_report.cpp simulation/simulation_rules.cpp serving/engine_run.cpp)
  # build/<preset>/tools/cachalot
  add_executable(cachalot_cli ${command_sources})
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
endif()
