#include "pool_memory.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

class PoolStreams::OwnedEvent {
 public:
  explicit OwnedEvent(Device& device) : device_(device), event_(device.event_create()) {}
  ~OwnedEvent() {
    try {
      device_.event_destroy(event_);
    } catch (const CudaError&) {  // at the end of a process the driver may be gone before us
    }
  }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;

  Event get() const { return event_; }

 private:
  Device& device_;
  const Event event_;
};

void PoolStreams::remember(const KnownStream& stream) {
  if (stream.key.is_immortal()) return;
  const Lock lock(mutex_);
  streams_.try_emplace(stream.key, Mortal{stream.handle, nullptr});
}

StreamKey PoolStreams::remember(Stream handle) {
  const KnownStream known = identify(handle);
  remember(known);
  return known.key;
}

std::optional<PoolStreams::Mortal> PoolStreams::find(StreamKey stream) {
  if (stream.is_immortal()) return Mortal{stream.immortal_handle(), nullptr};
  const Lock lock(mutex_);
  const auto found = streams_.find(stream);
  return found != streams_.end() ? std::optional(found->second) : std::nullopt;
}

bool PoolStreams::can_be_asked(const Mortal& stream, StreamKey key) {
  return stream.end == nullptr && still_lives(*device_, {stream.handle, key});
}

Stream PoolStreams::handle_of(StreamKey stream) {
  const std::optional<Mortal> found = find(stream);
  CACHALOT_ASSERT(found.has_value());
  return found->handle;
}

bool PoolStreams::captures(StreamKey stream) {
  const std::shared_lock none_ends(ends_);
  const std::optional<Mortal> found = find(stream);
  return found && found->end == nullptr && order_.captures({found->handle, stream});
}

void PoolStreams::put_before(StreamKey before, StreamKey after) {
  const std::shared_lock none_ends(ends_);
  const std::optional<Mortal> found = find(before);
  if (!found) return;
  if (found->end != nullptr) return device_->stream_wait(handle_of(after), found->end->get());
  order_.put_before({found->handle, before}, handle_of(after));
}

bool PoolStreams::put_users_before(const PoolSlot& slot, StreamKey stream, std::uint64_t& waits) {
  bool may = true;
  for_each_user(slot, [&](StreamKey user) { may = may && (user == stream || !captures(user)); });
  if (!may) return false;
  for_each_user(slot, [&](StreamKey user) {
    if (user == stream) return;
    put_before(user, stream);
    ++waits;
  });
  return true;
}

void PoolStreams::use_or_await(StreamKey stream, const std::function<void(Stream handle)>& use) {
  std::shared_lock none_ends(ends_);
  const std::optional<Mortal> known = find(stream);
  if (!known) return;
  if (can_be_asked(*known, stream)) return use(known->handle);
  none_ends.unlock();
  if (known->end == nullptr) return device_->synchronize();
  device_->event_synchronize(known->end->get());
}

void PoolStreams::end(Stream handle) {
  const KnownStream ending = identify(handle);
  if (ending.key.is_immortal()) return;
  const std::unique_lock nobody_asks(ends_);
  const std::optional<Mortal> known = find(ending.key);
  if (!known || known->end != nullptr) return;
  CACHALOT_REQUIRE(!order_.captures(ending), "stream {} cannot end while it captures a graph",
                   static_cast<const void*>(handle));
  auto end = std::make_shared<const OwnedEvent>(*device_);
  device_->event_record(end->get(), handle);
  {
    const Lock lock(mutex_);
    streams_[ending.key].end = std::move(end);
  }
  forget_streams_that_are_done();
}

// The caller holds ends_ alone, so no other thread changes the table's ends.
void PoolStreams::forget_streams_that_are_done() {
  std::vector<std::pair<StreamKey, std::shared_ptr<const OwnedEvent>>> ended;
  {
    const Lock lock(mutex_);
    for (const auto& [key, stream] : streams_) {
      if (stream.end != nullptr) ended.emplace_back(key, stream.end);
    }
  }
  std::erase_if(ended, [&](const auto& each) { return !device_->event_query(each.second->get()); });
  const Lock lock(mutex_);
  for (const auto& [key, end] : ended) streams_.erase(key);
}

std::size_t PoolStreams::metadata_bytes() const {
  const Lock lock(mutex_);
  return streams_.size() * (sizeof(*streams_.begin()) + 2 * sizeof(void*)) + streams_.bucket_count() * sizeof(void*);
}

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
  const bool is_managed = selected_heap(allocator_.options()) == HeapKind::managed;
  const DeviceProperties properties = device_->properties();
  const std::size_t total =
      is_managed ? std::max(properties.total_bytes, properties.managed_bytes) : properties.total_bytes;
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
