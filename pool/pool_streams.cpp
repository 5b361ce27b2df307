#include "pool_streams.h"

#include <mutex>
#include <vector>

#include "base/check.h"

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

// The caller holds ends_ alone, so nobody else changes the table's ends.
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

CACHALOT_END
