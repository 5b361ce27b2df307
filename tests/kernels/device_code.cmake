# kernels.device_code: the PTX is what its Clang makes of the source. kernels.assembles: the toolkit's assembler takes it for
# every GPU it knows, as a driver would; CACHALOT_PTXAS names further assemblers.

set(CACHALOT_PTXAS "" CACHE STRING "More programs ptxas, of other toolkits, that must take the kernels")
add_test(NAME kernels.device_code
  COMMAND ${CMAKE_COMMAND} -D CLANG=${CACHALOT_DEVICE_CLANG} -D NAME=device_code
          -D WORK_DIR=${PROJECT_BINARY_DIR}/kernels -P ${PROJECT_SOURCE_DIR}/kernels/write_device_code.cmake)
find_program(ptxas ptxas HINTS ${CUDAToolkit_BIN_DIR} NO_CACHE)
if(NOT ptxas)
  set(ptxas "")
endif()
add_test(NAME kernels.assembles
  COMMAND ${CMAKE_COMMAND} "-DPTXAS=${ptxas};${CACHALOT_PTXAS}" -D PTX=${PROJECT_SOURCE_DIR}/kernels/device_code.ptx
          -P ${PROJECT_SOURCE_DIR}/tests/kernels/check_assembles.cmake)
set_tests_properties(kernels.device_code kernels.assembles PROPERTIES
  LABELS kernels TIMEOUT 300 SKIP_REGULAR_EXPRESSION "skipped: ")
