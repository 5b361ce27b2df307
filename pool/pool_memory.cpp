#include "pool_memory.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

CachingAllocator& not_null(const std::shared_ptr<CachingAllocator>& allocator) {
  CACHALOT_REQUIRE(allocator != nullptr, "the allocator of a pool is {}: there must be one", "null");
  return *allocator;
}

PoolMemory::PoolMemory(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, const TensorSpec& spec,
                       const TensorPoolOptions& options, std::shared_ptr<PoolBudget> budget)
    : owned_(std::move(owned)),
      allocator_(allocator),
      life_(allocator.life()),
      device_index_(spec.device),
      device_(allocator.device(spec.device)),
      budget_(std::move(budget)),
      alignment_(options.alignment),
      tensor_bytes_(spec.bytes()),
      stride_(round_up(tensor_bytes_, options.alignment)),
      on_reuse_(options.on_reuse),
      streams_(device_, allocator.options().immortal_streams) {}

void PoolMemory::require_allocator() const {
  CACHALOT_REQUIRE(has_allocator(),
                   "the pool's allocator is gone: a pool on a reference is used while its allocator lives");
}

// Beyond the allocator's own alignment there is room to begin later.
std::size_t PoolMemory::slab_bytes(std::size_t slots) const {
  std::size_t bytes = 0;
  const std::size_t slack = alignment_ > kAllocatorAlignment ? alignment_ - kAllocatorAlignment : 0;
  const bool overflows = __builtin_mul_overflow(slots, stride_, &bytes) ||
                         __builtin_add_overflow(bytes, slack, &bytes) || bytes >= kMaxRequestBytes;
  CACHALOT_REQUIRE(!overflows, "{} slots of {} are more than any allocation: less than 1 EiB", slots,
                   format_bytes(stride_));
  return bytes;
}

void PoolMemory::require_fits(std::size_t slots) const {
  const std::size_t bytes = slab_bytes(slots);
  const std::size_t total = device_->properties().total_bytes;
  if (bytes <= total) return;
  throw OutOfMemory(formatted("{} slots of {} are more than device {} has: {}", slots, format_bytes(stride_),
                              device_index_, format_bytes(total)),
                    device_index_, bytes);
}

char* PoolMemory::first_slot(const PoolSlab& slab) const {
  return reinterpret_cast<char*>(round_up(reinterpret_cast<Address>(slab.memory), alignment_));
}

std::unique_ptr<PoolSlab> PoolMemory::allocate(std::size_t slots, StreamKey stream) {
  auto slab = std::make_unique<PoolSlab>();
  slab->bytes = slab_bytes(slots);
  slab->stream = stream;
  slab->count = slots;
  slab->slots = std::make_unique<PoolSlot[]>(slots);
  if (budget_) budget_->charge(slab->bytes, device_index_);
  try {
    slab->memory = allocator_.allocate(slab->bytes, device_index_, streams_.handle_of(stream));
  } catch (...) {
    if (budget_) budget_->refund(slab->bytes);
    throw;
  }
  char* const first = first_slot(*slab);
  for (std::size_t i = 0; i < slots; ++i) {
    PoolSlot& slot = slab->slots[i];
    slot.stream = stream;
    slot.data = first + i * stride_;
    slot.slab = slab.get();
    slot.attention = PoolSlot::kUnused | (on_reuse_ == OnReuse::keep ? 0 : PoolSlot::kMustBeFilled);
  }
  return slab;
}

void PoolMemory::deallocate(PoolSlab& slab) {
  if (has_allocator()) {
    record_users(slab);
    allocator_.deallocate(slab.memory);
  }
  slab.memory = nullptr;
  if (budget_) budget_->refund(slab.bytes);
}

// Tells the allocator, which knows streams by their handles. Waits here for the streams that have ended.
void PoolMemory::record_users(const PoolSlab& slab) {
  StreamKey recorded = slab.stream;  // most slots of a slab are used by one stream
  for (std::size_t i = 0; i < slab.count; ++i) {
    for_each_user(slab.slots[i], [&](StreamKey user) {
      if (user == recorded || user == slab.stream) return;
      streams_.use_or_await(user, [&](Stream handle) { allocator_.record_stream(slab.memory, handle); });
      recorded = user;
    });
  }
}

void PoolMemory::fill(const PoolSlot& slot, StreamKey stream) {
  if (on_reuse_ == OnReuse::keep) return;
  const unsigned char value = on_reuse_ == OnReuse::zero ? 0 : kPoisonByte;
  device_->fill(reinterpret_cast<Address>(slot.data), value, tensor_bytes_, streams_.handle_of(stream));
}

std::string PoolMemory::first_broken_rule(const PoolSlab& slab) const {
  if (slab.bytes != slab_bytes(slab.count))
    return formatted("a slab of {} slots has {} bytes, not {}", slab.count, slab.bytes, slab_bytes(slab.count));
  if (has_allocator()) {
    if (allocator_.device_of(slab.memory) != device_index_) return "a slab is no allocation on the pool's device";
    if (allocator_.requested_size(slab.memory) != slab.bytes)
      return formatted("a slab has {} bytes, its allocation {}", slab.bytes, allocator_.requested_size(slab.memory));
  }
  const char* const end = static_cast<const char*>(slab.memory) + slab.bytes;
  if (first_slot(slab) + slab.count * stride_ > end) return "a slab's slots end beyond its allocation";
  for (std::size_t i = 0; i < slab.count; ++i) {
    const PoolSlot& slot = slab.slots[i];
    const bool must_be_filled = (slot.attention & PoolSlot::kMustBeFilled) != 0;
    if (slot.slab != &slab) return "a slot is of another slab";
    if (slot.data != first_slot(slab) + i * stride_) return "a slot is not in its place of the slab";
    if (must_be_filled != (on_reuse_ != OnReuse::keep)) return "a slot is filled against on_reuse, or not filled";
  }
  return "";
}

CACHALOT_END
