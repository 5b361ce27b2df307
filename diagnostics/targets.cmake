# cachalot::diagnostics, static: the guard, leaks, statistics for other processes, a budget between them, and a watch over the machine's memory.

cachalot_static_library(diagnostics diagnostics
  SOURCES background_thread.cpp budget_page.cpp device_guard.cpp gpu_budget.cpp guard_books.cpp guard_front.cpp guard_reports.cpp
          guarded_memory.cpp leak_detector.cpp memory_watch.cpp statistics_publisher.cpp trend.cpp
  HEADERS gpu_budget.h guard.h leak_detector.h memory_watch.h statistics_page.h statistics_publisher.h)
target_include_directories(cachalot_diagnostics PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/allocator)
target_link_libraries(cachalot_diagnostics PUBLIC cachalot_core cachalot_kernels)
