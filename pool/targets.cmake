# cachalot::pool, static: tensors of one kind, reused, over cachalot::core.

cachalot_static_library(pool pool
  SOURCES dlpack.cpp pool_books.cpp pool_core.cpp pool_memory.cpp pool_set.cpp pool_slots.cpp tensor_pool.cpp
          tensor_spec.cpp thread_stacks.cpp
  HEADERS dlpack.h pool_set.h tensor_pool.h)
target_include_directories(cachalot_pool PRIVATE ${PROJECT_SOURCE_DIR}/pool ${PROJECT_SOURCE_DIR}/allocator)
target_link_libraries(cachalot_pool PUBLIC cachalot_core)
