#include "pool_memory.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"

namespace cachalot {

class PoolMemory::OwnedEvent {
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

CachingAllocator& not_null(const std::shared_ptr<CachingAllocator>& allocator) {
  CACHALOT_REQUIRE(allocator != nullptr, "the allocator of a pool is {}: there must be one", "null");
  return *allocator;
}

PoolMemory::PoolMemory(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, const TensorSpec& spec,
                       const TensorPoolOptions& options, std::shared_ptr<PoolBudget> budget)
    : owned_(std::move(owned)),
      allocator_(allocator),
      life_(allocator.life()),
      device_(spec.device),
      door_(allocator.device(spec.device)),
      budget_(std::move(budget)),
      alignment_(options.alignment),
      tensor_bytes_(spec.bytes()),
      stride_(round_up(tensor_bytes_, options.alignment)),
      on_reuse_(options.on_reuse),
      moves_tensors_(options.mover != nullptr),
      immortal_streams_(allocator.options().immortal_streams),
      order_(door_) {}

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
  const std::size_t total = door_->properties().total_bytes;
  if (bytes <= total) return;
  throw OutOfMemory(formatted("{} slots of {} are more than device {} has: {}", slots, format_bytes(stride_), device_,
                              format_bytes(total)),
                    device_, bytes);
}

std::unique_ptr<PoolSlab> PoolMemory::allocate(std::size_t slots, StreamKey stream) {
  auto slab = std::make_unique<PoolSlab>();
  slab->bytes = slab_bytes(slots);
  slab->stream = stream;
  slab->count = slots;
  slab->slots = std::make_unique<PoolSlot[]>(slots);
  if (moves_tensors_) slab->tensors = std::make_unique<PooledTensor*[]>(slots);
  if (budget_) budget_->take(slab->bytes, device_);
  try {
    slab->memory = allocator_.allocate(slab->bytes, device_, handle_of(stream));
  } catch (...) {
    if (budget_) budget_->give_back(slab->bytes);
    throw;
  }
  auto* const first = reinterpret_cast<char*>(round_up(reinterpret_cast<Address>(slab->memory), alignment_));
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
    StreamKey announced = slab.stream;  // most slots of a slab are used by one stream
    for (std::size_t i = 0; i < slab.count; ++i) {
      for_each_user(slab.slots[i], [&](StreamKey user) {
        if (user == announced || user == slab.stream) return;
        announce(slab, user);
        announced = user;
      });
    }
    allocator_.deallocate(slab.memory);
  }
  slab.memory = nullptr;
  if (budget_) budget_->give_back(slab.bytes);
}

// Who has ended is waited for here: the allocator knows streams by their handles.
void PoolMemory::announce(const PoolSlab& slab, StreamKey user) {
  std::shared_lock none_ends(ends_);
  const std::optional<Mortal> known = find(user);
  if (!known) return;
  if (can_be_asked(*known, user)) return allocator_.record_stream(slab.memory, known->handle);
  none_ends.unlock();
  if (known->end == nullptr) return door_->synchronize();
  door_->event_synchronize(known->end->get());
}

bool PoolMemory::order(const PoolSlot& slot, StreamKey stream, std::uint64_t& waits) {
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

void PoolMemory::fill(const PoolSlot& slot, StreamKey stream) {
  if (on_reuse_ == OnReuse::keep) return;
  const unsigned char value = on_reuse_ == OnReuse::zero ? 0 : kPoisonByte;
  door_->fill(reinterpret_cast<Address>(slot.data), value, tensor_bytes_, handle_of(stream));
}

// --- streams ---------------------------------------------------------------------------------------------------------

void PoolMemory::remember(const KnownStream& stream) {
  if (stream.key.is_immortal()) return;
  const Lock lock(mutex_);
  streams_.try_emplace(stream.key, Mortal{stream.handle, nullptr});
}

// Beside what the pool counts itself.
std::size_t PoolMemory::metadata_bytes() const {
  const Lock lock(mutex_);
  return streams_.size() * (sizeof(*streams_.begin()) + 2 * sizeof(void*)) + streams_.bucket_count() * sizeof(void*);
}

StreamKey PoolMemory::know(Stream stream) {
  const KnownStream known = identify(stream);
  remember(known);
  return known.key;
}

std::optional<PoolMemory::Mortal> PoolMemory::find(StreamKey stream) {
  if (stream.is_immortal()) return Mortal{stream.immortal_handle(), nullptr};
  const Lock lock(mutex_);
  const auto found = streams_.find(stream);
  return found != streams_.end() ? std::optional(found->second) : std::nullopt;
}

bool PoolMemory::can_be_asked(const Mortal& stream, StreamKey key) {
  return stream.end == nullptr && still_lives(*door_, {stream.handle, key});
}

Stream PoolMemory::handle_of(StreamKey stream) {
  const std::optional<Mortal> found = find(stream);
  CACHALOT_ASSERT(found.has_value());
  return found->handle;
}

bool PoolMemory::lives(StreamKey stream) {
  const std::shared_lock none_ends(ends_);
  const std::optional<Mortal> found = find(stream);
  return found && can_be_asked(*found, stream);
}

bool PoolMemory::captures(StreamKey stream) {
  const std::shared_lock none_ends(ends_);
  const std::optional<Mortal> found = find(stream);
  return found && found->end == nullptr && order_.captures({found->handle, stream});
}

void PoolMemory::put_before(StreamKey before, StreamKey after) {
  const std::shared_lock none_ends(ends_);
  const std::optional<Mortal> found = find(before);
  if (!found) return;
  if (found->end != nullptr) return door_->stream_wait(handle_of(after), found->end->get());
  order_.put_before({found->handle, before}, handle_of(after));
}

void PoolMemory::end_stream(Stream stream) {
  const KnownStream ending = identify(stream);
  if (ending.key.is_immortal()) return;
  const std::unique_lock nobody_asks(ends_);
  const std::optional<Mortal> known = find(ending.key);
  if (!known || known->end != nullptr) return;
  CACHALOT_REQUIRE(!order_.captures(ending), "stream {} cannot end while it captures a graph",
                   static_cast<const void*>(stream));
  auto end = std::make_shared<const OwnedEvent>(*door_);
  door_->event_record(end->get(), stream);
  {
    const Lock lock(mutex_);
    streams_[ending.key].end = std::move(end);
  }
  forget_streams_that_are_done();
}

// Who ends a stream holds ends_, so nobody else changes the table's ends.
void PoolMemory::forget_streams_that_are_done() {
  std::vector<std::pair<StreamKey, std::shared_ptr<const OwnedEvent>>> ended;
  {
    const Lock lock(mutex_);
    for (const auto& [key, stream] : streams_) {
      if (stream.end != nullptr) ended.emplace_back(key, stream.end);
    }
  }
  std::erase_if(ended, [&](const auto& each) { return !door_->event_query(each.second->get()); });
  const Lock lock(mutex_);
  for (const auto& [key, end] : ended) streams_.erase(key);
}

}  // namespace cachalot
