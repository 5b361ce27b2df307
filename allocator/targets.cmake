# cachalot::core, static: the C++ API. The layers, lowest first: a file includes only from its own layer and from those
# above it in this list (tests/layers/ranks.cmake).

set(with_cuda
  device/cuda_completion_words.cpp
  device/cuda_device.cpp
  device/cuda_driver.cpp
  device/cuda_handle_form.cpp)
set(without_cuda device/no_cuda.cpp)
cachalot_files(either allocator ${with_cuda} ${without_cuda})  # one of the two is built
if(CACHALOT_HAS_CUDA)
  set(cuda_device ${with_cuda})
else()
  set(cuda_device ${without_cuda})
endif()

# The files that a malloc and a free pass through are one group of the unity build.
cachalot_static_library(core allocator
  UNITY_GROUPS
    base=allocator/base
    device=allocator/device
    policy=allocator/policy
    heap=allocator/blocks,allocator/pages,allocator/caches,allocator/heap,allocator/growth,allocator/api
  SOURCES
    base/bytes.cpp
    base/call_stack.cpp
    base/exported_files.cpp
    base/format.cpp
    base/json_writer.cpp
    base/host_memory.cpp
    base/metadata_memory.cpp
    base/own_code.cpp
    base/process.cpp
    base/suggestions.cpp
    base/thread_local_state.cpp
    base/version.cpp

    device/cuda_codes.cpp
    device/known_stream.cpp
    device/unified_memory.cpp
    ${cuda_device}

    policy/memory_limit.cpp
    policy/option_grammar.cpp
    policy/options.cpp

    blocks/bin.cpp
    blocks/block.cpp
    blocks/block_heap.cpp
    blocks/block_pool.cpp
    blocks/counters.cpp
    blocks/page_map.cpp

    pages/backing.cpp
    pages/driver_costs.cpp
    pages/page_heap.cpp
    pages/physical_pages.cpp
    pages/placement.cpp
    pages/slots.cpp

    caches/depot.cpp
    caches/thread_cache.cpp
    caches/thread_caches.cpp

    heap/cache_bridge.cpp
    heap/heap_state.cpp
    heap/ledger.cpp
    heap/limits.cpp
    heap/observers.cpp
    heap/pending_frees.cpp
    heap/private_pools.cpp
    heap/stream_clocks.cpp
    heap/uncached.cpp

    growth/cache_level.cpp
    growth/checkpoints.cpp
    growth/evictable_pools.cpp
    growth/growth.cpp
    growth/page_driver.cpp
    growth/page_growth.cpp
    growth/page_search.cpp
    growth/saved_memory.cpp
    growth/segment_growth.cpp
    growth/sharing.cpp
    growth/sleeping_pools.cpp
    growth/supply.cpp

    api/fast_path.cpp
    api/device_allocator.cpp
    api/allocator_state.cpp
    api/front.cpp
    api/allocator_groups.cpp
    api/caching_allocator.cpp
    api/buffers.cpp
    api/inspection.cpp
    api/json.cpp
    api/pinned_host_allocator.cpp
  HEADERS
    allocator_groups.h
    buffers.h
    caching_allocator.h
    call_stack.h
    device.h
    errors.h
    events.h
    options.h
    pinned_host_allocator.h
    private_pool.h
    require_cpp17.h
    same_version.h
    span.h
    stats.h
    version.h)
target_include_directories(cachalot_core PRIVATE ${PROJECT_SOURCE_DIR}/allocator)
# Compiled as C++20, and used by programs of C++17: what headers say must mean the same in both (tests/headers).
target_compile_features(cachalot_core PUBLIC cxx_std_17 PRIVATE cxx_std_20)
target_compile_definitions(cachalot_core PRIVATE CACHALOT_HAS_LIBBACKTRACE=$<BOOL:${CACHALOT_HAS_LIBBACKTRACE}>)
cachalot_uses_cuda(cachalot_core)
target_link_libraries(cachalot_core PUBLIC Threads::Threads PRIVATE ${CMAKE_DL_LIBS})
if(CACHALOT_HAS_LIBBACKTRACE)
  target_link_libraries(cachalot_core PRIVATE cachalot_backtrace)
endif()
