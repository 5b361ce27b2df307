# Says aloud what is built and what is not; ./run shows the same line again from build-summary.txt.

set(summary "cachalot ${PROJECT_VERSION} ${CACHALOT_CUDA_SUMMARY}")
if(NOT CACHALOT_HAS_LIBBACKTRACE)
  string(APPEND summary "; without libbacktrace: call stacks have exported functions, no files and lines")
endif()
message(STATUS "${summary}")
file(WRITE ${PROJECT_BINARY_DIR}/build-summary.txt "${summary}\n")
