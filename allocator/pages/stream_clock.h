// The known progress of a stream: the tickets of memory freed on it.
//
// A stream's time is cut into epochs. Freed memory carries the epoch of its stream as its ticket; an epoch ends when an
// event is recorded after it. So one event covers every free before it, and none is recorded for frees that are not asked
// about. A ticket is done when the host has seen its epoch's event finish: then every stream may use its memory, and it
// may be unmapped. It is ordered before another stream when that stream waits for such an event: then it is that
// stream's, too.
//
// A request waits only for events that were recorded before it came: one recorded for it would follow all work that the other
// stream has queued since, which may never end before the waiting stream goes on (an NCCL receive).
//
// Not thread-safe: see PageHeap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/host_memory.h"
#include "blocks/block_pool.h"
#include "cachalot/device.h"

CACHALOT_BEGIN

class StreamClock : public HostObject {
 public:
  struct Mark {
    Event event;
    std::uint32_t epoch;
  };

  explicit StreamClock(const KnownStream& stream) : stream_(stream) {}

  const KnownStream& stream() const { return stream_; }
  std::uint32_t epoch() const { return epoch_; }
  // Ends the stream: no event is recorded from here on. Memory that becomes free on it later still carries the epoch that
  // ends now.
  void end() {
    if (!std::exchange(has_ended_, true)) ++epoch_;
  }
  bool has_ended() const { return has_ended_; }
  std::uint32_t epoch_of_frees() const { return has_ended_ ? epoch_ - 1 : epoch_; }
  // Another clock goes.
  void forget(const StreamClock& other) { waits_.erase(&other); }
  bool is_done(std::uint32_t epoch) const { return Reach::has_reached(done_, epoch); }
  bool has_events() const { return !events_.empty(); }
  std::size_t events() const { return events_.size(); }

  // Begins a new epoch; returns the one that ends. To be called before the event is recorded.
  std::uint32_t end_epoch() { return epoch_++; }
  void recorded(Event event, std::uint32_t epoch) { events_.push_back({event, epoch}); }
  Event oldest_event() const { return events_.front().event; }
  // Events recorded from here on are not for the request that comes now to wait for.
  void request_comes() { awaitable_ = events_.empty() ? done_ : events_.back().epoch; }
  // The earliest event that covers what became free in an epoch. Requires: there is one.
  Mark earliest_covering(std::uint32_t epoch) const {
    const auto covers = [&](const Mark& mark) { return Reach::has_reached(mark.epoch, epoch); };
    const auto found = std::find_if(events_.begin(), events_.end(), covers);
    CACHALOT_ASSERT(found != events_.end());
    return *found;
  }
  // The host has seen the oldest event finish; returns it, for reuse.
  Event oldest_is_done() {
    const Mark mark = events_.front();
    events_.pop_front();
    everything_is_done(mark.epoch);
    return mark.event;
  }
  // The host has waited for all work that was queued in or before an epoch.
  void everything_is_done(std::uint32_t epoch) {
    done_count_ += epoch - done_;
    done_ = epoch;
  }

  // Notes that this stream waits for memory freed on `other` in or before an epoch.
  void waits_for(const StreamClock& other, std::uint32_t epoch) {
    if (other.is_done(epoch)) return;
    waits_[&other] = {epoch, other.done_count_ + (epoch - other.done_)};
  }
  // Returns the epoch up to which memory freed on `other` is this stream's, too.
  Reach reach_into(const StreamClock& other) const {
    const auto found = waits_.find(&other);
    // A wait that is done says nothing more, however many epochs come after it.
    const bool waits = found != waits_.end() && found->second.done_at > other.done_count_;
    return {Reach::Kind::until, waits ? found->second.epoch : other.done_};
  }
  // Returns the reach after a wait for an event that was recorded before the request came.
  Reach reach_by_waiting(const StreamClock& other) const {
    const Reach now = reach_into(other);
    return Reach::has_reached(now.epoch, other.awaitable_) ? now : Reach{Reach::Kind::until, other.awaitable_};
  }

 private:
  struct Wait {
    std::uint32_t epoch;
    std::uint64_t done_at;  // at which done_count_ of the other
  };

  KnownStream stream_;
  bool has_ended_ = false;
  std::uint32_t epoch_ = 1;
  std::uint32_t done_ = 0;
  std::uint64_t done_count_ = 0;  // of epochs: as done_, without end
  std::uint32_t awaitable_ = 0;
  Deque<Mark> events_;  // oldest first
  HashMap<const StreamClock*, Wait> waits_;
};

// Memory whose last user was `clock`'s stream, in or before the epoch.
struct Ticket {
  const StreamClock* clock = nullptr;
  std::uint32_t epoch = 0;
  bool is_done() const { return clock->is_done(epoch); }
};

CACHALOT_END
