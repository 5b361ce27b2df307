# bench/peers: other allocators doing the same work as cachalot over the simulated CUDA runtime, a program each. What is
# not installed is left out, aloud; nothing is downloaded.

# build/<preset>/bench/peers/<name>, of bench/peers/<name>.cpp. INCLUDE, LIBRARIES, DEFINITIONS: the peer's own.
function(cachalot_peer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "INCLUDE;LIBRARIES;DEFINITIONS")
  add_executable(peer_${name} ${PROJECT_SOURCE_DIR}/bench/peers/${name}.cpp)
  set_target_properties(peer_${name} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench/peers)
  target_include_directories(peer_${name} SYSTEM BEFORE PRIVATE ${arg_INCLUDE})
  target_include_directories(peer_${name} PRIVATE ${PROJECT_SOURCE_DIR}/simulator/include)
  target_compile_definitions(peer_${name} PRIVATE ${arg_DEFINITIONS})
  target_link_libraries(peer_${name} PRIVATE cachalot_replay cachalot_cudart ${arg_LIBRARIES} ${CMAKE_DL_LIBS})
  add_dependencies(peer_${name} cachalot_simulator)
endfunction()

function(cachalot_without_peer name why)
  message(STATUS "cachalot: bench/peers is without ${name}: ${why}")
endfunction()

function(cachalot_cub_peer)
  cachalot_find_cub()
  if(CACHALOT_CUB_INCLUDE)
    cachalot_peer(cub INCLUDE ${CACHALOT_CUB_INCLUDE})
  else()
    cachalot_without_peer(CUB "cub/util_allocator.cuh was not found (set CACHALOT_CUB_INCLUDE)")
  endif()
endfunction()

function(cachalot_rmm_peer python)
  cachalot_find_rmm("${python}")
  if(cachalot_rmm_lacks)
    cachalot_without_peer(RMM "${cachalot_rmm_lacks}")
    return()
  endif()
  foreach(peer IN ITEMS rmm rmm_fixed_size)  # the second for bench/pool
    cachalot_peer(${peer}
      INCLUDE ${cachalot_rmm_includes} LIBRARIES ${cachalot_rmm_library} DEFINITIONS ${cachalot_rmm_definitions})
  endforeach()
endfunction()

# cachalot through its memory resource, with the toolkit's CCCL.
function(cachalot_mr_peer)
  cachalot_toolkit_cccl(cccl)
  if(cccl)
    cachalot_peer(mr INCLUDE ${cccl} LIBRARIES cachalot_mr DEFINITIONS LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
  else()
    cachalot_without_peer(cuda::mr "the toolkit has no CCCL")
  endif()
endfunction()

function(cachalot_torch_peer python)
  cachalot_python_folder(torch "${python}" torch)
  if(EXISTS "${torch}/lib/libc10_cuda.so")
    cachalot_peer(torch
      INCLUDE ${torch}/include
      LIBRARIES ${torch}/lib/libc10_cuda.so ${torch}/lib/libc10.so)
  else()
    cachalot_without_peer(PyTorch "no torch with CUDA (set CACHALOT_PYTHON)")
  endif()
endfunction()

# Those of the programs `SOURCES` that can be built, and `TESTS` of those that are built wherever any is.
function(cachalot_peers)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES;TESTS")
  cachalot_files(sources bench/peers ${arg_SOURCES})
  cachalot_files(tests tests/bench ${arg_TESTS})
  if(NOT TARGET cachalot_simulator OR NOT TARGET cachalot_replay OR NOT CACHALOT_HAS_CUDART)
    message(STATUS "cachalot: bench/peers is not built: it needs a CUDA toolkit, the simulator and tools/")
    return()
  endif()
  cachalot_peer(cachalot)
  if(TARGET cachalot)
    cachalot_peer(c_api LIBRARIES cachalot)
  endif()
  cachalot_peer(cuda)
  cachalot_peer(cuda_async)
  cachalot_python_candidate(python)
  if(NOT "adapters" IN_LIST CACHALOT_ABSENT_WINGS)  # adapters/ finds CCCL, CUB and RMM
    cachalot_mr_peer()
    cachalot_cub_peer()
    cachalot_rmm_peer("${python}")
  endif()
  cachalot_torch_peer("${python}")
  if(CACHALOT_BUILD_TESTS)
    cachalot_test(bench SOURCES ${arg_TESTS})
    add_dependencies(test_bench peer_cachalot peer_cuda)
    if(TARGET peer_mr)
      add_dependencies(test_bench peer_mr)
      target_compile_definitions(test_bench PRIVATE CACHALOT_HAS_MR_PEER)
    endif()
    target_compile_definitions(test_bench PRIVATE
      CACHALOT_PEERS_DIR="${PROJECT_BINARY_DIR}/bench/peers" CACHALOT_SIMULATOR="$<TARGET_FILE:cachalot_simulator>"
      CACHALOT_PEERS_SCRIPT="${PROJECT_SOURCE_DIR}/bench/peers.py")
  endif()
endfunction()
cachalot_peers(SOURCES c_api.cpp cachalot.cpp cub.cpp cuda.cpp cuda_async.cpp mr.cpp rmm.cpp rmm_fixed_size.cpp torch.cpp TESTS peers_test.cpp)
