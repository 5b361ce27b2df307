// An allocator for torch that does nothing: every allocation is the same address. The cost of a call of it is torch's
// share of the cost of every other allocator.
#include "adapter/install.h"
#include "adapter/since.h"
#include "plug.h"

namespace {

class DoNothing final : public cachalot::torch_adapter::AllocatorSince2_11 {
 public:
  using AllocatorSince2_11::AllocatorSince2_11;

  c10::DataPtr allocate(std::size_t) override { return {address(), address(), &free_nothing, {c10::kCUDA, 0}}; }
  c10::DeleterFnPtr raw_deleter() const override { return &free_nothing; }
  void* raw_alloc(std::size_t) override { return address(); }
  void* raw_alloc_with_stream(std::size_t, cudaStream_t) override { return address(); }
  void raw_delete(void*) override {}

 private:
  static void* address() { return reinterpret_cast<void*>(std::uintptr_t{1} << 30); }
  static void free_nothing(void*) {}
};

}  // namespace

extern "C" [[gnu::visibility("default")]] void install_do_nothing_allocator() {
  cachalot::torch_adapter::install(std::make_shared<DoNothing>(*cachalot_plug(cachalot::kPlugVersion)));
}
