#include "cachalot/slot_pool.h"

#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "device/known_stream.h"

CACHALOT_BEGIN

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 60;
constexpr std::size_t kSlabAlignment = 256;  // as cudaMalloc's

// The layout of the allocation: control, words, slots.
struct Layout {
  Layout(std::size_t slots, std::size_t slot_bytes) {
    CACHALOT_REQUIRE(slots > 0, "a slot pool of 0 slots: it must have at least one");
    CACHALOT_REQUIRE(slot_bytes > 0, "a slot pool with slots of 0 bytes: they must have at least one");
    CACHALOT_REQUIRE(slot_bytes <= kMostBytes && slots <= kMostBytes / round_up(slot_bytes, kSlotAlignment),
                     "a slot pool of {} slots of {} bytes: it may have at most 2^60 bytes", slots, slot_bytes);
    stride = round_up(slot_bytes, kSlotAlignment);
    words = (slots + kSlotsAWord - 1) / kSlotsAWord;
    slab_offset = round_up(sizeof(SlotPoolControl) + words * sizeof(SlotPoolView::Word), kSlabAlignment);
    bytes = slab_offset + slots * stride;
  }
  std::size_t stride = 0;
  std::size_t words = 0;
  std::size_t slab_offset = 0;
  std::size_t bytes = 0;
};

// Control and words of a pool whose slots are all free: the last word's places behind the last slot are taken
// permanently.
std::vector<std::byte> initial_head(const Layout& layout, std::size_t slots) {
  std::vector<std::byte> head(layout.slab_offset);
  const SlotPoolControl control;
  std::memcpy(head.data(), &control, sizeof(control));
  if (const std::size_t used = slots % kSlotsAWord; used != 0) {
    const SlotPoolView::Word behind = ~SlotPoolView::Word{0} << used;
    std::memcpy(head.data() + sizeof(control) + (layout.words - 1) * sizeof(behind), &behind, sizeof(behind));
  }
  return head;
}

}  // namespace

SlotPool::SlotPool(CachingAllocator& allocator, std::size_t slots, std::size_t slot_bytes, Stream stream, int device)
    : device_(allocator.device(device)), stream_(stream) {
  const Layout layout(slots, slot_bytes);
  memory_ = allocate_owned(allocator, layout.bytes, device, stream);
  bytes_ = layout.bytes;
  auto* const base = static_cast<std::byte*>(memory_.get());
  const std::vector<std::byte> head = initial_head(layout, slots);
  wait_for(*device_, stream);
  device_->copy_from_host(reinterpret_cast<Address>(base), head.data(), head.size());
  view_.control = reinterpret_cast<SlotPoolControl*>(base);
  view_.words = reinterpret_cast<SlotPoolView::Word*>(base + sizeof(SlotPoolControl));
  view_.slots = base + layout.slab_offset;
  view_.slot_count = slots;
  view_.slot_bytes = layout.stride;
}

SlotPoolCounters SlotPool::counters() const {
  // Asked of the allocator, which refuses in a forked child.
  Device& device = *memory_.get_deleter().allocator->device(device_->index());
  wait_for(device, stream_);
  SlotPoolControl control;
  device.copy_to_host(&control, reinterpret_cast<Address>(view_.control), sizeof(control));
  return {.taken = control.live + control.given,
          .given = control.given,
          .live = control.live,
          .high_water = control.high_water,
          .exhausted = control.exhausted,
          .bad_gives = control.bad_gives};
}

CACHALOT_END
