// A C++ program over libtorch: it allocates a tensor, runs out of memory, and says whose allocator served it. With ENABLES it calls
// cachalot::enable_torch itself.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>

#ifdef ENABLES
#include "cachalot/enable_torch.h"
#endif

int main(int count, char** words) {
#ifdef ENABLES
  try {
    cachalot::enable_torch(count > 1 ? words[1] : "");
    if (count > 2) cachalot::enable_torch();
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
#else
  (void)count;
  (void)words;
#endif
  namespace cuda_caching = c10::cuda::CUDACachingAllocator;
  const at::Tensor tensor = at::empty({5 << 20}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
  const auto snapshot = cuda_caching::snapshot();
  bool ran_out = false;
  try {
    at::empty({int64_t{1} << 40}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
  } catch (const c10::OutOfMemoryError&) {
    ran_out = true;
  }
  std::printf("%s, %s, %s\n", cuda_caching::get()->name().c_str(),
              snapshot.segments.at(0).is_expandable ? "pages" : "segments", ran_out ? "out of memory" : "no error");
}
