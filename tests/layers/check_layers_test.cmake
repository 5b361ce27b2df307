# cmake -D WORK_DIR=<scratch folder> -P check_layers_test.cmake
# Plants each kind of violation in a small tree and wants check_layers.cmake to name it, and a clean tree to pass.

cmake_minimum_required(VERSION 3.25)

function(check_tree output_variable result_variable)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${WORK_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/check_layers.cmake
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  set(${output_variable} "${output}" PARENT_SCOPE)
  set(${result_variable} "${result}" PARENT_SCOPE)
endfunction()

function(plant_clean_tree)
  file(REMOVE_RECURSE ${WORK_DIR})
  file(WRITE ${WORK_DIR}/allocator/base/bytes.h "#pragma once\n#include <cstddef>\n")
  file(WRITE ${WORK_DIR}/allocator/include/cachalot/device.h "#pragma once\n")
  file(WRITE ${WORK_DIR}/allocator/include/cachalot/caching_allocator.h "#pragma once\n#include \"cachalot/device.h\"\n")
  file(WRITE ${WORK_DIR}/allocator/blocks/block.h "#pragma once\n#include \"base/bytes.h\"\n")
  file(WRITE ${WORK_DIR}/allocator/blocks/block.cpp "#include \"block.h\"\n// #include \"tools/replay/replay.h\" (a comment)\n")
  file(WRITE ${WORK_DIR}/tools/replay/replay.h "#include \"cachalot/caching_allocator.h\"\n")
endfunction()

# Adds a file to the clean tree; the check must fail and say `message`.
function(expect_caught message path content)
  plant_clean_tree()
  file(WRITE ${WORK_DIR}/${path} "${content}")
  check_tree(output result)
  if(result EQUAL 0)
    message(SEND_ERROR "not caught: ${path}: ${content}")
  elseif(NOT output MATCHES "${message}")
    message(SEND_ERROR "caught, but without '${message}': ${output}")
  endif()
endfunction()

plant_clean_tree()
check_tree(output result)
if(NOT result EQUAL 0)
  message(SEND_ERROR "the clean tree does not pass: ${output}")
endif()

expect_caught("base/up.h .layer 0. includes allocator/blocks/block.h .layer 3."
  allocator/base/up.h "#include \"blocks/block.h\"\n")
expect_caught("blocks/up.cpp .layer 3. includes allocator/include/cachalot/caching_allocator.h .layer 10."
  allocator/blocks/up.cpp "#include <vector>\n  #  include \"cachalot/caching_allocator.h\"\n")
expect_caught("include/cachalot/device.h .layer 1. includes allocator/include/cachalot/caching_allocator.h"
  allocator/include/cachalot/device.h "#include \"cachalot/caching_allocator.h\"\n")
expect_caught("blocks/up.cpp .layer 3. includes tools/replay/replay.h" allocator/blocks/up.cpp "#include \"../../tools/replay/replay.h\"\n")
expect_caught("tools/replay/private.h includes allocator/blocks/block.h: of the core, wings use"
  tools/replay/private.h "#include \"blocks/block.h\"\n")
expect_caught("is no file of this repository" allocator/blocks/lost.cpp "#include \"blocks/lost.h\"\n")
expect_caught("has no layer" allocator/somewhere/new.h "#pragma once\n")
expect_caught("<cuda_runtime_api.h> is reserved" allocator/blocks/gpu.cpp "#include <cuda_runtime_api.h>\n")
expect_caught("libraries must not include <fmt/format.h>"
  allocator/blocks/text.cpp "#include <fmt/format.h>\n")
expect_caught("blocks/name.h: CACHALOT_BEGIN opens its namespace, not namespace cachalot {"
  allocator/blocks/name.h "#include \"base/bytes.h\"\nnamespace cachalot {\n")
expect_caught("cachalot/device.h: CACHALOT_BEGIN_API opens its namespace, not CACHALOT_BEGIN"
  allocator/include/cachalot/device.h "CACHALOT_BEGIN\n")

file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})
check_tree(output result)
if(result EQUAL 0)
  message(SEND_ERROR "an empty tree passes: nothing was checked")
endif()
