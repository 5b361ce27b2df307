# cachalot::diagnostics, static: the guard, leaks, and statistics for other processes.

cachalot_static_library(diagnostics diagnostics
  SOURCES background_thread.cpp device_guard.cpp guard_books.cpp guard_front.cpp guard_reports.cpp guarded_memory.cpp
          leak_detector.cpp statistics_publisher.cpp trend.cpp
  HEADERS guard.h leak_detector.h statistics_page.h statistics_publisher.h)
target_include_directories(cachalot_diagnostics PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/allocator)
target_link_libraries(cachalot_diagnostics PUBLIC cachalot_core cachalot_kernels)
