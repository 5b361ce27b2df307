# cachalot::diagnostics, static: the guard, leaks, and statistics for other processes.

cachalot_static_library(diagnostics diagnostics
  SOURCES guard/guard.cpp guard/guard_books.cpp guard/guard_front.cpp guard/guard_reports.cpp guard/guarded_memory.cpp
          leaks/leak_detector.cpp leaks/trend.cpp publish/background_thread.cpp publish/statistics_publisher.cpp
  HEADERS guard.h leak_detector.h statistics_page.h statistics_publisher.h)
target_include_directories(cachalot_diagnostics PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/allocator)
target_link_libraries(cachalot_diagnostics PUBLIC cachalot_core cachalot_kernels)
