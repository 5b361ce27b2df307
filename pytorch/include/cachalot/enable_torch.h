/// @file
/// cachalot as the allocator of C++ programs that use libtorch.
///
/// `python -m cachalot libtorch` compiles the library that has the function, for the libtorch of
/// the program; with --preload a library for programs that cannot be changed.
#pragma once

#include <string_view>

namespace cachalot {

/// Makes cachalot libtorch's allocator of GPU memory: PyTorch's C++ API, ATen and c10::cuda use it
/// from then on. To be called before the first use of CUDA.
///
/// `options` are options such as "heap:pages" (options.h). They override CACHALOT_CONF, which
/// overrides PYTORCH_CUDA_ALLOC_CONF.
///
/// Throws std::runtime_error, with the rule that the options break, or the reason why libtorch does
/// not take the allocator: CUDA is in use already, or this function was called before. libtorch's
/// allocator serves as before then.
/// Thread safety: to be called while no other thread uses CUDA.
void enable_torch(std::string_view options = {});

}  // namespace cachalot
