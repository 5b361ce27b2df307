#include "growth/growths.h"

#include <bit>

#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

namespace {

bool has_pages(const HeapState& state, const Options& options) {
  if (!uses_pages(options)) return false;
  const DeviceProperties device = state.device->properties();
  if (!device.virtual_memory) {
    print_error("cachalot: GPU {} has no virtual memory management: heap:segments is used instead of heap:pages\n",
                state.index);
    return false;
  }
  CACHALOT_REQUIRE(std::has_single_bit(device.page_bytes), "GPU {} has pages of {} bytes: not a power of two",
                   state.index, device.page_bytes);
  CACHALOT_REQUIRE(options.page_size % device.page_bytes == 0, "page_size_mb:{}: GPU {} has pages of {} bytes",
                   options.page_size >> 20, state.index, device.page_bytes);
  return true;
}

}  // namespace

Growths::Growths(HeapState& state, const PageGrowth::Parts& parts, const Options& options)
    : segments_(std::make_unique<SegmentGrowth>(state, parts.clocks, parts.streams, parts.caches, parts.recovery)),
      usual_(segments_.get()) {
  if (selected_heap(options) == HeapKind::async) {
    async_ = std::make_unique<AsyncGrowth>(state, parts.clocks, parts.streams, parts.caches, parts.recovery);
    usual_ = async_.get();
  }
  if (!has_pages(state, options)) return;
  pages_ = std::make_unique<PageGrowth>(state, parts, state.device->properties().page_bytes);
  usual_ = pages_.get();
}

std::vector<const Growth*> Growths::all() const {
  std::vector<const Growth*> growths = {segments_.get()};
  if (async_ != nullptr) growths.push_back(async_.get());
  if (pages_ != nullptr) growths.push_back(pages_.get());
  return growths;
}

void Growths::give_back_everything() noexcept {
  if (pages_ != nullptr) pages_->give_back_everything();
  if (async_ != nullptr) async_->give_back_everything();
  segments_->give_back_everything();
}

CACHALOT_END
